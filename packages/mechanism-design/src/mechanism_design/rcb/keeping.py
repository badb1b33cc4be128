"""A policy on disk: JSON for the state, npz for the arrays, no pickle."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._files import write_text, write_whole
from .prior import GaussianPrior
from .samples import Rows

if TYPE_CHECKING:
    from .bandit import RCB

_VERSION = 1
_SETTINGS = ("eps", "sigma", "N", "rule", "c", "train_on", "gamma_floor", "promotion")


def save(bandit: RCB, folder: Path) -> None:
    """Write `state.json` and the arrays that it names."""
    pending = [[name, *told] for name, told in bandit._pending.items()]
    strange = [name for name, *_ in pending if not isinstance(name, str | int)]
    if strange:
        raise ValueError(f"id {strange[0]!r} cannot be saved; allowed: strings and integers")
    arrays: dict[str, NDArray[Any]] = {
        "mean": bandit.prior.mean,
        "cov": bandit.prior.cov,
        "counts": bandit.N_,
        "cold_grams": bandit._cold_grams,
        "cold_moments": bandit._cold_moments,
        "grams": bandit._grams,
        "moments": bandit._moments,
    }
    if bandit._coef is not None:
        arrays["coef"] = bandit._coef
    if bandit.contexts is not None:
        arrays["contexts"] = bandit.contexts
    for prefix, rows in _tables(bandit).items():
        arrays |= {f"{prefix}{name}": values for name, values in rows.arrays().items()}
    # The arrays get a name of their own, so that the state never points at half of a save.
    file = f"arrays-{secrets.token_hex(4)}.npz"
    state = {
        "version": _VERSION,
        "arrays": file,
        **{name: getattr(bandit, name) for name in _SETTINGS},
        "mspe": bandit.mspe if isinstance(bandit.mspe, str) else None,
        "fixed_L": bandit._fixed_L,
        "L": bandit._L,
        "phi0": bandit._phi0,
        "epoch": bandit.epoch_,
        "gamma": bandit.gamma_,
        "clock": bandit._clock,
        "fitted_models": bool(bandit._models),
        "next_id": bandit._next_id,
        "pending": pending,
        "last_ids": bandit.last_ids_,
        "rng": bandit.rng.bit_generator.state,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / file, lambda path: _write_arrays(path, arrays))
    write_text(folder / "state.json", json.dumps(state))
    for old in folder.glob("arrays-*.npz"):
        if old.name != file:
            old.unlink()


def load(folder: Path, oracle: Any, mspe: Callable[[int], float] | None) -> RCB:
    """Read what `save` wrote."""
    from .bandit import RCB

    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["version"] != _VERSION:
            raise ValueError(f"it is of version {state['version']}")
        with np.load(folder / Path(state["arrays"]).name, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no saved policy: {error}") from None
    if state["fitted_models"] and oracle is None:
        raise ValueError("oracle is None; the saved policy was fitted with one, give it again")
    bandit = RCB(
        GaussianPrior(arrays["mean"], arrays["cov"]),
        contexts=arrays.get("contexts"),
        L="auto" if state["fixed_L"] is None else state["fixed_L"],
        oracle=oracle,
        mspe=mspe or state["mspe"] or "ridge",
        **{name: state[name] for name in _SETTINGS},
    )
    bandit._phi0, bandit._L = state["phi0"], state["L"]
    bandit.epoch_, bandit.gamma_ = state["epoch"], state["gamma"]
    bandit._clock, bandit._next_id = state["clock"], state["next_id"]
    bandit.N_ = arrays["counts"]
    bandit._cold_grams, bandit._cold_moments = arrays["cold_grams"], arrays["cold_moments"]
    bandit._grams, bandit._moments = arrays["grams"], arrays["moments"]
    bandit._coef = arrays.get("coef")
    for prefix in _tables(bandit):
        setattr(bandit, f"_{prefix[:-1]}", Rows.of_arrays(arrays, prefix))
    bandit._pending = {name: (arm, kind) for name, arm, kind in state["pending"]}
    bandit.last_ids_ = state["last_ids"]
    bandit.rng.bit_generator.state = state["rng"]
    if state["fitted_models"]:
        bandit._models = [bandit._fit_arm(k, *bandit._training.of(k)) for k in range(bandit.n_arms)]
    return bandit


def _tables(bandit: RCB) -> dict[str, Rows]:
    return {"cold_": bandit._cold, "rows_": bandit._rows, "training_": bandit._training}


def _write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
