"""Collecting rollouts, and the ordinary PPO update on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .levels import Levels
from .rollout import Rollout


class LevelEnv(Protocol):
    """What the trainer asks of an environment: a vector environment that takes levels.

    After the end of an episode it goes on with a new one on the same level, and `step` returns the
    new one's first observation, with the last one of the old in `info["final_obs"]`.
    """

    num_envs: int

    def assign(self, levels: Levels, seed: int | None = None) -> Any:
        """Put the environments into these levels and return the first observations."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in all of them."""


@dataclass(frozen=True)
class PPOConfig:
    """Settings of the PPO update; the defaults suit a small network on a CPU.

    Examples
    --------
    >>> PPOConfig(learning_rate=1e-4).epochs
    4
    """

    learning_rate: float = 5e-4
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    entropy_coef: float = 1e-3
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    gamma: float = 0.995
    gae_lambda: float = 0.95

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "max_grad_norm"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: a positive number")
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: at least 1")
        for name in ("entropy_coef", "value_coef"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: at least 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 0 to 1")


def collect(
    policy: nn.Module,
    env: LevelEnv,
    obs: Any,
    steps: int,
    generator: torch.Generator,
    *,
    gamma: float = 0.995,
    gae_lambda: float = 0.95,
    bootstrap: bool = False,
    max_returns: NDArray[np.float64] | None = None,
) -> Rollout:
    """Act for `steps` steps in every environment, from the first observations `obs` on.

    Parameters
    ----------
    policy
        With `act(obs, hidden, starts, generator) -> (action, logp, value, hidden)`.
    env
        With levels assigned.
    obs
        What `assign` returned.
    steps
        `T`.
    generator
        Of the actions.
    gamma, gae_lambda
        For the rollout's advantages.
    bootstrap
        Whether a truncated episode goes on with the critic's value.
    max_returns
        Best returns seen before, for the rollout.
    """
    if steps < 2:
        raise ValueError(f"steps is {steps!r}; allowed: at least 2")
    device = next(policy.parameters()).device
    act: Any = policy.act
    n = env.num_envs
    begin: Any = getattr(policy, "initial_hidden", None)
    hidden = first = begin(n) if begin is not None else None
    starts = torch.ones(n, dtype=torch.bool, device=device)
    values, rewards = np.empty((steps, n)), np.empty((steps, n))
    terminated, truncated = np.empty((steps, n), bool), np.empty((steps, n), bool)
    final_values = np.zeros((steps, n)) if bootstrap else None
    store: list[Tensor] = []
    with torch.inference_mode():
        for t in range(steps):
            now = _tensor(obs, device)
            action, logp, value, after = act(now, hidden, starts, generator)
            if t == 0:
                store = [x.new_empty((steps, *x.shape)) for x in (now, action, logp)]
            for kept, x in zip(store, (now, action, logp), strict=True):
                kept[t] = x
            values[t] = value.cpu().numpy()
            obs, rewards[t], terminated[t], truncated[t], info = env.step(action.cpu().numpy())
            if final_values is not None and truncated[t].any():
                last = _tensor(np.asarray(info["final_obs"]), device)
                goes_on = torch.zeros(n, dtype=torch.bool, device=device)
                final_values[t] = act(last, after, goes_on, generator)[2].cpu().numpy()
            hidden = after
            starts = torch.from_numpy(terminated[t] | truncated[t]).to(device)
        last_value = act(_tensor(obs, device), hidden, starts, generator)[2].cpu().numpy()
    return Rollout(
        # Copies that autograd may use, which inference tensors are not.
        obs=store[0].clone(),
        actions=store[1].clone(),
        logp=store[2].clone(),
        values=values,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        last_value=last_value,
        hidden0=first,
        final_values=final_values,
        max_returns=max_returns,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )


def update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Rollout,
    config: PPOConfig,
    generator: torch.Generator,
) -> dict[str, float]:
    """PPO's epochs over a rollout.

    Parameters
    ----------
    policy
        With `evaluate`.
    optimizer
        Of its parameters.
    batch
        The rollout.
    config
        The settings.
    generator
        Of the shuffling.

    Returns
    -------
    losses
        `policy_loss`, `value_loss` and `entropy`, means over all minibatches.
    """
    T, N = batch.shape
    first = next(policy.parameters())
    evaluate: Any = policy.evaluate
    parameters = [p for p in policy.parameters() if p.requires_grad]
    advantages = torch.as_tensor(batch.advantages, dtype=first.dtype, device=first.device)
    returns = advantages + torch.as_tensor(batch.values, dtype=first.dtype, device=first.device)
    columns = {"logp": batch.logp, "advantages": advantages, "returns": returns}
    recurrent = batch.hidden0 is not None
    size = N if recurrent else T * N
    if config.minibatches > size:
        raise ValueError(f"minibatches is {config.minibatches}; allowed: at most {size}")
    obs, actions = batch.obs, batch.actions
    if not recurrent:
        # One long column of a single level: rows of a memoryless policy may be mixed.
        obs, actions = (
            obs.reshape(T * N, 1, *obs.shape[2:]),
            actions.reshape(T * N, 1, *actions.shape[2:]),
        )
        columns = {name: value.reshape(T * N, 1) for name, value in columns.items()}
    totals = torch.zeros(3)
    for _ in range(config.epochs):
        order = torch.randperm(size, generator=generator)
        for rows in order.tensor_split(config.minibatches):
            if recurrent:
                assert batch.hidden0 is not None
                hidden = tuple(h[:, rows] for h in batch.hidden0)
                part = {name: value[:, rows] for name, value in columns.items()}
                seen = evaluate(obs[:, rows], actions[:, rows], hidden, batch.starts[:, rows])
            else:
                part = {name: value[rows] for name, value in columns.items()}
                seen = evaluate(obs[rows], actions[rows], None, None)
            logp, entropy, value = seen
            ratio = (logp - part["logp"]).exp()
            weight = part["advantages"]
            weight = (weight - weight.mean()) / (weight.std(correction=0) + 1e-8)
            gain = torch.minimum(
                ratio * weight, ratio.clamp(1 - config.clip, 1 + config.clip) * weight
            )
            policy_loss, value_loss = -gain.mean(), 0.5 * (value - part["returns"]).square().mean()
            loss = (
                policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimizer.step()
            totals += torch.stack([policy_loss, value_loss, entropy.mean()]).detach().cpu()
    means = (totals / (config.epochs * config.minibatches)).tolist()
    return dict(zip(("policy_loss", "value_loss", "entropy"), means, strict=True))


def _tensor(obs: Any, device: torch.device) -> Tensor:
    array = np.asarray(obs)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return torch.as_tensor(array, device=device)
