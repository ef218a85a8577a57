"""Sound read from files, clips and arrays at the rate and with the channels of a model."""

from pathlib import Path

import numpy as np
import pytest

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.media.sound import read_sound

RATE = 16000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
FRAMES = np.zeros((8, 16, 16, 3), np.uint8)


def test_an_array_is_at_the_models_rate() -> None:
    np.testing.assert_array_equal(read_sound(TONE[None], rate=RATE, channels=1)[0], TONE)
    both = read_sound(TONE, rate=RATE, channels=2)
    np.testing.assert_array_equal(both, np.stack([TONE, TONE]))


def test_several_channels_are_mixed_where_fewer_are_taken() -> None:
    mixed = read_sound(np.stack([TONE, np.zeros_like(TONE)]), rate=RATE, channels=1)
    np.testing.assert_allclose(mixed[0], TONE / 2)


@pytest.mark.parametrize("rate", [8000, 48000])
def test_other_rates_are_resampled_without_a_shift(rate: int) -> None:
    heard = read_sound(Clip(FRAMES, 8.0, TONE[None], RATE), rate=rate, channels=1)[0]
    assert abs(len(heard) - rate) <= 32
    middle = slice(rate // 4, rate // 2)
    want = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    np.testing.assert_allclose(heard[middle], want[middle], atol=0.02)


def test_a_clip_file_gives_its_sound(tmp_path: Path) -> None:
    Clip(FRAMES, 8.0, np.stack([TONE, TONE]), RATE).save(tmp_path / "a.mp4")
    heard = read_sound(tmp_path / "a.mp4", rate=RATE, channels=2)
    assert heard.shape == (2, RATE)
    assert np.corrcoef(heard[0], TONE)[0, 1] > 0.98


def test_a_file_of_sound_alone_is_read(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((TONE * 32767).astype("<i2").tobytes())
    heard = read_sound(tmp_path / "a.wav", rate=RATE, channels=1)
    np.testing.assert_allclose(heard[0], TONE, atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        Clip(FRAMES, 8.0),
        np.zeros((2, 0), np.float32),
        np.zeros(9, np.int16),
        np.full((1, 9), np.nan, np.float32),
        3,
    ],
)
def test_what_holds_no_sound_is_refused(wrong: object) -> None:
    with pytest.raises(BadRequest, match=r"^sound"):
        read_sound(wrong, rate=RATE, channels=1)  # pyright: ignore[reportArgumentType]


def test_a_clip_without_a_sound_track_is_refused(tmp_path: Path) -> None:
    Clip(FRAMES, 8.0).save(tmp_path / "a.mp4")
    with pytest.raises(BadRequest, match="holds no sound"):
        read_sound(tmp_path / "a.mp4", rate=RATE, channels=1)
