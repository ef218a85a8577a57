"""The packed sequence of one request as a picture: tokens, their positions, and who sees whom.

    python examples/draw_sequence.py [picture.svg]

The request is a clip with sound from a first picture. Everything drawn is read off the `Sample` that the
sampler is given for it; nothing is denoised.
"""

import sys
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import torch

import armillary
from armillary.prompts import with_metadata
from armillary.sequence import Sample, pack
from armillary.tasks.denoise import read_prompts
from armillary.tasks.segments import Latents

PROMPT = "a red disc slides right and hits the wall"
COLOURS = {"context": "#56779a", "vision": "#e69f00", "sound": "#009e73", "action": "#cc79a7"}
NAMES = {"context": "prompt", "vision": "vision", "sound": "sound", "action": "actions"}
TURN = 'patternTransform="rotate(45)"'  # noisy tokens are hatched
CELL, LEFT, GAP = 8, 92, 14  # pixels of a token, left of the first, between the towers
MASK, AXIS = 4, 40  # pixels of a token in the mask; height of one axis of positions


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one kind that are all given or all drawn."""

    kind: str
    noisy: bool
    start: int
    count: int

    @property
    def fill(self) -> str:
        return f"url(#{self.kind})" if self.noisy else COLOURS[self.kind]


def sample_of_request() -> tuple[Sample, int]:
    """What the sampler is given for `generate(PROMPT, image=..., sound=True)`; margin of positions."""
    parts = armillary.load("pocket").parts
    prompt = with_metadata(PROMPT, frames=9, fps=8.0, height=64, width=64)
    contexts = read_prompts(parts, prompt, "", guidance=1.0)
    latents = Latents(torch.zeros(8, 3, 8, 8), 8.0, clean_frames=(0,), sound_SL=torch.zeros(16, 18))
    sample = Sample(contexts.positive, latents.segments(parts.checkpoint.traits))
    return sample, parts.checkpoint.config.margin


def runs_of(sample: Sample) -> list[Run]:
    found = [Run("context", False, 0, len(sample.context))]
    for segment in sample.segments:
        for noisy, tokens in groupby(segment.noisy_N.tolist()):
            found.append(Run(segment.kind, noisy, found[-1].start + found[-1].count, len(list(tokens))))
    return found


def draw(sample: Sample, margin: int) -> str:
    """The picture as SVG."""
    runs, context = runs_of(sample), len(sample.context)
    total = context + len(sample)
    packed = pack([sample])
    positions_3N = torch.cat([packed.positions_3A, packed.positions_3D(margin)], dim=1)
    width = LEFT + GAP + total * CELL + 24
    body = [*_tokens(runs, context), *_positions(positions_3N, context)]
    top = 92 + 3 * (AXIS + 14)
    body += [*_mask(runs, context, total, top), *_words(runs, LEFT + total * MASK + 36, top + 6)]
    return _page(body, width, top + total * MASK + 34)


def _x(token: int, context: int) -> int:
    return LEFT + token * CELL + (GAP if token >= context else 0)


def _tokens(runs: list[Run], context: int) -> list[str]:
    marks = [_text(16, 70, "tokens", "start")]
    for run in runs:
        x, width = _x(run.start, context), run.count * CELL
        marks.append(f'<rect x="{x}" y="56" width="{width}" height="20" fill="{run.fill}"/>')
        lines = (x + i * CELL for i in range(1, run.count))
        marks += [f'<path d="M{line} 56v20" stroke="#fff" stroke-width=".8"/>' for line in lines]
        marks.append(f'<rect x="{x}" y="56" width="{width}" height="20" fill="none" stroke="#333"/>')
    for kind, group in groupby(runs, key=lambda run: run.kind):
        members = list(group)
        start, count = members[0].start, sum(run.count for run in members)
        middle = _x(start, context) + count * CELL // 2
        marks.append(_text(middle, 46, f"{NAMES[kind]}, {count} tokens", "middle"))
    last = runs[-1].start + runs[-1].count
    for title, start, end in (("the AR tower reads", 0, context), ("the DM tower draws", context, last)):
        middle = (_x(start, context) + _x(end - 1, context) + CELL) // 2
        marks.append(_text(middle, 24, title, "middle", bold=True))
    return marks


def _positions(positions_3N: torch.Tensor, context: int) -> list[str]:
    marks: list[str] = []
    for axis, name in enumerate(("time", "height", "width")):
        top = 92 + axis * (AXIS + 14)
        marks.append(f'<path d="M{LEFT} {top + AXIS}H{_x(positions_3N.shape[1], context)}" stroke="#ccc"/>')
        values = positions_3N[axis].tolist()
        highest = max(values)
        marks.append(_text(16, top + AXIS - 16, name, "start"))
        marks.append(_text(16, top + AXIS - 1, f"0 to {highest:g}", "start", small=True))
        for token, value in enumerate(values):
            y = top + AXIS - value / highest * AXIS
            marks.append(f'<circle cx="{_x(token, context) + CELL // 2}" cy="{y:.1f}" r="2" fill="#333"/>')
    return marks


def _mask(runs: list[Run], context: int, total: int, top: int) -> list[str]:
    """Rows look, columns are seen. Context rows see themselves and what lies before; the others see all."""
    marks = [_text(16, top + 14, "who sees", "start"), _text(16, top + 30, "whom", "start")]
    side = total * MASK
    marks.append(f'<rect x="{LEFT}" y="{top}" width="{side}" height="{side}" fill="#f4f4f4"/>')
    for row in range(context):
        y, width, fill = top + row * MASK, (row + 1) * MASK, COLOURS["context"]
        marks.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{MASK}" fill="{fill}"/>')
    y, height = top + context * MASK, (total - context) * MASK
    for run in runs:
        x, width = LEFT + run.start * MASK, run.count * MASK
        marks.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{run.fill}"/>')
    edge = LEFT + context * MASK
    marks.append(f'<path d="M{edge} {top}v{side}M{LEFT} {y}h{side}" stroke="#333"/>')
    return [*marks, f'<rect x="{LEFT}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#333"/>']


def _words(runs: list[Run], x: int, top: int) -> list[str]:
    marks: list[str] = []
    for i, run in enumerate(runs):
        y = top + i * 24
        given = "read once" if run.kind == "context" else "clean: given"
        how = "noisy: drawn step by step" if run.noisy else given
        marks.append(f'<rect x="{x}" y="{y}" width="16" height="16" fill="{run.fill}" stroke="#333"/>')
        marks.append(_text(x + 24, y + 13, f"{NAMES[run.kind]}, {how}", "start"))
    sentences = (
        "A row looks, a column is seen.",
        "",
        "The AR tower reads causally and never sees",
        "what is drawn, so a prompt is read once",
        "however many steps follow.",
        "",
        "The DM tower sees the whole prompt and",
        "every segment, both ways.",
        "",
        "All segments start at one position of time,",
        "a margin after the prompt.",
    )
    start = top + len(runs) * 24 + 24
    return marks + [_text(x, start + i * 18, line, "start") for i, line in enumerate(sentences) if line]


def _text(x: int, y: int, words: str, anchor: str, *, bold: bool = False, small: bool = False) -> str:
    style = ' font-weight="bold"' * bold + ' font-size="11" fill="#777"' * small
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def _page(body: list[str], width: int, height: int) -> str:
    hatches = [
        f'<pattern id="{kind}" width="4" height="4" patternUnits="userSpaceOnUse" {TURN}>'
        f'<rect width="4" height="4" fill="{colour}" fill-opacity=".25"/>'
        f'<rect width="1.6" height="4" fill="{colour}"/></pattern>'
        for kind, colour in COLOURS.items()
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#222">'
    )
    page = f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>'
    return "\n".join([head, f"<defs>{''.join(hatches)}</defs>", page, *body, "</svg>"]) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out/sequence.svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(*sample_of_request()), encoding="utf-8")
    print(target)
