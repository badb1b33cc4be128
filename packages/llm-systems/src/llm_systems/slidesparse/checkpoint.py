"""Checkpoints: folders of Hugging Face models, read, checked, saved and loaded.

A converted checkpoint is an ordinary pruned dense one: names, shapes and types are those of the
source, and only `quantization_config` in `config.json` says that the weights obey a pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._files import new_folder
from . import safefile
from .backends import Activation, Backend, read_activation
from .conversion import convert, is_ignored
from .linear import SlideLinear
from .patterns import Pattern, PatternReport, check, naming
from .safefile import DTYPES, Entry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "slidesparse"
# What has two dimensions and is no linear layer, or one whose few outputs steer the others.
NO_LINEAR = "looked for names ending in .weight, of two dimensions, in F32, F16 or BF16"
_NOT_LINEAR = re.compile(r"embed|wte|wpe|lm_head|norm|router|(^|\.)(gate|shared|position\w*)$")


def quantization_config(
    pattern: Pattern, activation: Activation, ignore: Sequence[str]
) -> dict[str, Any]:
    """What `config.json` says about a converted model."""
    return {
        "quant_method": NAME,
        "pattern": str(pattern),
        "activation": activation or "none",
        "ignore": list(ignore),
    }


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model's folder.

    Raises
    ------
    ValueError
        If there is none, or it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no config.json; allowed: the folder of a model")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    return config


@dataclass(frozen=True)
class Settings:
    """What a converted folder's `config.json` says."""

    pattern: Pattern
    activation: Activation
    ignore: tuple[str, ...]

    @classmethod
    def read(cls, config: dict[str, Any]) -> Settings:
        """From a `quantization_config`.

        Raises
        ------
        ValueError
            If it is none of ours, or a field is missing or wrong.
        """
        if config.get("quant_method") != NAME:
            raise ValueError(f"quant_method is {config.get('quant_method')!r}; allowed: {NAME!r}")
        activation = read_activation(config.get("activation", "none"))
        ignore = config.get("ignore", ["lm_head"])
        if not isinstance(ignore, list) or not all(isinstance(entry, str) for entry in ignore):
            raise ValueError(f"ignore is {ignore!r}; allowed: a list of names")
        if "pattern" not in config:
            raise ValueError("quantization_config has no pattern; allowed: such as '6:8'")
        return cls(Pattern.parse(config["pattern"]), activation, tuple(ignore))


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder, as its index names them if it has one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
            found = [folder / name for name in names]
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{index} is no index of shards: {error!r}") from None
        missing = [path.name for path in found if path.parent != folder or not path.is_file()]
        if missing:
            raise ValueError(f"{index.name} names {missing[0]}, which is not in {folder}")
        return found
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ValueError(f"{folder} has no .safetensors file")
    return found


def is_linear(entry: Entry) -> bool:
    """Whether a tensor of a file is the weight of a linear layer."""
    name = entry.name.removesuffix(".weight")
    return (
        name != entry.name
        and len(entry.shape) == 2
        and all(entry.shape)
        and entry.dtype in DTYPES
        and not is_other(name)
    )


def is_other(name: str) -> bool:
    """Whether a name is that of an embedding, a norm, or a router, which are left alone."""
    return _NOT_LINEAR.search(name) is not None


def storage(config: dict[str, Any]) -> dict[str, Any]:
    """What a `config.json` says about how weights are stored; empty if nothing."""
    stored = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(stored, dict):
        raise ValueError(f"quantization_config is {stored!r}; allowed: an object")
    return stored


def transformers_module() -> Any:
    """The library transformers, which comes with the extra `lm`."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        message = "this needs the extra 'lm': pip install 'llm-systems[lm]'"
        raise ModuleNotFoundError(message) from error
    return transformers


def token_chunks(folder: str | Path, text: str, length: int, count: int) -> list[Tensor]:
    """Cut a text into `count` chunks [1, length] of token ids with a model's own tokenizer.

    Raises
    ------
    ValueError
        If the text has too few tokens.
    """
    tokenizer = transformers_module().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    if len(ids) < length * count:
        raise ValueError(
            f"the text has {len(ids)} tokens; allowed: at least {count} chunks of {length}"
        )
    return list(ids[: length * count].view(count, 1, length))


def check_directory(
    folder: str | Path, pattern: str | Pattern | None = None
) -> dict[str, PatternReport]:
    """Check every linear layer of a checkpoint against its pattern, one tensor at a time.

    Parameters
    ----------
    folder
        A model's folder.
    pattern
        The pattern; by default the one that `config.json` names.

    Returns
    -------
    dict
        The report of each layer by its name.

    Raises
    ------
    ValueError
        For a folder that is no model, has no linear layer, or names no pattern where none is given.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.torch import save_file
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text("{}")
    ...     save_file({"up_proj.weight": torch.ones(2, 16)}, Path(folder, "model.safetensors"))
    ...     check_directory(folder, "6:8")["up_proj"].first_bad
    (0, 0)
    """
    folder = Path(folder)
    config = read_config(folder)
    stored = storage(config)
    ours = stored.get("quant_method") == NAME
    if pattern is None:
        if not ours:
            raise ValueError(f"{folder} names no pattern; give one, such as '6:8'")
        pattern = Settings.read(stored).pattern
    pattern = Pattern.parse(pattern)
    ignore = Settings.read(stored).ignore if ours else ("lm_head",)
    found = {}
    for path in shards(folder):
        header, tensors = safefile.entries(path)
        for entry in tensors:
            name = entry.name.removesuffix(".weight")
            if is_linear(entry) and not is_ignored(name, ignore):
                with naming(entry.name):
                    found[name] = check(safefile.read(path, header, entry), pattern)
    if not found:
        raise ValueError(f"{folder} has no linear layer to check: {NO_LINEAR}")
    return found


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Save a converted model as an ordinary pruned checkpoint that names its pattern.

    Parameters
    ----------
    model
        With `SlideLinear` layers of one pattern and activation. A Hugging Face model is saved with
        its configuration; of another module, the state and the pattern.
    folder
        Where there is nothing yet.

    Raises
    ------
    ValueError
        If there is no such layer, or they differ.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> model = nn.Sequential(nn.Linear(16, 4))
    >>> _ = convert(model, "6:8")
    >>> with TemporaryDirectory() as folder:
    ...     save_pretrained(model, Path(folder, "saved"))
    ...     sorted(path.name for path in Path(folder, "saved").iterdir())
    ['config.json', 'model.safetensors']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    folder = Path(folder)
    slid = [m for m in model.modules() if isinstance(m, SlideLinear)]
    kinds = {(m.pattern, m.activation) for m in slid}
    if len(kinds) != 1:
        found = sorted(f"{p} with {a}" for p, a in kinds)
        raise ValueError(
            f"model has layers of {found or 'no pattern'}; allowed: one in a checkpoint"
        )
    ((pattern, activation),) = kinds
    left = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    with new_folder(folder) as part:
        own: Callable[[Path], object] | None = getattr(model, "save_pretrained", None)
        if own is not None:
            own(part)
        else:
            from safetensors.torch import save_model

            save_model(model, str(part / "model.safetensors"))
        path = part / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        config["quantization_config"] = quantization_config(
            pattern, activation, left or ["lm_head"]
        )
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(
    folder: str | Path, *, backend: Backend = "auto", dtype: torch.dtype | str = "auto"
) -> PreTrainedModel:
    """Load a converted Hugging Face checkpoint with its `SlideLinear` layers; needs the extra `lm`.

    Raises
    ------
    ValueError
        If `config.json` names no pattern, or no type of model: `save_pretrained` saves any module,
        and one that is none of transformers' takes its state back after `convert`, with
        `safetensors.torch.load_model`.
    PatternViolation
        If a weight does not obey it.

    Examples
    --------
    >>> load("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere has no config.json; allowed: the folder of a model
    """
    folder = Path(folder)
    stated = read_config(folder)
    stored = storage(stated)
    if not stored:
        raise ValueError(f"{folder} names no pattern in quantization_config")
    settings = Settings.read(stored)
    if "model_type" not in stated:
        raise ValueError(
            f"{folder} has no model_type in config.json; allowed: a Hugging Face model (load the "
            "state of another module with safetensors.torch.load_model)"
        )
    transformers = transformers_module()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    # transformers would look for a quantiser of that name.
    del config.quantization_config
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, local_files_only=True
    )
    # Layers that conversion has left alone, and no names of what was never loaded.
    left = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and (is_ignored(name, settings.ignore) or is_other(name))
    ]
    convert(
        model, settings.pattern, "keep", ignore=left,
        activation=settings.activation, backend=backend,
    )  # fmt: skip
    return model
