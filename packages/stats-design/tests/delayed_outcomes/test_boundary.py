import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw

from stats_design.delayed_outcomes import (
    _reference,
    boundary,
    eta2_for,
    optimal_alpha_split,
    sequential_p,
    target_clock_for,
    union_ratio,
)
from stats_design.delayed_outcomes.boundary import optimal_growth

CLOCK = st.floats(0, 1e12)
ETA2 = st.floats(1e-9, 1e3)
ALPHA = st.floats(1e-6, 0.5)


def test_boundary_at_published_points():
    # sqrt(101 log(101 / .0025)) and sqrt(log(1 / .025^2)), from the formula by hand.
    assert boundary(100, 0.05, 1) == pytest.approx(32.73018624, abs=5e-9)
    assert boundary(0, 0.025, 1) == pytest.approx(2.71620303, abs=5e-9)


@given(CLOCK, ALPHA, ETA2)
def test_boundary_equals_the_formula_written_out(clock, alpha, eta2):
    assert boundary(clock, alpha, eta2) == pytest.approx(
        _reference.boundary(clock, alpha, eta2), rel=1e-12
    )


@given(CLOCK, ALPHA, st.floats(1e-3, 1e6))
def test_boundary_is_the_two_sided_normal_mixture_of_confseq(clock, alpha, rho):
    # confseq's parametrisation, rho = 1 / eta2: sqrt((v + rho) log((v + rho) / (rho alpha^2))).
    expected = math.sqrt((clock + rho) * math.log((clock + rho) / (rho * alpha**2)))
    assert boundary(clock, alpha, 1 / rho) == pytest.approx(expected, rel=1e-9)


def test_tuning_is_that_of_confseq():
    # Its rho for an intrinsic time v is v / (-W_{-1}(-alpha^2 / e) - 1).
    rho = 250 / (-lambertw(-(0.05**2) / math.e, -1).real - 1)
    assert 1 / eta2_for(250, 0.05) == pytest.approx(rho, rel=1e-12)


@pytest.mark.parametrize(
    ("alpha", "growth"), [(0.05, 8.21196806), (0.025, 9.75293792), (0.0125, 11.27132)]
)
def test_optimal_growth(alpha, growth):
    # The root of x - log(1 + x) = log(1 / alpha^2), which is checked too.
    x = optimal_growth(alpha)
    assert x == pytest.approx(growth, abs=6e-6)
    assert x - math.log1p(x) == pytest.approx(-2 * math.log(alpha), abs=1e-12)


def test_optimal_growth_at_levels_below_lambert():
    x = optimal_growth(1e-160)
    assert x - math.log1p(x) == pytest.approx(-2 * math.log(1e-160), rel=1e-12)


@given(st.floats(1e-3, 1e9), ALPHA)
def test_eta2_is_the_narrowest_at_its_target(target, alpha):
    best = float(eta2_for(target, alpha))
    width = float(boundary(target, alpha, best))
    assert width == pytest.approx(math.sqrt(target * (1 + optimal_growth(alpha))), rel=1e-10)
    others = best * np.geomspace(1e-3, 1e3, 61)
    assert np.all(boundary(target, alpha, others) >= width * (1 - 1e-12))


def test_target_clock_counts_the_share_of_the_other_arms():
    # 3000 events of rms 2 at propensity .25: 3000 * .75/.25 * 4.
    assert target_clock_for(3000, 0.25, 2.0) == pytest.approx(36_000)


def test_p_value_at_a_computed_point():
    # From bisection of the defining equation, by hand in another program.
    assert sequential_p(80, 100, 300, 0.02) == pytest.approx(0.1581577465, abs=1e-9)


def test_p_value_of_the_authors_example_row():
    p = sequential_p(3944.497, 64748.39, 74695.72, 1)
    assert p == pytest.approx(3.9163655e-10, rel=1e-4)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1e-6, 10))
def test_p_value_equals_bisection(effect, clock0, clock1, eta2):
    expected = _reference.p_value(effect, clock0, clock1, eta2)
    found = float(sequential_p(effect, clock0, clock1, eta2))
    if expected > 1e-300:
        assert math.log(found) == pytest.approx(math.log(expected), rel=1e-9, abs=1e-9)
    else:
        assert found <= 1e-299


def test_both_references_of_the_p_value_agree():
    for row in ((80, 100, 300, 0.02), (10, 1, 2, 1.0), (0.1, 5, 5, 1.0), (300, 1000, 50, 0.01)):
        assert _reference.p_value_in_steps(*row) == pytest.approx(
            _reference.p_value(*row), rel=1e-9, abs=1e-22
        )


@given(st.floats(0, 1e6), st.floats(0, 1e6), ETA2)
def test_p_value_is_one_where_the_widest_interval_covers_zero(clock0, clock1, eta2):
    edge = float(boundary(clock0, 0.5, eta2) + boundary(clock1, 0.5, eta2))
    assert sequential_p(edge * (1 - 1e-9), clock0, clock1, eta2) == 1
    assert sequential_p(-edge * (1 - 1e-9), clock0, clock1, eta2) == 1


@given(st.floats(0.01, 0.99), st.floats(0, 1e5), st.floats(0, 1e5), ETA2, st.floats(1e-6, 0.2))
def test_p_value_with_unequal_shares_is_where_the_interval_touches_zero(share, v0, v1, eta2, p):
    other = eta2 * 3
    effect = float(boundary(v0, share * p, eta2) + boundary(v1, (1 - share) * p, other))
    found = sequential_p(effect, v0, v1, (eta2, other), (share, 1 - share))
    assert found == pytest.approx(p, rel=1e-8)


@pytest.mark.parametrize(
    ("propensity", "clock0", "clock1", "ratio"),
    [(0.5, 100, 100, 1.0040457), (0.5, 10, 1000, 0.7837867), (0.2, 100, 100, 0.7890698)],
)
def test_width_ratio(propensity, clock0, clock1, ratio):
    assert union_ratio(propensity, clock0, clock1, 0.05, 1.0) == pytest.approx(ratio, abs=6e-8)


def test_width_ratio_in_the_limit():
    # 2 sqrt(pi (1 - pi)) for equal clocks, sqrt(1 - pi) for one clock alone; the logs differ by
    # 1% to 2% at a clock of 1e18 still.
    assert union_ratio(0.25, 1e18, 1e18, 0.05, 1.0) == pytest.approx(0.8635, abs=1e-3)
    assert union_ratio(0.5, 1e-6, 1e18, 0.05, 1.0) == pytest.approx(0.7122, abs=1e-3)


def test_best_split_of_the_level():
    levels = optimal_alpha_split([100, 1600], 0.01, 0.05)
    assert levels == pytest.approx([0.01276984, 0.03723016], abs=5e-9)
    width = sum(float(boundary(v, a, 0.01)) for v, a in zip((100, 1600), levels, strict=True))
    # S sqrt(log(eta2 S^2 / alpha^2)) with S = sqrt(200) + sqrt(1700).
    total = math.sqrt(200) + math.sqrt(1700)
    assert width == pytest.approx(total * math.sqrt(math.log(0.01 * total**2 / 0.0025)), rel=1e-12)
    assert width == pytest.approx(169.9017507, abs=5e-8)
    for first in np.linspace(0.001, 0.049, 97):
        other = boundary(100, first, 0.01) + boundary(1600, 0.05 - first, 0.01)
        assert other >= width - 1e-9


def test_tuning_at_every_look_gives_a_constant_number_of_standard_deviations():
    # Why tuning to the running clock is refused: sqrt(1 + x*) = 3.03 standard deviations always,
    # which the law of the iterated logarithm crosses sooner or later.
    clocks = np.geomspace(1, 1e9, 10)
    widths = np.array([float(boundary(v, 0.05, eta2_for(v, 0.05))) for v in clocks])
    assert widths / np.sqrt(clocks) == pytest.approx(3.0351, abs=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: boundary(1, 0, 1),
        lambda: boundary(1, 1.0, 1),
        lambda: boundary(-1, 0.05, 1),
        lambda: boundary(1, 0.05, 0),
        lambda: boundary(np.nan, 0.05, 1),
        lambda: eta2_for(0, 0.05),
        lambda: eta2_for(np.inf, 0.05),
        lambda: target_clock_for(10, 1.0),
        lambda: optimal_alpha_split([1, 2], 1, 0.7),
        lambda: sequential_p(np.nan, 1, 1, 1),
        lambda: sequential_p(1, 1, 1, 1, (0.5, 1.0)),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError, match="allowed"):
        call()


def test_alpha_of_another_type():
    with pytest.raises(TypeError, match="alpha"):
        boundary(1, "0.05", 1)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("p", [1e-10, 1e-3, 0.5])
def test_p_value_keeps_its_digits_when_the_clocks_differ_by_far(p, swapped):
    clocks, mixing, shares = (1.9e10, 3.8e-8), (1.9e4, 2.0e5), (0.05, 0.95)
    parts = zip(clocks, mixing, shares, strict=True)
    effect = sum(boundary(v, s * p, e) for v, e, s in parts)
    if swapped:
        clocks, mixing, shares = clocks[::-1], mixing[::-1], shares[::-1]
    assert sequential_p(effect, *clocks, mixing, shares) == pytest.approx(p, rel=1e-11)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: boundary("x", 0.05, 1), "clock"),
        (lambda: boundary(1, 0.05, "x"), "eta2"),
        (lambda: eta2_for([None, "x"], 0.05), "target_clock"),
        (lambda: target_clock_for(3000, "half"), "propensity"),
        (lambda: optimal_alpha_split("a", 0.1, 0.05), "target_clocks"),
        (lambda: sequential_p("x", 1, 1, 1), "effect"),
    ],
)
def test_what_is_not_numbers_is_named(call, name):
    with pytest.raises(TypeError, match=f"{name} is .*allowed: numbers"):
        call()


@pytest.mark.parametrize("effect", [math.nan, math.inf])
def test_p_value_of_no_finite_effect_is_refused(effect):
    with pytest.raises(ValueError, match="effect has"):
        sequential_p(effect, 1, 1, 1)


def test_shares_above_the_level_are_refused():
    with pytest.raises(ValueError, match="together at most 1"):
        sequential_p(3, 1, 1, 1, shares=(0.9, 0.9))
