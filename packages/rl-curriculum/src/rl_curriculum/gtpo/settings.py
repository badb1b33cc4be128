"""The file of settings of a training run, and its problems: read, and refused before any work."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import check_writable
from .explain import json_lines
from .rewards import answer_text, boxed_reward, exact_reward

REWARDS: dict[str, Callable[..., list[float]]] = {"boxed": boxed_reward, "exact": exact_reward}
_TOP = ("method", "model", "data", "output_dir", "reward", "system", "lora", "training")
_METHODS = ("gtpo", "grpo-s", "grpo")
# Bounds of arguments on which TRL fails late, trains on nothing, or trains on nonsense.
_LEAST = {
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps"), 1),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "num_iterations"), 1),
    **dict.fromkeys(("learning_rate", "beta", "epsilon", "epsilon_high", "weight_decay"), 0),
    **dict.fromkeys(("max_grad_norm", "seed", "min_p"), 0),
    "max_completion_length": 1,
    "num_generations": 2,
}
_MOST = {"epsilon": 1, "seed": 2**32 - 1, "top_p": 1, "min_p": 1}
_POSITIVE = ("num_train_epochs", "temperature", "top_p", "save_steps", "logging_steps")


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
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
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
    except (TypeError, ValueError) as error:
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
    output_dir = _output_dir(path, here / raw["output_dir"], model)
    config = _config(path, method, output_dir, raw.get("training") or {})
    prompts, answers = read_problems(here / raw["data"], system)
    at_once = config.generation_batch_size // config.num_generations
    if len(prompts) < at_once:
        raise ValueError(
            f"{path}: data has {len(prompts)} problems and training takes {at_once} at a time; "
            "allowed: at least as many (generation_batch_size // num_generations)"
        )
    return Settings(method, model, output_dir, reward, lora, config, prompts, answers, raw)


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
            # Half of a surrogate pair is no text.
            json.dumps([prompt, answer], ensure_ascii=False).encode()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
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


def _output_dir(path: Path, folder: Path, model: str) -> Path:
    try:
        check_writable(folder)
    except ValueError as error:
        raise ValueError(f"{path}: output_dir is {str(folder)!r}: {error}") from None
    if folder.resolve() / "model" == Path(model):
        raise ValueError(
            f"{path}: model is {model!r}, where output_dir puts the trained model; "
            "allowed: another folder"
        )
    return folder


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

    _, config = trainer_and_config(method)
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
    for name, value in given.items():
        if type(value) in (int, float):
            _within_bounds(where, name, value)
    defaults = {"report_to": "none", "logging_steps": 1}
    if not (given.get("use_cpu") or is_torch_bf16_gpu_available()):
        defaults["bf16"] = False
    try:
        return config(output_dir=str(output_dir), **{**defaults, **given})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: training: {error}") from None


def _within_bounds(where: str, name: str, value: float) -> None:
    least, most = _LEAST.get(name, -math.inf), _MOST.get(name, math.inf)
    above = name in _POSITIVE
    if above:
        least = 0
    if not (math.isfinite(value) and least <= value <= most) or (above and value == 0):
        low = "above" if above else "from"
        raise ValueError(f"{where}: {name} is {value}; allowed: finite, {low} {least} to {most}")
    if name == "max_steps" and value != -1 and value < 1:
        raise ValueError(f"{where}: max_steps is {value}; allowed: -1, or 1 and more")


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


def trainer_and_config(method: str) -> tuple[Any, Any]:
    from . import trl as ours

    if method == "grpo":
        return ours.GTPOTrainer.__base__, ours.GTPOConfig.__base__
    if method == "grpo-s":
        return ours.GRPOSTrainer, ours.GRPOSConfig
    return ours.GTPOTrainer, ours.GTPOConfig
