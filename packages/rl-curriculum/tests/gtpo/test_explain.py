"""Explanations of groups: numbers, files, and a page that runs nothing."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from rl_curriculum.gtpo.explain import (
    Group,
    Response,
    as_html,
    as_rows,
    explain_group,
    read_groups,
    write_groups,
)

GROUP = Group(
    "2+2=",
    [
        Response(["a", "b", "c"], [0.6, 0.2, 0.9], 1.0),
        Response(["a", "."], [0.3, 0.6], 1.0),
        Response(["x", "y", "z"], [0.5, 0.1, 0.4], 0.0),
        Response(["x", "."], [0.25, 0.4], 0.0),
    ],
)


def test_the_worked_group() -> None:
    rows = as_rows(explain_group(GROUP, "gtpo:0.5"))
    weights = [1.333333, 0.5, 1, 0.666667, 1.5, 0.666667, 1.6, 1, 1.333333, 0.4]
    advantages = [*(1.166667, 0.75, 1, 0.833333, 1.25), *(-0.833333, -1.3, -1, -1.166667, -0.7)]
    assert [r["weight"] for r in rows] == pytest.approx(weights, abs=1e-6)
    # The deviation has 1e-6 added to 1/2.
    assert [r["advantage"] for r in rows] == pytest.approx(advantages, abs=3e-6)
    assert "".join(r["token"] for r in rows) == "abca.xyzx."


def test_numbers_may_be_whole() -> None:
    whole = Group("p", [Response(["a"], [1], 1), Response(["b"], [0], 0)])
    rows = as_rows(explain_group(whole, "gtpo:0.5"))
    assert [r["advantage"] for r in rows] == pytest.approx([1, -1], abs=3e-6)
    silent = as_rows(explain_group(whole, "top-entropy"))
    assert [f"{r['advantage']:+.1f}" for r in silent] == ["+1.0", "+0.0"]


def test_other_methods() -> None:
    plain = as_rows(explain_group(GROUP, "dapo"))
    assert [r["advantage"] for r in plain] == pytest.approx([1] * 5 + [-1] * 5, abs=3e-6)
    assert {r["weight"] for r in plain} == {1.0}
    sequence = as_rows(explain_group(GROUP, "grpo-s:0.5"))
    # One number a response: mean entropies 17/30 and .45 give 34/61 and 27/61 of 2.
    assert [r["weight"] for r in sequence[:5]] == pytest.approx([68 / 61] * 3 + [54 / 61] * 2)
    assert len({r["advantage"] for r in sequence[:3]}) == 1
    unscored = Group("p", [*GROUP.responses, Response(["q"], [0.1], None)])
    rows = as_rows(explain_group(unscored, "gtpo:0.5"))
    assert rows[-1]["advantage"] == 0
    assert rows[0]["advantage"] == pytest.approx(1.166667, abs=3e-6)


def test_files_come_back(tmp_path) -> None:
    # The last three end a line for str.splitlines, but not in JSON.
    tokens = ["\n", "�", "", "\u2028", "\u2029", "\x85"]
    odd = Group("π\n", [Response(tokens, [0.0, 1.5, 2.0, 0.0, 0.0, 0.0], None)])
    write_groups(tmp_path / "a" / "run.jsonl", [GROUP, odd])
    assert read_groups(tmp_path / "a" / "run.jsonl") == [GROUP, odd]


@pytest.mark.parametrize(
    ("tokens", "entropy", "reward", "message"),
    [
        ("ab", [0.1, 0.2], 1.0, "tokens is a str"),
        (["a", 1], [0.1, 0.2], 1.0, "tokens has 1 at 1"),
        (["a"], (0.1,), 1.0, "entropy is a tuple"),
        (["a"], [0.1, 0.2], 1.0, "entropy has 2 numbers; allowed: 1"),
        (["a"], [float("nan")], 1.0, "entropy has nan at 0"),
        (["a"], [-0.5], 1.0, "entropy has -0.5 at 0"),
        (["a"], ["0.5"], 1.0, "entropy has '0.5' at 0"),
        (["a"], [0.5], float("inf"), "reward is inf"),
        (["a"], [0.5], "1", "reward is '1'"),
    ],
)
def test_what_is_no_response_is_refused(tokens, entropy, reward, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Response(tokens, entropy, reward)


def test_a_middling_reward_is_on_the_side_that_training_puts_it_on() -> None:
    """In float32 the mean of three times 0.9 is below 0.9."""
    group = Group("p", [Response(["a"], [h], 0.9) for h in (0.2, 0.4, 0.5)])
    rows = as_rows(explain_group(group, "gtpo:0.5"))
    assert [r["advantage"] for r in rows] == [0, 0, 0]
    # None is above the mean, so all are wrong: 1/H over its mean, 5, 2.5 and 2 by 9.5 / 3.
    assert [r["weight"] for r in rows] == pytest.approx([15 / 9.5, 7.5 / 9.5, 6 / 9.5], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2"),
        ("[]", "line 2: allowed: an object"),
        ('{"prompt": "p"}', "line 2: no 'responses'"),
        ('{"prompt": "p", "responses": ["a"]}', "line 2: response 0 is 'a'; allowed: an object"),
        (
            '{"prompt": "p", "responses": [{"tokens": ["a"], "entropy": [1]}]}',
            "line 2: no 'reward'",
        ),
        (
            '{"prompt": "p", "responses": [{"tokens": ["a"], "entropy": [], "reward": 1}]}',
            "line 2: response 0: entropy",
        ),
        (
            '{"prompt": "p", "responses": [{"tokens": ["a"], "entropy": [-1], "reward": 1}]}',
            "line 2: response 0: entropy",
        ),
        (
            '{"prompt": "p", "responses": [{"tokens": [1], "entropy": [1], "reward": 1}]}',
            "line 2: response 0: tokens",
        ),
        (
            '{"prompt": "p", "responses": [{"tokens": ["a"], "entropy": [1], "reward": NaN}]}',
            "line 2: response 0: reward",
        ),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message) -> None:
    good = json.dumps({"prompt": "", "responses": []})
    (tmp_path / "run.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_groups(tmp_path / "run.jsonl")


def test_empty_input_is_refused(tmp_path) -> None:
    (tmp_path / "run.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="no groups"):
        read_groups(tmp_path / "run.jsonl")
    with pytest.raises(ValueError, match="no responses"):
        explain_group(Group("", []))


def test_the_page_shows_and_runs_nothing() -> None:
    evil = '"><script>alert(1)</script><img src="http://x" onerror="y">'
    page = as_html(
        [
            explain_group(
                Group(evil, [Response([evil, "b"], [0.5, 0.1], 1.0), Response(["c"], [0.5], 0.0)]),
                "gtpo:0.5",
            )
        ]
    )
    seen: list[str] = []
    shown: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs) -> None:
            seen.append(tag)
            assert {name for name, _ in attrs} <= {"lang", "charset", "class", "title", "style"}

        def handle_data(self, data) -> None:
            shown.append(data)

    Reader().feed(page)
    assert set(seen) == {"html", "head", "meta", "title", "style", "body", "p", "h2", "b", "span"}
    assert shown.count(evil) == 2
    assert seen.count("span") == 3
