"""The robots that the released checkpoints know, and pocket's: names, ids, widths and scales as published.

What is not published stays unknown: a robot without columns has none here, and one without a frame rate is
refused until it is given. Source: the released framework's tables of domains and normalisers.
"""

from collections.abc import Mapping
from types import MappingProxyType

from armillary.robots.contract import Robot, Statistics
from armillary.robots.poses import POSE


def _named(prefix: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{part}" for part in parts)


def _pose(prefix: str = "") -> tuple[str, ...]:
    """A move from frame to frame: translation, then the first two columns of its rotation matrix."""
    return _named(prefix, *POSE)


def _units(length: str, *, grip: bool) -> tuple[str, ...]:
    """Of a pose with lengths in this unit, and of a gripper."""
    return (*(length,) * 3, *("1",) * 6, *(("0 closed, 1 open",) if grip else ()))


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

_ARM_UNITS, _HEAD_UNITS = _units("?", grip=True), _units("?", grip=False)


def _one_arm(name: str, domain: int, fps: float, statistics: Statistics) -> Robot:
    return Robot(name, domain, 10, fps, 16, "ego_view", _ARM, statistics, units=_ARM_UNITS, poses="delta")


def _unknown_rate(name: str, domain: int, width: int) -> Robot:
    return Robot(name, domain, width, unknown=("fps",))


_BODIES = (
    Robot("no_action", 0, 0),
    Robot("av", 1, 9, 10, 60, columns=_pose(), units=_units("m/1.35", grip=False), poses="delta"),
    Robot("camera_pose", 2, 9, 30, 60, columns=_pose(), units=_units("m", grip=False), poses="delta"),
    Robot("hand_pose", 3, 57, 15, columns=(*_pose("camera_"), *_HANDS), varies=True, poses="delta"),
    Robot("pusht", 4, 2, 10, view="top_down_2d_view"),
    Robot("libero", 5, None, 20, varies=True),  # 7, 10 or 13 by the form of its rotations
    _one_arm("umi", 6, 10, _UMI),
    _one_arm("bridge_orig_lerobot", 7, 5, _BRIDGE),
    _one_arm("droid_lerobot", 8, 15, _DROID),
    # What the DROID policy checkpoints speak: joints, and the gripper as 1 - the robot's own.
    Robot("droid_joints", 8, 8, 15, 32, "concat_view", _JOINTS, units=(*("?",) * 7, "0 closed, 1 open")),
    _one_arm("robomind-franka", 8, 10, _FRANKA),
    *(_unknown_rate(name, 9, 30) for name in ("galbot", "embodiment_b")),
    Robot(
        *("tabletop", 10, 2, 8, 8, "top_down_2d_view", ("vx", "vy"), _TABLETOP),
        scaled=True,
        tier=None,
        units=("px/s", "px/s"),
    ),
    Robot(
        *("robomind-franka-dual", 12, 20),
        columns=(*_arm("first_"), *_arm("second_")),
        units=_ARM_UNITS * 2,
        poses="delta",
    ),
    _one_arm("robomind-ur", 13, 10, _UR),
    *(
        Robot(
            *(name, 15, 29),
            columns=_AGIBOT_COLUMNS,
            statistics=_AGIBOT,
            units=(*_HEAD_UNITS, *_ARM_UNITS * 2),
            poses="delta",
        )
        for name in _AGIBOT_NAMES
    ),
    *(_unknown_rate(name, 16, 20) for name in ("xdof_yam", "molmoact2_yam", "abc_yam")),
    _unknown_rate("robotwin", 17, 14),
    _one_arm("fractal", 20, 3, _FRACTAL),
    _unknown_rate("drawanything", 21, 3),
    _unknown_rate("behavior1k_lerobot", 22, 23),
    _unknown_rate("maniparena", 23, 20),
)
ROBOTS: Mapping[str, Robot] = MappingProxyType({body.name: body for body in _BODIES})
