"""What every suite works with and gives back: one checkpoint, its held-out cases, figures and pictures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image, ImageDraw

from armillary.eval.scores import Figure
from armillary.media.draw import font
from armillary.media.source import Pixels
from armillary.sim.recording import Kind
from armillary.sim.scenes import Episode, Split, episode
from armillary.tasks.parts import Parts

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Example:
    """An answer to show: what was asked, what was answered, and what is right."""

    asked: str
    answered: str
    right: str


@dataclass(frozen=True)
class Outcome:
    """What a suite found: its figures, contact sheets by file name, and answers worth reading."""

    figures: Sequence[Figure]
    sheets: Mapping[str, Image.Image] = field(default_factory=dict[str, Image.Image])
    examples: Sequence[Example] = ()


@dataclass
class Bench:
    """One checkpoint, how many cases make a figure, and the episodes drawn so far (suites share them)."""

    parts: Parts
    n: int
    drawn: dict[tuple[Kind, Split, int], list[Episode]] = field(
        default_factory=dict[tuple[Kind, Split, int], list[Episode]]
    )

    @property
    def device(self) -> torch.device:
        return self.parts.device

    def episodes(
        self, kind: Kind, count: int | None = None, *, split: Split = "test", frames: int = 9
    ) -> list[Episode]:
        """The first `count` (else n) episodes of a kind that no training has seen."""
        count = self.n if count is None else count
        known = self.drawn.setdefault((kind, split, frames), [])
        known += [episode(kind, seed, frames=frames, split=split) for seed in range(len(known), count)]
        return known[:count]


def next_one(cases: Sequence[Episode]) -> list[Episode]:
    """Each case's neighbour: what a clip is compared with to see what chance alone would score."""
    return [*cases[1:], *cases[:1]]


def telling(right: Sequence[bool], count: int) -> list[int]:
    """Cases to show: the first right ones and the first wrong ones, half and half as far as there are any."""
    good = [i for i, r in enumerate(right) if r]
    bad = [i for i, r in enumerate(right) if not r]
    half = max(count // 2, count - len(bad))
    return good[:half] + bad[: count - len(good[:half])]


Row = tuple[str, Pixels]


def contact_sheet(rows: Sequence[Row], *, scale: int = 2) -> Image.Image:
    """Rows of frames uint8 [T, H, W, 3], each under its label, sharp pixels enlarged `scale` times."""
    gap, line, text = 4, 18, font(12)
    height, width = (side * scale for side in rows[0][1].shape[1:3])
    widest = max(len(frames) * (width + gap) for _, frames in rows)
    labels = max(math.ceil(text.getlength(label)) for label, _ in rows)
    size = gap + max(widest, labels + gap), len(rows) * (height + line + gap)
    sheet = Image.new("RGB", size, (250, 250, 250))
    pen = ImageDraw.Draw(sheet)
    for number, (label, frames_THW3) in enumerate(rows):
        top = number * (height + line + gap)
        pen.text((gap, top + 2), label, fill=(20, 20, 20), font=text)
        for i, frame_HW3 in enumerate(frames_THW3):
            tile = Image.fromarray(frame_HW3).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(tile, (gap + i * (width + gap), top + line))
    return sheet
