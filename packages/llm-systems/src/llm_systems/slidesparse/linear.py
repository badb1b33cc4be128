"""A drop-in replacement for `torch.nn.Linear` whose weight obeys a pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backends import INFERENCE_ONLY, Activation, Backend, Prepared, apply, check_choices, prepare
from .patterns import Pattern, check_size


class SlideLinear(nn.Module):
    """`y = x W^T + b` with `W` of pattern (2N-2):2N, through the fastest way on this device.

    The state holds the ordinary pruned `weight` and `bias` under their ordinary names, so that a
    checkpoint goes in and out unchanged. What the backend reads is made from it when the layer is
    made, moved or loaded; call `prepare()` after changing the weight in place. On a CPU this takes
    0.8 of the dense weight's memory (at 6:8) beside it.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As of `torch.nn.Linear`. There is no weight to multiply with before one is loaded.
    pattern
        Such as `"6:8"`.
    activation
        None multiplies as it is; `"int8"` and `"fp8"` quantise weights by channel and inputs by
        token. Their results are those of the dense layer with the same scales, for int8 exactly.
    backend
        `"auto"`, `"cpu"`, `"cusparselt"`, `"torch"` or `"dense"`; see `backends.py`.

    Raises
    ------
    ValueError
        For inputs of another width, or a backend that is not for the device.
    RuntimeError
        For inputs that want a gradient from a backend for inference or from rounded inputs, or a
        backend that is not there.

    Notes
    -----
    Source: the paper's sliding window decomposition and activation lifting.

    Examples
    --------
    >>> from llm_systems.slidesparse import prune_
    >>> dense = nn.Linear(16, 8)
    >>> _ = prune_(dense, "6:8")
    >>> layer = SlideLinear.from_linear(dense, "6:8")
    >>> x = torch.ones(2, 5, 16)
    >>> with torch.inference_mode():
    ...     torch.allclose(layer(x), dense(x), atol=1e-5)
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        pattern: str | Pattern,
        *,
        bias: bool = True,
        activation: Activation = None,
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choices(activation, backend)
        self.in_features = check_size(in_features, "in_features")
        self.out_features = check_size(out_features, "out_features")
        self.pattern = Pattern.parse(pattern)
        self.activation, self.backend = activation, backend
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtype is {dtype}; allowed: a floating type")
        weight = torch.zeros((out_features, in_features), device=device, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = (
            nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype), requires_grad=False)
            if bias
            else None
        )
        self._prepared: Prepared | None = None
        self.register_load_state_dict_post_hook(_prepare_after_loading)  # type: ignore[no-untyped-call]

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        pattern: str | Pattern,
        activation: Activation = None,
        backend: Backend = "auto",
    ) -> Self:
        """Take over weight and bias of a linear layer that obeys the pattern; they are shared.

        Raises
        ------
        PatternViolation
            For a weight that does not obey it.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear is a {type(linear).__name__}; allowed: a torch.nn.Linear")
        layer = cls(
            linear.in_features, linear.out_features, pattern, bias=linear.bias is not None,
            activation=activation, backend=backend, device="meta",
        )  # fmt: skip
        layer.weight = nn.Parameter(linear.weight.data, requires_grad=False)
        if linear.bias is not None:
            layer.bias = nn.Parameter(linear.bias.data, requires_grad=False)
        layer.prepare()
        return layer.train(linear.training)

    def prepare(self) -> None:
        """Make what the backend reads from the weight, anew."""
        if self.weight.is_meta:
            self._prepared = None
        else:
            self._prepared = prepare(self.weight.data, self.pattern, self.activation, self.backend)

    @property
    def backend_in_use(self) -> str:
        """Which backend multiplies: `"cpu-avx512"`, `"cpu-avx2"`, `"cusparselt"`, `"dense"`, ..."""
        return "none" if self._prepared is None else self._prepared.name

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [..., in_features] to outputs [..., out_features]."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; allowed: a torch.Tensor")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"x has {x.shape[-1] if x.dim() else 'no'} inputs; allowed: {self.in_features}"
            )
        prepared = self._prepared
        if prepared is None:
            raise RuntimeError("the layer has no weight yet; load one")
        if x.device != self.weight.device:
            raise ValueError(f"x is on {x.device} and the weight on {self.weight.device}")
        if x.dtype != self.weight.dtype:
            raise ValueError(f"x is {x.dtype} and the weight {self.weight.dtype}")
        if x.requires_grad and torch.is_grad_enabled():
            if prepared.backend in INFERENCE_ONLY:
                raise RuntimeError(
                    f"backend {prepared.name!r} has no gradient: use torch.inference_mode(), or "
                    "backend='dense' for the gradient of the inputs"
                )
            if prepared.activation is not None:
                raise RuntimeError(
                    f"activation {prepared.activation!r} rounds, which has no gradient: use "
                    "torch.inference_mode(), or activation=None and backend='dense'"
                )
        tokens = x.reshape(-1, self.in_features)
        return apply(prepared, tokens, self.bias).view(*x.shape[:-1], self.out_features)

    def dense_reference(self, x: Tensor) -> Tensor:
        """What the pruned weight gives without quantisation, windows or kernels."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, pattern={self.pattern}, "
            f"activation={self.activation}, backend={self.backend_in_use}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        had_none = self.weight.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # After `to_empty` there is memory, but no weight before one is loaded.
        if not had_none:
            self.prepare()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.prepare()


def _prepare_after_loading(module: nn.Module, _: Any) -> None:
    assert isinstance(module, SlideLinear)
    module.prepare()
