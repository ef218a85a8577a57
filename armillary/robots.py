"""Robot bodies and their actions: the port of the model that a body uses, what its numbers mean, their scale.

An action is what happens between one frame and the next. A body ("domain") fixes the port of the network, the
number of columns, their meaning, the frame rate and how many actions are drawn at once. Two bodies may have
equally many columns and mean other things by them, so actions travel with their domain and a digest of the
body's contract.

Shape letters: K actions, D numbers of one action.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from armillary.errors import BadRequest, nearest
from armillary.media import Clip

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Statistics:
    """How columns spread over a body's data set.

    quantile: `low` and `high` are the 1 % and 99 % quantiles, normalised to -1 and 1.
    mean_std: `low` is the mean, `high` the standard deviation, normalised to 0 and 1.
    """

    kind: Literal["quantile", "mean_std"]
    low: tuple[float, ...]
    high: tuple[float, ...]

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


@dataclass(frozen=True)
class Robot:
    """A body's contract. Change a field with `dataclasses.replace`, for instance another view or canvas tier.

    width: columns of an action; None or `varies` where it depends on the data set (`robot(name, width=...)`).
    columns: empty where their order is not published. tier: which canvas its pictures are brought to; None
    keeps their own size. scaled: whether units are scaled on the way in and restored on the way out;
    published
    models take and give model units, so their statistics are for preparing data and nothing here applies
    them.
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

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where the meaning of the numbers differs."""
        scale = self.statistics and [self.statistics.kind, self.statistics.low, self.statistics.high]
        contract = [self.domain, self.width, self.columns, scale, self.scaled]
        return hashlib.sha256(json.dumps(contract).encode()).hexdigest()[:12]

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
        return replace(self, width=width, columns=())

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


@dataclass(frozen=True, eq=False)
class Actions:
    """What a robot does: values float32 [K, D] in its own units, one row a transition, `fps` rows a second.

    names: the columns. clip: the imagined rollout, where there is one. Raises BadRequest for an unknown
    domain, another width, NaN or infinity.
    """

    values: Floats
    domain: str
    fps: float
    names: tuple[str, ...] = ()
    clip: Clip | None = None
    receipt: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", robot(self.domain).check(self.values))
        if not 0 < self.fps < math.inf:
            raise BadRequest("fps", self.fps, "must be a positive number of actions a second")
        if self.names and len(self.names) != self.values.shape[1]:
            raise BadRequest("names", list(self.names), f"{self.values.shape[1]} columns need as many names")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def digest(self) -> str:
        """That of the body: equal digests mean equal columns and scaling."""
        return robot(self.domain).with_width(self.values.shape[1]).digest

    def to_json(self) -> str:
        """Plain JSON: domain, digest, fps, names, shape, values, receipt. The clip is not in it."""
        content = {
            "domain": self.domain,
            "digest": self.digest,
            "fps": self.fps,
            "names": list(self.names),
            "shape": list(self.values.shape),
            "values": self.values.tolist(),
            "receipt": self.receipt,
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str | bytes, *, domain: str | None = None) -> "Actions":
        """Read `to_json`'s form, or a bare array [K][D] or [1][K][D], which names no domain: then give it.

        Raises BadRequest for anything else, for a domain other than `domain`, and for a digest other than
        ours: those numbers meant something else where they were written.
        """
        shown = f"<{len(text)} {'bytes' if isinstance(text, bytes) else 'letters'}>"  # it may be any file
        try:
            content: Any = json.loads(text)
        except UnicodeDecodeError:
            raise BadRequest("actions", shown, "is no text, so no JSON") from None
        except RecursionError:
            raise BadRequest("actions", shown, "is nested too deeply") from None
        except ValueError as error:
            raise BadRequest("actions", shown, f"not valid JSON ({error})") from None
        if isinstance(content, list):
            content = {"values": content, "domain": domain}
        if not isinstance(content, dict) or "values" not in content or content.get("domain", domain) is None:
            raise BadRequest(
                "actions", shown, "needs `values` and `domain`, or a bare array and the domain given"
            )
        written = cast(dict[str, Any], {"domain": domain, **content})
        if domain is not None and written["domain"] != domain:
            raise BadRequest("domain", domain, f"these actions were written for {written['domain']!r}")
        body = robot(written["domain"])
        try:
            fps, names = float(written.get("fps", body.fps)), tuple(written.get("names", body.columns))
        except (TypeError, ValueError, OverflowError):
            raise BadRequest("actions", shown, "fps must be a number and names a list") from None
        actions = cls(written["values"], body.name, fps, names, receipt=written.get("receipt", {}))
        if written.get("digest", actions.digest) != actions.digest:
            message = f"{body.name} is {actions.digest} here: its columns or scaling were others"
            raise BadRequest("digest", written["digest"], message)
        return actions


def robot(name: str, *, width: int | None = None) -> Robot:
    """The body of that name. Raises BadRequest for an unknown name or a width it cannot have."""
    if name not in ROBOTS:
        raise BadRequest("domain", name, f"no such domain; nearest: {', '.join(nearest(name, ROBOTS, 3))}")
    return ROBOTS[name] if width is None else ROBOTS[name].with_width(width)


# -- the table ---------------------------------------------------------------------------------------


def _named(prefix: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{part}" for part in parts)


def _pose(prefix: str = "") -> tuple[str, ...]:
    """A move from frame to frame: translation, then the first two columns of its rotation matrix."""
    return _named(prefix, "tx", "ty", "tz", "r00", "r10", "r20", "r01", "r11", "r21")


def _fingers(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}finger{n}_{axis}" for n in range(5) for axis in "xyz")


def _quantiles(low: str, high: str) -> Statistics:
    return Statistics("quantile", *(tuple(float(x) for x in row.split()) for row in (low, high)))


def _arm(prefix: str = "") -> tuple[str, ...]:
    return (*_pose(prefix), f"{prefix}gripper")


_ARM = _arm()
_HANDS = (*_pose("wrist_right_"), *_fingers("right_"), *_pose("wrist_left_"), *_fingers("left_"))

_BRIDGE = _quantiles(
    "-.03888 -.02867 -.03784 .9763 -.1631 -.08155 -.1602 .9763 -.07887 0",
    ".03972 .02907 .0267 1 .1602 .08166 .1632 1 .09519 1",
)
_DROID = _quantiles(
    "-.0142 -.01342 -.01521 .9985 -.04766 -.03477 -.04761 .9984 -.03555 0",
    ".01452 .01152 .01452 1 .0476 .03466 .04765 1 .03889 1",
)
_FRACTAL = _quantiles(
    "-.03982 -.04927 -.05627 .9837 -.1345 -.107 -.1265 .9773 -.09136 0",
    ".04386 .05035 .07251 1 .1274 .1073 .1341 1 .1797 1",
)
_FRANKA = _quantiles(
    "-.06503 -.03068 -.07532 .9817 -.1374 -.06959 -.1402 .9769 -.1404 0",
    ".06855 .03631 .05177 1 .1403 .07994 .1375 1 .1137 1",
)
_UR = _quantiles(
    "-.05009 -.03206 -.04522 .9866 -.1143 -.07443 -.1285 .9823 -.1325 0",
    ".04038 .03658 .03238 1 .1297 .09556 .1151 1 .122 1",
)
_UMI = _quantiles(
    "-.03525 -.03712 -.03576 .984 -.1087 -.06519 -.1109 .9829 -.08511 0",
    ".03809 .03308 .03245 1 .1106 .06809 .109 1 .08904 .09675",
)
_AGIBOT = _quantiles(
    "-.000167 -.007272 -.01494 1 -.000306 -.000594 -.00026 .9992 -.02552"
    " -.01291 -.01716 -.01761 .9946 -.06451 -.05323 -.06627 .9944 -.05116 0"
    " -.01164 -.01551 -.01388 .9965 -.05013 -.04031 -.04733 .9966 -.0383 0",
    ".000164 .004822 .01371 1 .00024 .000703 .000278 1 .03009"
    " .01318 .01696 .0161 1 .06627 .05391 .06436 1 .05255 1"
    " .01089 .01535 .01297 1 .04748 .04222 .05017 1 .04143 1",
)
_TABLETOP = Statistics("mean_std", (0.0, 0.0), (20.0, 20.0))  # px/s
_AGIBOT_COLUMNS = (*_pose("head_"), *_arm("right_"), *_arm("left_"))
_AGIBOT_NAMES = (
    *("agibotworld", "agibot_gear_gripper", "agibot_gear_gripper_ext"),
    *("embodiment_c_gripper", "embodiment_c_gripper_ext"),
)
_JOINTS = (*(f"joint{n}" for n in range(1, 8)), "gripper")

# Names, ids and widths are those of the released checkpoints; where no frame rate is published it is 10.
_BODIES = (
    Robot("no_action", 0, 0),
    Robot("av", 1, 9, 10, 60, columns=_pose()),
    Robot("camera_pose", 2, 9, 30, 60, columns=_pose()),
    Robot("hand_pose", 3, 57, 15, columns=(*_pose("camera_"), *_HANDS), varies=True),
    Robot("pusht", 4, 2, 10, view="top_down_2d_view"),
    Robot("libero", 5, None, 20, varies=True),  # 7, 10 or 13 by the form of its rotations
    Robot("umi", 6, 10, 10, columns=_ARM, statistics=_UMI),
    Robot("bridge_orig_lerobot", 7, 10, 5, columns=_ARM, statistics=_BRIDGE),
    Robot("droid_lerobot", 8, 10, 15, columns=_ARM, statistics=_DROID),
    Robot("droid_joints", 8, 8, 15, 32, "concat_view", _JOINTS),  # what the DROID policy checkpoints speak
    Robot("robomind-franka", 8, 10, 10, columns=_ARM, statistics=_FRANKA),
    *(Robot(name, 9, 30) for name in ("galbot", "embodiment_b")),
    Robot("tabletop", 10, 2, 8, 8, "top_down_2d_view", ("vx", "vy"), _TABLETOP, scaled=True, tier=None),
    Robot("robomind-franka-dual", 12, 20, columns=(*_arm("first_"), *_arm("second_"))),
    Robot("robomind-ur", 13, 10, columns=_ARM, statistics=_UR),
    *(Robot(name, 15, 29, columns=_AGIBOT_COLUMNS, statistics=_AGIBOT) for name in _AGIBOT_NAMES),
    *(Robot(name, 16, 20) for name in ("xdof_yam", "molmoact2_yam", "abc_yam")),
    Robot("robotwin", 17, 14),
    Robot("fractal", 20, 10, 3, columns=_ARM, statistics=_FRACTAL),
    Robot("drawanything", 21, 3),
    Robot("behavior1k_lerobot", 22, 23),
    Robot("maniparena", 23, 20),
)
ROBOTS: Mapping[str, Robot] = MappingProxyType({body.name: body for body in _BODIES})
