"""Answers in boxes: what is the same number, what is not, and what must not hang or execute."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_curriculum.gtpo.rewards import (
    boxed_answer,
    boxed_reward,
    completion_text,
    exact_reward,
    normal_form,
)

BIG = "1" + "0" * 300


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{{2}}", "{2}"),
        (r"\boxed {3}", "3"),
        (r"\fboxed{3}", "3"),
        (r"a \boxed{1} and a broken \boxed{2", "1"),
        (r"\boxed{\text{so } \frac{a}{{b}}}", r"\text{so } \frac{a}{{b}}"),
        (r"\boxed{}", ""),
        (r"\boxed 7", None),
        ("7", None),
        (r"\boxed{1}}", "1"),
        (r"} \boxed{1} {", "1"),
        (r"{\boxed{1} and \boxed{2} \boxed{", "2"),
        (r"\boxed{1 and \boxed{2}}", "2"),
        (r"\boxed{1 and \boxed{2}", "2"),
    ],
)
def test_the_last_complete_box(text, inside) -> None:
    assert boxed_answer(text) == inside


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("7", 7),
        ("+7", 7),
        ("-7", -7),
        ("\u22127", -7),
        ("007", 7),
        (" 7 . ", 7),
        ("7.", 7),
        ("7.50", Fraction(15, 2)),
        (".5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("1,234,567", 1234567),
        ("1{,}234", 1234),
        (r"1\,234", 1234),
        ("12,345.5", Fraction(24691, 2)),
        ("$7$", 7),
        (r"\$7.25", Fraction(29, 4)),
        (r"\(7\)", 7),
        (r"7\%", 7),
        ("1/2", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)),
        ("1/-2", Fraction(-1, 2)),
        ("2/4", Fraction(1, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\dfrac{3}{6}", Fraction(1, 2)),
        (r"\tfrac{1}{2}", Fraction(1, 2)),
        (r"-\frac{1}{2}", Fraction(-1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\frac{1,000}{3}", Fraction(1000, 3)),
        (r"\frac{1}{0.5}", 2),
        (r"\text{7}", 7),
        (r"\mathrm{7}", 7),
        (r"\left 7 \right", 7),
        (r"{7}", 7),
        (r"45^\circ", 45),
        (BIG, 10**300),
        ("-0", 0),
        ("0.0", 0),
    ],
)
def test_numbers(answer, number) -> None:
    assert normal_form(answer) == Fraction(number)
    assert isinstance(normal_form(answer), Fraction)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "x+1",
        "1/0",
        r"\frac{1}{0}",
        r"\frac{1}{}",
        r"\frac{}{2}",
        "1/2/3",
        "1,23",
        "12,34,567",
        ",123",
        "1e5",
        "--7",
        ".",
        "+",
        "1.2.3",
        "nan",
        "inf",
        "0x10",
        "\u0667",  # a digit to unicode, not to us
        "²",
        "7 apples",
        "__import__('os').system('true')",
        "9**9**9",
    ],
)
def test_what_is_no_number_stays_text(answer) -> None:
    assert isinstance(normal_form(answer), str)


def test_text_is_compared_without_typesetting() -> None:
    assert normal_form(r"x + \text{1}") == normal_form("$x+1$.")
    assert normal_form("(1, 2)") == normal_form(r"\left(1,2\right)")
    assert normal_form("A") != normal_form("B")
    assert normal_form(r"\leftarrow") != normal_form(r"\rightarrow")


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**12))
def test_all_spellings_of_a_fraction_are_one(above, below) -> None:
    value = Fraction(above, below)
    spellings = [
        f"{above}/{below}",
        rf"\frac{{{above}}}{{{below}}}",
        rf"$\dfrac{{{3 * above}}}{{{3 * below}}}$.",
        f"{above:,}/{below:,}",
        f"{above}/{below}".replace("-", "\u2212"),
    ]
    assert [normal_form(s) for s in spellings] == [value] * 5


@given(st.text(max_size=200))
def test_any_text_is_answered(text) -> None:
    assert boxed_reward([text, rf"\boxed{{{text}}}"], ["7", text])[0] in (0.0, 1.0)
    assert isinstance(normal_form(text), (str, Fraction))


def test_huge_input_does_not_hang() -> None:
    """Quadratic arithmetic or backtracking would take minutes here."""
    digits = "9" * 1_000_000
    assert normal_form(digits) == digits
    assert boxed_reward([rf"\boxed{{{digits}}}"], [digits]) == [1.0]
    assert boxed_answer("\\boxed{" * 300 + "{" * 20_000) is None
    assert normal_form("{" * 1000 + "7" + "}" * 900) != 7
    assert boxed_answer("\\boxed{" * 100_000) is None
    assert boxed_answer("\\boxed{" * 100_000 + "7" + "}" * 100_000) == "7"
    braces = "{" * 500_000 + "7" + "}" * 500_000
    assert boxed_reward([rf"\boxed{{{braces}}}"], ["7"]) == [1.0]


def test_rewards() -> None:
    completions = [
        r"so $\boxed{\frac{1}{2}}$",
        r"\boxed{0.5}",
        r"\boxed{2}",
        "0.5",
        r"\boxed{}",
        [{"role": "assistant", "content": r"\boxed{1/2}"}],
    ]
    assert boxed_reward(completions, ["0.50"] * 6, other=1) == [1, 1, 0, 0, 0, 1]
    gsm8k = "She has 3 * 4 = <<3*4=12>>12 apples.\n#### 1,200"
    assert boxed_reward([r"\boxed{1200}"], [gsm8k]) == [1]
    assert boxed_reward([r"\boxed{3}"], [r"We find $\boxed{3}$."]) == [1]
    assert boxed_reward([r"\boxed{}", r"\boxed{ }"], ["", ""]) == [0, 0]
    assert exact_reward([" 7.0 ", "7 or 8", ""], ["7", "7", ""]) == [1, 0, 0]
    blocks = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    assert completion_text(blocks) == "a"
    assert completion_text([{"role": "assistant", "content": [{"text": None}]}]) == ""
    assert exact_reward(["0.00001", "7"], [1e-05, 7]) == [1, 1]
    for wrong in (None, True, float("nan"), [7]):
        with pytest.raises(TypeError, match=r"answer is .*allowed: text or number"):
            boxed_reward([r"\boxed{None}"], [wrong])
    with pytest.raises(TypeError, match="completions is 'abc'; allowed: a list"):
        boxed_reward("abc", ["7"] * 3)
    with pytest.raises(TypeError, match="text is None; allowed: a text"):
        boxed_answer(None)
    for wrong in (None, True, 5, b"7", [], [None], {"content": "7"}):
        with pytest.raises(TypeError, match=r"completion is .*allowed: a text"):
            boxed_reward([wrong], ["7"])
    for wrong in (5, ["7"], {"text": "7"}):
        with pytest.raises(TypeError, match=r"completion has the content .*allowed: a text"):
            boxed_reward([[{"role": "assistant", "content": wrong}]], ["7"])
    with pytest.raises(ValueError, match="there are 2 completions and 1 answers"):
        boxed_reward(["a", "b"], ["1"])
