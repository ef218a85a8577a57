"""A clip as the model makes it and as a person keeps it: frames, sound, actions, and the receipt of how.

Legend: T frames, H height, W width, C channels, N samples.
"""

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from armillary import arguments
from armillary.errors import BadRequest, nearest
from armillary.media.draw import COLOURS, contact_sheet, font, ticks
from armillary.media.encode import check_frames, check_sound, frame_rate, write_gif, write_mp4, write_png
from armillary.media.source import Pixels

SUFFIXES = (".mp4", ".png", ".gif")


@dataclass(frozen=True, eq=False)
class Clip:
    """A clip: frames uint8 [T, H, W, 3] at fps, sound float32 [C, N] in [-1, 1] at sample_rate Hz or None,
    the actions that belong to it if any, and the receipt. Raises BadRequest for anything else."""

    frames: Pixels
    fps: float
    sound: NDArray[np.float32] | None = None
    sample_rate: int | None = None
    actions: Any = None
    receipt: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        count, height, width, _ = self.frames.shape
        shown = f"{_number(count, 'frame')} {width}x{height}, {float(self.fps):g} fps"
        if self.sound is not None:
            shown += f", {_number(len(self.sound), 'channel')} at {self.sample_rate} Hz"
        return f"Clip({shown})"

    def __post_init__(self) -> None:
        check_frames(self.frames)
        frame_rate(self.fps)
        if not isinstance(self.receipt, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
            raise BadRequest("receipt", arguments.kind(self.receipt), "must be a dictionary")
        if self.sound is not None:
            check_sound(self.sound, self.sample_rate)

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the first frame to the end of the last."""
        return len(self.frames) / self.fps

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write .mp4 (with sound), .gif (no sound) or .png (one frame only), the receipt inside.

        Raises BadRequest for another suffix, a missing folder, or a .png of several frames.
        """
        path = arguments.path(path, "path")
        suffix = path.suffix.lower()
        if suffix == ".mp4":
            write_mp4(
                path,
                self.frames,
                fps=self.fps,
                sound=self.sound,
                sample_rate=self.sample_rate,
                metadata=self.receipt,
            )
        elif suffix == ".gif":
            write_gif(path, self.frames, fps=self.fps, metadata=self.receipt)
        elif suffix == ".png" and len(self.frames) == 1:
            write_png(path, self.frames[0], metadata=self.receipt)
        elif suffix == ".png":
            message = f"a PNG holds one picture, not {len(self.frames)}: use .mp4, .gif or clip.sheet()"
            raise BadRequest("path", str(path), message)
        else:
            close = " or ".join(nearest(suffix, SUFFIXES))
            raise BadRequest("path", str(path), f"clips end in {', '.join(SUFFIXES)}; nearest: {close}")

    def sheet(self, *, columns: int | None = None, scale: float | None = None) -> Image.Image:
        """A contact sheet: every frame in reading order with its time in seconds below.

        `scale` multiplies the frames' size; without it they are brought to about 192 pixels, small ones by a
        whole factor with sharp pixels so that they can be judged. Without `columns` the sheet is roughly 4:3.
        Raises BadRequest for a sheet of over 80 million pixels.
        """
        times_s = [index / self.fps for index in range(len(self.frames))]
        return contact_sheet(self.frames, times_s, columns=columns, scale=scale)

    def waveform(self) -> Image.Image:
        """The sound as a picture: one band a channel, below it seconds and the peak of all channels.

        A band reaches from -1 to 1, and if the peak is below a half, from -peak to peak (0.01 at least).
        Raises BadRequest without sound.
        """
        if self.sound is None or not self.sample_rate:
            raise BadRequest("sound", None, "this clip has no sound to draw")
        width, band, margin = 960, 120, 40
        channels, length = self.sound.shape
        picture = Image.new("RGB", (width + 2 * margin, channels * (band + 12) + 60), (255, 255, 255))
        draw, peak = ImageDraw.Draw(picture), float(np.abs(self.sound).max(initial=0.0))
        reach = 1.0 if peak >= 0.5 else max(peak, 0.01)
        for channel, sound_N in enumerate(self.sound):
            _draw_band(draw, sound_N, reach, (margin, 10 + channel * (band + 12)), (width, band))
        _draw_seconds(draw, length / self.sample_rate, (margin, 4 + channels * (band + 12)), width)
        corner = (margin + width, picture.height - 8)
        draw.text(corner, f"peak {peak:.2g}", fill=(90, 90, 90), font=font(12), anchor="rs")
        return picture


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _draw_band(
    draw: ImageDraw.ImageDraw,
    sound_N: NDArray[np.float32],
    reach: float,
    corner: tuple[int, int],
    size: tuple[int, int],
) -> None:
    """Lowest and highest sample of each pixel column, so that a click of one sample still shows; the band
    reaches from -reach to reach."""
    (left, top), (width, height) = corner, size
    middle = top + height // 2
    draw.rectangle((left, top, left + width, top + height), outline=(200, 200, 200))
    draw.line((left, middle, left + width, middle), fill=(200, 200, 200))
    for word, level in ((f"{reach:.2g}", top), ("0", middle), (f"{-reach:.2g}", top + height)):
        draw.text((left - 6, level), word, fill=(90, 90, 90), font=font(12), anchor="rm")
    borders = np.linspace(0, len(sound_N), width + 1).astype(int)
    for column, (start, end) in enumerate(pairwise(borders)):
        part_N = sound_N[start : max(end, start + 1)]
        if len(part_N):
            high, low = (
                middle - round(float(level) / reach * height / 2) for level in (part_N.max(), part_N.min())
            )
            draw.line((left + column, high, left + column, low), fill=COLOURS[4])


def _draw_seconds(draw: ImageDraw.ImageDraw, duration_s: float, corner: tuple[int, int], width: int) -> None:
    left, top = corner
    for tick_s in ticks(duration_s):
        x = left + round(width * tick_s / max(duration_s, 1e-3))
        draw.line((x, top, x, top + 6), fill=(90, 90, 90))
        draw.text((x, top + 8), f"{tick_s:g} s", fill=(90, 90, 90), font=font(12), anchor="ma")
