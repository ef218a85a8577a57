"""The sound of the table-top: each collision is a short decaying tone, and nothing else sounds.

Pitch tells the shape, loudness the speed, and the balance of left and right the place.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from armillary.sim.physics import FPS, SIZE, Event, Floats, Object, Shape

SAMPLE_RATE: Final = 16_000
PITCHES: Final[dict[Shape, float]] = {"disc": 320.0, "square": 720.0, "triangle": 1600.0}  # Hz
TONE_SECONDS: Final = 0.25
_DECAY_SECONDS = 0.06


def tone(shape: Shape) -> Floats:
    """One mono tone [N] with peak below 1: starts at once, decays, and ends at zero."""
    time_N = np.arange(round(TONE_SECONDS * SAMPLE_RATE), dtype=np.float32) / np.float32(SAMPLE_RATE)
    fade_N = np.exp(-time_N / np.float32(_DECAY_SECONDS)) * (1 - time_N / np.float32(TONE_SECONDS))
    return np.sin(np.float32(2 * math.pi * PITCHES[shape]) * time_N) * fade_N


def loudness(speed: float) -> float:
    """Amplitude in 0.15 .. 0.5 of a collision at `speed` px/s."""
    return 0.15 + 0.35 * min(speed / 40.0, 1.0)


def soundtrack(events: Iterable[Event], objects: Sequence[Object], frames: int, fps: float = FPS) -> Floats:
    """Stereo sound float32 [2, frames / fps * 16000] in [-1, 1]."""
    sound_CN = np.zeros((2, round(frames / fps * SAMPLE_RATE)), np.float32)
    for event in events:
        begin = round(event.time * SAMPLE_RATE)
        angle = event.x / SIZE * math.pi / 2  # equal power whatever the place
        gain_C = np.array([math.cos(angle), math.sin(angle)], np.float32) * np.float32(loudness(event.speed))
        for index in event.objects:
            part_CN = sound_CN[:, begin : begin + round(TONE_SECONDS * SAMPLE_RATE)]
            part_CN += gain_C[:, None] * tone(objects[index].shape)[: part_CN.shape[1]]
    return np.clip(sound_CN, -1.0, 1.0)
