"""Trainers on small models that write down what the loss was given."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset

from rl_curriculum.gtpo.character_model import character_model

CHARACTERS = "0123456789+=;#~."
PROMPTS = ["1+2=", "30+4=", "7+7=", "9+15="]


def reward(completions: list[str], **_: Any) -> list[float]:
    """Something that an untrained model gets half of the time."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def settings(folder: Any, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "mask_truncated_completions": False,
        "shuffle_dataset": False,
        "seed": 5,
        **more,
    }


def recorder(parent: type) -> type:
    """A trainer that keeps every scored batch with its entropies, and every loss."""

    class Recorder(parent):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **named: Any) -> None:
            self.scored: list[dict[str, torch.Tensor]] = []
            self.losses: list[float] = []
            self.given: list[torch.Tensor] = []
            self.passes = 0
            super().__init__(*args, **named)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            kept = {k: v.clone() for k, v in output.items() if isinstance(v, torch.Tensor)}
            kept["entropy"] = plain_entropy(self.model, output)
            self.scored.append(kept)
            return output

        def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
            self.passes += 1
            return super()._get_per_token_logps_and_entropies(*args, **named)

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.given.append(inputs["advantages"].clone())
            loss = super()._compute_loss(model, inputs)
            self.losses.append(float(loss.detach()))
            return loss

    return Recorder


def decided_model(kind: str) -> Any:
    """A model that is more certain at some tokens than at others."""
    model, tokenizer = character_model(CHARACTERS, kind)
    with torch.no_grad():
        model.lm_head.weight *= 20
    return model, tokenizer


def train(
    parent: type,
    config: type,
    folder: Any,
    *,
    kind: str = "qwen2",
    rewards: Any = reward,
    prompts: list[str] = PROMPTS,
    named: dict[str, Any] | None = None,
    resume: str | None = None,
    **more: Any,
) -> Any:
    model, tokenizer = decided_model(kind)
    trainer = recorder(parent)(
        model,
        rewards,
        config(**settings(folder, **more)),
        train_dataset=Dataset.from_dict({"prompt": prompts * 4}),
        processing_class=tokenizer,
        **(named or {}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def plain_entropy(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Entropies from the whole logits of transformers' own forward and torch's distributions."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    width = batch["completion_ids"].shape[1]
    entropy = torch.distributions.Categorical(logits=logits[:, -width - 1 : -1]).entropy()
    return entropy * batch["completion_mask"]


def parameters(trainer: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
