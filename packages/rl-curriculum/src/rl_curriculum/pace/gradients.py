"""The gradient of each level's own loss, for all levels of a rollout at once.

For dense layers one backward pass over the whole batch is enough: with the layer's inputs `X` and
the gradients `D` at its outputs, level `i` has the weight gradient `D[:, i].T @ X[:, i]`. Other
networks go through `torch.func.vmap` in chunks, or a loop over levels.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Method = Literal["auto", "hooks", "vmap", "loop"]
Loss = Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor]

# Policies whose layers were compared with autograd once, with what was found.
_verified: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
_CALLS = 64


def named_trainable(policy: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    found = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("policy has no parameter that requires a gradient; allowed: at least one")
    return found


def dense_only(policy: nn.Module, names: Sequence[str]) -> bool:
    """Whether all these parameters belong to dense layers and to one layer each."""
    owners: dict[int, int] = {}
    for module in policy.modules():
        for parameter in module.parameters(recurse=False):
            count = owners.get(id(parameter), 0)
            owners[id(parameter)] = count + (1 if type(module) is nn.Linear else _CALLS)
    parameters = named_trainable(policy)
    return all(owners.get(id(parameters[name])) == 1 for name in names)


class DenseTape:
    """Records what the dense layers of a policy take in and give out during one forward pass."""

    def __init__(self, policy: nn.Module) -> None:
        self.calls: list[tuple[nn.Linear, Tensor, Tensor]] = []
        self._layers = [m for m in policy.modules() if type(m) is nn.Linear]
        self._hooks: list[Any] = []

    def __enter__(self) -> DenseTape:
        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Linear)
            self.calls.append((layer, inputs[0].detach(), output))

        self._hooks = [layer.register_forward_hook(record) for layer in self._layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def gradients(
        self, policy: nn.Module, loss: Tensor, names: Sequence[str], shape: tuple[int, int]
    ) -> dict[str, Tensor] | None:
        """Each level's gradient of `loss`, a sum over levels; None if a layer's rows are unclear.

        Returns
        -------
        gradients
            By parameter name, shape (N, *parameter.shape).
        """
        T, N = shape
        for layer, taken, _ in self.calls:
            rows = taken.shape[:-1]
            if tuple(rows) not in ((T, N), (T * N,)) or taken.shape[-1] != layer.in_features:
                return None
        outputs = [output for *_, output in self.calls]
        flows = torch.autograd.grad(loss, outputs, allow_unused=True)
        by_id = {id(p): name for name, p in named_trainable(policy).items()}
        wanted: set[str | None] = set(names)
        found: dict[str, Tensor] = {}
        for (layer, taken, _), flow in zip(self.calls, flows, strict=True):
            if flow is None:
                continue
            x = taken.reshape(T, N, -1).permute(1, 0, 2)
            d = flow.reshape(T, N, -1).permute(1, 2, 0)
            weight, bias = by_id.get(id(layer.weight)), by_id.get(id(layer.bias))
            parts: dict[str, Tensor] = {}
            if weight in wanted:
                parts[str(weight)] = torch.bmm(d, x)
            if bias in wanted:
                parts[str(bias)] = d.sum(-1)
            for name, part in parts.items():
                found[name] = found[name] + part if name in found else part
        return found


def each_level(
    policy: nn.Module,
    loss: Loss,
    names: Sequence[str],
    obs: Tensor,
    actions: Tensor,
    starts: Tensor,
    hidden0: tuple[Tensor, ...] | None,
    data: dict[str, Tensor],
    parameters: dict[str, Tensor] | None = None,
    chunk: int | None = None,
    method: Literal["vmap", "loop"] = "vmap",
) -> dict[str, Tensor]:
    """Each level's gradient by `vmap` over levels, or by a loop over them.

    Parameters
    ----------
    policy
        The module.
    loss
        From (logp, entropy, value, data) of one level, each (T, 1), to a number.
    names
        The parameters wanted.
    obs, actions, starts, hidden0
        As in a rollout, levels on axis 1.
    data
        Other tensors of shape (T, N).
    parameters
        Values of the parameters for each level, shape (N, ...); the policy's own if None.
    chunk
        Levels at a time under `vmap`.
    method
        `"vmap"` falls back to the loop where the policy cannot be mapped.

    Returns
    -------
    gradients
        By parameter name, shape (N, *parameter.shape).
    """
    own = named_trainable(policy)
    places = _places(policy, own)
    N = obs.shape[1]

    def level_loss(
        wanted: dict[str, Tensor],
        o: Tensor,
        a: Tensor,
        s: Tensor,
        h: tuple[Tensor, ...],
        d: dict[str, Tensor],
    ) -> Tensor:
        keep = {name: own[name].detach() for name in own if name not in wanted}
        arguments = (
            o.unsqueeze(1),
            a.unsqueeze(1),
            tuple(part.unsqueeze(1) for part in h) or None,
            s.unsqueeze(1),
        )
        written = {
            f"policy.{place}": value
            for name, value in (keep | wanted).items()
            for place in places[name]
        }
        # Untied: torch would write a module that has two names twice, and put it back wrongly.
        logp, entropy, value = functional_call(
            _Evaluate(policy), written, arguments, tie_weights=False
        )
        return loss(logp, entropy, value, {name: part.unsqueeze(1) for name, part in d.items()})

    hidden = tuple(part.transpose(0, 1) for part in hidden0 or ())
    rows = (
        obs.transpose(0, 1),
        actions.transpose(0, 1),
        starts.transpose(0, 1),
        hidden,
        {name: value.transpose(0, 1) for name, value in data.items()},
    )
    shared = parameters is None
    values = {name: own[name].detach() for name in names} if parameters is None else parameters
    if method == "vmap":
        mapped = vmap(
            grad(level_loss),
            in_dims=(None if shared else 0, 0, 0, 0, 0, 0),
            chunk_size=chunk,
            randomness="error",
        )
        try:
            return dict(mapped(values, *rows))
        except (RuntimeError, NotImplementedError):
            # Modules such as cuDNN recurrences have no batching rule.
            pass
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for i in range(N):
        leafs = {
            name: (value if shared else value[i]).detach().requires_grad_()
            for name, value in values.items()
        }
        value = level_loss(
            leafs,
            rows[0][i],
            rows[1][i],
            rows[2][i],
            tuple(part[i] for part in hidden),
            {name: part[i] for name, part in rows[4].items()},
        )
        parts = torch.autograd.grad(value, list(leafs.values()), allow_unused=True)
        for (name, leaf), part in zip(leafs.items(), parts, strict=True):
            found[name].append(torch.zeros_like(leaf) if part is None else part)
    return {name: torch.stack(parts) for name, parts in found.items()}


def verified(policy: nn.Module) -> bool | None:
    """Whether the layer-wise gradients of this policy were found right; None if never tried."""
    return _verified.get(policy)


def remember(policy: nn.Module, right: bool) -> None:
    """Keep what a comparison with autograd found."""
    _verified[policy] = right


class _Evaluate(nn.Module):
    """`evaluate` as the forward pass, which `functional_call` needs."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *arguments: Any) -> Any:
        evaluate: Callable[..., Any] = self.policy.evaluate  # type: ignore[assignment]
        return evaluate(*arguments)


def _places(policy: nn.Module, own: dict[str, nn.Parameter]) -> dict[str, list[str]]:
    """Every attribute that holds a parameter, once each, by the parameter's name."""
    names = {id(parameter): name for name, parameter in own.items()}
    places: dict[str, list[str]] = {name: [] for name in own}
    for prefix, module in policy.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in names:
                place = f"{prefix}.{attribute}" if prefix else attribute
                places[names[id(parameter)]].append(place)
    return places
