"""Shared inputs of the tests of SlideSparse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from llm_systems.slidesparse import Pattern, prune_

PATTERNS = ("2:4", "4:6", "6:8", "8:10", "14:16")


@pytest.fixture(params=PATTERNS)
def pattern(request: pytest.FixtureRequest) -> Pattern:
    return Pattern.parse(request.param)


@pytest.fixture
def pruned() -> Callable[..., Tensor]:
    """A random weight [outputs, inputs] that obeys a pattern."""

    def make(outputs: int, inputs: int, pattern: Pattern, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(outputs, inputs, generator=generator)
        prune_(weight, pattern, "random", seed=generator)
        return weight

    return make


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder like that of a Hugging Face model, of two shards with an index."""
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    first = {
        "model.embed_tokens.weight": torch.randn(50, 20, generator=generator),
        "model.layers.0.self_attn.q_proj.weight": torch.randn(12, 20, generator=generator),
        "model.layers.0.self_attn.q_proj.bias": torch.randn(12, generator=generator),
        "model.layers.0.mlp.down_proj.weight": torch.randn(20, 36, generator=generator).bfloat16(),
    }
    second = {
        "model.norm.weight": torch.ones(20),
        "model.layers.1.mlp.up_proj.weight": torch.randn(36, 20, generator=generator).half(),
        "lm_head.weight": torch.randn(50, 20, generator=generator),
    }
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for name, tensors in shards.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    index = {"weight_map": {key: name for name, t in shards.items() for key in t}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
