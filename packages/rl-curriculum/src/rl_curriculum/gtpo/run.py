"""A training run from a file of settings, from its last checkpoint where there is one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .settings import REWARDS, Settings, trainer_and_config

# Beginnings of peft's adapters that are made from the weights or from data.
_READ_WEIGHTS = ("corda", "eva", "loftq", "lora_ga", "mica", "olora", "pissa")


def train(settings: Settings, *, fresh: bool = False) -> Any:
    """Train as the settings say, from the last checkpoint if there is one, and save the model.

    A run that is finished is not trained further. With `fresh` the checkpoints, the groups and the
    model of the run before are removed, once the new one is ready to begin.

    Returns the trainer.

    Raises
    ------
    ValueError
        If the output folder has checkpoints of a run with other settings or problems, if the model
        has no tokenizer, or none with a chat template where the prompts are messages, or if the
        model cannot be loaded or the adapters do not fit it.
    """
    from datasets import Dataset  # type: ignore[import-untyped]

    from .._files import write_atomic

    out, note = settings.output_dir, settings.output_dir / "settings.json"
    tokenizer, adapters = _tokenizer(settings), _adapters(settings)
    last, state = (None, None) if fresh else _last_checkpoint(out)
    told = {key: value for key, value in settings.raw.items() if key != "output_dir"}
    problems = json.dumps([settings.prompts, settings.answers])
    told["problems"] = hashlib.sha256(problems.encode()).hexdigest()
    if last is not None:
        before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        differing = _differing(before, told)
        if differing:
            raise ValueError(
                f"{out} has checkpoints of a run with other settings of {', '.join(differing)}; "
                "allowed: the same settings but for max_steps and num_train_epochs, or a fresh run"
            )
    data = Dataset.from_dict({"prompt": settings.prompts, "answer": settings.answers})
    try:
        trainer = trainer_and_config(settings.method)[0](
            settings.model,
            REWARDS[settings.reward],
            settings.config,
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=adapters,
        )
    except Exception as error:
        # TRL, transformers and safetensors each refuse with errors of their own.
        raise ValueError(f"{settings.model!r} cannot be trained so: {error}") from error
    if trainer.accelerator.is_main_process:
        if fresh:
            _remove_run(out)
        text = json.dumps(told, indent=1)
        write_atomic(note, lambda part: part.write_text(text, encoding="utf-8"))
    trainer.accelerator.wait_for_everyone()
    if state is not None and _finished(settings.config, state):
        # transformers would take one step more.
        trainer._load_from_checkpoint(last)
        trainer.state = state
    else:
        trainer.train(resume_from_checkpoint=last)
    trainer.save_model(str(out / "model"))
    if trainer.accelerator.is_main_process:
        tokenizer.save_pretrained(str(out / "model"))
    return trainer


def _remove_run(out: Path) -> None:
    checkpoints = list(out.glob("checkpoint-*"))
    for folder in checkpoints:
        # Without its state it is no checkpoint, whenever this is interrupted.
        (folder / "trainer_state.json").unlink(missing_ok=True)
    for folder in (*checkpoints, out / "groups", out / "model"):
        if folder.exists():
            shutil.rmtree(folder)


def _tokenizer(settings: Settings) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, padding_side="left")
    except (OSError, ValueError) as error:
        raise ValueError(f"model is {settings.model!r}: {error}") from None
    if isinstance(settings.prompts[0], list):
        if tokenizer.chat_template is None:
            raise ValueError(
                f"model is {settings.model!r}, which has no chat template; allowed: one that has, "
                "or prompts that are texts, without a system message"
            )
    elif not tokenizer(settings.prompts[0])["input_ids"]:
        # transformers makes an empty one for a folder that has none.
        raise ValueError(f"model is {settings.model!r}; allowed: a folder that has a tokenizer")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _adapters(settings: Settings) -> Any:
    """The configuration of peft, after a trial on the model without its weights."""
    if settings.lora is None:
        return None
    import transformers
    from peft import LoraConfig, get_peft_model

    config = transformers.AutoConfig.from_pretrained(settings.model)
    trial = LoraConfig(**settings.lora)
    if str(trial.init_lora_weights).startswith(_READ_WEIGHTS):
        trial.init_lora_weights = False
    try:
        with torch.device("meta"):
            empty = getattr(transformers, config.architectures[0])(config)
        get_peft_model(empty, trial, low_cpu_mem_usage=True)
    except Exception as error:
        # peft meets what does not fit wherever it first uses it.
        raise ValueError(f"lora does not fit {settings.model!r}: {error}") from error
    return LoraConfig(**settings.lora)


def _last_checkpoint(out: Path) -> tuple[str | None, Any]:
    """The last whole checkpoint of a folder, and the state of its trainer."""
    from transformers import TrainerState

    found = [p for p in out.glob("checkpoint-*") if p.name.partition("-")[2].isdecimal()]
    for folder in sorted(found, key=lambda p: int(p.name.partition("-")[2]), reverse=True):
        # The state is what is written last; a run that was killed may have left a part.
        try:
            return str(folder), TrainerState.load_from_json(str(folder / "trainer_state.json"))
        except (OSError, ValueError):
            continue
    return None, None


def _finished(config: Any, state: Any) -> bool:
    if config.max_steps > 0:
        return bool(state.global_step >= config.max_steps)
    return bool(state.epoch >= config.num_train_epochs)


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Sequence[str]:
    def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
        training = dict(settings.get("training") or {})
        for name in ("max_steps", "num_train_epochs"):
            training.pop(name, None)
        return {**settings, "training": training}

    first, second = kept(before), kept(now)
    return sorted(k for k in first.keys() | second.keys() if first.get(k) != second.get(k))
