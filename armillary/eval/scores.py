"""Figures with their uncertainty: shares by Wilson's interval, everything else by the bootstrap, always
with one seed.

Shape letters: N cases, R resamples, K numbers a case.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from armillary.media.source import Pixels

RESAMPLES: Final = 1000
SEED: Final = 0
FEWEST: Final = 20  # cases on which a bar is said to be reached or missed
_Z = 1.959964  # of a two-sided 95 % interval

Table = NDArray[np.float64]
Unit = Literal["share", "dB", "px", "R2", "F1", "IoU"]


@dataclass(frozen=True, slots=True)
class Score:
    """A number over `n` cases with its 95 % interval; NaN where there was no case."""

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON, where NaN is null."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {k: round(v, 6) if math.isfinite(v) else None for k, v in numbers.items()} | {"n": self.n}


NO_CASE: Final = Score(math.nan, math.nan, math.nan, 0)


def share(right: Sequence[bool]) -> Score:
    """The share of right cases with Wilson's score interval (Wilson 1927)."""
    n = len(right)
    if not n:
        return NO_CASE
    p, z2 = sum(right) / n, _Z**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Score(p, max(0.0, min(middle - half, p)), min(1.0, max(middle + half, p)), n)


def mean(values: Sequence[float]) -> Score:
    """The mean with the percentile bootstrap over cases; NaNs are cases that did not apply and are left
    out."""
    known = [[value] for value in values if not math.isnan(value)]
    return pooled(known, lambda mean_K: float(mean_K[0]))


def pooled(rows: Sequence[Sequence[float]], formula: Callable[[Table], float]) -> Score:
    """`formula` of the mean row [K] over cases [N, K], with the percentile bootstrap (Efron 1979) over
    cases."""
    if not rows:
        return NO_CASE
    rows_NK = np.asarray(rows, np.float64)
    n = len(rows_NK)
    drawn_RN = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    spread = [formula(mean_K) for mean_K in rows_NK[drawn_RN].mean(1)]
    low, high = np.nanpercentile(spread, (2.5, 97.5)) if not np.isnan(spread).all() else (math.nan, math.nan)
    return Score(formula(rows_NK.mean(0)), float(low), float(high), n)


def f1(rows: Sequence[Sequence[float]]) -> Score:
    """F1 of cases that each hold (rightly found, wrongly found, missed)."""
    return pooled(rows, _f1)


def _f1(mean_3: Table) -> float:
    right, wrong, missed = mean_3.tolist()
    total = 2 * right + wrong + missed
    return 2 * right / total if total else math.nan


def quotient(rows: Sequence[Sequence[float]]) -> Score:
    """Sum over sum, of cases that each hold (part, whole)."""
    return pooled(rows, lambda mean_2: float(mean_2[0] / mean_2[1]) if mean_2[1] else math.nan)


def r_squared(rows: Sequence[Sequence[float]]) -> Score:
    """1 - residual over total sum of squares, of cases that each hold (residual, total)."""
    return pooled(rows, lambda mean_2: float(1 - mean_2[0] / mean_2[1]) if mean_2[1] else math.nan)


def psnr(a: Pixels, b: Pixels) -> float:
    """Peak signal-to-noise ratio in dB of two arrays of uint8; at most that of one step of one level in all
    pixels."""
    error = float(np.square(a.astype(np.float32) - b.astype(np.float32)).mean())
    return float(10 * np.log10(255.0**2 / max(error, 1.0)))


@dataclass(frozen=True)
class Figure:
    """One line of the report: a score, the baselines and the ceiling on the same cases, and the bar it
    should reach."""

    name: str
    score: Score
    unit: Unit = "share"
    beside: Mapping[str, Score] = field(default_factory=dict[str, Score])
    bar: float | None = None
    smaller_is_better: bool = False

    @property
    def reached(self) -> bool | None:
        """Is the score at the bar or better? None without a bar, and where there are too few cases."""
        if self.bar is None or self.score.n < FEWEST:
            return None
        return self.score.value <= self.bar if self.smaller_is_better else self.score.value >= self.bar

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            **self.score.to_dict(),
            "beside": {name: score.to_dict() for name, score in self.beside.items()},
            "bar": self.bar,
            "smaller_is_better": self.smaller_is_better,
            "reached": self.reached,
        }
