"""How much of a score is signal: closed forms that it must meet, and a noise-free yardstick."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from .rollout import Rollout
from .scores import pace_scores

Floats = NDArray[np.float64]


def unbiased_lengths(gradients: Iterable[Tensor]) -> tuple[Floats, Floats]:
    """Squared lengths of expected gradients from independent rollouts, without their noise.

    The mean over all pairs of different rollouts of the inner product of their gradients; a mean
    of squared lengths would contain the variance of each.

    Parameters
    ----------
    gradients
        One tensor (levels, d) a rollout, at least two.

    Returns
    -------
    lengths
        Shape (levels,); estimates may be negative.
    noise
        The share of the mean squared length of one rollout that is noise, shape ().

    Examples
    --------
    >>> lengths, noise = unbiased_lengths([torch.tensor([[3.0, 1.0]]), torch.tensor([[3.0, -1.0]])])
    >>> lengths.tolist(), round(float(noise), 3)
    ([8.0], 0.2)
    """
    total: Tensor | None = None
    squares: Tensor | None = None
    n = 0
    for gradient in gradients:
        wide = gradient.double()
        length = wide.square().sum(1)
        total = wide if total is None else total + wide
        squares = length if squares is None else squares + length
        n += 1
    if total is None or squares is None or n < 2:
        raise ValueError(f"gradients are {n} rollouts; allowed: at least 2")
    lengths: Floats = ((total.square().sum(1) - squares) / (n * (n - 1))).numpy()
    return lengths, 1 - lengths.mean() / (squares.numpy().mean() / n)


def closed_form_errors() -> dict[str, float]:
    """Relative errors of scores with known values.

    Returns
    -------
    errors
        `"bandit"`: one decision of success probability p scores `(p (1 - p))^2`. `"softmax"`: a
        linear policy worked by hand. `"taylor"`: the first-order gain of a small step is the score
        by the step size. `"zero"`: no advantages, no score. `"scale"`: c times the rewards, c^2
        times the score.

    Examples
    --------
    >>> max(closed_form_errors().values()) < 1e-6
    True
    """
    errors = dict.fromkeys(("bandit", "softmax", "taylor", "zero", "scale"), 0.0)
    for p in (0.5, 0.9, 0.8, 0.3):
        wins = np.zeros((10, 1), dtype=np.int64)
        wins[: round(10 * p)] = 1
        score = _score(_Linear(1, p), np.ones((10, 1, 1)), wins, wins - p)
        # Two logits, of which the outcome depends on the difference: twice the single logit's.
        errors["bandit"] = max(errors["bandit"], abs(score / (2 * (p * (1 - p)) ** 2) - 1))
        eta = 1e-4
        step = eta * math.sqrt(score / 2)
        gain = 1 / (1 + math.exp(-math.log(p / (1 - p)) - step)) - p
        # The next term of the series: J'' / 2 = p (1 - p) (1 - 2 p) / 2.
        second = 1 + 0.5 * eta * p * (1 - p) * (1 - 2 * p)
        quotient = gain / (step**2 / eta)
        errors["taylor"] = max(errors["taylor"], abs(quotient / second - 1))
    obs = np.broadcast_to([3.0, 4.0], (4, 1, 2)).copy()
    actions = np.array([[0], [1], [0], [0]])
    advantages = np.array([[1.0], [1.0], [-1.0], [2.0]])
    worked = _score(_Linear(2, 0.5), obs, actions, advantages)
    errors["softmax"] = abs(worked / 0.78125 - 1)
    errors["zero"] = abs(_score(_Linear(2, 0.5), obs, actions, 0 * advantages))
    larger = _score(_Linear(2, 0.5), obs, actions, 7 * advantages)
    errors["scale"] = abs(larger / worked / 49 - 1)
    return errors


class _Linear(nn.Module):
    """Two logits, linear in the observation; action 1 has probability p at an observation of 1."""

    def __init__(self, inputs: int, p: float) -> None:
        super().__init__()
        self.actor_head = nn.Linear(inputs, 2, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.actor_head.weight.zero_()
            self.actor_head.weight[1] = math.log(p / (1 - p))

    def evaluate(
        self, obs: Tensor, actions: Tensor, hidden: None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        logs = torch.log_softmax(self.actor_head(obs), -1)
        logp = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return logp, torch.zeros_like(logp), torch.zeros_like(logp)


def _score(
    policy: nn.Module, obs: ArrayLike, actions: NDArray[np.int64], advantages: ArrayLike
) -> float:
    zeros = np.zeros(actions.shape)
    batch = Rollout(
        obs=torch.as_tensor(np.asarray(obs)),
        actions=torch.from_numpy(actions),
        logp=torch.from_numpy(zeros),
        values=zeros,
        rewards=zeros,
        terminated=zeros > 0,
        truncated=zeros > 0,
        last_value=zeros[0],
    )
    return float(pace_scores(policy, batch, advantage_norm="none", advantages=advantages)[0])
