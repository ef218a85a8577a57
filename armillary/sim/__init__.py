"""The table-top world: physics, pictures, sound and words, all exact, all from a seed.

The names below are looked up when first used, so that registering the environment costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armillary.sim.datasets import write_jsonl, write_lerobot
    from armillary.sim.environment import TabletopEnv
    from armillary.sim.language import Question, success
    from armillary.sim.physics import Object, Start, Tabletop, replay, simulate
    from armillary.sim.scenes import HELD_OUT_PAIRS, Episode, corpus, episode

__all__ = [
    "HELD_OUT_PAIRS",
    "Episode",
    "Object",
    "Question",
    "Start",
    "Tabletop",
    "TabletopEnv",
    "corpus",
    "episode",
    "register",
    "replay",
    "simulate",
    "success",
    "write_jsonl",
    "write_lerobot",
]

_HOMES = {
    "HELD_OUT_PAIRS": "scenes",
    "Episode": "scenes",
    "Object": "physics",
    "Question": "language",
    "Start": "physics",
    "Tabletop": "physics",
    "TabletopEnv": "environment",
    "corpus": "scenes",
    "episode": "scenes",
    "replay": "physics",
    "simulate": "physics",
    "success": "language",
    "write_jsonl": "datasets",
    "write_lerobot": "datasets",
}

ENVIRONMENT_ID = "armillary/Tabletop-v0"


def register() -> None:
    """Make `gymnasium.make("armillary/Tabletop-v0")` work; calling it again changes nothing.

    Gymnasium does not find it by itself. Without this call the environment's name is
    `gymnasium.make("armillary.sim.gym:armillary/Tabletop-v0")`.
    """
    from gymnasium.envs import registration

    if ENVIRONMENT_ID not in registration.registry:
        registration.register(
            ENVIRONMENT_ID, entry_point="armillary.sim.environment:TabletopEnv", max_episode_steps=32
        )


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
