"""Verdicts keep their error rates; the intervals are those of statistics' textbooks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from repro_bench import Claim, Outcome, Results
from repro_bench.verdict import Verdict, judge, mean_interval, rate_interval, sign_flip_p

COMPARISON = Claim(text="a beats b", metric="m", arm="a", than="b")


def results_of(**arms: list[object]) -> Results:
    return Results(
        {(arm, seed): Outcome({"m": v}) for arm, vs in arms.items() for seed, v in enumerate(vs)}  # type: ignore[dict-item]
    )


def compare(a: np.ndarray, b: np.ndarray, claim: Claim = COMPARISON) -> Verdict:
    return judge(claim, results_of(a=[float(x) for x in a], b=[float(x) for x in b]))


@pytest.mark.parametrize("seeds", [5, 6, 10])
@pytest.mark.parametrize("draw", ["normal", "laplace", "uniform"])
@pytest.mark.parametrize("effect", [0.0, 0.7])
def test_false_verdicts_are_rare_for_symmetric_differences(
    draw: str, seeds: int, effect: float
) -> None:
    # Whatever the true effect, the claim "the effect is at least the true one" is on the edge:
    # each verdict on it is false half the time by definition, so each must stay under 5%.
    rng = np.random.default_rng([seeds, len(draw)])
    sample = {
        "normal": lambda: rng.normal(size=seeds),
        "laplace": lambda: rng.laplace(size=seeds),
        "uniform": lambda: rng.uniform(-1, 1, size=seeds),
    }[draw]
    claim = Claim(text="", metric="m", arm="a", than="b", by=effect)
    n = 2000
    found = [compare(sample() + effect, np.zeros(seeds), claim).verdict for _ in range(n)]
    # 5% plus three standard errors of the simulation.
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / n)
    assert found.count("holds") / n < bound
    assert found.count("refuted") / n < bound


def test_a_large_effect_is_found_and_its_opposite_is_refuted() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(3, 1, 8), rng.normal(0, 1, 8)
    assert compare(a, b).verdict == "holds"
    assert compare(b, a).verdict == "refuted"


@given(st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=4))
def test_fewer_than_five_seeds_never_give_a_verdict(values: list[float]) -> None:
    a = np.array(values) + 1e7
    assert compare(a, np.zeros(len(a))).verdict == "inconclusive"
    bound = Claim(text="", metric="m", arm="a", at_least=0.0)
    assert judge(bound, results_of(a=list(map(float, a)))).verdict == "inconclusive"
    rates = results_of(a=[(100, 100)] * len(values))
    assert judge(bound, rates).verdict == "inconclusive"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.booleans())
def test_identical_arms_never_satisfy_a_strict_claim(values: list[float], skewed: bool) -> None:
    claim = Claim(text="", metric="m", arm="a", than="b", skewed=skewed)
    assert compare(np.array(values), np.array(values), claim).verdict != "holds"
    ratio = Claim(text="", metric="m", arm="a", than="b", scale="ratio")
    positive = np.abs(values) + 1.0
    assert compare(positive, positive, ratio).verdict != "holds"


def test_agreement_to_the_last_bit_needs_six_seeds() -> None:
    assert compare(np.ones(5), np.zeros(5)).verdict == "inconclusive"
    assert compare(np.ones(6), np.zeros(6)).verdict == "holds"


def test_the_direction_and_the_least_effect_count() -> None:
    a, b = np.arange(6) + 2.0, np.arange(6) + np.array([0, 0.1, 0, 0.1, 0, 0.1])
    lower = Claim(text="", metric="m", arm="b", than="a", direction="lower", by=1.5)
    assert compare(a, b, lower).verdict == "holds"
    too_much = Claim(text="", metric="m", arm="b", than="a", direction="lower", by=2.5)
    assert compare(a, b, too_much).verdict == "refuted"


def test_a_ratio_is_the_quotient_of_geometric_means() -> None:
    a, b = np.array([2.0, 4, 8, 2, 4, 8]), np.array([1.0, 2, 4, 1.1, 2, 4])
    claim = Claim(text="", metric="m", arm="a", than="b", scale="ratio", by=1.5)
    verdict = compare(a, b, claim)
    assert verdict.verdict == "holds"
    assert verdict.interval.estimate == pytest.approx(stats.gmean(a / b))
    log = stats.ttest_rel(np.log(a), np.log(b)).confidence_interval(0.95)
    assert verdict.interval.low == pytest.approx(math.exp(log.low))


def test_a_ratio_of_nonpositive_values_is_no_verdict() -> None:
    claim = Claim(text="", metric="m", arm="a", than="b", scale="ratio")
    assert compare(np.array([1.0, 2, 3, 4, 5, -6]), np.ones(6), claim).verdict == "inconclusive"


def test_intervals_equal_scipy() -> None:
    values = np.array([0.3, 1.2, -0.4, 2.2, 0.9])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    # Clopper-Pearson in its closed form for no success: 1 - (alpha/2)^(1/n).
    rate = rate_interval(0, 20, 5)
    assert (rate.low, rate.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))


@pytest.mark.parametrize(
    ("successes", "verdict"), [(199, "holds"), (190, "inconclusive"), (150, "refuted")]
)
def test_a_rate_is_judged_by_clopper_pearson_over_all_seeds(successes: int, verdict: str) -> None:
    claim = Claim(text="", metric="m", arm="a", at_least=0.95)
    found = judge(claim, results_of(a=[(successes, 200)] * 5))
    exact = stats.binomtest(5 * successes, 1000).proportion_ci(0.95, method="exact")
    assert found.verdict == verdict
    assert (found.interval.low, found.interval.high) == pytest.approx((exact.low, exact.high))


def test_the_sign_flip_test_enumerates_all_signs() -> None:
    d = np.array([0.4, -0.1, 0.8, 0.3, 1.1, -0.2, 0.6])
    signs = np.array(list(itertools.product([1, -1], repeat=len(d))))
    expected = np.mean(signs @ d >= d.sum() - 1e-12)
    assert sign_flip_p(d) == pytest.approx(float(expected))


def test_a_skewed_claim_needs_six_seeds_and_the_sign_flips() -> None:
    claim = Claim(text="", metric="m", arm="a", than="b", skewed=True)
    d = np.array([1.0, 1.1, 0.9, 1.05, 1.0])
    assert compare(d, np.zeros(5), claim).verdict == "inconclusive"
    assert compare(np.append(d, 1.2), np.zeros(6), claim).verdict == "holds"
    # t says holds here; 1 sign pattern of 64 with the same mean or more is not enough company.
    mixed = np.array([1.0, 1.1, 0.9, 1.05, 1.0, -0.02])
    assert mean_interval(mixed).low > 0
    assert compare(mixed, np.zeros(6), claim).verdict == "inconclusive"


@pytest.mark.parametrize("values", [[1e-9], [1e-9, 0.0, 1e-7]])
def test_an_exact_claim_needs_one_run_and_every_run(values: list[float]) -> None:
    claim = Claim(text="", metric="m", arm="a", at_most=1e-6, exact=True)
    assert judge(claim, results_of(a=values)).verdict == "holds"
    assert judge(claim, results_of(a=[*values, 1e-5])).verdict == "refuted"
    assert judge(claim, results_of(b=values)).verdict == "inconclusive"


def test_a_failed_half_drops_the_pair_and_is_counted() -> None:
    a, b = [5.0 + 0.1 * i for i in range(7)], [0.0] * 7
    outcomes = dict(results_of(a=a, b=b).outcomes)
    del outcomes["b", 3]
    outcomes["a", 5] = Outcome({"m": math.nan})
    verdict = judge(COMPARISON, Results(outcomes, {("b", 3): "Traceback"}))
    assert (verdict.dropped, verdict.interval.n) == (2, 5)
    assert verdict.verdict == "holds"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"than": "b", "at_least": 1.0},
        {"at_least": math.nan},
        {"at_most": 1.0, "by": 0.1},
        {"than": "b", "scale": "ratio", "by": 0.0},
        {"than": "b", "direction": "up"},
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"allowed|belong|must|exactly"):
        Claim(text="t", metric="m", arm="a", **wrong)  # type: ignore[arg-type]
