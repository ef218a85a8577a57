"""Armillary: Cosmos 3 in one package. It reasons, generates, acts and trains with one set of weights.

The public names are looked up when first used, so that `import armillary` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armillary.answers import Answer
    from armillary.errors import BadRequest, Cancelled
    from armillary.loading import convert, explain, load, plan, validate
    from armillary.media.clip import Clip
    from armillary.robots import Actions, robot
    from armillary.step import Step
    from armillary.world import World

__version__ = "0.1.0"
__all__ = [
    "Actions",
    "Answer",
    "BadRequest",
    "Cancelled",
    "Clip",
    "Step",
    "World",
    "__version__",
    "convert",
    "explain",
    "load",
    "plan",
    "robot",
    "validate",
]

_HOMES = {
    "Actions": "armillary.robots",
    "Answer": "armillary.answers",
    "BadRequest": "armillary.errors",
    "Cancelled": "armillary.errors",
    "Clip": "armillary.media.clip",
    "Step": "armillary.step",
    "World": "armillary.world",
    "convert": "armillary.loading",
    "explain": "armillary.loading",
    "load": "armillary.loading",
    "plan": "armillary.loading",
    "robot": "armillary.robots",
    "validate": "armillary.loading",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
