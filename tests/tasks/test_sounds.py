"""Waveforms of chunks become one without a click, and a given sound is cut to the clip."""

import numpy as np
import pytest

from armillary.tasks.sounds import join, part_of


def test_chunks_of_one_sound_give_it_back() -> None:
    whole = np.random.default_rng(0).normal(size=(2, 100)).astype(np.float32)
    made = join([whole[:, :40], whole[:, 30:70], whole[:, 60:]], [0, 30, 60], 100)
    np.testing.assert_allclose(made, whole, atol=1e-6)


def test_unlike_chunks_fade_into_one_another() -> None:
    high, low = np.ones((1, 200), np.float32), -np.ones((1, 200), np.float32)
    made = join([high, low], [0, 100], 300)[0]
    assert made.shape == (300,)
    assert (made[:100] == 1).all()
    assert (made[200:] == -1).all()
    assert np.abs(np.diff(made)).max() < 2 * np.pi / 2 / 100 * 1.01  # no step larger than the fade's own


def test_a_last_chunk_that_is_cut_ends_with_the_clip() -> None:
    assert join([np.ones((1, 10), np.float32)] * 3, [0, 8, 16], 20).shape == (1, 20)


@pytest.mark.parametrize(("start", "want"), [(0, [0, 1, 2]), (2, [2, 3, 0]), (9, [0, 0, 0])])
def test_silence_follows_a_given_sound(start: int, want: list[int]) -> None:
    np.testing.assert_array_equal(part_of(np.arange(4, dtype=np.float32)[None], start, 3)[0], want)
