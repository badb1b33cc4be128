"""Pruning and converting the linear layers of a model in memory."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .backends import Activation, Backend, check_backend, check_choices
from .linear import SlideLinear
from .patterns import Pattern, check_matrix, naming, require_pattern
from .pruning import CALIBRATED, METHODS, Method, new_generator, prune_, wide
from .windows import slide

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerReport:
    """One converted layer.

    `pruned_energy` is the share of the squared weights that pruning took (for SparseGPT, of the
    change of the weight), `exact` that sliding gives the weight back bit for bit, `bytes_dense` and
    `bytes_slid` what either takes in 2:4 form, `bound` the largest possible speed-up.
    """

    layer: str
    outputs: int
    inputs: int
    pattern: str
    pruned_energy: float
    exact: bool
    bytes_dense: int
    bytes_slid: int
    bound: float


@dataclass(frozen=True)
class ConversionReport:
    """All converted layers, in the order of the model."""

    layers: tuple[LayerReport, ...]

    def to_pandas(self) -> pd.DataFrame:
        """A table with a row a layer; needs pandas."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(layer) for layer in self.layers])

    def __str__(self) -> str:
        if not self.layers:
            return "no layer was converted"
        dense = sum(layer.bytes_dense for layer in self.layers)
        slid = sum(layer.bytes_slid for layer in self.layers)
        energy = sum(layer.pruned_energy for layer in self.layers) / len(self.layers)
        return (
            f"{len(self.layers)} layers to {self.layers[0].pattern}: {energy:.1%} of the energy "
            f"pruned, {slid / dense:.3f} of the dense bytes, at most {self.layers[0].bound:.3f} "
            "times as fast"
        )


def report_layer(name: str, before: Tensor, after: Tensor, pattern: Pattern) -> LayerReport:
    """Compare a weight [O, K] before and after pruning, and check that sliding loses nothing."""
    slid = slide(after, pattern)
    total, lost = _energy(wide(before)), _energy(wide(before) - wide(after))
    return LayerReport(
        layer=name,
        outputs=after.shape[0],
        inputs=after.shape[1],
        pattern=str(pattern),
        pruned_energy=lost / total if total else 0.0,
        exact=bool(torch.equal(slid.to_dense(), after)),
        bytes_dense=after.numel() * after.dtype.itemsize,
        bytes_slid=slid.nbytes,
        bound=pattern.max_speedup,
    )


def _energy(weight: Tensor) -> float:
    """The sum of squares, of each row in its own type and of the rows in float64."""
    found = float(torch.linalg.vector_norm(weight, dim=1).double().pow(2).sum())
    if 1e-30 < found < math.inf or weight.dtype == torch.float64 or not weight.any():
        return found
    # Squares may have left the range of float32. In float64 all takes forty times as long.
    return _energy(weight.double())


def linear_layers(
    model: nn.Module, ignore: Sequence[str] = ("lm_head",), targets: str | None = None
) -> dict[str, nn.Linear]:
    """The linear layers by name, without those that `ignore` names and those without a match.

    An entry of `ignore` is a full name or its last parts. Layers that share their weight with an
    embedding are left alone.

    Raises
    ------
    TypeError, ValueError
        If `model` is no module or one linear layer, `ignore` names none, or no layer is left.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    if isinstance(model, nn.Linear):
        raise TypeError("model is a linear layer; use prune_ and SlideLinear.from_linear for it")
    wanted = chosen(ignore, targets)
    refuse_unknown(
        ignore, [n for n, m in model.named_modules() if isinstance(m, nn.Linear)], "model"
    )
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    found = {}
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or id(module.weight) in embedded:
            continue
        if wanted(name):
            found[name] = module
    if not found:
        raise ValueError("no linear layer is left to convert; check targets and ignore")
    return found


def chosen(ignore: Sequence[str], targets: str | None) -> Callable[[str], bool]:
    """Whether a layer's name is none of `ignore` and matches `targets`, as a function."""
    names = isinstance(ignore, Sequence) and all(isinstance(name, str) for name in ignore)
    if isinstance(ignore, str) or not names:
        raise TypeError(f"ignore is {ignore!r}; allowed: a sequence of names")
    if not isinstance(targets, str | None):
        raise TypeError(f"targets is {targets!r}; allowed: a regular expression or None")
    try:
        pattern = re.compile(targets or "")
    except re.error as error:
        raise ValueError(f"targets is {targets!r}, no regular expression: {error}") from None
    return lambda name: not is_ignored(name, ignore) and pattern.search(name) is not None


def is_ignored(name: str, ignore: Sequence[str]) -> bool:
    """Whether a layer's name is one of `ignore`, or ends with one."""
    return any(name == entry or name.endswith("." + entry) for entry in ignore)


def refuse_unknown(ignore: Sequence[str], names: Collection[str], where: object) -> None:
    """Refuse an entry of `ignore` that names nothing: a misspelt layer would be pruned."""
    for entry in ignore:
        # The default may be tied to the embedding, and then it has no weight of its own.
        if entry != "lm_head" and not any(is_ignored(name, [entry]) for name in names):
            raise ValueError(f"ignore names {entry!r}; allowed: names of linear layers of {where}")


def prune_model(
    model: nn.Module,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calib_loader: Iterable[Any] | None = None,
    ignore: Sequence[str] = ("lm_head",),
    targets: str | None = None,
    seed: int = 0,
    memory: int = 2 << 30,
    progress: Callable[[str], object] = lambda _: None,
) -> ConversionReport:
    """Prune the linear layers of a model in place; they stay `torch.nn.Linear`.

    Parameters
    ----------
    model, pattern, method, calib_loader, ignore, targets
        As of `convert`.
    seed
        For `"random"`.
    memory
        Bytes for the Hessians of `"sparsegpt"`. Layers are pruned in groups that fit, each after a
        run of the calibration inputs through the groups pruned before.
    progress
        Called with the name of each layer before it is pruned.
    """
    pattern = Pattern.parse(pattern)
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    layers = linear_layers(model, ignore, targets)
    calibrated = method in CALIBRATED
    if calibrated and calib_loader is None:
        raise ValueError(f"calib_loader is missing; method {method!r} needs calibration inputs")
    batches = list(calib_loader) if calibrated and calib_loader is not None else []
    if calibrated and not batches:
        raise ValueError("calib_loader is empty; allowed: at least one batch of inputs")
    generator = new_generator(seed)
    for name, layer in layers.items():
        with naming(name):
            check_matrix(layer.weight, "weight")
            if method == "keep":
                require_pattern(layer.weight, pattern)
    rows = []
    groups = _groups(layers, memory) if method == "sparsegpt" else [layers]
    for group in groups:
        statistics = _collect(model, group, batches, method) if calibrated else {}
        for name, layer in group.items():
            progress(name)
            before = layer.weight.data.clone()
            with naming(name):
                prune_(layer, pattern, method, calib=statistics.get(name), seed=generator)
            rows.append(report_layer(name, before, layer.weight.data, pattern))
    return ConversionReport(tuple(rows))


def _groups(layers: dict[str, nn.Linear], memory: int) -> list[dict[str, nn.Linear]]:
    groups: list[dict[str, nn.Linear]] = []
    left = -1
    for name, layer in layers.items():
        size = 4 * layer.in_features**2
        if left < size or not groups:
            groups.append({})
            left = memory
        groups[-1][name] = layer
        left -= size
    return groups


@torch.no_grad()
def _collect(
    model: nn.Module, layers: dict[str, nn.Linear], batches: Sequence[Any], method: str
) -> dict[str, Tensor]:
    """Norms [K] or Hessians [K, K] of the inputs of each layer over all batches."""
    sums: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].detach().reshape(-1, args[0].shape[-1]).to(torch.float32)
            added = x.T @ x if method == "sparsegpt" else x.pow(2).sum(0)
            sums[name] = sums[name] + added if name in sums else added

        return hook

    handles = [layer.register_forward_pre_hook(watch(n)) for n, layer in layers.items()]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for batch in batches:
            if isinstance(batch, Mapping):
                model(**batch)
            elif isinstance(batch, (tuple, list)):
                model(*batch)
            elif isinstance(batch, Tensor):
                model(batch)
            else:
                raise TypeError(
                    f"calib_loader gives a {type(batch).__name__}; "
                    "allowed: tensors, tuples, lists or mappings"
                )
    finally:
        for handle in handles:
            handle.remove()
        for module in training:
            module.training = True
    missing = sorted(set(layers) - set(sums))
    if missing:
        raise ValueError(
            f"the calibration inputs did not reach {', '.join(missing[:3])}; "
            "allowed: more inputs, or these layers in ignore"
        )
    return {n: s if method == "sparsegpt" else s.sqrt() for n, s in sums.items()}


def convert(
    model: nn.Module,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calib_loader: Iterable[Any] | None = None,
    ignore: Sequence[str] = ("lm_head",),
    targets: str | None = None,
    activation: Activation = None,
    backend: Backend = "auto",
    seed: int = 0,
    progress: Callable[[str], object] = lambda _: None,
) -> ConversionReport:
    """Prune the linear layers of a model and replace them by `SlideLinear`, in place.

    Parameters
    ----------
    model
        Any module; of Hugging Face models, all `torch.nn.Linear` layers but the head.
    pattern
        Such as `"6:8"`.
    method
        `"magnitude"`, `"wanda"`, `"sparsegpt"`, `"random"`, or `"keep"` for a model that was pruned
        by another library.
    calib_loader
        For `"wanda"` and `"sparsegpt"`: batches of inputs, each a tensor, a tuple, or a mapping.
    ignore
        Names of layers to leave alone, full or their last parts.
    targets
        A regular expression that the names of layers must match.
    activation, backend
        As of `SlideLinear`.
    seed
        For `"random"`.
    progress
        Called with the name of each layer before it is pruned.

    Returns
    -------
    ConversionReport
        A row a layer.

    Raises
    ------
    ValueError
        If no layer is left, or calibration inputs are missing.
    PatternViolation
        With `"keep"`, for a layer that does not obey the pattern.

    Notes
    -----
    What is refused before calibration leaves the model as it was. SparseGPT may find a Hessian that
    it cannot use when earlier layers are pruned already.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> report = convert(model, "6:8")
    >>> [layer.exact for layer in report.layers], type(model[0]).__name__
    ([True, True], 'SlideLinear')
    """
    check_choices(activation, backend)
    pattern = Pattern.parse(pattern)
    layers = linear_layers(model, ignore, targets)
    for name, layer in layers.items():
        with naming(name):
            check_backend(layer.weight, activation, backend)
    report = prune_model(
        model, pattern, method, calib_loader=calib_loader, ignore=ignore, targets=targets,
        seed=seed, progress=progress,
    )  # fmt: skip
    made = {
        layer: SlideLinear.from_linear(layer, pattern, activation, backend)
        for layer in layers.values()
    }
    # A layer may stand in several places.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, made[module])
    return report
