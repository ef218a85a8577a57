"""Several results in one pack."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armillary.loading import load
from armillary.world import World
from tests.random_pocket import random_pocket


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder: Path = random_pocket(tmp_path_factory.mktemp("model"))
    return load(folder, device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {"frames": 1},
        {"sound": True, "guidance": 3.0, "noise": "diffusers"},
        {"frames": 13, "chunk": 9},
    ],
)
def test_several_at_once_are_each_what_they_are_alone(world: World, options: Any) -> None:
    several = world.generate("a red disc", n=3, steps=2, seed=7, size="16x16", **options)
    assert [clip.receipt["used"]["seed"] for clip in several] == [7, 8, 9]
    for i, clip in enumerate(several):
        alone = world.generate("a red disc", steps=2, seed=7 + i, size="16x16", **options)
        assert np.abs(clip.frames.astype(int) - alone.frames).max() <= 1
        if clip.sound is not None and alone.sound is not None:
            np.testing.assert_allclose(clip.sound, alone.sound, atol=1e-5)
    assert not np.array_equal(several[0].frames, several[1].frames)
