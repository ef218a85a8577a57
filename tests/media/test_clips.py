"""Clips come in upright, with square pixels and true times, and only as many frames as were asked for."""

import io
import struct
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from armillary.errors import BadRequest
from armillary.media import probe, read_clip, read_picture, read_receipt, write_mp4
from armillary.media.sound import read_sound

MakeClip = Callable[..., bytes]


def greys(count: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Frame k has grey 20 + 4 k: a decoded frame tells which one it is."""
    return np.broadcast_to(
        (20 + 4 * np.arange(count, dtype=np.uint8))[:, None, None, None], (count, height, width, 3)
    ).copy()


def numbers(frames: np.ndarray) -> list[int]:
    return [round((float(frame.mean()) - 20) / 4) for frame in frames]


def corner_marked(count: int = 3) -> np.ndarray:
    frames = np.full((count, 32, 48, 3), 128, np.uint8)
    frames[:, :12, :20] = (230, 30, 30)
    frames[:, :12, 36:] = (30, 30, 230)
    return frames


def test_all_frames_in_order_with_times_and_rate(make_clip: MakeClip, tmp_path: Path) -> None:
    data = make_clip(greys(30))
    (tmp_path / "clip.mp4").write_bytes(data)
    for source in (data, tmp_path / "clip.mp4", str(tmp_path / "clip.mp4")):
        clip = read_clip(source)
        assert clip.frames.shape == (30, 32, 48, 3)
        assert clip.frames.dtype == np.uint8
        assert numbers(clip.frames) == list(range(30))
        assert clip.times_s.tolist() == [k / 8 for k in range(30)]
        assert (clip.fps, clip.sound, clip.sample_rate) == (8.0, None, None)


@pytest.mark.parametrize("indices", [[0], [29], [5, 17, 23], [-1], [-5, -4, -3, -2, -1], [7, 3, 7]])
def test_chosen_frames_carry_their_own_times(make_clip: MakeClip, indices: list[int]) -> None:
    clip = read_clip(make_clip(greys(30)), indices=indices)
    expected = [index % 30 for index in indices]
    assert numbers(clip.frames) == expected
    assert clip.times_s.tolist() == [k / 8 for k in expected]


@pytest.mark.parametrize(
    ("most", "expected"), [(1, [0]), (2, [0, 29]), (4, [0, 10, 19, 29]), (99, list(range(30)))]
)
def test_max_frames_spreads_evenly(make_clip: MakeClip, most: int, expected: list[int]) -> None:
    assert numbers(read_clip(make_clip(greys(30)), max_frames=most).frames) == expected


def test_frames_that_do_not_exist_are_refused(make_clip: MakeClip) -> None:
    data = make_clip(greys(5))
    for wrong in ([5], [-6], []):
        with pytest.raises(BadRequest, match="indices"):
            read_clip(data, indices=wrong)
    with pytest.raises(BadRequest, match="max_frames=0"):
        read_clip(data, max_frames=0)
    with pytest.raises(BadRequest, match="either"):
        read_clip(data, max_frames=2, indices=[0])


def test_variable_frame_rate_keeps_presentation_times(make_clip: MakeClip) -> None:
    times_ms = [0, 33, 80, 90, 160, 161, 400]
    data = make_clip(greys(7), times=times_ms, unit=Fraction(1, 1000))
    clip = read_clip(data)
    assert numbers(clip.frames) == list(range(7))
    assert clip.times_s * 1000 == pytest.approx(times_ms, abs=0.1)
    for index in range(7):
        alone = read_clip(data, indices=[index])
        assert numbers(alone.frames) == [index]
        assert alone.times_s == pytest.approx([times_ms[index] / 1000], abs=1e-4)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "avi"])
def test_every_container_starts_at_zero(make_clip: MakeClip, container: str) -> None:
    clip = read_clip(make_clip(greys(9), container=container))
    assert numbers(clip.frames) == list(range(9))
    assert clip.times_s == pytest.approx(np.arange(9) / 8, abs=1e-3)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirror", [(False, False), (True, False), (False, True)])
def test_the_display_matrix_turns_and_mirrors(
    make_clip: MakeClip, degrees: int, mirror: tuple[bool, bool]
) -> None:
    plain = read_clip(make_clip(corner_marked())).frames
    data = make_clip(corner_marked(), turn=(degrees, *mirror))
    expected = np.rot90(plain, degrees // 90, axes=(1, 2))  # counter-clockwise, then mirrored
    expected = expected[:, :, ::-1] if mirror[0] else expected
    expected = expected[:, ::-1] if mirror[1] else expected
    assert np.array_equal(read_clip(data).frames, expected)
    info = probe(data)
    assert (info.height, info.width) == expected.shape[1:3]


def test_a_skewed_display_matrix_is_refused(make_clip: MakeClip) -> None:
    with pytest.raises(BadRequest, match="no multiple of 90"):
        read_clip(make_clip(corner_marked(), turn=(45.0, False, False)))


@pytest.mark.parametrize(
    ("aspect", "size"), [(Fraction(2, 1), (32, 96)), (Fraction(1, 2), (64, 48)), (Fraction(4, 3), (32, 64))]
)
def test_pixels_become_square_and_edges_stay_straight(
    make_clip: MakeClip, aspect: Fraction, size: tuple[int, int]
) -> None:
    frames = np.full((2, 32, 48, 3), 20, np.uint8)
    frames[:, :, 24:] = 230
    clip = read_clip(make_clip(frames, aspect=aspect))
    assert clip.frames.shape[1:3] == size
    bright = clip.frames[0, ..., 0] > 125
    assert (bright == bright[0]).all()
    assert bright[0].sum() == size[1] // 2
    assert (probe(make_clip(frames, aspect=aspect, turn=(90, False, False))).width) == size[0]


def test_probe_reads_what_the_clip_holds(make_clip: MakeClip, tmp_path: Path) -> None:
    info = probe(make_clip(greys(12)))
    assert (info.frames, info.fps, info.height, info.width) == (12, 8.0, 32, 48)
    assert (info.duration_s, info.has_sound) == (1.5, False)
    write_mp4(tmp_path / "a.mp4", greys(4), fps=7.5, sound=np.zeros((2, 9000), np.float32), sample_rate=16000)
    info = probe(tmp_path / "a.mp4")
    assert (info.frames, info.fps, info.has_sound) == (4, 7.5, True)
    assert info.duration_s == pytest.approx(4 / 7.5)


def animated_gif(durations_ms: list[int]) -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(frame) for frame in greys(len(durations_ms))]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations_ms)
    return buffer.getvalue()


def test_a_gif_is_a_clip_with_its_own_times() -> None:
    clip = read_clip(animated_gif([30, 50, 120, 40]))
    assert numbers(clip.frames) == [0, 1, 2, 3]
    assert clip.times_s == pytest.approx([0, 0.03, 0.08, 0.2])
    assert probe(animated_gif([30, 50, 120, 40])).duration_s == pytest.approx(0.24)


def test_a_transparent_gif_lies_on_white() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([200, 10, 10, 0, 0, 0])
    image.putpixel((0, 0), 0)
    buffer = io.BytesIO()
    image.save(buffer, "GIF", transparency=1)
    frame = read_clip(buffer.getvalue()).frames[0]
    assert frame[0, 0].tolist() == [200, 10, 10]
    assert frame[7, 7].tolist() == [255, 255, 255]


def test_only_the_frames_asked_for_are_kept_in_memory(make_clip: MakeClip) -> None:
    data = make_clip(greys(50, 180, 320).repeat(6, axis=0))  # 300 frames, 52 MB of RGB
    tracemalloc.start()
    clip = read_clip(data, max_frames=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(clip.frames) == 8
    assert peak < 6e6


def test_too_many_pixels_are_refused_with_the_number_that_fits(
    make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armillary.media.decode.MAX_CLIP_PIXELS", 4 * 32 * 48)
    data = make_clip(greys(5))
    with pytest.raises(BadRequest, match="keep 4"):
        read_clip(data)
    assert len(read_clip(data, max_frames=4).frames) == 4


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("index_first", [False, True])
def test_a_truncated_clip_is_refused_by_name(
    make_clip: MakeClip, tmp_path: Path, fraction: float, index_first: bool
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (12, 32, 48, 3), dtype=np.uint8)
    if index_first:
        write_mp4(tmp_path / "a.mp4", noise, fps=8)
        data = (tmp_path / "a.mp4").read_bytes()
    else:
        data = make_clip(noise)
    with pytest.raises(BadRequest, match="past="):
        read_clip(data[: int(len(data) * fraction)], field="past")
    assert len(read_clip(data).frames) == 12


def test_an_edit_list_that_hides_frames_is_followed(make_clip: MakeClip) -> None:
    data = bytearray(make_clip(greys(12)))
    at = (
        data.index(b"elst") + 12
    )  # past the version and the number of entries: duration in ms, start in 1/16384 s
    duration_ms, start = struct.unpack(">ii", data[at : at + 8])
    assert duration_ms == 1500
    data[at : at + 8] = struct.pack(">ii", 500, start + 3 * 2048)
    clip = read_clip(bytes(data))
    assert numbers(clip.frames) == [3, 4, 5, 6]
    assert clip.times_s.tolist() == [0, 0.125, 0.25, 0.375]


def test_hostile_bytes_only_ever_give_a_bad_request(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sound = np.zeros((2, 6000), np.float32)
    write_mp4(tmp_path / "a.mp4", greys(3), fps=8, sound=sound, sample_rate=16000)
    refused = 0
    for whole in ((tmp_path / "a.mp4").read_bytes(), animated_gif([50] * 3)):
        for _ in range(60):
            data = bytearray(whole)
            for place in rng.integers(0, min(len(data), 2000), 5):
                data[place] = rng.integers(0, 256)
            try:
                read_clip(bytes(data), sound=True)
            except BadRequest:
                refused += 1
    assert 10 < refused < 120


def test_a_clip_without_a_decoder_is_refused(make_clip: MakeClip) -> None:
    with pytest.raises(BadRequest, match="no picture track that can be decoded"):
        read_clip(make_clip(greys(3)).replace(b"avc1", b"zzzz"))


def test_a_truncated_gif_is_refused() -> None:
    data = animated_gif([50] * 6)
    with pytest.raises(BadRequest, match="cut short"):
        read_clip(data[: len(data) // 2])


def test_a_huge_header_is_refused() -> None:
    data = animated_gif([50] * 2)
    with pytest.raises(BadRequest, match="pixels"):
        read_clip(data[:6] + struct.pack("<HH", 65535, 65535) + data[10:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, world",
        b"#EXTM3U\n#EXTINF:5,\n/etc/hostname\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
    ],
)
def test_what_is_no_clip_is_refused_and_playlists_are_not_followed(data: bytes) -> None:
    with pytest.raises(BadRequest, match="neither a picture nor a clip"):
        read_clip(data)


@pytest.mark.parametrize(
    "read", [read_clip, probe, read_receipt, read_picture, partial(read_sound, rate=16000, channels=1)]
)
def test_an_empty_file_is_refused_by_its_name(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(BadRequest, match=r"empty\.mp4.*neither a picture nor a clip"):
        read(tmp_path / "empty.mp4")


def test_a_picture_and_a_clip_in_the_wrong_place_are_named(make_clip: MakeClip) -> None:
    buffer = io.BytesIO()
    Image.fromarray(greys(1)[0]).save(buffer, "PNG")
    with pytest.raises(BadRequest, match=r"video=.*looks like a picture"):
        read_clip(buffer.getvalue())
    with pytest.raises(BadRequest, match=r"image=.*looks like a clip"):
        read_picture(make_clip(greys(2)))


def test_addresses_are_not_opened() -> None:
    with pytest.raises(BadRequest, match="not fetched here"):
        read_clip("http://127.0.0.1:9/clip.mp4")


def test_a_sound_file_has_no_pictures(tmp_path: Path) -> None:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        track = output.add_stream("aac", rate=16000, layout="mono")
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        samples.sample_rate = 16000
        output.mux(track.encode(samples))
        output.mux(track.encode(None))
    with pytest.raises(BadRequest, match="no picture track"):
        read_clip(buffer.getvalue())
