"""A robot's contract: the port of the model that it uses, what its numbers mean, and their scale.

An action is what happens between one frame and the next. A body ("domain") fixes the port of the network, the
number of columns, their meaning, the frame rate and how many actions are drawn at once. Two bodies may have
equally many columns and mean other things by them, so actions travel with their domain and a digest of the
body's contract.

Shape letters: K actions, D numbers of one action.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from armillary.errors import BadRequest, nearest
from armillary.robots.poses import POSE, Convention

Floats = NDArray[np.float32]
Spread = Literal["quantile", "mean_std", "min_max"]


MAX_CHUNK = 5000  # as many frames as a clip may have


@dataclass(frozen=True)
class Statistics:
    """How columns spread over a body's data set.

    quantile: `low` and `high` are the 1 % and 99 % quantiles, normalised to -1 and 1.
    min_max: they are the least and the largest value, normalised to -1 and 1.
    mean_std: `low` is the mean, `high` the standard deviation, normalised to 0 and 1.
    Raises BadRequest for other kinds, unequal lengths, numbers that are not finite, and a range or deviation
    that no data can have.
    """

    kind: Spread
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Spread):
            close = " or ".join(nearest(self.kind, get_args(Spread)))
            raise BadRequest("statistics.kind", self.kind, f"nearest: {close}")
        if len(self.low) != len(self.high):
            raise BadRequest("statistics.high", len(self.high), f"low has {len(self.low)} columns")
        for column, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            _check_finite(low, f"statistics.low[{column}]")
            _check_finite(high, f"statistics.high[{column}]")
            if self.kind == "mean_std" and high <= 0:
                raise BadRequest(f"statistics.high[{column}]", high, "a standard deviation is more than 0")
            if self.kind != "mean_std" and high < low:
                raise BadRequest(f"statistics.high[{column}]", high, f"is less than low, {low:g}")

    def normalise(self, values_KD: ArrayLike) -> Floats:
        """A body's own units to the model's; a column that never varies keeps its unit."""
        low_D, span_D, shift = self._line()
        return ((np.asarray(values_KD, np.float64) - low_D) / span_D - shift).astype(np.float32)

    def denormalise(self, values_KD: ArrayLike) -> Floats:
        """The inverse of `normalise`."""
        low_D, span_D, shift = self._line()
        return ((np.asarray(values_KD, np.float64) + shift) * span_D + low_D).astype(np.float32)

    def _line(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        low_D, high_D = np.array(self.low), np.array(self.high)
        if self.kind == "mean_std":
            return low_D, high_D, 0.0
        return low_D, np.where(high_D > low_D, (high_D - low_D) / 2, 1.0), 1.0


def _check_finite(value: object, field: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise BadRequest(field, value, "must be a finite number")


@dataclass(frozen=True)
class Robot:
    """A body's contract. Change a field with `dataclasses.replace`, for instance another view or canvas tier.

    domain: the action port of the network. width: columns of an action; None or `varies` where it depends on
    the data set (`robot(name, width=...)`). columns, units: empty where not published; a unit "?" is not
    published. poses: how the poses among the columns are told (nine numbers each, see `poses.py`); None where
    there are none or it is not published. tier: which canvas its pictures are brought to; None keeps their
    own size, up to that of the checkpoint's usual clips. scaled: whether units are scaled on the way in and
    restored on the way out; published models take and give model units, so their statistics are for preparing
    data and nothing here applies them. unknown: fields that are not published, whose values here are only the
    common ones.
    Raises BadRequest for a contract that contradicts itself.
    """

    name: str
    domain: int
    width: int | None
    fps: float = 10.0
    chunk: int = 16
    view: str = "ego_view"
    columns: tuple[str, ...] = ()
    statistics: Statistics | None = None
    scaled: bool = False
    varies: bool = False
    tier: int | None = 480
    units: tuple[str, ...] = ()
    poses: Convention | None = None
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, count in (
            ("columns", len(self.columns)),
            ("units", len(self.units)),
            ("statistics", len(self.statistics.low) if self.statistics else 0),
        ):
            if count not in (0, self.width):
                message = f"has {count} columns, {self.name} has {self.width}; both must be the same"
                raise BadRequest(field, count, message)
        if len(set(self.columns)) < len(self.columns):
            raise BadRequest("columns", list(self.columns), "a name occurs twice")
        if self.scaled and self.statistics is None:
            raise BadRequest("scaled", True, f"{self.name} has no statistics to scale by; give them")
        if not 1 <= self.chunk <= MAX_CHUNK:
            near = 1 if self.chunk < 1 else MAX_CHUNK
            raise BadRequest("chunk", self.chunk, f"actions drawn at once, 1 to {MAX_CHUNK}; nearest: {near}")
        if not 0 < self.fps < math.inf:
            raise BadRequest("fps", self.fps, "must be a positive number of actions a second")

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where the meaning of the numbers differs."""
        scale = self.statistics and [self.statistics.kind, self.statistics.low, self.statistics.high]
        contract = [self.domain, self.width, self.columns, self.units, self.poses, scale, self.scaled]
        return hashlib.sha256(json.dumps(contract).encode()).hexdigest()[:12]

    @property
    def pose_columns(self) -> tuple[int, ...]:
        """The first column of each pose."""
        starts = range(len(self.columns))
        return tuple(i for i in starts if _suffixes(self.columns[i : i + len(POSE)]))

    def to_model(self, values_KD: Floats) -> Floats:
        """What the network reads."""
        return self.statistics.normalise(values_KD) if self.scaled and self.statistics else values_KD

    def from_model(self, values_KD: Floats) -> Floats:
        """What the network drew, in the robot's units."""
        return self.statistics.denormalise(values_KD) if self.scaled and self.statistics else values_KD

    def with_width(self, width: int) -> "Robot":
        """The body with so many columns. Raises BadRequest if that is not its number and cannot vary."""
        if width == self.width:
            return self
        if not (self.varies or self.width is None) or width < 1:
            raise BadRequest("width", width, f"{self.name} has {self.width} columns")
        return replace(self, width=width, columns=(), units=(), poses=None)

    def require_known(self) -> None:
        """Raises BadRequest if something that every request needs is not published of this robot."""
        for name in self.unknown:
            told = (
                f"is not published for {self.name}: say robot({self.name!r}, {name}=...), or in a .toml file"
            )
            raise BadRequest(f"domain.{name}", None, told)

    def check(self, values: ArrayLike, *, field: str = "actions") -> Floats:
        """The values as float32 [K, D]. Raises BadRequest for another shape or width, NaN and infinity."""
        try:
            if np.iscomplexobj(values):
                raise TypeError("complex numbers")
            with np.errstate(over="ignore"):  # what overflows is refused below, by its place
                values_KD = np.array(values, np.float32)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise BadRequest(field, values, "must be numbers in rows of equal length, [K, D]") from None
        if values_KD.ndim == 3 and len(values_KD) == 1:
            values_KD = values_KD[0]
        if values_KD.ndim != 2 or 0 in values_KD.shape:
            message = "must be one row of numbers for each action, [K, D] with K >= 1"
            raise BadRequest(f"{field}.shape", list(values_KD.shape), message)
        if self.width not in (None, values_KD.shape[1]) and not self.varies:
            known = f" ({', '.join(self.columns)})" if self.columns else ""
            message = f"{self.name} has {self.width} columns{known}"
            raise BadRequest(f"{field}.shape", list(values_KD.shape), message)
        if not np.isfinite(values_KD).all():
            row, column = np.argwhere(~np.isfinite(values_KD))[0]
            raise BadRequest(
                f"{field}[{row}][{column}]", float(values_KD[row, column]), "must be a finite number"
            )
        return values_KD


def _suffixes(columns: tuple[str, ...]) -> bool:
    """Are these the nine numbers of one pose?"""
    if len(columns) < len(POSE) or not columns[0].endswith(POSE[0]):
        return False
    prefix = columns[0].removesuffix(POSE[0])
    return columns == tuple(f"{prefix}{part}" for part in POSE)
