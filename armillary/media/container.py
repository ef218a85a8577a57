"""An open clip, errors translated, and what its packets tell before anything is decoded.

Legend: T frames.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest
from armillary.media.source import MAX_PIXELS, FileSource, check_size, looks_like, open_binary, shown

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

# Named, because other formats may run programs or fetch other files (playlists).
CLIP_FORMATS = "mov,matroska,webm,avi,gif,mpegts,mpeg,flv,ogg,wav,mp3,flac,aac"


@dataclass(frozen=True)
class Timeline:
    """When frames are shown and the last one ends: ascending integers, in units of `base` seconds; where in
    the file each lies, in bytes; and which are key frames, from which decoding can start."""

    pts: NDArray[np.int64]
    places: NDArray[np.int64]
    keys: NDArray[np.bool_]
    end: int
    base: Fraction
    fps: float

    def seconds(self, indices: Sequence[int]) -> NDArray[np.float64]:
        """Times of these frames [T], counted from the first frame of the clip."""
        return (self.pts[list(indices)] - self.pts[0]) * float(self.base)


@contextmanager
def open_container(
    source: FileSource, field: str, formats: str = CLIP_FORMATS
) -> "Generator[InputContainer]":
    """An open container, errors translated. Bytes only ever come from `source`: no link in it is followed."""
    import av
    from av.error import FFmpegError

    limits = {"format_whitelist": formats, "protocol_whitelist": "", "max_pixels": str(MAX_PIXELS)}
    with open_binary(source, field) as file:
        try:
            with av.open(file, "r", options=limits, metadata_errors="replace") as container:
                yield container
        except (FFmpegError, OSError) as error:  # PyAV hands on what the file itself raises, as it is
            message = f"cannot be decoded as a clip ({error.strerror}); it looks like {looks_like(file)}"
            raise BadRequest(field, shown(source), message) from error


def video_stream(container: "InputContainer", field: str, source: FileSource) -> "VideoStream":
    """The first picture track that can be decoded. Raises BadRequest if there is none."""
    from av.stream import Disposition

    for stream in container.streams.video:
        cover = stream.disposition & Disposition.attached_pic  # of a song: a picture, no clip
        if has_decoder(stream) and not cover:
            check_size(stream.width, stream.height, field, source)
            return stream
    raise BadRequest(field, shown(source), "has no picture track that can be decoded")


def has_decoder(stream: object) -> bool:
    """Whether this build of FFmpeg can decode the track."""
    return getattr(stream, "codec_context", None) is not None


def read_timeline(source: FileSource, field: str) -> tuple[Timeline, bool]:
    """When each frame is shown, and whether there is a sound track. Reads packets, decodes none."""
    with open_container(source, field) as container:
        stream = video_stream(container, field, source)
        packets = [packet for packet in container.demux(stream) if packet.size]
        promised = len(stream.index_entries) if container.format.name.startswith("mov") else 1
        whole = len(packets) >= promised and not any(packet.is_corrupt for packet in packets)
        if not packets or not whole or (container.format.name == "gif" and not _gif_ends(source, field)):
            raise BadRequest(field, shown(source), f"is cut short after {len(packets)} frames")
        visible = [packet for packet in packets if not packet.is_discard]  # the others only help to decode
        if not visible:
            raise BadRequest(
                field, shown(source), "shows none of its frames: its edit list leaves them all out"
            )
        times = [packet.pts for packet in visible if packet.pts is not None]
        if not times or len(times) < len(visible) or stream.time_base is None:
            raise BadRequest(field, shown(source), "has frames without presentation times; rewrite it as MP4")
        pts, first = np.unique(np.array(times, np.int64), return_index=True)
        end = max(packet.pts + (packet.duration or 0) for packet in visible if packet.pts is not None)
        span = max((end - int(pts[0])) * stream.time_base, Fraction(1, 1000))
        rate = float(stream.average_rate or len(pts) / span)
        places = np.array([place_of(packet) for packet in visible], np.int64)[first]
        keys = np.array([packet.is_keyframe for packet in visible])[first]
        timeline = Timeline(pts, places, keys, end, stream.time_base, rate)
        return timeline, bool(container.streams.audio)


def place_of(packet: "Packet[VideoStream]") -> int:
    """The first byte of a packet in its file; -1 where the container does not tell."""
    return -1 if packet.pos is None else packet.pos


def _gif_ends(source: FileSource, field: str) -> bool:
    """A whole GIF closes with a trailer byte; nothing else in it tells that frames were lost."""
    with open_binary(source, field) as file:
        file.seek(-min(file.seek(0, os.SEEK_END), 64), os.SEEK_END)
        return file.read().rstrip(b"\0\r\n").endswith(b";")
