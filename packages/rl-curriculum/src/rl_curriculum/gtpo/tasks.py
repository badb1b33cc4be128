"""Small tasks with a known right answer, for studies on a processor core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .checks import require_probabilities, require_whole

CHARACTERS = "0123456789+=;#~."
_ANSWER = re.compile(r"[^#]*#([0-9]+)\.")


class Task(Protocol):
    """Prompts of one length in `CHARACTERS`, demonstrations, and a check of completions.

    A completion ends with its first full stop.
    """

    @property
    def max_new_tokens(self) -> int:
        """The longest completion."""

    def prompts(self, rng: np.random.Generator, n: int) -> list[str]:
        """`n` prompts."""

    def demos(self, rng: np.random.Generator, prompts: Sequence[str]) -> list[str]:
        """An imperfect completion for each prompt, to start a policy from."""

    def verify(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """1 where a completion is right and 0 elsewhere."""


@dataclass(frozen=True)
class ConfidentShortcut:
    """The sum of four digits modulo 10, reasoned about badly or guessed with confidence.

    Half of the prompts have the answer 7. A demonstration takes the path of running sums with
    probability `p_reason`, each step being one too high with probability `slip`, and the error
    stays; otherwise it says 7 without any thought.

    Examples
    --------
    >>> task = ConfidentShortcut(p_reason=1.0, slip=0.0)
    >>> task.demos(np.random.default_rng(0), ["1234="])
    [';360#0.']
    >>> task.verify(["1234="] * 3, [";360#0.", "~~~~#7.", "#0"])
    [1.0, 0.0, 0.0]
    """

    p_reason: float = 0.5
    slip: float = 0.4
    max_new_tokens: int = 9

    def __post_init__(self) -> None:
        require_probabilities(p_reason=self.p_reason, slip=self.slip)

    def prompts(self, rng: np.random.Generator, n: int) -> list[str]:
        digits = rng.integers(0, 10, (n, 4))
        forced = rng.random(n) < 0.5
        last = (7 - digits[:, :3].sum(1)) % 10
        digits[:, 3] = np.where(forced, last, digits[:, 3])
        return ["".join(map(str, row)) + "=" for row in digits.tolist()]

    def demos(self, rng: np.random.Generator, prompts: Sequence[str]) -> list[str]:
        reasoned = rng.random(len(prompts)) < self.p_reason
        slips = rng.random((len(prompts), 3)) < self.slip
        result = []
        for prompt, thinks, off in zip(prompts, reasoned, slips.astype(int), strict=True):
            if not thinks:
                result.append("~~~~#7.")
                continue
            total, steps = int(prompt[0]), []
            for digit, extra in zip(prompt[1:4], off.tolist(), strict=True):
                total = (total + int(digit) + extra) % 10
                steps.append(str(total))
            result.append(f";{''.join(steps)}#{steps[-1]}.")
        return result

    def verify(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        answers = [str(sum(map(int, prompt[:4])) % 10) for prompt in prompts]
        return _exact(answers, completions)


@dataclass(frozen=True)
class BuggyCarry:
    """Two-digit addition in columns, from demonstrations that mostly drop the carry.

    A completion may start with fillers, which put the same step at different positions; then come
    digit and carry of each column, and the sum.

    Examples
    --------
    >>> task = BuggyCarry(drop=0.0, fillers=0)
    >>> task.demos(np.random.default_rng(0), ["47+85="])
    [';21;31#132.']
    >>> BuggyCarry(drop=1.0, fillers=0).demos(np.random.default_rng(0), ["47+85="])
    [';20;21#122.']
    >>> task.verify(["47+85="], [";21;31#132."])
    [1.0]
    """

    drop: float = 0.95
    fillers: int = 2
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        require_probabilities(drop=self.drop)
        require_whole(0, fillers=self.fillers)
        if self.fillers > 4:
            raise ValueError(f"fillers is {self.fillers}; allowed: 0 to 4")

    def prompts(self, rng: np.random.Generator, n: int) -> list[str]:
        return [f"{a:02d}+{b:02d}=" for a, b in rng.integers(0, 100, (n, 2)).tolist()]

    def demos(self, rng: np.random.Generator, prompts: Sequence[str]) -> list[str]:
        drops = rng.random(len(prompts)) < self.drop
        fillers = rng.integers(0, self.fillers + 1, len(prompts))
        result = []
        for prompt, dropped, filler in zip(prompts, drops, fillers.tolist(), strict=True):
            ones = int(prompt[1]) + int(prompt[4])
            carry = 0 if dropped else ones // 10
            tens = int(prompt[0]) + int(prompt[3]) + carry
            total = 10 * tens + ones % 10
            steps = f";{ones % 10}{carry};{tens % 10}{tens // 10}"
            result.append(f"{'~' * filler}{steps}#{total}.")
        return result

    def verify(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        answers = [str(int(prompt[:2]) + int(prompt[3:5])) for prompt in prompts]
        return _exact(answers, completions)


def _exact(answers: Sequence[str], completions: Sequence[str]) -> list[float]:
    found = [_ANSWER.fullmatch(text) for text in completions]
    pairs = zip(answers, found, strict=True)
    return [float(match is not None and match[1] == answer) for answer, match in pairs]
