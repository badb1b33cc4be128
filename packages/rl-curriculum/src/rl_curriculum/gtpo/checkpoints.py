"""Checkpoints from which training goes on as if it had never stopped.

TRL makes several updates on a batch of completions (`steps_per_generation`, `num_iterations`), but
a checkpoint of it holds neither the completions nor how many of the updates are done, and the order
of the problems begins anew. Here a checkpoint holds both, and the order goes on.

Needs the extra `trl`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from trl import GRPOTrainer  # type: ignore[attr-defined]


class ResumableTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` whose runs in several parts are the run in one.

    The constructor is the parent's, and so is all training. Each process adds a file
    `completions-N.safetensors` to a checkpoint, in which the completions stand only where they are
    still to be used.

    Warns
    -----
    UserWarning
        If the checkpoint has no completions, or was made by another number of processes or with
        other sizes of batches: then new ones are drawn, as by the parent.

    Examples
    --------
    >>> ResumableTrainer.__base__.__name__
    'GRPOTrainer'
    """

    accelerator: Any
    args: Any
    state: Any
    _buffered_inputs: list[dict[str, Any]] | None  # type: ignore[assignment]
    _order: Iterable[int] = ()  # a stream of problems has none

    def _get_train_sampler(self, *args: Any, **named: Any) -> Any:
        self._order = super()._get_train_sampler(*args, **named)
        return self._order

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        in_use = self._step % self._updates_on_a_batch != 0
        kept = (self._buffered_inputs or []) if in_use else []
        tensors, others = {}, {}
        for number, part in enumerate(kept):
            for name, value in part.items():
                if isinstance(value, torch.Tensor):
                    # Parts of one tensor, and the same number in all parts, share their memory.
                    tensors[f"{number}/{name}"] = value.detach().to("cpu", copy=True).contiguous()
                else:
                    others[f"{number}/{name}"] = value
        about = {"step": self._step, "sizes": self._sizes, "parts": len(kept), "others": others}
        path = self._completions_file(output_dir)
        # The first process may still be on its way to make the folder.
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, {"about": json.dumps(about)})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[no-untyped-call]
        if checkpoint is None:
            return
        for _ in range(int(self.state.epoch)):
            # The order of an epoch is drawn with its first index.
            next(iter(self._order), None)
        path = self._completions_file(checkpoint)
        if not path.exists():
            warnings.warn(f"{checkpoint} holds no completions; new ones are drawn", stacklevel=2)
            return
        with safe_open(path, "pt", device="cpu") as file:
            about = json.loads(file.metadata()["about"])
            if about["sizes"] != self._sizes:
                warnings.warn(
                    f"{checkpoint} is of a run with other sizes of batches; "
                    "new completions are drawn",
                    stacklevel=2,
                )
                return
            values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self._step = about["step"]
        parts: list[dict[str, Any]] = [{} for _ in range(about["parts"])]
        for key, value in {**values, **about["others"]}.items():
            number, _, name = key.partition("/")
            on_device = isinstance(value, torch.Tensor)
            parts[int(number)][name] = value.to(self.accelerator.device) if on_device else value
        self._buffered_inputs = parts or None

    @property
    def _updates_on_a_batch(self) -> int:
        """Parts of updates between two generations, gradient accumulation counted."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def _sizes(self) -> list[int]:
        return [
            self.accelerator.num_processes,
            self.args.per_device_train_batch_size,
            self.args.steps_per_generation,
            self.num_iterations,
        ]

    def _completions_file(self, folder: str) -> Path:
        return Path(folder) / f"completions-{self.accelerator.process_index}.safetensors"
