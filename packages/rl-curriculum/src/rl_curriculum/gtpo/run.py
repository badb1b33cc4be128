"""A training run from a file of settings: what is asked for, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .explain import json_lines
from .rewards import answer_text, boxed_reward, exact_reward

REWARDS: dict[str, Callable[..., list[float]]] = {"boxed": boxed_reward, "exact": exact_reward}
_TOP = ("method", "model", "data", "output_dir", "reward", "system", "lora", "training")
_METHODS = ("gtpo", "grpo-s", "grpo")
# Beginnings of peft's adapters that are made from the weights or from data.
_READ_WEIGHTS = ("corda", "eva", "loftq", "lora_ga", "mica", "olora", "pissa")


@dataclass(frozen=True)
class Settings:
    """A checked file of settings; `config` is the configuration of the trainer."""

    method: str
    model: str
    output_dir: Path
    reward: str
    lora: Mapping[str, Any] | None
    config: Any
    prompts: list[Any]
    answers: list[str]
    raw: Mapping[str, Any]


def read_settings(path: Path) -> Settings:
    """Read and check a YAML file of settings and the data that it names.

    The keys are `model`, `data` and `output_dir`; optionally `method` (gtpo, grpo-s, grpo),
    `reward` (boxed, exact), `system` (a system message; makes the prompts conversations), `lora`
    (arguments of peft's LoraConfig) and `training` (arguments of `GTPOConfig`, `GRPOSConfig` or
    `trl.GRPOConfig`). Paths are relative to the file. Nothing in it is executed.

    Raises
    ------
    ValueError
        If a key or a value is not allowed, naming it, or a line of the data is not, with its
        number.
    OSError
        If a file cannot be read.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no settings; allowed: {', '.join(_TOP)}")
    unknown = [str(key) for key in raw if key not in _TOP]
    if unknown:
        raise ValueError(f"{path}: {', '.join(unknown)} unknown; allowed: {', '.join(_TOP)}")
    for key in ("model", "data", "output_dir"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise ValueError(
                f"{path}: {key} is {raw.get(key)!r}; allowed: a text, and it is needed"
            )
    method, reward = raw.get("method", "gtpo"), raw.get("reward", "boxed")
    if method not in _METHODS:
        raise ValueError(f"{path}: method is {method!r}; allowed: {', '.join(_METHODS)}")
    if reward not in tuple(REWARDS):
        raise ValueError(f"{path}: reward is {reward!r}; allowed: {', '.join(REWARDS)}")
    for key in ("lora", "training"):
        if raw.get(key) is not None and not isinstance(raw[key], dict):
            raise ValueError(f"{path}: {key} is {raw[key]!r}; allowed: a mapping")
    try:
        json.dumps(raw)
    except TypeError as error:
        raise ValueError(f"{path}: {error}; allowed: texts, numbers, lists and mappings") from None
    lora = None if raw.get("lora") is None else _lora(path, raw["lora"])
    system = raw.get("system")
    if system is not None and not isinstance(system, str):
        raise ValueError(f"{path}: system is {system!r}; allowed: a text")
    here = path.parent
    model = raw["model"]
    if (here / model).is_dir():
        model = str((here / model).resolve())
    elif model.startswith((".", "/", "~")) or (here / model).exists():
        raise ValueError(
            f"{path}: model is {model!r}; allowed: a folder that exists, or a hub name"
        )
    prompts, answers = read_problems(here / raw["data"], system)
    output_dir = here / raw["output_dir"]
    return Settings(
        method,
        model,
        output_dir,
        reward,
        lora,
        _config(path, method, output_dir, raw.get("training") or {}),
        prompts,
        answers,
        raw,
    )


def read_problems(path: Path, system: str | None = None) -> tuple[list[Any], list[str]]:
    """Prompts and answers of a JSONL file, an object with `prompt` and `answer` a line.

    A prompt is a text, or a list of messages with `role` and `content`; an answer is a text or a
    number.

    Raises
    ------
    ValueError
        If a line is not allowed, with its number, or there is none.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "problems.jsonl"
    ...     _ = file.write_text('{"prompt": "1+1=", "answer": 2}')
    ...     read_problems(file)
    (['1+1='], ['2'])
    """
    prompts: list[Any] = []
    answers: list[str] = []
    for number, line in enumerate(json_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, answer = row["prompt"], row["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} line {number}: {error}; allowed: an object with prompt and answer"
            ) from None
        try:
            answer = answer_text(answer)
        except TypeError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
        if not _is_prompt(prompt):
            raise ValueError(
                f"{path} line {number}: prompt is {prompt!r}; allowed: a text that is not empty, "
                "or messages with role and content"
            )
        if system is not None:
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            prompt = [{"role": "system", "content": system}, *turns]
        if prompts and type(prompt) is not type(prompts[0]):
            raise ValueError(
                f"{path} line {number}: prompt is a {type(prompt).__name__}; "
                f"allowed: {type(prompts[0]).__name__}, as before it"
            )
        prompts.append(prompt)
        answers.append(answer)
    if not prompts:
        raise ValueError(f"{path} has no problems; allowed: at least one line")
    return prompts, answers


def train(settings: Settings, *, fresh: bool = False) -> Any:
    """Train as the settings say, from the last checkpoint if there is one, and save the model.

    A run that is finished is not trained further. With `fresh` the checkpoints and the groups of
    the run before are removed.

    Returns the trainer.

    Raises
    ------
    ValueError
        If the output folder has checkpoints of a run with other settings or problems, if the model
        has no tokenizer, or none with a chat template where the prompts are messages, or if the
        adapters do not fit it.
    """
    from datasets import Dataset  # type: ignore[import-untyped]

    from .._files import write_atomic

    out, note = settings.output_dir, settings.output_dir / "settings.json"
    tokenizer, adapters = _tokenizer(settings), _adapters(settings)
    if fresh:
        for old in (*out.glob("checkpoint-*"), out / "groups"):
            shutil.rmtree(old, ignore_errors=True)
    last, state = _last_checkpoint(out)
    told = {key: value for key, value in settings.raw.items() if key != "output_dir"}
    problems = json.dumps([settings.prompts, settings.answers])
    told["problems"] = hashlib.sha256(problems.encode()).hexdigest()
    if last is not None and note.exists():
        differing = _differing(json.loads(note.read_text(encoding="utf-8")), told)
        if differing:
            raise ValueError(
                f"{out} has checkpoints of a run with other settings of {', '.join(differing)}; "
                "allowed: the same settings but for max_steps and num_train_epochs, or a fresh run"
            )
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(note, lambda part: part.write_text(json.dumps(told, indent=1), encoding="utf-8"))
    trainer = _classes(settings.method)[0](
        settings.model,
        REWARDS[settings.reward],
        settings.config,
        train_dataset=Dataset.from_dict({"prompt": settings.prompts, "answer": settings.answers}),
        processing_class=tokenizer,
        peft_config=adapters,
    )
    if state is not None and _finished(settings.config, state):
        # transformers would take one step more.
        trainer._load_from_checkpoint(last)
        trainer.state = state
    else:
        trainer.train(resume_from_checkpoint=last)
    trainer.save_model(str(out / "model"))
    tokenizer.save_pretrained(str(out / "model"))
    return trainer


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(turn, dict)
            and isinstance(turn.get("role"), str)
            and isinstance(turn.get("content"), str)
            for turn in prompt
        )
    )


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


def _classes(method: str) -> tuple[Any, Any]:
    from . import trl as ours

    if method == "grpo":
        return ours.GTPOTrainer.__base__, ours.GTPOConfig.__base__
    if method == "grpo-s":
        return ours.GRPOSTrainer, ours.GRPOSConfig
    return ours.GTPOTrainer, ours.GTPOConfig


def _lora(path: Path, given: Mapping[str, Any]) -> Mapping[str, Any]:
    from peft import LoraConfig

    # These name code to be imported.
    code = {"auto_mapping", "megatron_config", "megatron_core"}
    allowed = {f.name for f in dataclasses.fields(LoraConfig)} - code
    unknown = [str(key) for key in given if key not in allowed]
    if unknown:
        raise ValueError(
            f"{path}: lora has {', '.join(unknown)}; allowed: the arguments of LoraConfig but "
            f"{', '.join(sorted(code))}"
        )
    hints = typing.get_type_hints(LoraConfig)
    arguments = {
        name: _typed(f"{path}: lora", name, value, hints[name]) for name, value in given.items()
    }
    arguments.setdefault("task_type", "CAUSAL_LM")
    try:
        LoraConfig(**arguments)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: lora: {error}") from None
    return arguments


def _config(path: Path, method: str, output_dir: Path, training: Mapping[str, Any]) -> Any:
    from transformers.utils.import_utils import is_torch_bf16_gpu_available

    _, config = _classes(method)
    allowed = {f.name for f in dataclasses.fields(config)} - {"output_dir", "trust_remote_code"}
    unknown = [str(key) for key in training if key not in allowed]
    if unknown or "trust_remote_code" in str(training.get("model_init_kwargs")):
        raise ValueError(
            f"{path}: training has {', '.join(unknown) or 'trust_remote_code'}; allowed: the "
            f"arguments of {config.__name__} but output_dir and trust_remote_code"
        )
    hints = typing.get_type_hints(config)
    where = f"{path}: training"
    given = {name: _typed(where, name, value, hints[name]) for name, value in training.items()}
    defaults = {"report_to": "none", "logging_steps": 1}
    if not (given.get("use_cpu") or is_torch_bf16_gpu_available()):
        defaults["bf16"] = False
    try:
        return config(output_dir=str(output_dir), **{**defaults, **given})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: training: {error}") from None


def _typed(where: str, name: str, value: Any, hint: Any) -> Any:
    """A value of the type that an argument has; what YAML takes for a text may be a number."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = set(typing.get_args(hint) if union else [hint])
    if not kinds <= {bool, int, float, str, type(None)}:
        return value
    if isinstance(value, str) and str not in kinds and float in kinds:
        # YAML 1.1 reads 1e-6, which has no point, as a text.
        try:
            return float(value)
        except ValueError:
            pass
    if type(value) in kinds or (type(value) is int and float in kinds):
        return value
    if type(value) is float and value.is_integer() and int in kinds:
        return int(value)
    allowed = " or ".join(sorted("null" if k is type(None) else k.__name__ for k in kinds))
    raise ValueError(f"{where}: {name} is {value!r}; allowed: {allowed}")


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Sequence[str]:
    def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
        training = dict(settings.get("training") or {})
        for name in ("max_steps", "num_train_epochs"):
            training.pop(name, None)
        return {**settings, "training": training}

    first, second = kept(before), kept(now)
    return sorted(k for k in first.keys() | second.keys() if first.get(k) != second.get(k))
