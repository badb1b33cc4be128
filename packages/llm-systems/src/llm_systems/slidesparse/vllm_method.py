"""vLLM's linear layers with a pruned weight: an out-of-tree quantisation method.

The checkpoint stays an ordinary dense one, so that fused projections and tensor parallelism load as
always; after loading, each weight is checked and put into the form of its backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import set_weight_attrs

from .backends import apply, prepare
from .checkpoint import NAME, Settings, is_other
from .conversion import is_ignored
from .patterns import naming
from .sharding import check_shard


@register_quantization_config(NAME)
class SlideSparseConfig(QuantizationConfig):  # type: ignore[misc]
    """What `quantization_config` of a converted model says."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SlideSparseConfig:
        return cls(Settings.read(config))

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if not isinstance(layer, LinearBase):
            return None
        if self.leaves_alone(prefix):
            return UnquantizedLinearMethod()
        return SlideSparseLinearMethod(self.settings, prefix)

    def leaves_alone(self, prefix: str) -> bool:
        """Whether a layer is ignored or none that is converted; a fused one if all in it are.

        Raises
        ------
        ValueError
            If only some of them are.
        """
        ignore = self.settings.ignore
        if is_other(prefix):
            return True
        parent, _, last = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(last, [])
        ignored = [is_ignored(f"{parent}.{part}" if parent else part, ignore) for part in parts]
        if any(ignored) and not all(ignored):
            raise ValueError(
                f"{prefix} fuses {', '.join(parts)}, of which only some are ignored; "
                "convert or ignore all of them"
            )
        return bool(ignored and all(ignored)) or is_ignored(prefix, ignore)


class SlideSparseLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """Loads a dense pruned weight and multiplies it through its backend."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        self.settings, self.prefix = settings, prefix

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        check_shard(self.prefix, input_size, input_size_per_partition, self.settings.pattern)
        loader: Callable[..., None] = extra_weight_attrs.pop("weight_loader")
        weight = ModelWeightParameter(
            data=torch.empty(
                sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype
            ),
            input_dim=1,
            output_dim=0,
            weight_loader=loader,
        )
        layer.register_parameter("weight", weight)
        set_weight_attrs(weight, extra_weight_attrs)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        assert isinstance(layer.weight, Tensor)
        weight = layer.weight.data
        with naming(self.prefix or "a linear layer"):
            prepared = prepare(weight, self.settings.pattern, self.settings.activation)
        # A method belongs to one layer.
        self.prepared = prepared
        if prepared.weight is not weight:
            # Packed or quantised: the dense weight is not needed any more.
            layer.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        out = apply(self.prepared, tokens, bias)
        return out.view(*x.shape[:-1], self.prepared.outputs)
