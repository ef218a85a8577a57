"""Clips made on the spot, with a plain encoder that shares no code with ours."""

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction

import av
import numpy as np


def make_clip(
    frames: np.ndarray,
    *,
    times: Sequence[int] | None = None,
    unit: Fraction = Fraction(1, 8),
    turn: tuple[float, bool, bool] | None = None,
    aspect: Fraction | None = None,
    container: str = "mp4",
    pixels: str = "yuv420p",
    color_range: int = 1,  # 1 limited, 2 full
    preset: str = "medium",
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
) -> bytes:
    """Frames [T, H, W, 3] as a clip with own times (in `unit` seconds), display matrix, sample aspect."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        given = {"crf": "4", "preset": preset} if options is None else dict(options)
        video = output.add_stream(codec, rate=1 / unit, options=given)
        video.height, video.width, video.pix_fmt = frames.shape[1], frames.shape[2], pixels
        video.codec_context.color_range = color_range
        video.codec_context.time_base = unit
        if turn is not None:
            video.set_display_rotation(*turn)
        if aspect is not None:
            video.codec_context.sample_aspect_ratio = aspect
        for frame, time in zip(frames, times or range(len(frames)), strict=True):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture = picture.reformat(format=pixels, dst_color_range=color_range)
            picture.pts, picture.time_base = time, unit
            output.mux(video.encode(picture))
        output.mux(video.encode(None))
    return buffer.getvalue()
