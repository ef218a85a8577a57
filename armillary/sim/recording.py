"""What happened in the world: its exact state, from which pictures and sound are made when asked for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from armillary.sim.audio import SAMPLE_RATE, soundtrack
from armillary.sim.drawing import draw
from armillary.sim.experts import Goal
from armillary.sim.physics import EXTENTS, FPS, SIZE, Background, Event, Floats, Object, Start

Kind = Literal["still", "push", "wander", "slide"]
Box = tuple[float, float, float, float]
KINDS: Final[tuple[Kind, ...]] = ("still", "push", "wander", "slide")


@dataclass(frozen=True, eq=False)
class Recording:
    """One run of the world. T frames, n objects.

    `frames` and `sound` are computed at first use and kept; `picture(i)` draws one frame without the rest.
    """

    kind: Kind
    seed: int
    start: Start
    positions: Floats  # [T, n, 2] px
    velocities: Floats  # [T, n, 2] px/s
    pusher: Floats | None  # [T, 2] px
    actions: Floats | None  # [T - 1, 2] px/s
    events: tuple[Event, ...]
    goal: Goal | None = None
    fps: float = FPS

    @property
    def objects(self) -> tuple[Object, ...]:
        return self.start.objects

    @property
    def background(self) -> Background:
        return self.start.background

    @property
    def sample_rate(self) -> int:
        return SAMPLE_RATE

    @property
    def moving(self) -> bool:
        """Is this a clip rather than a still?"""
        return len(self.positions) > 1

    @cached_property
    def frames(self) -> NDArray[np.uint8]:
        """Pictures uint8 [T, 64, 64, 3]."""
        return self._draw(slice(None))

    @cached_property
    def sound(self) -> Floats | None:
        """Stereo float32 [2, T / fps * 16000] in [-1, 1]; None for a still."""
        return soundtrack(self.events, self.objects, len(self.positions), self.fps) if self.moving else None

    def picture(self, frame: int = 0) -> NDArray[np.uint8]:
        """One frame, uint8 [64, 64, 3]."""
        frame %= len(self.positions)
        return self._draw(slice(frame, frame + 1))[0]

    def boxes(self, frame: int = 0) -> list[Box]:
        """Each object's bounding box (x1, y1, x2, y2) in px, cut at the picture's edge."""
        found = list[Box]()
        for thing, (x, y) in zip(self.objects, self.positions[frame].tolist(), strict=True):
            width, height = EXTENTS[thing.shape]
            edges = (x - width, y - height, x + width, y + height)
            x1, y1, x2, y2 = (min(max(edge, 0.0), float(SIZE)) for edge in edges)
            found.append((x1, y1, x2, y2))
        return found

    def _draw(self, part: slice) -> NDArray[np.uint8]:
        return draw(
            self.objects,
            self.positions[part],
            background=self.background,
            velocities=self.velocities[part],
            pusher=None if self.pusher is None else self.pusher[part],
        )
