r"""The score of PACE: how far a provisional update on a level alone would move the policy.

.. math:: S(x) = \| U(\phi; \tau_x) - \phi \|_2^2

With one plain gradient step this is `eta^2 |ghat|^2`, and by Taylor's theorem the ranking of levels
by it is the ranking by the expected first-order gain. What is estimated from `n` samples contains
their noise, :math:`E|\hat g|^2 = |g|^2 + \mathrm{tr}(\Sigma)/n`: use rollouts of several episodes a
level, and do not sharpen the ranking.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from . import gradients
from .gradients import Method
from .rollout import Rollout

Floats = NDArray[np.float64]
Normalisation = Literal["level", "none", "batch"]


def pace_scores(
    policy: nn.Module,
    batch: Rollout,
    *,
    optimizer: Literal["sgd", "adam"] = "sgd",
    step_size: float = 1.0,
    advantage_norm: Normalisation = "level",
    loss: Literal["policy", "policy+value"] = "policy",
    params: Literal["policy", "actor_head"] | Callable[[str], bool] = "policy",
    debias: Literal["split"] | None = None,
    advantages: ArrayLike | None = None,
    min_adv_std: float = 0.0,
    value_coef: float = 0.5,
    opt_state: torch.optim.Optimizer | None = None,
    epochs: int = 4,
    clip: float = 0.2,
    max_grad_norm: float | None = 0.5,
    chunk: int | None = None,
    method: Method = "auto",
) -> Floats:
    """Squared length of the parameter change that a provisional update on each level would make.

    The policy is left as it is. It has a method
    `evaluate(obs, actions, hidden, starts) -> (logp, entropy, value)` on tensors of shape
    (T, N, ...), each result (T, N).

    Parameters
    ----------
    policy
        The module; dropout is off while it is scored.
    batch
        The rollout that was collected with it, before any update.
    optimizer
        `"sgd"`: one step of length `step_size` along the gradient of each level's mean policy
        loss, which at these parameters is PPO's. `"adam"`: `epochs` clipped PPO steps with a copy
        of the learner's Adam state.
    step_size
        `eta` of the plain step; it rescales all scores alike.
    advantage_norm
        `"level"`: centred and scaled on each level, so that a level's reward scale and
        reward noise do not count. `"none"`: the theorem's own quantity, a little better where
        rewards have no noise. `"batch"`: one mean and deviation for all.
    loss
        Whether the critic's loss counts too.
    params
        `"policy"`: all that get a gradient from the actor's loss; `"actor_head"`: the parameters of
        `policy.actor_head`; or a function of a parameter's name.
    debias
        `"split"`: `eta^2 <ghat_A, ghat_B>` over the first and the second half of the steps, which
        is without bias but far noisier; it can be negative.
    advantages
        Shape (T, N); the rollout's own if None.
    min_adv_std
        Levels whose advantages deviate less than this score 0 under `"level"`.
    value_coef
        Weight of the critic's loss under `"policy+value"`.
    opt_state
        The learner's `torch.optim.Adam`, for `"adam"`. A fresh one is refused: its first step has
        the same length on every level.
    epochs, clip, max_grad_norm
        Of the `"adam"` update.
    chunk
        Levels at a time where gradients are mapped over levels.
    method
        `"auto"`: one backward pass if the policy is made of dense layers and a comparison on one
        level agrees, `torch.func.vmap` otherwise. `"hooks"`, `"vmap"` and `"loop"` ask for one way.

    Returns
    -------
    scores
        Shape (N,), float64.

    Raises
    ------
    ValueError
        If an advantage is not finite, the policy couples levels through batch normalisation, or
        `opt_state` is missing.
    TypeError
        If the policy has no `evaluate`.

    Notes
    -----
    Source: PACE, the score of section 3.

    Examples
    --------
    >>> from rl_curriculum.pace import MLPPolicy
    >>> rng = np.random.default_rng(0)
    >>> flags = np.zeros((8, 3), bool)
    >>> batch = Rollout(
    ...     obs=torch.zeros(8, 3, 4), actions=torch.zeros(8, 3, dtype=torch.long),
    ...     logp=torch.zeros(8, 3), values=np.zeros((8, 3)), rewards=rng.normal(size=(8, 3)),
    ...     terminated=flags, truncated=flags, last_value=np.zeros(3))
    >>> pace_scores(MLPPolicy(4, 2, seed=0), batch).shape
    (3,)
    """
    _check(policy, optimizer, advantage_norm, loss, debias, opt_state)
    T, N = batch.shape
    raw = np.asarray(batch.advantages if advantages is None else advantages, dtype=np.float64)
    if raw.shape != (T, N):
        raise ValueError(f"advantages has shape {raw.shape}; allowed: {(T, N)}, as the rewards")
    bad = ~np.isfinite(raw).all(axis=0)
    if bad.any():
        raise ValueError(f"advantages at level {int(np.argmax(bad))} are not all finite")
    if not 0 <= min_adv_std < np.inf:
        raise ValueError(f"min_adv_std is {min_adv_std!r}; allowed: a number of at least 0")
    if not 0 < step_size < np.inf:
        raise ValueError(f"step_size is {step_size!r}; allowed: a positive number")
    returns = raw + batch.values
    scaled = normalised(raw, advantage_norm, min_adv_std)
    first = next(policy.parameters())
    weights: dict[str, Tensor] = {
        "advantages": torch.as_tensor(scaled, dtype=first.dtype, device=first.device),
        "returns": torch.as_tensor(returns, dtype=first.dtype, device=first.device),
    }
    obs, actions = batch.obs.to(first.device), batch.actions.to(first.device)
    starts = batch.starts.to(first.device)
    hidden = None
    if batch.hidden0 is not None:
        hidden = tuple(h.to(first.device) for h in batch.hidden0)

    def level_loss(logp: Tensor, entropy: Tensor, value: Tensor, data: dict[str, Tensor]) -> Tensor:
        total = -(data["advantages"] * logp).sum()
        if loss == "policy+value":
            total = total + value_coef * 0.5 * (value - data["returns"]).square().sum()
        return total / len(logp)

    with _evaluating(policy):
        names = _chosen(policy, params, obs, actions, hidden, starts)
        if optimizer == "adam":
            assert opt_state is not None
            weights["logp"] = batch.logp.to(first)
            return _adam_scores(
                policy,
                (obs, actions, starts, hidden),
                weights,
                names,
                opt_state,
                {
                    "epochs": epochs,
                    "clip": clip,
                    "max_grad_norm": max_grad_norm,
                    "value_coef": value_coef if loss == "policy+value" else 0.0,
                    "chunk": chunk,
                    "method": "loop" if method == "loop" else "vmap",
                },
            )
        inputs = (obs, actions, starts, hidden)
        if debias is None:
            found = _level_gradients(policy, level_loss, names, inputs, weights, chunk, method)
            return step_size**2 * _inner(found, found)
        half = T // 2
        parts = []
        for piece in (slice(0, half), slice(half, 2 * half)):
            # Masked rather than cut, so that a recurrent state runs through all steps.
            mask = torch.zeros(T, 1, dtype=first.dtype, device=first.device)
            mask[piece] = T / half
            masked = {"advantages": weights["advantages"] * mask, "returns": weights["returns"]}
            if loss == "policy+value":
                masked["mask"] = mask.expand(T, N)
            parts.append(
                _level_gradients(
                    policy,
                    _masked(value_coef) if loss == "policy+value" else level_loss,
                    names,
                    inputs,
                    masked,
                    chunk,
                    method,
                )
            )
        return step_size**2 * _inner(*parts)


def level_gradients(
    policy: nn.Module,
    batch: Rollout,
    *,
    advantage_norm: Normalisation = "none",
    method: Method = "auto",
) -> Tensor:
    """Each level's own gradient of the mean policy loss, as one row.

    Parameters
    ----------
    policy, batch, advantage_norm, method
        As in `pace_scores`, whose plain scores are the squared lengths of the rows.

    Returns
    -------
    gradients
        Shape (N, d).

    Examples
    --------
    >>> from rl_curriculum.pace import MLPPolicy
    >>> flags = np.zeros((8, 3), bool)
    >>> batch = Rollout(
    ...     obs=torch.zeros(8, 3, 4), actions=torch.zeros(8, 3, dtype=torch.long),
    ...     logp=torch.zeros(8, 3), values=np.zeros((8, 3)), rewards=np.ones((8, 3)),
    ...     terminated=flags, truncated=flags, last_value=np.zeros(3))
    >>> level_gradients(MLPPolicy(4, 2, (6,), seed=0), batch).shape
    torch.Size([3, 44])
    """
    _check(policy, "sgd", advantage_norm, "policy", None, None)
    first = next(policy.parameters())
    scaled = torch.as_tensor(normalised(batch.advantages, advantage_norm)).to(first)
    obs, actions = batch.obs.to(first.device), batch.actions.to(first.device)
    starts, hidden = batch.starts.to(first.device), batch.hidden0

    def loss(logp: Tensor, entropy: Tensor, value: Tensor, data: dict[str, Tensor]) -> Tensor:
        return -(data["advantages"] * logp).sum() / len(logp)

    with _evaluating(policy):
        names = _chosen(policy, "policy", obs, actions, hidden, starts)
        found = _level_gradients(
            policy,
            loss,
            names,
            (obs, actions, starts, hidden),
            {"advantages": scaled},
            None,
            method,
        )
    return torch.cat([found[name].reshape(len(found[name]), -1) for name in names], dim=1).detach()


def normalised(advantages: Floats, how: Normalisation, min_std: float = 0.0) -> Floats:
    """Advantages centred and scaled on each level, over the batch, or not at all.

    Parameters
    ----------
    advantages
        Shape (T, N).
    how
        `"level"`, `"batch"` or `"none"`.
    min_std
        Levels that deviate less get 0 under `"level"`.

    Returns
    -------
    advantages
        Shape (T, N).

    Examples
    --------
    >>> normalised(np.array([[1.0], [3.0]]), "level").round(6).tolist()
    [[-1.0], [1.0]]
    """
    if how == "none":
        return advantages
    axis = 0 if how == "level" else None
    centred = advantages - advantages.mean(axis=axis, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=axis, keepdims=True))
    scaled: Floats = centred / (deviation + 1e-8)
    if how == "level":
        # Deviations of rounding errors alone are no signal.
        floor = np.maximum(min_std, 1e-12 * np.abs(advantages).max(axis=0, keepdims=True))
        scaled = np.where(deviation <= floor, 0.0, scaled)
    return scaled


def warn_without_episodes(batch: Rollout) -> None:
    """Warn once if no episode ended in a rollout: its scores rest on the critic alone."""
    if not batch.done.any():
        warnings.warn(
            "no episode ended in the rollout, so scores rest on the critic's values alone; "
            "use more steps a level than an episode has",
            UserWarning,
            stacklevel=3,
        )


def _check(
    policy: nn.Module,
    optimizer: str,
    advantage_norm: str,
    loss: str,
    debias: str | None,
    opt_state: torch.optim.Optimizer | None,
) -> None:
    allowed = {
        "optimizer": (optimizer, ("sgd", "adam")),
        "advantage_norm": (advantage_norm, ("level", "none", "batch")),
        "loss": (loss, ("policy", "policy+value")),
        "debias": (debias, (None, "split")),
    }
    for name, (value, options) in allowed.items():
        if value not in options:
            raise ValueError(f"{name} is {value!r}; allowed: {options}")
    if not isinstance(policy, nn.Module) or not callable(getattr(policy, "evaluate", None)):
        raise TypeError(
            f"policy is a {type(policy).__name__}; allowed: a torch module with a method "
            "evaluate(obs, actions, hidden, starts) -> (logp, entropy, value)"
        )
    for module in policy.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                "policy has batch normalisation, which couples levels; allowed: policies in "
                "which one level's output does not depend on another's"
            )
    if optimizer == "adam":
        if debias is not None:
            raise ValueError("debias='split' needs optimizer='sgd'")
        if not isinstance(opt_state, torch.optim.Adam) or not opt_state.state:
            raise ValueError(
                "opt_state is missing or fresh; allowed with optimizer='adam': the learner's "
                "torch.optim.Adam after at least one step, because a fresh one moves every "
                "parameter by the learning rate whatever the level"
            )


@contextmanager
def _evaluating(policy: nn.Module) -> Iterator[None]:
    trained = [module for module in policy.modules() if module.training]
    policy.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def _chosen(
    policy: nn.Module,
    params: str | Callable[[str], bool],
    obs: Tensor,
    actions: Tensor,
    hidden: tuple[Tensor, ...] | None,
    starts: Tensor,
) -> list[str]:
    """The names of the parameters whose change counts."""
    own = gradients.named_trainable(policy)
    if callable(params):
        chosen = [name for name in own if params(name)]
        if not chosen:
            raise ValueError("params chooses no parameter that is trained")
        return chosen
    if params == "actor_head":
        head = getattr(policy, "actor_head", None)
        if not isinstance(head, nn.Module):
            raise ValueError("params is 'actor_head', but the policy has no module actor_head")
        members = {id(p) for p in head.parameters()}
        return [name for name, p in own.items() if id(p) in members]
    if params != "policy":
        raise ValueError(f"params is {params!r}; allowed: 'policy', 'actor_head' or a function")
    few = None if hidden is None else tuple(h[:, :1] for h in hidden)
    evaluate: Callable[..., Any] = policy.evaluate  # type: ignore[assignment]
    logp = evaluate(obs[:2, :1], actions[:2, :1], few, starts[:2, :1])[0]
    flows = torch.autograd.grad(logp.sum(), list(own.values()), allow_unused=True)
    return [name for name, flow in zip(own, flows, strict=True) if flow is not None]


def _level_gradients(
    policy: nn.Module,
    loss: gradients.Loss,
    names: list[str],
    inputs: tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...] | None],
    data: dict[str, Tensor],
    chunk: int | None,
    method: Method,
) -> dict[str, Tensor]:
    obs, actions, starts, hidden = inputs
    if method not in ("auto", "hooks", "vmap", "loop"):
        raise ValueError(f"method is {method!r}; allowed: 'auto', 'hooks', 'vmap' or 'loop'")
    dense = hidden is None and gradients.dense_only(policy, names)
    if method == "hooks" and not dense:
        raise ValueError("method is 'hooks', but the policy is not made of dense layers alone")
    if method == "hooks" or (
        method == "auto" and dense and gradients.verified(policy) is not False
    ):
        with gradients.DenseTape(policy) as tape:
            evaluate: Callable[..., Any] = policy.evaluate  # type: ignore[assignment]
            logp, entropy, value = evaluate(obs, actions, None, starts)
        found = tape.gradients(
            policy, loss(logp, entropy, value, data), names, (obs.shape[0], obs.shape[1])
        )
        if found is None and method == "hooks":
            raise ValueError("method is 'hooks', but a layer's rows are not (T, N) or (T * N,)")
        if found is not None:
            for name in names:
                if name not in found:
                    like = gradients.named_trainable(policy)[name]
                    found[name] = like.new_zeros((obs.shape[1], *like.shape))
        if found is not None and gradients.verified(policy) is None:
            # Once a policy: nothing but a comparison shows that rows are what they seem to be.
            last = obs.shape[1] - 1
            one = gradients.each_level(
                policy,
                loss,
                names,
                obs[:, last:],
                actions[:, last:],
                starts[:, last:],
                None,
                {name: part[:, last:] for name, part in data.items()},
                method="loop",
            )
            length = max(float(g.norm()) for g in one.values())
            gap = max(float((found[name][last] - one[name][0]).norm()) for name in names)
            right = gap <= 1e-3 * length + 1e-12
            if length > 0:
                gradients.remember(policy, right)
            if not right:
                if method == "hooks":
                    raise ValueError("method is 'hooks', but autograd gives other gradients")
                found = None
        if found is not None:
            return found
    return gradients.each_level(
        policy,
        loss,
        names,
        obs,
        actions,
        starts,
        hidden,
        data,
        chunk=chunk,
        method="loop" if method == "loop" else "vmap",
    )


def _masked(value_coef: float) -> gradients.Loss:
    def loss(logp: Tensor, entropy: Tensor, value: Tensor, data: dict[str, Tensor]) -> Tensor:
        critic = 0.5 * (data["mask"] * (value - data["returns"]).square()).sum()
        return (value_coef * critic - (data["advantages"] * logp).sum()) / len(logp)

    return loss


def _inner(a: dict[str, Tensor], b: dict[str, Tensor]) -> Floats:
    """Inner products of two sets of gradients, level by level."""
    if a is b:
        # Norms of the layers, because squares of all entries in double precision cost more.
        norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in a.values()]
        parts = [norm.double().square() for norm in norms]
    else:
        parts = [(a[k].double() * b[k].double()).reshape(len(a[k]), -1).sum(1) for k in a]
    total: Floats = torch.stack(parts).sum(0).detach().cpu().numpy()
    return total


def _adam_scores(
    policy: nn.Module,
    inputs: tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...] | None],
    data: dict[str, Tensor],
    names: list[str],
    learner: torch.optim.Optimizer,
    options: dict[str, Any],
) -> Floats:
    """`epochs` PPO steps a level with a copy of the learner's moments, thrown away afterwards."""
    obs, actions, starts, hidden = inputs
    N = obs.shape[1]
    own = gradients.named_trainable(policy)
    settings: dict[int, dict[str, Any]] = {
        id(p): group for group in learner.param_groups for p in group["params"]
    }
    for name in names:
        if own[name] not in learner.state:
            raise ValueError(f"opt_state knows no moments of the parameter {name!r}")

    def stacked(value: Tensor) -> Tensor:
        return value.detach().expand(N, *value.shape).clone()

    values = {name: stacked(own[name]) for name in names}
    first = {name: stacked(learner.state[own[name]]["exp_avg"]) for name in names}
    second = {name: stacked(learner.state[own[name]]["exp_avg_sq"]) for name in names}
    steps = {name: float(learner.state[own[name]]["step"]) for name in names}
    clip = options["clip"]

    def loss(logp: Tensor, entropy: Tensor, value: Tensor, d: dict[str, Tensor]) -> Tensor:
        ratio = (logp - d["logp"]).exp()
        gain = torch.minimum(
            ratio * d["advantages"], ratio.clamp(1 - clip, 1 + clip) * d["advantages"]
        )
        critic = 0.5 * (value - d["returns"]).square().mean()
        total: Tensor = options["value_coef"] * critic - gain.mean()
        return total

    for _ in range(options["epochs"]):
        flows = gradients.each_level(
            policy,
            loss,
            names,
            obs,
            actions,
            starts,
            hidden,
            data,
            parameters=values,
            chunk=options["chunk"],
            method=options["method"],
        )
        if options["max_grad_norm"] is not None:
            squares = torch.stack([f.reshape(len(f), -1).square().sum(1) for f in flows.values()])
            shrink = (options["max_grad_norm"] / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
            flows = {name: f * shrink.view(-1, *[1] * (f.ndim - 1)) for name, f in flows.items()}
        for name, flow in flows.items():
            group = settings[id(own[name])]
            low, high = group["betas"]
            steps[name] += 1
            first[name] = low * first[name] + (1 - low) * flow
            second[name] = high * second[name] + (1 - high) * flow.square()
            mean = first[name] / (1 - low ** steps[name])
            spread = (second[name] / (1 - high ** steps[name])).sqrt()
            values[name] = values[name] - group["lr"] * mean / (spread + group["eps"])
    moved = {name: values[name] - own[name].detach() for name in names}
    return _inner(moved, moved)
