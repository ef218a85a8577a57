"""Robots: what their numbers mean, actions that carry that meaning, and the maths of poses."""

from armillary.robots.actions import Actions
from armillary.robots.contract import Floats, Robot, Statistics
from armillary.robots.files import from_lerobot, from_toml, robot
from armillary.robots.table import ROBOTS

__all__ = ["ROBOTS", "Actions", "Floats", "Robot", "Statistics", "from_lerobot", "from_toml", "robot"]
