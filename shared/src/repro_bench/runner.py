"""Runs arms x seeds through joblib; a killed run resumes where it was."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from . import environment
from .experiment import Experiment, Outcome, Results
from .store import (
    CorruptRecordError,
    TrialRecord,
    folder_of,
    load,
    path_of,
    save,
    sizes_of,
    write_json,
)
from .verdict import Verdict, judge

BACKENDS = ("dask", "ray")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Progress:
    """One trial came to its end: now, or in an earlier run."""

    experiment: str
    arm: str
    seed: int
    state: str  # "ok", "failed", "done before" or "corrupt"
    done: int
    total: int
    seconds: float


@dataclass(frozen=True)
class Run:
    """A finished run of one experiment."""

    experiment: Experiment
    preset: str
    results: Results
    verdicts: list[Verdict]
    seconds: float
    trial_seconds: float
    environment: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """The run as JSON, as `repro run --json` prints it."""
        seeds = {seed for _, seed in [*self.results.outcomes, *self.results.failed]}
        return {
            "experiment": self.experiment.name,
            "field": self.experiment.field,
            "preset": self.preset,
            "seeds": len(seeds),
            "claims": [claim_document(v) for v in self.verdicts],
            "trials": {"ok": len(self.results.outcomes), "failed": len(self.results.failed)},
            "seconds": round(self.seconds, 3),
        }


def claim_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON."""
    claim, interval = verdict.claim, verdict.interval
    return {
        "text": claim.text,
        "metric": claim.metric,
        "arm": claim.arm,
        "than": claim.than,
        "verdict": verdict.verdict,
        "estimate": interval.estimate,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "threshold": claim.threshold,
        "seeds": interval.n,
        "dropped": verdict.dropped,
        "reason": verdict.reason,
    }


def plan(experiment: Experiment, preset: str, seeds: int | None = None) -> list[tuple[str, int]]:
    """The trials of a run, seed by seed, so that an interrupted run has paired trials."""
    arms = experiment.arms_at(preset)
    counts = {arm: seeds or experiment.seeds_of(arm, preset) for arm in arms}
    return [
        (arm, seed) for seed in range(max(counts.values())) for arm in arms if seed < counts[arm]
    ]


def run(
    experiment: Experiment,
    preset: str,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    backend: str | None = None,
    fresh: bool = False,
    listen: Callable[[Progress], None] = lambda _: None,
) -> Run:
    """Run what is not yet finished of an experiment and judge its claims.

    Parameters
    ----------
    seeds
        The number of seeds of every arm, instead of the preset's.
    jobs
        Processes at a time; 1 runs in this process. Each trial gets one thread, so that the numbers
        do not depend on it.
    backend
        `"dask"` or `"ray"` for a cluster through joblib: the scheduler that
        `DASK_SCHEDULER_ADDRESS` or `RAY_ADDRESS` names, or else one on this machine.
    fresh
        Run every trial again.
    listen
        Called for every trial, in the order in which they end.
    """
    started = time.perf_counter()
    # What was there when the run began, whatever happens to the checkout meanwhile.
    where = environment.describe(experiment.field)
    trials = plan(experiment, preset, seeds)
    paths = {t: path_of(out, experiment, *t, preset).resolve() for t in trials}
    finished: dict[tuple[str, int], TrialRecord] = {}
    done = 0

    def tell(trial: tuple[str, int], state: str, seconds: float = 0.0) -> None:
        listen(Progress(experiment.name, *trial, state, done, len(trials), seconds))

    for trial in trials:
        try:
            record = None if fresh else load(paths[trial], *trial)
        except CorruptRecordError:
            tell(trial, "corrupt")
            continue
        if record is not None and record.error is None:
            finished[trial] = record
            done += 1
            tell(trial, "done before")

    todo = [trial for trial in trials if trial not in finished]
    sizes = experiment.presets[preset]
    with _parallel(jobs, backend) as parallel:
        calls = (joblib.delayed(execute)(experiment, *t, sizes, paths[t]) for t in todo)
        for record in parallel(calls):
            finished[record.arm, record.seed] = record
            done += 1
            state = "ok" if record.error is None else "failed"
            tell((record.arm, record.seed), state, record.seconds)

    results = _results({t: finished[t] for t in trials}, sizes)
    verdicts = [judge(c, results) for c in experiment.claims if c.arms <= set(results.arms)]
    seconds = time.perf_counter() - started
    trial_seconds = sum(finished[t].seconds for t in trials)
    found = Run(experiment, preset, results, verdicts, seconds, trial_seconds, where)
    summary = {
        **found.document(),
        "version": experiment.version,
        "sizes": sizes_of(experiment, preset),
        "planned": trials,
        "trial_seconds": trial_seconds,
        "environment": where,
    }
    write_json(folder_of(out, experiment.name, preset) / "run.json", summary)
    return found


def reload(experiment: Experiment, preset: str, out: Path, planned: list[Any]) -> Results:
    """The results of an earlier run from its files; what is missing or corrupt is left out."""
    finished = {}
    for arm, seed in planned:
        with contextlib.suppress(CorruptRecordError):
            record = load(path_of(out, experiment, arm, seed, preset), arm, seed)
            if record is not None:
                finished[arm, seed] = record
    return _results(finished, experiment.presets[preset])


def execute(experiment: Experiment, arm: str, seed: int, sizes: Any, path: Path) -> TrialRecord:
    """Run one trial with one thread and save it; runs in the worker."""
    started = time.perf_counter()
    outcome, error = None, None
    with _one_thread():
        try:
            outcome = experiment.trial(arm, seed, sizes)
            if not isinstance(outcome, Outcome):
                raise TypeError(f"trial returned a {type(outcome).__name__}, not an Outcome")
        except Exception:
            outcome, error = None, traceback.format_exc()
    record = TrialRecord(arm, seed, outcome, error, time.perf_counter() - started)
    try:
        save(path, record)
    except (TypeError, ValueError):
        record = TrialRecord(arm, seed, None, traceback.format_exc(), record.seconds)
        save(path, record)
    return record


def _results(records: dict[tuple[str, int], TrialRecord], sizes: Any) -> Results:
    return Results(
        outcomes={t: r.outcome for t, r in records.items() if r.outcome is not None},
        failed={t: r.error for t, r in records.items() if r.error is not None},
        sizes=sizes,
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for BLAS, OpenMP and torch, those still to be imported included."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    try:
        if torch:
            torch.set_num_threads(1)
        with threadpool_limits(limits=1):
            yield
    finally:
        if torch:
            torch.set_num_threads(threads)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _parallel(jobs: int, backend: str | None) -> Iterator[joblib.Parallel]:
    """joblib's Parallel on this machine's processes or on a cluster."""
    with contextlib.ExitStack() as stack:
        if backend == "dask":
            distributed = _import("distributed", "dask")
            address = os.environ.get("DASK_SCHEDULER_ADDRESS")
            if address is None:
                address = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=jobs, threads_per_worker=1, dashboard_address=None
                    )
                )
            stack.enter_context(distributed.Client(address))
            stack.enter_context(joblib.parallel_config(backend="dask"))
            yield joblib.Parallel(return_as="generator_unordered")
        elif backend == "ray":
            ray = _import("ray", "ray")
            _import("ray.util.joblib", "ray").register_ray()
            address = os.environ.get("RAY_ADDRESS")
            local = {} if address else {"num_cpus": jobs}
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True, **local)
            stack.callback(ray.shutdown)
            stack.enter_context(joblib.parallel_config(backend="ray", n_jobs=-1))
            # Ray's joblib backend has no generators: its trials are reported when all have ended.
            yield joblib.Parallel(pre_dispatch="all", batch_size=1)
        elif jobs == 1:
            yield joblib.Parallel(n_jobs=1, return_as="generator_unordered")
        else:
            stack.enter_context(warnings.catch_warnings())
            # It replaces a worker that has grown, and the jobs given to that one run all the same.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            stack.enter_context(joblib.parallel_config(backend="loky", inner_max_num_threads=1))
            yield joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"the backend {extra!r} needs the extra repro-bench[{extra}]") from error
