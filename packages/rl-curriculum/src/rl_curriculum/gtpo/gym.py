"""Problems of `reasoning_gym` as a data set and a reward for TRL. Needs its extra."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from .rewards import completion_text


class Reward(Protocol):
    """What TRL calls to score completions."""

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float]: ...


def gym_dataset(name: str, **settings: Any) -> Any:
    """A `datasets.Dataset` with the columns `prompt`, `answer` and `entry`.

    Parameters
    ----------
    name
        The name of a data set of `reasoning_gym`, such as `"chain_sum"`.
    settings
        Its settings: `size`, `seed` and others.

    Raises
    ------
    ValueError
        If there is no such data set or a setting is not allowed.

    Examples
    --------
    >>> gym_dataset("chain_sum", size=2, seed=0).column_names
    ['prompt', 'answer', 'entry']
    """
    import reasoning_gym  # type: ignore[import-untyped]
    from datasets import Dataset  # type: ignore[import-untyped]

    try:
        source = reasoning_gym.create_dataset(name, **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"name is {name!r} with {settings}: {error}") from error
    entries = [source[i] for i in range(len(source))]
    return Dataset.from_dict(
        {
            "prompt": [entry["question"] for entry in entries],
            "answer": [str(entry["answer"]) for entry in entries],
            "entry": [json.dumps(entry, default=str) for entry in entries],
        }
    )


def gym_reward(source: Any) -> Reward:
    """A reward function that scores completions as the data set itself does, in [0, 1].

    Parameters
    ----------
    source
        The data set of `reasoning_gym` that `gym_dataset` was made from, or another of its kind.

    Raises
    ------
    TypeError
        If `source` scores no answers; when called, if there is no column `entry`.

    Examples
    --------
    >>> import reasoning_gym
    >>> reward = gym_reward(reasoning_gym.create_dataset("chain_sum", size=2, seed=0))
    >>> rows = gym_dataset("chain_sum", size=2, seed=0)
    >>> reward(rows["answer"], entry=rows["entry"])
    [1.0, 1.0]
    """
    if not hasattr(source, "score_answer"):
        raise TypeError(f"source is a {type(source).__name__}; allowed: what has score_answer")

    def gym(completions: Sequence[Any], **columns: Any) -> list[float]:
        if "entry" not in columns:
            raise TypeError(f"there are the columns {sorted(columns)}; allowed: entry among them")
        pairs = zip(completions, columns["entry"], strict=True)
        return [
            float(source.score_answer(completion_text(c).strip(), json.loads(entry)))
            for c, entry in pairs
        ]

    return gym
