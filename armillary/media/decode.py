"""Clips in: files and bytes become upright RGB frames with true times, and sound on the same clock.

A header is believed only to refuse: sizes come from decoded frames, times from presentation time stamps.
Legend: T frames, H height, W width, C channels, N samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest
from armillary.media.colour import frame_rgb
from armillary.media.container import Timeline, has_decoder, open_container, read_timeline, video_stream
from armillary.media.note import read_note
from armillary.media.pictures import opened
from armillary.media.seek import every_frame, frames_by_jumps
from armillary.media.source import FileSource, Pixels, Turn, check_size, looks_like, open_binary, shown

if TYPE_CHECKING:
    from av import VideoFrame

Sound: TypeAlias = NDArray[np.float32]

MAX_CLIP_PIXELS = 1_000_000_000
"""Most pixels kept from one clip, all frames together (3 GB of RGB)."""
MAX_SOUND_S = 3600.0
"""Longest sound decoded, in seconds."""


@dataclass(frozen=True, eq=False)
class ClipIn:
    """A clip as read: frames_THWC uint8 RGB, times_s [T] float64 with 0 at the clip's first frame,
    fps of the source, sound_CN float32 in [-1, 1] on the same clock (or None) and its sample_rate in Hz."""

    frames: Pixels
    times_s: NDArray[np.float64]
    fps: float
    sound: Sound | None = None
    sample_rate: int | None = None


@dataclass(frozen=True)
class ClipInfo:
    """What a clip holds: number of frames, mean frames per second, upright size in pixels, seconds, sound or
    not.
    """

    frames: int
    fps: float
    height: int
    width: int
    duration_s: float
    has_sound: bool


def probe(source: FileSource, *, field: str = "video") -> ClipInfo:
    """What a clip holds. Reads every packet's time but decodes one frame, whose size is the one that counts.

    Raises BadRequest naming `field` for anything that is not a whole clip of legal size.
    """
    timeline, has_sound = read_timeline(source, field)
    _, height, width, _ = _decode(source, field, timeline, [0]).shape
    duration_s = float((timeline.end - int(timeline.pts[0])) * timeline.base)
    return ClipInfo(len(timeline.pts), timeline.fps, height, width, duration_s, has_sound)


def read_clip(
    source: FileSource,
    *,
    indices: Sequence[int] | None = None,
    max_frames: int | None = None,
    sound: bool = False,
    field: str = "video",
) -> ClipIn:
    """Frames of a path or bytes, each with its true time; only the frames asked for are kept in memory, and
    only those they are predicted from, back to a key frame, are decoded besides (`media/seek.py`).

    `indices` picks frames by number in the order they are shown, negative ones from the end. `max_frames`
    spreads at most that many evenly, the first and the last included. Neither means all. `sound` decodes the
    sound track too. Rotation, mirroring, sample aspect and the padding of `write_mp4` are undone;
    transparency lies on white; PQ and HLG are shown in standard range (`media/colour.py`). Raises BadRequest
    naming the field for what is not a whole clip, is too large, or has no such frames.
    """
    timeline, _ = read_timeline(source, field)
    chosen = _choose(len(timeline.pts), indices, max_frames)
    frames = _decode(source, field, timeline, chosen)
    start_s = float(int(timeline.pts[0]) * timeline.base)
    heard, sample_rate = decode_sound(source, field, start_s) if sound else (None, None)
    return ClipIn(frames, timeline.seconds(chosen), timeline.fps, heard, sample_rate)


def read_receipt(source: FileSource, *, field: str = "file") -> dict[str, Any] | None:
    """The receipt that `write_png`, `write_gif` or `write_mp4` put into a file; None in files of others."""
    with open_binary(source, field) as file:
        if looks_like(file) == "a picture":
            with opened(file, field, source) as image:
                return read_note(image.info.get("Comment", image.info.get("comment"))).receipt
    with open_container(source, field) as container:
        return read_note(container.metadata.get("comment")).receipt


def _choose(count: int, indices: Sequence[int] | None, max_frames: int | None) -> list[int]:
    if indices is None:
        if max_frames is not None and max_frames < 1:
            raise BadRequest("max_frames", max_frames, "at least 1")
        kept = min(count, count if max_frames is None else max_frames)
        return [int(i) for i in np.linspace(0, count - 1, kept).round()]
    if max_frames is not None:
        raise BadRequest("max_frames", max_frames, "give either indices or max_frames")
    for index in indices:
        if not -count <= index < count:
            raise BadRequest("indices", index, f"the clip has frames 0 to {count - 1}")
    if not indices:
        raise BadRequest("indices", [], "name at least one frame")
    return [index % count for index in indices]


def _decode(source: FileSource, field: str, timeline: Timeline, chosen: Sequence[int]) -> Pixels:
    """The chosen frames [T, H, W, 3]. Matched by integer time stamp, so no rounding can pick a neighbour."""
    places: dict[int, list[int]] = {}
    for place, index in enumerate(chosen):
        places.setdefault(int(timeline.pts[index]), []).append(place)
    frames_THWC = np.empty((0, 0, 0, 3), np.uint8)
    for way in (frames_by_jumps, every_frame):
        with open_container(source, field) as container:
            stream = video_stream(container, field, source)
            true_size = read_note(container.metadata.get("comment")).size
            for frame in way(container, stream, timeline, sorted(places)):
                if frame.pts not in places or frame.is_corrupt:
                    continue
                pixels_HWC = _upright_frame(frame, stream.sample_aspect_ratio, true_size, field)
                if not len(frames_THWC):
                    frames_THWC = _room_for(len(chosen), pixels_HWC, field, source)
                if frames_THWC.shape[1:] != pixels_HWC.shape:
                    raise BadRequest(field, shown(source), "changes its picture size on the way")
                frames_THWC[places.pop(frame.pts)] = pixels_HWC
                if not places:
                    return frames_THWC
    raise BadRequest(field, shown(source), f"is damaged: {len(places)} of the frames asked for are missing")


def _room_for(count: int, pixels_HWC: Pixels, field: str, source: FileSource) -> Pixels:
    height, width, _ = pixels_HWC.shape
    most = MAX_CLIP_PIXELS // (height * width)
    if count > most:
        message = f"{count} frames of {width}x{height} are too many: keep {most}, by max_frames or indices"
        raise BadRequest(field, shown(source), message)
    return np.empty((count, height, width, 3), np.uint8)


def _upright_frame(
    frame: "VideoFrame", aspect: Fraction | None, true_size: tuple[int, int] | None, field: str
) -> Pixels:
    """The frame as it is meant to be seen: our padding cut off, pixels square, rows and columns in place."""
    width, height = _square(frame.width, frame.height, aspect or Fraction(1))
    check_size(width, height, field, f"frame of {width}x{height}")
    pixels_HWC = frame_rgb(frame, width, height)
    if true_size and tuple(side + side % 2 for side in true_size) == (width, height):
        pixels_HWC = pixels_HWC[: true_size[1], : true_size[0]]
    return _display_turn(frame, field).apply(pixels_HWC)


def _square(width: int, height: int, aspect: Fraction) -> tuple[int, int]:
    """Size with square pixels: the side that is too short grows, so that no detail is lost."""
    if aspect >= 1:
        return round(width * aspect), height
    return width, round(height / aspect) if aspect > 0 else height


def _display_turn(frame: "VideoFrame", field: str) -> Turn:
    """The container's display matrix, (x, y) -> (a x + c y, b x + d y), as a turn (ISO 14496-12, 8.3.2)."""
    from av.sidedata.sidedata import Type

    notes = cast("Mapping[Type, Any]", frame.side_data)
    if Type.DISPLAYMATRIX not in notes:
        return Turn()
    a, b, _, c, d = np.frombuffer(bytes(notes[Type.DISPLAYMATRIX]), np.int32)[:5].tolist()
    if b == c == 0:
        return Turn(False, flip_rows=d < 0, flip_columns=a < 0)
    if a == d == 0:
        return Turn(True, flip_rows=b < 0, flip_columns=c < 0)
    raise BadRequest(field, [a, b, c, d], "the clip is turned by an angle that is no multiple of 90 degrees")


def decode_sound(source: FileSource, field: str, start_s: float) -> tuple[Sound | None, int | None]:
    """The first sound track [C, N] and its rate, on the clock of the frames: sample 0 is heard at `start_s`.

    The container's edit list takes off the encoder's run-in; the last packet's duration ends its run-out.
    """
    from av import AudioFrame, AudioResampler

    with open_container(source, field) as container:
        if not container.streams.audio:
            return None, None
        stream = container.streams.audio[0]
        if not has_decoder(stream):
            raise BadRequest(field, shown(source), "has a sound track that cannot be decoded")
        to_float, rate = AudioResampler(format="fltp"), stream.rate
        parts: list[AudioFrame] = []
        length, end_s = 0, math.inf
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None and packet.duration:
                end_s = float((packet.pts + packet.duration) * packet.time_base)
            new = [part for frame in packet.decode() for part in to_float.resample(frame)]
            parts += new
            length += sum(part.samples for part in new)
            if length > MAX_SOUND_S * rate:
                raise BadRequest(field, shown(source), f"more than {MAX_SOUND_S:.0f} s of sound")
        if not parts:
            return None, None
        lead = round((float(parts[0].time or 0.0) - start_s) * rate)
        sound_CN = np.concatenate([part.to_ndarray() for part in parts], axis=1).astype(np.float32)
    sound_CN = np.pad(sound_CN, ((0, 0), (max(lead, 0), 0)))[:, max(-lead, 0) :]
    return (sound_CN if end_s == math.inf else sound_CN[:, : max(round((end_s - start_s) * rate), 0)]), rate
