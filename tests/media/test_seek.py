"""Only frames that must be are decoded, and what comes out is the same to the bit as if all were."""

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from armillary.media import decode, read_clip, seek
from tests.make_clip import make_clip

LONG = 60


def moving(count: int = LONG) -> np.ndarray:
    """Noise that slides and darkens: no two frames are alike, and each is predicted from its neighbours."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    return np.stack([np.roll(noise, k, axis=1) // (1 + k % 3) for k in range(count)])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each frame that the decoder hands out on the way of jumps."""
    found: list[int] = []
    plain = seek.decoded

    def counting(packet: Any) -> Any:
        frames = plain(packet)
        found.extend(frame.pts for frame in frames)
        return frames

    monkeypatch.setattr(seek, "decoded", counting)
    return found


def same_as_decoding_all(data: bytes, indices: Sequence[int]) -> None:
    few = read_clip(data, indices=indices)
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(container.streams.video[0]))
    times_s = [(frames[i].pts - frames[0].pts) * float(frames[i].time_base) for i in indices]
    assert few.times_s.tolist() == times_s
    assert np.array_equal(few.frames, [frames[i].to_ndarray(format="rgb24") for i in indices])


def never_all(*_: object) -> Any:
    raise AssertionError("all frames were decoded")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_jumps_change_no_bit_of_h264(data: st.DataObject) -> None:
    """Sizes of a group of pictures, open and closed groups, B-frames and pyramids of them, uneven times, odd
    starts, containers."""
    draw = data.draw
    size, count = draw(st.integers(1, 25), label="group"), draw(st.integers(1, LONG), label="frames")
    gaps = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count), label="gaps")
    start = draw(st.sampled_from([0, 1, 777]), label="start")
    params = {
        "keyint": size,
        "min-keyint": 1,
        "scenecut": 0,
        "bframes": draw(st.integers(0, 4), label="B"),
        "b-pyramid": draw(st.sampled_from(["none", "strict", "normal"]), label="pyramid"),
        "open-gop": draw(st.integers(0, 1), label="open"),
        "intra-refresh": draw(st.integers(0, 1), label="refresh"),
    }
    clip = make_clip(
        moving(count),
        times=(start + np.cumsum(gaps)).tolist(),
        unit=Fraction(1, 100),
        container=draw(st.sampled_from(["mp4", "matroska", "mpegts", "flv"]), label="container"),
        options={
            "preset": "ultrafast",
            "crf": "20",
            "x264-params": ":".join(f"{name}={value}" for name, value in params.items()),
        },
    )
    wanted = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5), label="wanted")
    same_as_decoding_all(clip, wanted)


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libx265", "mp4", {"preset": "ultrafast", "x265-params": "keyint=12:bframes=3:log-level=none"}),
        ("libx265", "mp4", {"preset": "ultrafast", "x265-params": "keyint=12:open-gop=0:log-level=none"}),
        ("libx265", "matroska", {"preset": "ultrafast", "x265-params": "keyint=12:log-level=none"}),
        ("libvpx-vp9", "webm", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
        ("libvpx", "webm", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
        ("libsvtav1", "mp4", {"g": "12", "preset": "12", "svtav1-params": "lp=1"}),
        ("mpeg4", "mp4", {"g": "12", "bf": "2"}),
        ("mpeg2video", "mpegts", {"g": "12", "bf": "2"}),
        ("mpeg2video", "matroska", {"g": "12", "bf": "2"}),
        ("mjpeg", "avi", {"q": "3"}),
        ("prores_ks", "mov", {}),
        ("ffv1", "matroska", {"g": "12"}),
    ],
)
def test_jumps_change_no_bit_of_other_codecs(
    counted: list[int], codec: str, container: str, options: dict[str, str]
) -> None:
    pixels = {"mjpeg": "yuvj420p", "prores_ks": "yuv422p10le"}.get(codec, "yuv420p")
    large = np.kron(moving(40), np.ones((1, 2, 2, 1), np.uint8))
    data = make_clip(
        large, unit=Fraction(1, 25), codec=codec, container=container, options=options, pixels=pixels
    )
    for wanted in ([39], [13, 30], [11, 12, 24, 25], [0, 38]):
        counted.clear()
        same_as_decoding_all(data, wanted)
        if container != "mpegts" and codec != "ffv1":  # those lie unindexed, or build on all frames before
            assert 0 < len(counted) <= 25


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_of_a_long_clip_only_the_groups_of_chosen_frames_are_decoded(
    counted: list[int], monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    monkeypatch.setattr(decode, "every_frame", never_all)
    frames = np.broadcast_to(moving(30)[None], (20, 30, 32, 48, 3)).reshape(600, 32, 48, 3)
    options = {"preset": "ultrafast", "g": "30", "bf": "2"}
    data = make_clip(frames, unit=Fraction(1, 10), container=container, options=options)
    counted.clear()
    clip = read_clip(data, max_frames=8)
    assert len(clip.frames) == 8
    assert (
        8 <= len(counted) < 160
    )  # of 600: eight groups of at most thirty, without what none is predicted from


def test_frames_beside_each_other_are_decoded_in_one_go(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "every_frame", never_all)
    data = make_clip(moving(), options={"g": "12", "bf": "0"})
    counted.clear()
    read_clip(data)
    assert len(counted) == LONG


def test_a_clip_that_reads_otherwise_after_a_jump_is_decoded_from_its_start(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_clip(moving(), options={"g": "12", "bf": "2"})
    monkeypatch.setattr(seek, "place_of", lambda packet: -5)
    same_as_decoding_all(data, [40, 20])
    assert not counted


def test_an_animation_that_builds_on_all_before_is_decoded_from_its_start(counted: list[int]) -> None:
    buffer = io.BytesIO()
    frames = [Image.fromarray(frame).quantize(32) for frame in moving(12)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=100)
    same_as_decoding_all(buffer.getvalue(), [9, 4])
    assert not counted
