"""Intervals and formulas of figures."""

import math

import numpy as np
import pytest

from armillary.eval.scores import Figure, Score, f1, mean, psnr, quotient, r_squared, share


def test_shares_have_wilsons_interval() -> None:
    eight = share([True] * 8 + [False] * 2)
    assert (eight.value, eight.n) == (0.8, 10)
    assert (eight.low, eight.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    none = share([False] * 10)
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.2775, abs=1e-4)


def test_the_bootstrap_is_the_same_each_time_and_about_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400).tolist()
    score = mean(values)
    assert score == mean(values)
    assert score.high - score.low == pytest.approx(2 * 1.96 * 2.0 / 20, rel=0.2)
    assert score.low < 3.0 < score.high


def test_cases_that_do_not_apply_are_left_out() -> None:
    assert mean([1.0, math.nan, 3.0]).n == 2
    assert mean([math.nan]).n == 0
    assert share([]).to_dict() == {"value": None, "low": None, "high": None, "n": 0}


def test_formulas_pool_their_cases() -> None:
    assert f1([(3, 1, 0), (0, 0, 2)]).value == pytest.approx(6 / 9)
    assert quotient([(1, 2), (2, 2)]).value == pytest.approx(0.75)
    assert r_squared([(1, 10), (1, 10)]).value == pytest.approx(0.9)
    assert math.isnan(quotient([(0, 0)]).value)


def test_psnr_of_a_known_error() -> None:
    black = np.zeros((2, 2, 3), np.uint8)
    assert psnr(black, black + np.uint8(10)) == pytest.approx(20 * math.log10(25.5))
    assert psnr(black, black) == pytest.approx(20 * math.log10(255))


@pytest.mark.parametrize(
    ("value", "smaller", "reached"), [(0.9, False, True), (0.8, False, False), (0.8, True, True)]
)
def test_a_bar_is_reached_from_its_right_side(value: float, smaller: bool, reached: bool) -> None:
    score = Score(value, value, value, 20)
    assert Figure("x", score, bar=0.85, smaller_is_better=smaller).reached is reached
    assert Figure("x", score).reached is None


def test_a_bar_is_not_judged_on_fewer_than_twenty_cases() -> None:
    for n, reached in ((0, None), (19, None), (20, True), (43, True)):
        figure = Figure("x", share([True] * n), bar=0.5)
        assert figure.reached is reached
        assert figure.to_dict()["reached"] is reached
