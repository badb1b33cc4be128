"""Checkpoints: folders of Hugging Face models, converted tensor by tensor, saved and loaded.

A converted checkpoint is an ordinary pruned dense one: names, shapes and types are those of the
source, and only `quantization_config` in `config.json` says that the weights obey a pattern.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._files import new_folder, refuse_full, write_atomic
from . import safefile
from .backends import Activation, Backend, check_choices
from .conversion import ConversionReport, LayerReport, chosen, convert, is_ignored, report_layer
from .linear import SlideLinear
from .patterns import Pattern, PatternReport, PatternViolation, check
from .pruning import METHODS, Method, prune_
from .safefile import DTYPES, Entry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "slidesparse"
# What has two dimensions and is no linear layer, or one whose few outputs steer the others.
_NOT_LINEAR = re.compile(r"embed|wte|wpe|lm_head|norm|router|(^|\.)(gate|shared|position\w*)$")
# Their weights are stored [inputs, outputs].
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")


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
        activation = config.get("activation", "none")
        activation = None if activation == "none" else activation
        check_choices(activation, "auto")
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
        and entry.dtype in DTYPES
        and not _NOT_LINEAR.search(name)
    )


def convert_directory(
    source: str | Path,
    out: str | Path,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calibration: Sequence[Tensor] | None = None,
    ignore: Sequence[str] = ("lm_head",),
    targets: str | None = None,
    activation: Activation = None,
    seed: int = 0,
    progress: Callable[[str, int, int], object] = lambda name, done, of: None,
) -> ConversionReport:
    """Prune the checkpoint in a folder into another folder.

    Files are rewritten tensor by tensor; other files are copied. An interrupted run leaves a folder
    `.OUT.part` behind, and the same call continues it. For `"wanda"` and `"sparsegpt"` the model is
    loaded with transformers and pruned in memory first.

    Parameters
    ----------
    source, out
        A Hugging Face folder with safetensors files, and a folder that is not there yet.
    pattern, method, ignore, targets, activation
        As of `convert`; `"keep"` takes weights that llm-compressor or torchao has pruned.
    calibration
        For `"wanda"` and `"sparsegpt"`: token ids [batch, length] each.
    seed
        For `"random"`: every tensor has its own generator, made from it and the tensor's place.
    progress
        Called with the name of each linear layer done, how many are done, and of how many.

    Raises
    ------
    ValueError
        For a folder that is no model, whose weights are quantised or compressed, or stored
        [inputs, outputs]; or an `out` that has something in it.
    PatternViolation
        With `"keep"`, for a weight that does not obey the pattern; the message names it.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.torch import save_file
    >>> with TemporaryDirectory() as folder:
    ...     model = Path(folder, "model")
    ...     model.mkdir()
    ...     _ = (model / "config.json").write_text("{}")
    ...     save_file({"up_proj.weight": torch.randn(8, 16)}, model / "model.safetensors")
    ...     report = convert_directory(model, Path(folder, "pruned"), "6:8")
    ...     check_directory(Path(folder, "pruned"))["up_proj"].ok
    True
    """
    source, out = Path(source), Path(out)
    pattern = Pattern.parse(pattern)
    check_choices(activation, "auto")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    wanted = chosen(ignore, targets)
    if not isinstance(seed, int):
        raise TypeError(f"seed is {seed!r}; allowed: an integer")
    calibrated = method in ("wanda", "sparsegpt")
    if calibrated and not calibration:
        raise ValueError(f"calibration is missing; method {method!r} needs token ids")
    refuse_full(out)
    config = read_config(source)
    _refuse_stored(config)
    files = shards(source)
    found = [entry for path in files for entry in safefile.entries(path)[1]]
    linear = {
        e.name: place
        for place, e in enumerate(found)
        if is_linear(e) and wanted(e.name.removesuffix(".weight"))
    }
    if not linear:
        raise ValueError(f"{source} has no linear layer left to convert; check targets and ignore")
    skipped = [
        e.name.removesuffix(".weight") for e in found if e.name not in linear and is_linear(e)
    ]
    config["quantization_config"] = quantization_config(
        pattern, activation, [*dict.fromkeys([*ignore, *skipped])]
    )
    settings = {
        "method": method, "seed": seed, "linear": sorted(linear),
        "quantization": config["quantization_config"],
        "files": {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files},
        "calibration": [int(batch.sum()) for batch in calibration or ()] if calibrated else [],
    }  # fmt: skip
    part = _continued(out, settings)
    ready = (
        _pruned_in_memory(source, pattern, method, calibration or (), linear) if calibrated else {}
    )
    rows: list[LayerReport] = []

    def change(entry: Entry, tensor: Callable[[], Tensor]) -> Tensor | None:
        if entry.name not in linear:
            return None
        before = tensor()
        name = entry.name.removesuffix(".weight")
        if calibrated:
            after = ready[entry.name].to(before.dtype)
        else:
            after = before.clone()
            own = torch.Generator().manual_seed(seed * 1_000_003 + linear[entry.name])
            try:
                prune_(after, pattern, method, seed=own)
            except PatternViolation as error:
                error.args = (f"{entry.name}: {error}",)
                raise
            except ValueError as error:
                raise ValueError(f"{entry.name}: {error}") from None
        rows.append(report_layer(name, before, after, pattern))
        progress(name, len(rows), len(linear))
        return after

    for path in files:
        done = part / f".{path.name}.json"
        if done.is_file():
            rows += [LayerReport(**row) for row in json.loads(done.read_text(encoding="utf-8"))]
            continue
        before = len(rows)
        write_atomic(part / path.name, lambda file, path=path: safefile.rewrite(path, file, change))  # type: ignore[misc]
        text = json.dumps([dataclasses.asdict(row) for row in rows[before:]])
        write_atomic(done, lambda file, text=text: file.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    for path in sorted(source.iterdir()):
        other = path.suffix not in (".safetensors", ".bin", ".pt", ".pth", ".gguf")
        if path.is_file() and other and path.name != "config.json":
            shutil.copyfile(path, part / path.name)
    text = json.dumps(config, indent=2) + "\n"
    write_atomic(part / "config.json", lambda file: file.write_text(text, encoding="utf-8"))
    for path in part.glob(".*"):
        path.unlink()
    if out.exists():
        out.rmdir()
    part.rename(out)
    return ConversionReport(tuple(rows))


def _stored(config: dict[str, Any]) -> dict[str, Any]:
    """What a `config.json` says about how weights are stored; empty if nothing."""
    stored = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(stored, dict):
        raise ValueError(f"quantization_config is {stored!r}; allowed: an object")
    return stored


def _refuse_stored(config: dict[str, Any]) -> None:
    """Refuse weights that are not plain [outputs, inputs] numbers."""
    if config.get("model_type") in _TRANSPOSED:
        raise ValueError(
            f"models of type {config['model_type']!r} store weights [inputs, outputs]; "
            "load the model and use convert on its torch.nn.Linear layers"
        )
    stored = _stored(config)
    if not stored or stored.get("quant_method") == NAME:
        return
    sparsity = stored.get("sparsity_config") or {}
    dense = sparsity.get("format", "dense") == "dense" and stored.get("format", "dense") == "dense"
    if (
        stored.get("quant_method") != "compressed-tensors"
        or stored.get("config_groups")
        or not dense
    ):
        raise ValueError(
            f"the weights are stored as {stored.get('quant_method')!r}, quantised or compressed; "
            "allowed: plain weights (llm-compressor: save_pretrained(..., save_compressed=False))"
        )


def _continued(out: Path, settings: dict[str, Any]) -> Path:
    """The folder of an interrupted run with the same settings, or an empty one."""
    part = out.parent / f".{out.name}.part"
    stamp = part / ".settings.json"
    text = json.dumps(settings, sort_keys=True)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != text:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_atomic(stamp, lambda file: file.write_text(text, encoding="utf-8"))
    for left in part.glob(".part-*"):
        left.unlink()
    return part


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        message = "this needs the extra 'lm': pip install 'llm-systems[lm]'"
        raise ModuleNotFoundError(message) from error
    return transformers


def _pruned_in_memory(
    source: Path,
    pattern: Pattern,
    method: Method,
    calibration: Sequence[Tensor],
    linear: dict[str, int],
) -> dict[str, Tensor]:
    """The weights of a model pruned with calibration inputs, by their names in the files."""
    from .conversion import prune_model

    model = _transformers().AutoModelForCausalLM.from_pretrained(
        source, dtype="auto", local_files_only=True
    )
    weights: dict[str, Tensor] = model.state_dict()
    unknown = sorted(set(linear) - set(weights))
    if unknown:
        raise ValueError(
            f"transformers knows no {unknown[0]} in this model; use targets to leave it out, or a "
            "method without calibration"
        )
    names = "|".join(re.escape(name.removesuffix(".weight")) for name in linear)
    prune_model(model, pattern, method, calib_loader=calibration, ignore=(), targets=f"^({names})$")
    return weights


def token_chunks(folder: str | Path, text: str, length: int, count: int) -> list[Tensor]:
    """Cut a text into `count` chunks [1, length] of token ids with a model's own tokenizer.

    Raises
    ------
    ValueError
        If the text has too few tokens.
    """
    tokenizer = _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
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
    stored = _stored(config)
    ours = stored.get("quant_method") == NAME
    if pattern is None:
        if not ours:
            raise ValueError(f"{folder} names no pattern; give one, such as '6:8'")
        pattern = Settings.read(stored).pattern
    ignore = Settings.read(stored).ignore if ours else ("lm_head",)
    found = {}
    for path in shards(folder):
        header, tensors = safefile.entries(path)
        for entry in tensors:
            name = entry.name.removesuffix(".weight")
            if is_linear(entry) and not is_ignored(name, ignore):
                found[name] = check(safefile.read(path, header, entry), pattern)
    if not found:
        raise ValueError(f"{folder} has no linear layer to check")
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
        If `config.json` names no pattern.
    PatternViolation
        If a weight does not obey it.

    Examples
    --------
    >>> load("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere has no config.json; allowed: the folder of a model
    """
    folder = Path(folder)
    stored = _stored(read_config(folder))
    if not stored:
        raise ValueError(f"{folder} names no pattern in quantization_config")
    settings = Settings.read(stored)
    transformers = _transformers()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    # transformers would look for a quantiser of that name.
    del config.quantization_config
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, local_files_only=True
    )
    convert(
        model, settings.pattern, "keep", ignore=settings.ignore,
        activation=settings.activation, backend=backend,
    )  # fmt: skip
    return model
