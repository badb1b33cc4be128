"""Convert a model's folder into another tensor by tensor; a killed run can be continued."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import refuse_full, write_atomic
from . import safefile
from .backends import Activation, check_choices
from .checkpoint import (
    NAME,
    NO_LINEAR,
    is_linear,
    quantization_config,
    read_config,
    shards,
    storage,
    transformers_module,
)
from .conversion import (
    ConversionReport,
    LayerReport,
    chosen,
    prune_model,
    refuse_unknown,
    report_layer,
)
from .patterns import Pattern, naming
from .pruning import CALIBRATED, METHODS, Method, new_generator, prune_
from .safefile import Entry

# Their weights are stored [inputs, outputs].
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")


def convert_directory(
    source: str | Path,
    out: str | Path,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calibration: Sequence[Tensor] | Callable[[], Sequence[Tensor]] | None = None,
    ignore: Sequence[str] = ("lm_head",),
    targets: str | None = None,
    activation: Activation = None,
    seed: int = 0,
    progress: Callable[[str, int, int], object] = lambda name, done, of: None,
) -> ConversionReport:
    """Prune the checkpoint in a folder into another folder.

    Files are rewritten tensor by tensor; other files are copied, folders are not. An interrupted
    run leaves a folder `.OUT.part` behind, and the same call continues it. For `"wanda"` and
    `"sparsegpt"` the model is loaded with transformers and pruned in memory first.

    Parameters
    ----------
    source, out
        A Hugging Face folder with safetensors files, and a folder that is not there yet.
    pattern, method, ignore, targets, activation
        As of `convert`; `"keep"` takes weights that llm-compressor or torchao has pruned.
    calibration
        For `"wanda"` and `"sparsegpt"`: token ids [batch, length] each, or a function that gives
        them, called when everything else has been found good.
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
    >>> from llm_systems.slidesparse import check_directory
    >>> with TemporaryDirectory() as folder:
    ...     model = Path(folder, "model")
    ...     model.mkdir()
    ...     _ = (model / "config.json").write_text("{}")
    ...     save_file({"up_proj.weight": torch.randn(8, 16)}, model / "model.safetensors")
    ...     report = convert_directory(model, Path(folder, "pruned"), "6:8")
    ...     check_directory(Path(folder, "pruned"))["up_proj"].ok
    True
    """
    source, out = Path(source), Path(out).resolve()
    pattern = Pattern.parse(pattern)
    check_choices(activation, "auto")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    wanted = chosen(ignore, targets)
    if isinstance(seed, torch.Generator):
        raise TypeError("seed is a torch.Generator; allowed: an integer")
    new_generator(seed)
    seed = int(seed)
    calibrated = method in CALIBRATED
    if calibrated and not calibration and not callable(calibration):
        raise ValueError(f"calibration is missing; method {method!r} needs token ids")
    refuse_full(out)
    config = read_config(source)
    _refuse_stored(config)
    files = shards(source)
    found = [entry for path in files for entry in safefile.entries(path)[1]]
    places = {e.name.removesuffix(".weight"): k for k, e in enumerate(found) if is_linear(e)}
    if not places:
        raise ValueError(f"{source} has no linear layer: {NO_LINEAR}")
    refuse_unknown(ignore, places, source)
    linear = {f"{name}.weight": place for name, place in places.items() if wanted(name)}
    if not linear:
        raise ValueError(f"{source} has no linear layer left to convert; check targets and ignore")
    skipped = [name for name in places if not wanted(name)]
    config["quantization_config"] = quantization_config(
        pattern, activation, [*dict.fromkeys([*ignore, *skipped])]
    )
    batches: Sequence[Tensor] = []
    if calibrated and calibration is not None:
        batches = calibration() if callable(calibration) else calibration
    settings = {
        "method": method, "seed": seed, "linear": sorted(linear),
        "quantization": config["quantization_config"],
        "files": {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files},
        "calibration": [batch.tolist() for batch in batches],
    }  # fmt: skip
    ready = _pruned_in_memory(source, pattern, method, batches, linear) if calibrated else {}
    part = _continued(out, settings)
    rows: list[LayerReport] = []

    def change(entry: Entry, tensor: Callable[[], Tensor]) -> Tensor | None:
        if entry.name not in linear:
            return None
        before = tensor()
        name = entry.name.removesuffix(".weight")
        if calibrated:
            after = ready[entry.name].to(before.dtype)
            if method == "wanda":
                # transformers loads all weights in one type, which may have rounded what is kept.
                after = torch.where(after == 0, after, before)
        else:
            after = before.clone()
            own = new_generator((seed * 1_000_003 + linear[entry.name]) % 2**64)
            with naming(entry.name):
                prune_(after, pattern, method, seed=own)
        rows.append(report_layer(name, before, after, pattern))
        progress(name, len(rows), len(linear))
        return after

    for path in files:
        done = part / f".{path.name}.json"
        if done.is_file():
            rows += [LayerReport(**row) for row in json.loads(done.read_text(encoding="utf-8"))]
            continue
        before = len(rows)
        try:
            write_atomic(
                part / path.name,
                lambda file, path=path: safefile.rewrite(path, file, change),  # type: ignore[misc]
            )
        except ValueError:
            # Refused: to go on would meet the same weight again.
            shutil.rmtree(part)
            raise
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


def _refuse_stored(config: dict[str, Any]) -> None:
    """Refuse weights that are not plain [outputs, inputs] numbers."""
    if config.get("model_type") in _TRANSPOSED:
        raise ValueError(
            f"models of type {config['model_type']!r} store weights [inputs, outputs]; "
            "load the model and use convert on its torch.nn.Linear layers"
        )
    stored = storage(config)
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


def _pruned_in_memory(
    source: Path,
    pattern: Pattern,
    method: Method,
    calibration: Sequence[Tensor],
    linear: dict[str, int],
) -> dict[str, Tensor]:
    """The weights of a model pruned with calibration inputs, by their names in the files."""
    model = transformers_module().AutoModelForCausalLM.from_pretrained(
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
