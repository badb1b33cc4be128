"""Supervised start, reinforcement learning and evaluation of the small transformer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .checks import require_finite, require_whole
from .loss import clipped_loss
from .methods import Method, named_method
from .tasks import Task
from .tiny import TinyTransformer, decode, encode

Row = dict[str, float]


class TinyRLTrainer:
    """Reinforcement learning of a `TinyTransformer` on a task, as GTPO's algorithm has it.

    A step samples a group of completions for each prompt, drops the groups without contrast, and
    makes one clipped update a minibatch.

    Parameters
    ----------
    model, task
        The policy and what it is to learn.
    method
        A `Method`, or a name such as `"dapo"`, `"gtpo:0.5"` or `"grpo-s:0.5"`.
    prompts, group
        Prompts a step, and completions of each.
    minibatches, epochs
        Updates on a batch.
    lr, max_grad_norm
        Of AdamW, and the norm that gradients are clipped to.
    seed
        Of prompts, samples and minibatches.

    Attributes
    ----------
    history
        A row of numbers a step.

    Raises
    ------
    TypeError, ValueError
        If a number is not allowed or there is no such method.

    Examples
    --------
    >>> from rl_curriculum.gtpo import ConfidentShortcut
    >>> model, task = TinyTransformer(), ConfidentShortcut()
    >>> trainer = TinyRLTrainer(model, task, "gtpo:0.5", prompts=2, group=4).learn(1)
    >>> sorted(trainer.history[0])[:3]
    ['clipped_high', 'clipped_low', 'entropy']
    """

    def __init__(
        self,
        model: TinyTransformer,
        task: Task,
        method: str | Method = "gtpo",
        *,
        prompts: int = 16,
        group: int = 8,
        minibatches: int = 2,
        epochs: int = 1,
        lr: float = 3e-4,
        max_grad_norm: float = 1.0,
        seed: int = 0,
    ) -> None:
        require_whole(1, prompts=prompts, minibatches=minibatches, epochs=epochs)
        require_whole(2, group=group)
        require_finite(0, lr=lr, max_grad_norm=max_grad_norm)
        self.model, self.task, self.method = model, task, named_method(method)
        self.prompts, self.group = prompts, group
        self.minibatches, self.epochs, self.max_grad_norm = minibatches, epochs, max_grad_norm
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
        self.device = next(model.parameters()).device
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.history: list[Row] = []

    def learn(self, steps: int) -> TinyRLTrainer:
        """Take `steps` steps and return the trainer."""
        require_whole(0, steps=steps)
        for _ in range(steps):
            self.history.append(self.step())
        return self

    def step(self) -> Row:
        """One batch of samples and the updates on it."""
        texts = [t for t in self.task.prompts(self.rng, self.prompts) for _ in range(self.group)]
        prompts = encode(texts).to(self.device)
        samples = self.model.sample(prompts, self.task.max_new_tokens, self.generator)
        rewards = torch.tensor(self.task.verify(texts, decode(samples.tokens)), device=self.device)
        credit, mask = self.method.advantages(rewards, samples.entropy, samples.mask, self.group)
        groups = rewards.view(self.prompts, self.group)
        contrast = (groups.amax(1) > groups.amin(1)).repeat_interleave(self.group)
        kept = contrast.nonzero()[:, 0]
        row = {
            "reward": float(rewards.mean()),
            "length": float(samples.mask.sum(1).float().mean()),
            "entropy": float(samples.entropy[samples.mask].mean()),
            "no_contrast": 1 - len(kept) / len(rewards),
            "clipped_low": 0.0,
            "clipped_high": 0.0,
        }
        updates = self.epochs * self.minibatches if len(kept) else 0
        for _ in range(self.epochs if len(kept) else 0):
            order = torch.randperm(len(kept), generator=self.generator, device=self.device)
            for part in kept[order].chunk(self.minibatches):
                stats = self._update(
                    prompts[part],
                    samples.tokens[part],
                    samples.logp[part],
                    credit[part],
                    mask[part],
                )
                for name, value in stats.items():
                    row[name] += value / updates
        return row

    def _update(
        self, prompts: Tensor, tokens: Tensor, old: Tensor, credit: Tensor, mask: Tensor
    ) -> dict[str, float]:
        logp, entropy = self.model.score(prompts, tokens)
        loss, stats = clipped_loss(
            logp,
            old,
            credit,
            mask,
            eps=self.method.eps,
            ratio=self.method.ratio,
            aggregation=self.method.aggregation,
        )
        if self.method.entropy_bonus:
            loss = loss - self.method.entropy_bonus * entropy[mask].mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return stats


def imitate(
    model: TinyTransformer,
    task: Task,
    *,
    steps: int = 600,
    batch: int = 256,
    lr: float = 3e-3,
    seed: int = 0,
) -> float:
    """Train on demonstrations, drawn anew at every step, and return the last loss.

    AdamW with a cosine schedule down to 0.

    Raises
    ------
    TypeError, ValueError
        If `steps` or `batch` is below 1.

    Examples
    --------
    >>> from rl_curriculum.gtpo import ConfidentShortcut
    >>> imitate(TinyTransformer(), ConfidentShortcut(), steps=20, batch=32) < 3.0
    True
    """
    require_whole(1, steps=steps, batch=batch)
    require_finite(0, lr=lr)
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    device = next(model.parameters()).device
    value = 0.0
    for _ in range(steps):
        texts = task.prompts(rng, batch)
        prompts, tokens = encode(texts).to(device), encode(task.demos(rng, texts)).to(device)
        loss = -model.score(prompts, tokens)[0][tokens != 0].mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        value = float(loss.detach())
    return value


@dataclass(frozen=True)
class TinyEvaluation:
    """`success` of single samples, and the share of prompts that any of the samples solved."""

    success: float
    pass_at_n: float
    length: float
    entropy: float


def evaluate_tiny(
    model: TinyTransformer, task: Task, *, prompts: int = 400, samples: int = 4, seed: int = 0
) -> TinyEvaluation:
    """Success on prompts that depend on `seed` alone.

    Raises
    ------
    TypeError, ValueError
        If `prompts` or `samples` is below 1.

    Examples
    --------
    >>> from rl_curriculum.gtpo import ConfidentShortcut
    >>> evaluate_tiny(TinyTransformer(), ConfidentShortcut(), prompts=4).pass_at_n
    0.0
    """
    require_whole(1, prompts=prompts, samples=samples)
    texts = task.prompts(np.random.default_rng(seed), prompts)
    texts = [text for text in texts for _ in range(samples)]
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    drawn = model.sample(encode(texts).to(device), task.max_new_tokens, generator)
    right = torch.tensor(task.verify(texts, decode(drawn.tokens))).view(prompts, samples)
    return TinyEvaluation(
        float(right.mean()),
        float(right.amax(1).mean()),
        float(drawn.mask.sum(1).float().mean()),
        float(drawn.entropy[drawn.mask].mean()),
    )
