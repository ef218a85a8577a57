"""The picture in the making is the picture, small."""

import numpy as np
import pytest

import armillary
from armillary.step import Step
from armillary.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return armillary.load("pocket", device="cpu")


def small(frames_THW3: np.ndarray, side: int) -> np.ndarray:
    """Every fourth frame, each cell its mean."""
    frames, height, width, _ = frames_THW3.shape
    cells = frames_THW3.reshape(frames, height // side, side, width // side, side, 3).mean((2, 4))
    return cells[::4]


def test_the_last_preview_is_the_clip_made_small(world: World) -> None:
    seen: list[np.ndarray] = []

    def look(done: Step) -> None:
        seen.append(done.preview())

    clip = world.generate("a red disc slides right", steps=3, seed=1, on_step=look)
    assert len(seen) == 3
    assert seen[-1].shape == (3, 8, 8, 3)
    assert seen[-1].dtype == np.uint8
    want = small(clip.frames, 8)
    errors = [np.abs(x - want).mean() for x in seen]
    assert errors[-1] < np.abs(want.mean((0, 1, 2)) - want).mean()  # better than its mean colour
    assert errors[-1] <= errors[0]


def test_each_of_several_results_has_its_own_preview(world: World) -> None:
    seen: list[np.ndarray] = []

    def look(done: Step) -> None:
        seen[:] = [done.preview(i) for i in range(2)]

    first, second = world.generate("a red disc at the left", frames=1, n=2, steps=2, on_step=look)
    assert not np.array_equal(*seen)
    for clip, preview in zip((first, second), seen, strict=True):
        want = small(clip.frames, 8)
        assert np.abs(want - preview).mean() < np.abs(want - want.mean((0, 1, 2))).mean()
