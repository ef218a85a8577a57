"""The table-top as a Gymnasium environment: see a picture, be told what to push, move the pusher.

`gymnasium.make("armillary.sim.gym:armillary/Tabletop-v0")` makes one.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from armillary.errors import BadRequest
from armillary.sim.drawing import draw
from armillary.sim.experts import Goal, progress, reached
from armillary.sim.language import instruction
from armillary.sim.physics import MAX_SPEED, SIZE, Floats, check_velocity
from armillary.sim.scenes import Split, episode

Observation = dict[str, Any]

_PROGRESS_SCALE = 10.0  # px of progress worth a reward of one


class TabletopEnv(gymnasium.Env[Observation, Floats]):
    """`armillary/Tabletop-v0`: push the named object the asked way.

    Observation: {"image": uint8 [64, 64, 3]}. Action: the pusher's velocity [2] in px/s for one frame of
    1/8 s, each part in -40..40 and the whole shortened to 40. Reward: progress of the named object the asked
    way since the last step, a tenth a pixel, and 1 more on success, which ends the episode: more than 5 px
    and mainly that way. `info`: "instruction" (text), "success", "episode" (seed), "positions" [n, 2] and
    "pusher" [2] in px.

    Starts are those of `scenes.episode("push", seed)`; `reset(options={"episode": 12})` chooses one.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - declared so by gymnasium
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }

    def __init__(self, render_mode: str | None = None, split: Split = "test", frames: int = 9) -> None:
        """`frames`: within how many frames the expert reaches the goal of every start."""
        if render_mode not in (None, "rgb_array"):
            raise BadRequest("render_mode", render_mode, "must be None or 'rgb_array'")
        self.render_mode = render_mode
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {"image": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)}
        )
        self.action_space = spaces.Box(-MAX_SPEED, MAX_SPEED, (2,), np.float32)
        self._split: Split = split
        self._frames = frames

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new start, drawn from `seed`, or the one numbered `options["episode"]`. Raises BadRequest."""
        super().reset(seed=seed)
        chosen = {"episode": int(self.np_random.integers(1 << 31)), **(options or {})}
        for name, value in chosen.items():
            if name != "episode" or not isinstance(value, int | np.integer):
                raise BadRequest(f"options.{name}", value, "the one option is episode, a whole number")
        self._seed = int(chosen["episode"])
        self.episode = episode("push", self._seed, frames=self._frames, split=self._split)
        self._table = self.episode.start.table()
        self._first, self._gained = self._table.positions, 0.0
        return self._observe(), self._info()

    def step(self, action: Floats) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move for one frame: observation, reward, success, False (the time limit is a wrapper's), info.

        Raises BadRequest for anything but two finite numbers, ResetNeeded before the first reset.
        """
        if not hasattr(self, "_table"):
            raise gymnasium.error.ResetNeeded("reset the environment before its first step")
        self._table.step(check_velocity(action))
        info, before = self._info(), self._gained
        self._gained = progress(self._goal, [self._first, self._table.positions])[0]
        reward = (self._gained - before) / _PROGRESS_SCALE + float(info["success"])
        return self._observe(), reward, info["success"], False, info

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The picture uint8 [64, 64, 3]; None without a render mode."""
        return self._picture() if self.render_mode else None

    @property
    def _goal(self) -> Goal:
        goal = self.episode.goal
        assert goal is not None  # every push has one
        return goal

    def _picture(self) -> NDArray[np.uint8]:
        positions = np.asarray([self._table.positions], np.float32)
        return draw(self.episode.objects, positions, pusher=np.asarray([self._table.pusher], np.float32))[0]

    def _observe(self) -> Observation:
        return {"image": self._picture()}

    def _info(self) -> dict[str, Any]:
        positions = self._table.positions
        return {
            "instruction": instruction(self.episode.objects, self._goal),
            "success": reached(self._goal, [self._first, positions]),
            "episode": self._seed,
            "positions": np.asarray(positions, np.float32),
            "pusher": np.asarray(self._table.pusher, np.float32),
        }
