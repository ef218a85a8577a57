"""Pictures and clips in: files, bytes, Pillow pictures and arrays become upright RGB with true times.

A header is believed only to refuse: sizes come from decoded frames, times from presentation time stamps.
Legend: T frames, H height, W width, C channels, N samples.
"""

import math
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from armillary.errors import BadRequest
from armillary.media.note import read_note
from armillary.media.source import (
    EXIF_TURNS,
    MAX_PIXELS,
    FileSource,
    Pixels,
    Turn,
    check_size,
    looks_like,
    on_white,
    open_binary,
    shown,
)

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

Sound: TypeAlias = NDArray[np.float32]
PictureSource: TypeAlias = FileSource | Image.Image | NDArray[Any]

MAX_CLIP_PIXELS = 1_000_000_000
"""Most pixels kept from one clip, all frames together (3 GB of RGB)."""
MAX_SOUND_S = 3600.0
"""Longest sound decoded, in seconds."""

# Named, because other formats may run programs (EPS) or fetch other files (playlists).
PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
CLIP_FORMATS = "mov,matroska,webm,avi,gif,mpegts,mpeg,flv,ogg,wav,mp3,flac,aac"
ORIENTATION_TAG = 0x0112


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


# --------------------------------------------------------------------------------------------------- pictures


def read_picture(source: PictureSource, *, field: str = "image") -> Pixels:
    """Upright RGB uint8 [H, W, 3] of a path, bytes, Pillow picture or array.

    EXIF orientation is applied, transparency lies on white, 16-bit greys are scaled to 8, CMYK and palettes
    become RGB, an animation gives its first frame (a Pillow picture the frame it stands at). Arrays are uint8
    [H, W], [H, W, 3] or [H, W, 4], or uint16 [H, W]. Raises BadRequest naming `field` for anything else, for
    pictures over MAX_PIXELS (judged by the header) and for damaged ones.
    """
    if isinstance(source, np.ndarray):
        return _upright_rgb(_array_picture(source, field), field, source)
    if isinstance(source, Image.Image):
        return _upright_rgb(source, field, source)
    with open_binary(source, field) as file:
        return _upright_rgb(_opened(file, field, source), field, source)


def _opened(file: IO[bytes], field: str, source: FileSource) -> Image.Image:
    """A picture of which only the header was read."""
    try:
        return Image.open(file, formats=PICTURE_FORMATS)
    except UnidentifiedImageError as error:
        kinds = ", ".join(PICTURE_FORMATS)
        message = f"cannot be read as one of {kinds}; it looks like {looks_like(file)}"
        raise BadRequest(field, shown(source), message) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadRequest(field, shown(source), f"more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:
        raise BadRequest(field, shown(source), f"cannot be decoded: {error}") from error


def _array_picture(array: NDArray[Any], field: str) -> Image.Image:
    grey, colour = array.ndim == 2, array.ndim == 3 and array.shape[2] in (3, 4)
    if (array.dtype == np.uint8 and (grey or colour)) or (array.dtype == np.uint16 and grey):
        check_size(array.shape[1], array.shape[0], field, array)
        return Image.fromarray(array)
    found = f"{array.dtype} {list(array.shape)}"
    raise BadRequest(field, found, "arrays are uint8 [H, W], [H, W, 3] or [H, W, 4], or uint16 [H, W]")


def _upright_rgb(image: Image.Image, field: str, source: object) -> Pixels:
    check_size(*image.size, field, source)
    try:
        image.load()  # before the tag is read: some formats turn the pixels themselves
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
        return EXIF_TURNS.get(orientation, Turn()).apply(_rgb(image))
    except Exception as error:  # hostile bytes can make a decoder raise anything, always the picture's fault
        raise BadRequest(field, shown(source), f"cannot be decoded: {error}") from error


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith(("I", "F")):
        return _rgb_of_deep_grey(np.asarray(image))
    if image.has_transparency_data:
        return on_white(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def _rgb_of_deep_grey(values_HW: NDArray[Any]) -> Pixels:
    if values_HW.dtype.kind == "f" or values_HW.min() < 0 or values_HW.max() > 65535:
        raise ValueError("only 8 and 16 bits a channel have a known white")
    grey_HW = ((values_HW.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return np.repeat(grey_HW[..., None], 3, axis=2)


# ------------------------------------------------------------------------------------------------------ clips


@dataclass(frozen=True)
class _Timeline:
    """When frames are shown and the last one ends: ascending integers, in units of `base` seconds."""

    pts: NDArray[np.int64]
    end: int
    base: Fraction
    fps: float

    def seconds(self, indices: Sequence[int]) -> NDArray[np.float64]:
        """Times of these frames [T], counted from the first frame of the clip."""
        return (self.pts[list(indices)] - self.pts[0]) * float(self.base)


def probe(source: FileSource, *, field: str = "video") -> ClipInfo:
    """What a clip holds. Reads every packet's time but decodes one frame, whose size is the one that counts.

    Raises BadRequest naming `field` for anything that is not a whole clip of legal size.
    """
    timeline, has_sound = _timeline(source, field)
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
    """Frames of a path or bytes, each with its true time; only the frames asked for are kept in memory.

    `indices` picks frames by number in the order they are shown, negative ones from the end. `max_frames`
    spreads at most that many evenly, the first and the last included. Neither means all. `sound` decodes the
    sound track too. Rotation, mirroring, sample aspect and the padding of `write_mp4` are undone;
    transparency lies on white. Raises BadRequest naming the field for what is not a whole clip, is too large,
    or has no such frames.
    """
    timeline, _ = _timeline(source, field)
    chosen = _choose(len(timeline.pts), indices, max_frames)
    frames = _decode(source, field, timeline, chosen)
    start_s = float(int(timeline.pts[0]) * timeline.base)
    heard, sample_rate = decode_sound(source, field, start_s) if sound else (None, None)
    return ClipIn(frames, timeline.seconds(chosen), timeline.fps, heard, sample_rate)


def read_receipt(source: FileSource, *, field: str = "file") -> dict[str, Any] | None:
    """The receipt that `write_png`, `write_gif` or `write_mp4` put into a file; None in files of others."""
    with open_binary(source, field) as file:
        if looks_like(file) == "a picture":
            with _opened(file, field, source) as image:
                return read_note(image.info.get("Comment", image.info.get("comment"))).receipt
    with _container(source, field) as container:
        return read_note(container.metadata.get("comment")).receipt


@contextmanager
def _container(source: FileSource, field: str) -> "Generator[InputContainer]":
    """An open container, errors translated. Bytes only ever come from `source`: no link in it is followed."""
    import av
    from av.error import FFmpegError

    limits = {"format_whitelist": CLIP_FORMATS, "protocol_whitelist": "", "max_pixels": str(MAX_PIXELS)}
    with open_binary(source, field) as file:
        try:
            with av.open(file, "r", options=limits, metadata_errors="replace") as container:
                yield container
        except FFmpegError as error:
            message = f"cannot be decoded as a clip ({error.strerror}); it looks like {looks_like(file)}"
            raise BadRequest(field, shown(source), message) from error


def _video_stream(container: "InputContainer", field: str, source: FileSource) -> "VideoStream":
    from av.stream import Disposition

    for stream in container.streams.video:
        cover = stream.disposition & Disposition.attached_pic  # of a song: a picture, no clip
        if _has_decoder(stream) and not cover:
            check_size(stream.width, stream.height, field, source)
            return stream
    raise BadRequest(field, shown(source), "has no picture track that can be decoded")


def _has_decoder(stream: object) -> bool:
    return getattr(stream, "codec_context", None) is not None


def _timeline(source: FileSource, field: str) -> tuple[_Timeline, bool]:
    """When each frame is shown, and whether there is a sound track. Reads packets, decodes none."""
    with _container(source, field) as container:
        stream = _video_stream(container, field, source)
        packets = [packet for packet in container.demux(stream) if packet.size]
        promised = len(stream.index_entries) if container.format.name.startswith("mov") else 1
        whole = len(packets) >= promised and not any(packet.is_corrupt for packet in packets)
        if not packets or not whole or (container.format.name == "gif" and not _gif_ends(source, field)):
            raise BadRequest(field, shown(source), f"is cut short after {len(packets)} frames")
        visible = [packet for packet in packets if not packet.is_discard]  # the others only help to decode
        times = [packet.pts for packet in visible if packet.pts is not None]
        if not times or len(times) < len(visible) or stream.time_base is None:
            raise BadRequest(field, shown(source), "has frames without presentation times; rewrite it as MP4")
        pts = np.unique(np.array(times, np.int64))
        end = max(packet.pts + (packet.duration or 0) for packet in visible if packet.pts is not None)
        span = max((end - int(pts[0])) * stream.time_base, Fraction(1, 1000))
        rate = float(stream.average_rate or len(pts) / span)
        return _Timeline(pts, end, stream.time_base, rate), bool(container.streams.audio)


def _gif_ends(source: FileSource, field: str) -> bool:
    """A whole GIF closes with a trailer byte; nothing else in it tells that frames were lost."""
    with open_binary(source, field) as file:
        file.seek(-min(file.seek(0, os.SEEK_END), 64), os.SEEK_END)
        return file.read().rstrip(b"\0\r\n").endswith(b";")


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


def _decode(source: FileSource, field: str, timeline: _Timeline, chosen: Sequence[int]) -> Pixels:
    """The chosen frames [T, H, W, 3]. Matched by integer time stamp, so no rounding can pick a neighbour."""
    places: dict[int, list[int]] = {}
    for place, index in enumerate(chosen):
        places.setdefault(int(timeline.pts[index]), []).append(place)
    frames_THWC = np.empty((0, 0, 0, 3), np.uint8)
    with _container(source, field) as container:
        stream = _video_stream(container, field, source)
        true_size = read_note(container.metadata.get("comment")).size
        for frame in container.decode(stream):
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
    clear = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if clear else "rgb24", width=width, height=height)
    pixels_HWC = cast("Pixels", pixels)
    pixels_HWC = on_white(pixels_HWC) if clear else pixels_HWC
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

    with _container(source, field) as container:
        if not container.streams.audio:
            return None, None
        stream = container.streams.audio[0]
        if not _has_decoder(stream):
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
