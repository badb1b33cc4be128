"""What a scheme makes of one group of responses: every token's entropy, weight and advantage."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import write_atomic
from .advantages import grpo_advantages
from .checks import is_number
from .methods import Method, named_method
from .weights import gtpo_weights, mean_entropy


@dataclass(frozen=True)
class Response:
    """The tokens of a response that the policy chose, as text, and their entropies in nats.

    `reward` is None if nothing scored the response.

    Raises
    ------
    TypeError, ValueError
        If there is not a finite entropy for each token, none negative, or the reward is not finite.

    Examples
    --------
    >>> Response(["4"], [0.5], 1.0).reward
    1.0
    """

    tokens: list[str]
    entropy: list[float]
    reward: float | None

    def __post_init__(self) -> None:
        tokens, entropy, reward = self.tokens, self.entropy, self.reward
        for name, values in {"tokens": tokens, "entropy": entropy}.items():
            if not isinstance(values, list):
                raise TypeError(f"{name} is a {type(values).__name__}; allowed: a list")
        if len(entropy) != len(tokens):
            raise ValueError(
                f"entropy has {len(entropy)} numbers; allowed: {len(tokens)}, one for each token"
            )
        for place, (token, h) in enumerate(zip(tokens, entropy, strict=True)):
            if not isinstance(token, str):
                raise TypeError(f"tokens has {token!r} at {place}; allowed: texts")
            if not (is_number(h) and math.isfinite(h) and h >= -1e-3):
                raise ValueError(f"entropy has {h!r} at {place}; allowed: finite, not negative")
        if reward is not None and not (is_number(reward) and math.isfinite(reward)):
            raise ValueError(f"reward is {reward!r}; allowed: finite, or none")


@dataclass(frozen=True)
class Group:
    """A prompt and the responses to it."""

    prompt: str
    responses: list[Response]


@dataclass(frozen=True)
class Explanation:
    """A group with (G, T) weights and advantages, 0 after the end of a response."""

    group: Group
    method: Method
    weights: Tensor
    advantages: Tensor


def explain_group(group: Group, method: str | Method = "gtpo") -> Explanation:
    """Weights and advantages of a group's tokens under a method.

    Raises
    ------
    ValueError
        If the group is empty, or a value of it is not allowed.

    Examples
    --------
    >>> group = Group("1+1=", [Response(["2"], [0.5], 1.0), Response(["3"], [0.7], 0.0)])
    >>> explain_group(group, "gtpo:0.5").advantages
    tensor([[ 1.0000],
            [-1.0000]])
    """
    how = named_method(method)
    if not group.responses:
        raise ValueError("the group has no responses; allowed: at least one")
    size = len(group.responses)
    width = max(1, *(len(r.tokens) for r in group.responses))
    entropy, mask = torch.zeros(size, width), torch.zeros(size, width, dtype=torch.bool)
    for row, response in enumerate(group.responses):
        entropy[row, : len(response.tokens)] = torch.tensor(response.entropy)
        mask[row, : len(response.tokens)] = True
    given = [math.nan if r.reward is None else r.reward for r in group.responses]
    rewards = torch.tensor(given, dtype=entropy.dtype)
    advantages, kept = how.advantages(rewards, entropy, mask, size)
    known = ~rewards.isnan()
    weights = torch.ones_like(entropy)
    if how.credit in ("token", "sequence"):
        units, live = (entropy, mask) if how.credit == "token" else mean_entropy(entropy, mask)
        right = grpo_advantages(rewards, size) > 0
        weights = weights * sum(gtpo_weights(units, live & known[:, None], right, size))
    # Adding 0 takes the sign from a zero.
    return Explanation(group, how, weights * mask, advantages * kept + 0.0)


def read_groups(path: Path) -> list[Group]:
    """Read groups, one a line: `{"prompt": ..., "responses": [{"tokens": [...], "entropy": [...],
    "reward": ...}, ...]}`.

    Raises
    ------
    ValueError
        If a line is not such a group, with its number.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.jsonl"
    ...     write_groups(path, [Group("1+1=", [Response(["2"], [0.5], 1.0)])])
    ...     read_groups(path)[0].prompt
    '1+1='
    """
    groups = []
    for number, line in enumerate(json_lines(path), 1):
        if not line.strip():
            continue
        try:
            groups.append(_group(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} line {number}: {what}") from None
    if not groups:
        raise ValueError(f"{path} has no groups; allowed: at least one line")
    return groups


def json_lines(path: Path) -> list[str]:
    """The lines of a JSONL file, which end at newlines alone: texts may hold U+2028 and U+0085."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """Write groups as `read_groups` reads them, the whole file or none of it.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_groups(Path(folder) / "run.jsonl", [Group("1+1=", [Response(["2"], [0.5], 1.0)])])
    ...     (Path(folder) / "run.jsonl").read_text()[:19]
    '{"prompt": "1+1=", '
    """
    text = "".join(
        json.dumps(asdict(g), ensure_ascii=False, allow_nan=False) + "\n" for g in groups
    )
    write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))


def _group(value: Any) -> Group:
    if not isinstance(value, dict) or not isinstance(value["responses"], list):
        raise TypeError("allowed: an object with a prompt and a list of responses")
    responses = []
    for place, item in enumerate(value["responses"]):
        if not isinstance(item, dict):
            raise TypeError(f"response {place} is {item!r}; allowed: an object")
        tokens, entropy, reward = item["tokens"], item["entropy"], item["reward"]
        try:
            responses.append(Response(tokens, entropy, reward))
        except (TypeError, ValueError) as error:
            raise ValueError(f"response {place}: {error}") from None
    return Group(str(value["prompt"]), responses)


def as_rows(explanation: Explanation) -> list[dict[str, Any]]:
    """A row for every token: response, position, token, entropy, weight, advantage.

    Examples
    --------
    >>> group = Group("1+1=", [Response(["2"], [0.5], 1.0), Response(["3"], [0.7], 0.0)])
    >>> as_rows(explain_group(group))[0]["token"]
    '2'
    """
    wide = explanation.advantages.expand_as(explanation.weights)
    return [
        {
            "response": row,
            "reward": response.reward,
            "position": place,
            "token": token,
            "entropy": response.entropy[place],
            "weight": float(explanation.weights[row, place]),
            "advantage": float(wide[row, place]),
        }
        for row, response in enumerate(explanation.group.responses)
        for place, token in enumerate(response.tokens)
    ]


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #222; }
h2 { font-size: 1rem; white-space: pre-wrap; border-top: 1px solid #ccc; padding-top: 1rem; }
p.response { margin: .4rem 0; font-family: ui-monospace, monospace; line-height: 2.4; }
p.response b { display: inline-block; min-width: 6rem; font-family: system-ui, sans-serif; }
span { white-space: pre-wrap; padding: .1rem .15rem; border-radius: .2rem; }
span.token { border-bottom: 3px solid rgba(0, 0, 0, var(--h)); }
"""


def as_html(explanations: Sequence[Explanation]) -> str:
    """One self-contained page: green tokens are pushed up and red ones down, the stronger the more;
    the line under a token is as dark as its entropy is high.

    Examples
    --------
    >>> group = Group("<b>", [Response(["2"], [0.5], 1.0), Response(["3"], [0.7], 0.0)])
    >>> "&lt;b&gt;" in as_html([explain_group(group)])
    True
    """
    parts = []
    for explanation in explanations:
        rows = as_rows(explanation)
        strongest = max((abs(r["advantage"]) for r in rows), default=0.0) or 1.0
        highest = max((r["entropy"] for r in rows), default=0.0) or 1.0
        parts.append(f"<h2>{html.escape(explanation.group.prompt)}</h2>")
        for number, response in enumerate(explanation.group.responses):
            reward = "no reward" if response.reward is None else f"reward {response.reward:g}"
            spans = "".join(_span(r, strongest, highest) for r in rows if r["response"] == number)
            parts.append(f'<p class="response"><b>{reward}</b> {spans}</p>')
    legend = (
        "<p>Green: pushed up. Red: pushed down. Underline: entropy. "
        "Point at a token for its numbers.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Credit of tokens</title><style>{_STYLE}</style></head>\n"
        f"<body>{legend}{''.join(parts)}</body></html>\n"
    )


def _span(row: dict[str, Any], strongest: float, highest: float) -> str:
    color = "22, 140, 60" if row["advantage"] > 0 else "200, 40, 40"
    strength = 0.75 * abs(row["advantage"]) / strongest
    title = (
        f"entropy {row['entropy']:.3f}, weight {row['weight']:.3f}, "
        f"advantage {row['advantage']:+.3f}"
    )
    token = html.escape(row["token"]).replace("\n", "⏎\n")
    return (
        f'<span class="token" title="{title}" style="background: rgba({color}, {strength:.3f}); '
        f'--h: {max(row["entropy"], 0.0) / highest:.3f}">{token}</span>'
    )
