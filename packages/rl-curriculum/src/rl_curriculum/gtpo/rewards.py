r"""Rewards for answers in `\boxed{...}`, compared as numbers without evaluating anything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .checks import is_number

_BRACE = re.compile(r"(\\f?boxed\s*)?\{|\}")
_SIZED = re.compile(r"\\(?:left|right)(?![A-Za-z])")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[,;:!> ]|~|\\quad|\\qquad|\s+")
_FRACTION = re.compile(r"([+-]?)\\[dtc]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_NUMBER = re.compile(r"([+-]?)([0-9]+(?:,[0-9]{3})+|[0-9]*)(?:\.([0-9]*))?")
# Numbers longer than this are compared as text: arithmetic on them could take forever.
_LONGEST = 2000


def boxed_answer(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{...}` of a text, braces inside it included.

    Raises
    ------
    TypeError
        If `text` is none.

    Examples
    --------
    >>> boxed_answer(r"so \boxed{\frac{1}{2}}, that is \boxed{\frac{2}{4}}.")
    '\\frac{2}{4}'
    >>> boxed_answer("no box") is None
    True
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {text!r}; allowed: a text")
    opened: list[tuple[int, bool]] = []
    start, end = -1, -1
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            opened.append((brace.end(), brace[1] is not None))
        elif opened:
            inside, box = opened.pop()
            if box and inside > start:
                start, end = inside, brace.start()
    return text[start:end] if start >= 0 else None


def normal_form(answer: str) -> Fraction | str:
    r"""The number that an answer means, or its text without typesetting.

    Integers, decimals, `a/b`, `\frac`, `\dfrac`, `\tfrac` and `\cfrac`, with signs, thousands'
    commas, `$`, `\text`, spaces and a full stop at the end. A fraction over zero, and a number of
    more than 2000 characters, stay text. A percent sign is no part of the number.

    Examples
    --------
    >>> normal_form(r"$-\dfrac{1,000}{3}$."), normal_form("0.50"), normal_form("x + 1")
    (Fraction(-1000, 3), Fraction(1, 2), 'x+1')
    """
    text = answer.strip().replace("−", "-").replace("–", "-")
    text = _SIZED.sub("", text)
    text = text.replace(r"\$", "").replace("$", "").replace(r"\%", "").replace("%", "")
    text = text.replace(r"\(", "").replace(r"\)", "").replace("{,}", ",")
    text = _WRAPPED.sub(r"\1", text)
    text = _SPACES.sub("", text).rstrip(".").removesuffix(r"^\circ")
    around = min(len(text) - len(text.lstrip("{")), len(text) - len(text.rstrip("}")))
    text = text[around : len(text) - around]
    number = _as_number(text) if len(text) <= _LONGEST else None
    return text if number is None else number


def _as_number(text: str) -> Fraction | None:
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        sign, *parts = fraction.groups()
        above, below = (parts[0] or parts[1] or ""), (parts[2] or parts[3] or "")
    elif text.count("/") == 1:
        sign = ""
        above, below = text.split("/")
    else:
        return _as_decimal(text)
    top, bottom = _as_decimal(above), _as_decimal(below)
    if top is None or not bottom:
        return None
    return -top / bottom if sign == "-" else top / bottom


def _as_decimal(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, part = match[1], match[2].replace(",", ""), match[3] or ""
    if not whole and not part:
        return None
    value = Fraction(int(whole + part), 10 ** len(part))
    return -value if sign == "-" else value


def completion_text(completion: Any) -> str:
    """The text of a completion, which TRL hands over as a string or as messages.

    Raises
    ------
    TypeError
        For what is neither.

    Examples
    --------
    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if isinstance(completion, list) and completion else None
    if not isinstance(last, dict):
        raise TypeError(f"completion is {completion!r}; allowed: a text, or a list of messages")
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise TypeError(f"completion has the content {content!r}; allowed: a text, or blocks")
    return "".join(block.get("text") or "" for block in content)


def boxed_reward(
    completions: Sequence[Any], answer: Sequence[str | float], **_: Any
) -> list[float]:
    r"""1 where the boxed answer of a completion means the right one, else 0.

    Parameters
    ----------
    completions
        Texts, or lists of messages whose last one counts.
    answer
        The right answers, texts or numbers; what follows `####` where that stands in one (GSM8K),
        or the content of a box.

    Returns
    -------
    A float for each completion; the function is a reward for TRL whose data have a column `answer`.

    Raises
    ------
    TypeError, ValueError
        If a completion or an answer is something else, or there are not as many of both.

    Examples
    --------
    >>> boxed_reward([r"\boxed{\frac{2}{4}}", "0.5"], ["1/2", "1/2"])
    [1.0, 0.0]
    """
    return _compared(completions, answer, lambda text: boxed_answer(text) or "")


def exact_reward(
    completions: Sequence[Any], answer: Sequence[str | float], **_: Any
) -> list[float]:
    """1 where a completion as a whole means the right answer, else 0.

    Parameters, returns and errors are those of `boxed_reward`.

    Examples
    --------
    >>> exact_reward([" 0.5", "it is 0.5"], ["1/2", "1/2"])
    [1.0, 0.0]
    """
    return _compared(completions, answer, lambda text: text)


def answer_text(answer: object) -> str:
    """An answer as a text: 1e-05 is how Python writes a number, not how a model does.

    Raises
    ------
    TypeError
        If it is neither a text nor a finite number.

    Examples
    --------
    >>> answer_text(1e-05), answer_text(7)
    ('0.00001', '7')
    """
    if isinstance(answer, str):
        return answer
    if not is_number(answer) or not math.isfinite(answer):  # type: ignore[arg-type]
        raise TypeError(f"answer is {answer!r}; allowed: text or number")
    return f"{Decimal(str(answer)):f}"


def _compared(
    completions: Sequence[Any], answer: Sequence[Any], part: Callable[[str], str]
) -> list[float]:
    for name, values in {"completions": completions, "answer": answer}.items():
        if isinstance(values, str):
            raise TypeError(f"{name} is {values!r}; allowed: a list")
    if len(completions) != len(answer):
        raise ValueError(
            f"there are {len(completions)} completions and {len(answer)} answers; "
            "allowed: as many of both"
        )
    pairs = zip(completions, answer, strict=True)
    return [_same(part(completion_text(c)), answer_text(right)) for c, right in pairs]


def _same(given: str, right: str) -> float:
    wanted = right.rpartition("####")[2]
    boxed = boxed_answer(wanted)
    wanted = wanted if boxed is None else boxed
    return float(given.strip() != "" and normal_form(given) == normal_form(wanted))
