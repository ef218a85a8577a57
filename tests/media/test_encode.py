"""What is written plays everywhere, comes back as it was, and is never half there."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from armillary.errors import BadRequest
from armillary.media import (
    frame_rate,
    probe,
    read_clip,
    read_picture,
    read_receipt,
    write_gif,
    write_mp4,
    write_png,
)


def scene(count: int = 9, height: int = 64, width: int = 64) -> np.ndarray:
    """A red disc that moves over a sand-coloured table, smooth at the edges."""
    y, x = np.mgrid[:height, :width]
    frames = np.empty((count, height, width, 3), np.float64)
    for k in range(count):
        inside = np.clip(10.5 - np.hypot(x - 20 - 2 * k, y - 30), 0, 1)[..., None]
        frames[k] = inside * (220, 40, 30) + (1 - inside) * (225, 205, 170)
    return frames.round().astype(np.uint8)


def test_mp4_is_high_profile_420_in_bt709_with_the_index_first(tmp_path: Path) -> None:
    write_mp4(tmp_path / "a.mp4", scene(), fps=8, sound=np.zeros((2, 18000), np.float32), sample_rate=16000)
    with av.open(str(tmp_path / "a.mp4")) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.codec_context.profile == "High"
        assert video.codec_context.pix_fmt == "yuv420p"
        assert (video.codec_context.colorspace, video.codec_context.color_range) == (1, 1)
        assert (video.width, video.height) == (64, 64)
        assert (audio.codec_context.name, audio.rate, audio.layout.name) == ("aac", 16000, "stereo")
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_small_clips_stay_crisp(tmp_path: Path) -> None:
    frames = scene()
    write_mp4(tmp_path / "a.mp4", frames, fps=8)
    back = read_clip(tmp_path / "a.mp4").frames.astype(int)
    assert np.abs(back[0, 26:35, 16:25] - frames[0, 26:35, 16:25]).max() <= 6  # inside the disc
    assert np.abs(back[:, 50:, 50:] - frames[:, 50:, 50:]).max() <= 6  # the table
    luma = np.array([0.2126, 0.7152, 0.0722])
    error = (back - frames) @ luma
    assert 10 * np.log10(255**2 / (error**2).mean()) > 38


@pytest.mark.parametrize(
    ("fps", "exact"),
    [
        (8, Fraction(8)),
        (7.5, Fraction(15, 2)),
        (23.976, Fraction(24000, 1001)),
        (24000 / 1001, Fraction(24000, 1001)),
        (29.97, Fraction(30000, 1001)),
        (24.0, Fraction(24)),
        (25, Fraction(25)),
        (59.94, Fraction(60000, 1001)),
        (1 / 3, Fraction(1, 3)),
        (Fraction(10, 3), Fraction(10, 3)),
        (12.345, Fraction(2469, 200)),
    ],
)
@pytest.mark.parametrize("count", [1, 5])
def test_the_rate_is_one_exact_value_from_request_to_container(
    tmp_path: Path, fps: float, exact: Fraction, count: int
) -> None:
    assert frame_rate(fps) == exact
    write_mp4(tmp_path / "a.mp4", scene(count), fps=fps)
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].average_rate == exact
    clip = read_clip(tmp_path / "a.mp4")
    assert frame_rate(clip.fps) == exact
    assert clip.times_s == pytest.approx([float(k / exact) for k in range(count)], abs=1e-9)
    assert probe(tmp_path / "a.mp4").duration_s == pytest.approx(float(count / exact), abs=1e-9)


@pytest.mark.parametrize("fps", [0, -1, 0.001, 1e6, float("nan"), float("inf")])
def test_impossible_rates_are_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(BadRequest, match="fps="):
        write_mp4(tmp_path / "a.mp4", scene(), fps=fps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [(24, 40), (25, 40), (24, 41), (35, 23), (1, 1), (2, 3)])
def test_odd_sizes_are_padded_in_the_file_and_come_back_true(tmp_path: Path, size: tuple[int, int]) -> None:
    height, width = size
    frames = np.broadcast_to(np.array([40, 90, 200], np.uint8), (3, height, width, 3))
    write_mp4(tmp_path / "a.mp4", frames, fps=8)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stored = container.streams.video[0]
        assert (stored.height, stored.width) == (height + height % 2, width + width % 2)
        edge = next(container.decode(video=0)).to_ndarray(format="rgb24")[-1, -1].astype(int)
        assert json.loads(container.metadata["comment"])["size"] == [width, height]
    assert np.abs(edge - (40, 90, 200)).max() <= 6  # the edge is repeated, not black
    back = read_clip(tmp_path / "a.mp4").frames
    assert back.shape == frames.shape
    assert np.abs(back.astype(int) - frames).max() <= 6
    assert (probe(tmp_path / "a.mp4").height, probe(tmp_path / "a.mp4").width) == size


@pytest.mark.parametrize("rate", [16000, 24000, 44100, 48000])
@pytest.mark.parametrize("fps", [8, 7.5, 23.976])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_click_and_a_flash_stay_together(tmp_path: Path, rate: int, fps: float, channels: int) -> None:
    count, flash = 17, 6
    frames = np.zeros((count, 32, 32, 3), np.uint8)
    frames[flash] = 255
    length = round(count / frame_rate(fps) * rate)
    sound = np.zeros((channels, length), np.float32)
    click = round(flash / frame_rate(fps) * rate)
    sound[-1, click : click + 16] = 0.9
    write_mp4(tmp_path / "a.mp4", frames, fps=fps, sound=sound, sample_rate=rate)
    clip = read_clip(tmp_path / "a.mp4", sound=True)
    assert clip.sound is not None
    assert clip.sample_rate == rate
    assert clip.sound.dtype == np.float32
    seen_s = clip.times_s[clip.frames.mean(axis=(1, 2, 3)).argmax()]
    heard_s = np.abs(clip.sound[-1]).argmax() / rate
    assert abs(heard_s - seen_s) * rate < 64  # far within one AAC frame of 1024 samples
    assert clip.sound.shape == sound.shape  # neither run-in nor run-out is left


def test_loudness_and_sides_survive(tmp_path: Path) -> None:
    time_N = np.arange(18000) / 16000
    sound = np.stack([0.5 * np.sin(2 * np.pi * 440 * time_N), np.zeros(18000)]).astype(np.float32)
    write_mp4(tmp_path / "a.mp4", scene(), fps=8, sound=sound, sample_rate=16000)
    back = read_clip(tmp_path / "a.mp4", sound=True).sound
    assert back is not None
    assert np.abs(back[0, 2000:16000] - sound[0, 2000:16000]).max() < 0.02
    assert np.abs(back[1]).max() < 0.01


@pytest.mark.parametrize("seconds", [0.3, 1.2, 3.0])
def test_sound_is_as_long_as_the_frames(tmp_path: Path, seconds: float) -> None:
    sound = np.full((1, round(seconds * 16000)), 0.25, np.float32)
    write_mp4(tmp_path / "a.mp4", scene(8), fps=8, sound=sound.T.copy().T, sample_rate=16000)
    back = read_clip(tmp_path / "a.mp4", sound=True).sound
    assert back is not None
    assert back.shape == (1, 16000)
    filled = np.abs(back[0]) > 0.1
    assert abs(filled.sum() - min(seconds, 1.0) * 16000) < 1024


@pytest.mark.parametrize(
    ("sound", "rate", "field"),
    [
        (np.zeros((2, 100), np.float64), 16000, "sound"),
        (np.zeros((100,), np.float32), 16000, "sound"),
        (np.zeros((6, 100), np.float32), 16000, "sound"),
        (np.full((2, 100), np.nan, np.float32), 16000, "sound"),
        (np.zeros((2, 100), np.float32), None, "sample_rate"),
        (np.zeros((2, 100), np.float32), 17000, "sample_rate"),
    ],
)
def test_sound_that_cannot_be_written_is_refused(
    tmp_path: Path, sound: np.ndarray, rate: int | None, field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        write_mp4(tmp_path / "a.mp4", scene(), fps=8, sound=sound, sample_rate=rate)
    assert caught.value.field == field
    assert not list(tmp_path.iterdir())


def test_the_nearest_legal_sample_rates_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="16000 and 12000"):
        write_mp4(tmp_path / "a.mp4", scene(), fps=8, sound=np.zeros((2, 9), np.float32), sample_rate=17000)


@pytest.mark.parametrize(
    "frames",
    [np.zeros((2, 8, 8, 3), np.float32), np.zeros((8, 8, 3), np.uint8), np.zeros((0, 8, 8, 3), np.uint8)],
)
def test_frames_of_another_kind_are_refused(tmp_path: Path, frames: np.ndarray) -> None:
    for write in (write_mp4, write_gif):
        with pytest.raises(BadRequest, match="frames"):
            write(tmp_path / "a", frames, fps=8)
    assert not list(tmp_path.iterdir())


RECEIPT: dict[str, Any] = {
    "prompt": 'a "red" disc\nrolls — 红色圆盘 \U0001f534',
    "frames": {"asked": 10, "made": 9},
    "seed": 7,
    "long": "x" * 50_000,
}


def test_the_receipt_is_read_back_from_every_kind(tmp_path: Path) -> None:
    write_mp4(tmp_path / "a.mp4", scene(), fps=8, metadata=RECEIPT)
    write_gif(tmp_path / "a.gif", scene(), fps=8, metadata=RECEIPT)
    write_png(tmp_path / "a.png", scene()[0], metadata=RECEIPT)
    for name in ("a.mp4", "a.gif", "a.png"):
        assert read_receipt(tmp_path / name) == RECEIPT
        assert read_receipt((tmp_path / name).read_bytes()) == RECEIPT
    with Image.open(tmp_path / "a.png") as image:
        assert json.loads(image.info["Comment"])["receipt"] == RECEIPT


def test_files_of_others_have_no_receipt(tmp_path: Path, make_clip: Any) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    assert read_receipt(tmp_path / "a.png") is None
    for comment in (
        b"[1, 2]",
        b"{",
        b'{"receipt": 1, "size": [2, 2]}',
        b'{"receipt": {}, "size": ["a", {}]}',
    ):
        Image.new("RGB", (4, 4)).save(tmp_path / "b.gif", comment=comment)
        assert read_receipt(tmp_path / "b.gif") is None
    assert read_receipt(make_clip(scene())) is None


def test_png_is_exact(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", scene()[3])
    assert np.array_equal(read_picture(tmp_path / "a.png"), scene()[3])


def test_gif_is_close_and_its_times_do_not_drift(tmp_path: Path) -> None:
    frames = scene(17)
    write_gif(tmp_path / "a.gif", frames, fps=8)
    clip = read_clip(tmp_path / "a.gif")
    assert clip.times_s == pytest.approx(np.arange(17) / 8, abs=0.0051)
    assert np.abs(clip.frames.astype(int) - frames).max() <= 12
    assert probe(tmp_path / "a.gif").duration_s == pytest.approx(17 / 8, abs=0.0051)


def test_gif_refuses_rates_it_cannot_show(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="at most 50"):
        write_gif(tmp_path / "a.gif", scene(), fps=60)


class Broken(Exception):
    pass


@pytest.mark.parametrize("earlier", [None, b"what was there before"])
def test_an_error_in_the_middle_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bytes | None
) -> None:
    target, calls = tmp_path / "a.mp4", iter(range(100))
    if earlier is not None:
        target.write_bytes(earlier)
    whole = av.VideoFrame.from_ndarray

    def breaks(*args: Any, **options: Any) -> av.VideoFrame:
        if next(calls) == 40:
            assert len(list(tmp_path.iterdir())) == (
                2 if earlier else 1
            )  # the temporary file, beside the target
            raise Broken
        return whole(*args, **options)

    monkeypatch.setattr("av.VideoFrame", type("Frame", (), {"from_ndarray": staticmethod(breaks)}))
    with pytest.raises(Broken):
        write_mp4(target, scene(60), fps=8, sound=np.zeros((2, 120000), np.float32), sample_rate=16000)
    assert [path.name for path in tmp_path.iterdir()] == (["a.mp4"] if earlier else [])
    assert earlier is None or target.read_bytes() == earlier


def test_a_receipt_that_is_no_json_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_mp4(tmp_path / "a.mp4", scene(), fps=8, metadata={"odd": object()})
    assert not list(tmp_path.iterdir())


def test_a_name_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="zero byte"):
        write_png(tmp_path / "a\0.png", np.zeros((2, 2, 3), np.uint8))


def test_missing_folders_and_folders_as_files_are_refused(tmp_path: Path) -> None:
    for write in (write_mp4, write_gif):
        with pytest.raises(BadRequest, match="there is no folder"):
            write(tmp_path / "no" / "a.mp4", scene(), fps=8)
        with pytest.raises(BadRequest, match="is a folder"):
            write(tmp_path, scene(), fps=8)


def test_a_file_is_replaced_and_readable_by_others(tmp_path: Path) -> None:
    for count in (3, 5):
        write_mp4(tmp_path / "a.mp4", scene(count), fps=8)
        assert probe(tmp_path / "a.mp4").frames == count
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert (tmp_path / "a.mp4").stat().st_mode == plain.stat().st_mode


def test_the_same_clip_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, scene(), fps=8, sound=np.zeros((2, 18000), np.float32), sample_rate=16000)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
