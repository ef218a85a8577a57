"""Edges and blur that control a clip, the weights of controls, and how a short control is made longer."""

import numpy as np
import pytest

from armillary.tasks.controls import BLURS, EDGES, Control, blurred, edges, weights
from armillary.tasks.generate import _to_and_fro


def square(low: int = 0, high: int = 255) -> np.ndarray:
    frames = np.full((2, 40, 48, 3), low, np.uint8)
    frames[:, 10:30, 12:36] = high
    return frames


def test_the_edges_of_a_square_are_its_outline_one_pixel_wide() -> None:
    drawn = edges(square(), "medium")
    assert drawn.shape == square().shape
    assert set(np.unique(drawn)) == {0, 255}
    white = drawn[0, ..., 0] > 0
    assert (drawn == drawn[..., :1]).all()
    rows, columns = np.nonzero(white)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) in {(9, 29, 11, 35), (10, 30, 12, 36)}
    assert not white[13:27, 15:33].any()
    assert (white[15:25].sum(1) == 2).all()  # left and right, once each


def test_a_stronger_setting_keeps_fewer_edges() -> None:
    ramps = (
        np.random.default_rng(0).integers(60, 140, (1, 8, 8, 3)).repeat(8, 1).repeat(8, 2).astype(np.uint8)
    )
    counts = [(edges(ramps, strength) > 0).sum() for strength in EDGES]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_a_faint_edge_is_kept_where_it_joins_a_strong_one() -> None:
    low, high = EDGES["medium"][1] // 4 + 8, EDGES["medium"][0] // 4 + 10
    frame = np.zeros((1, 30, 30, 3), np.uint8)
    frame[0, :15, 15:], frame[0, 15:, 15:] = high, low  # a line, strong above and faint below
    assert (edges(frame, "medium")[0, 18:26, :, 0] > 0).any()
    frame[0, :15] = 0
    assert not (edges(frame, "medium")[0, 18:26, 13:17, 0] > 0).any()


def test_blur_takes_detail_away_and_keeps_colour() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    made = {strength: blurred(noise, strength) for strength in BLURS}
    for drawn in made.values():
        assert drawn.shape == noise.shape
        assert drawn.dtype == np.uint8
        assert drawn.std() < noise.std() / 2
        assert abs(float(drawn.mean()) - float(noise.mean())) < 12
    assert made["very_high"].std() < made["very_low"].std()
    np.testing.assert_array_equal(made["low"], blurred(noise, "low"))


def test_weights_add_up_to_one_and_nobody_has_one_unless_somebody_has() -> None:
    plain, heavy = Control("depth", square()), Control("seg", square(), weight=3.0)
    assert weights((plain, plain)) == ()
    assert weights((plain, heavy)) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("length", "count", "want"),
    [(3, 3, "012"), (3, 7, "0122112"), (1, 4, "0000"), (4, 6, "012332"), (5, 2, "01")],
)
def test_a_control_that_is_too_short_runs_to_and_fro(length: int, count: int, want: str) -> None:
    frames = np.arange(length, dtype=np.uint8).repeat(3).reshape(length, 1, 1, 3)
    got = _to_and_fro(frames, count)[:, 0, 0, 0]
    assert "".join(map(str, got)) == want
