"""Chosen frames of a clip, with as few others decoded as its codec allows.

A frame needs the frames it was predicted from, back to a key frame: those are decoded, whatever is asked for.
Frames before that key frame are jumped over, and frames of H.264 that no other is predicted from (their
nal_ref_idc is 0) are not decoded either. Each jump is checked by the time and the place in the file of every
packet after it; where a check fails, or a clip cannot jump, all of it is decoded.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from armillary.media.container import Timeline, place_of

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

# Codecs whose key frames are self-contained; of others (GIF among them) frames build on all before.
JUMPING = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg2video", "mpeg4", "mjpeg", "prores")
UNREFERENCED = ("h264",)  # says of each frame whether any other may be predicted from it


class _LostError(Exception):
    """What was decoded is not what the packets announced."""


def every_frame(container: "InputContainer", stream: "VideoStream", *_: object) -> "Iterator[VideoFrame]":
    """All frames from the start of a clip just opened, damaged ones among them."""
    return container.decode(stream)


def frames_by_jumps(
    container: "InputContainer", stream: "VideoStream", timeline: Timeline, wanted: Sequence[int]
) -> "Iterator[VideoFrame]":
    """The frames of a clip just opened with these ascending times, the same to the bit as by `every_frame`.

    Ends early, without an error, where that cannot be promised: then the rest is to be had by `every_frame`.
    """
    from av.error import FFmpegError

    if stream.codec_context.codec.canonical_name not in JUMPING:
        return
    try:
        for key, times in jumps(timeline, wanted):
            yield from _from_key(container, stream, timeline, key, times)
    except (_LostError, FFmpegError, OSError):
        return


def jumps(timeline: Timeline, wanted: Sequence[int]) -> list[tuple[int | None, list[int]]]:
    """The wanted times in runs to be decoded without a break, each with the key frame to jump to before it.

    A jump is made where it passes over frames: None is to go on from where decoding stands.
    """
    runs: list[tuple[int | None, list[int]]] = [(None, [])]
    keys, last = np.flatnonzero(timeline.keys), -1
    for index in np.searchsorted(timeline.pts, wanted).tolist():
        before = keys[: np.searchsorted(keys, index, side="right")]
        if len(before) and before[-1] > last + 1:
            runs.append((int(timeline.pts[before[-1]]), []))
        runs[-1][1].append(int(timeline.pts[index]))
        last = index
    return [(key, times) for key, times in runs if times]


def _from_key(
    container: "InputContainer",
    stream: "VideoStream",
    timeline: Timeline,
    key: int | None,
    times: Sequence[int],
) -> "Iterator[VideoFrame]":
    """The frames with these times, after a jump to the key frame if one is given. Raises _LostError if the
    clip is not at a key frame then, or goes on otherwise than it did when its packets were read."""
    context, chosen, left, start = stream.codec_context, set(times), deque(times), None
    economic = context.codec.canonical_name in UNREFERENCED
    if key is not None:
        container.seek(key, stream=stream)
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            _check(packet, timeline)
            if key is not None and start is None:
                start = _landing(packet, left[0])
        context.skip_frame = "NONREF" if economic and packet.pts not in chosen else "DEFAULT"
        for frame in decoded(packet):
            if start is not None and (frame.pts is None or frame.pts < start):
                continue  # shown before the key frame, predicted from what was jumped over
            if start is not None and (frame.pts != start or not frame.key_frame):
                raise _LostError
            key = start = None
            if frame.pts == left[0]:
                left.popleft()
                yield frame
                if not left:
                    return
            elif frame.pts is None or frame.pts > left[0]:
                raise _LostError


def decoded(packet: "Packet[VideoStream]") -> "list[VideoFrame]":
    """The frames that the decoder hands out when it is given this packet."""
    return packet.decode()


def _check(packet: "Packet[VideoStream]", timeline: Timeline) -> None:
    index = int(np.searchsorted(timeline.pts, packet.pts)) if packet.pts is not None else len(timeline.pts)
    if index == len(timeline.pts) or timeline.pts[index] != packet.pts:
        raise _LostError
    if timeline.places[index] != place_of(packet):
        raise _LostError


def _landing(packet: "Packet[VideoStream]", before: int) -> int:
    if packet.pts is None or not packet.is_keyframe or packet.pts > before:
        raise _LostError
    return packet.pts
