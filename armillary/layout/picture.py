"""A layout as a picture: tokens by kind, their positions on each axis, and who sees whom."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import numpy as np

from armillary.layout.rows import AXES, Layout, Run
from armillary.media.canvas import INK, Canvas, words_width

COLOURS = {
    "text": "#4b6a91",
    "seen": "#79b4dc",
    "vision": "#e69f00",
    "sound": "#009e73",
    "action": "#cc79a7",
}
WORDS = {"text": "text", "seen": "what it sees", "vision": "vision", "sound": "sound", "action": "actions"}
STATES = {"read": "read once", "clean": "clean: given", "noisy": "noisy: drawn step by step"}
QUIET, RULE, UNSEEN = "#6b7280", "#d5d8de", "#f1f3f6"

WIDTH, EDGE, LEFT, GAP = 960, 28, 116, 22  # of the card; margin; where tokens start; between the towers
LEAST = 56  # narrowest run, so that one token beside thousands can be seen
BAR, STRIP, MASK = 28, 46, 400  # height of the bar of tokens, of an axis, side of the mask
ROW = 16  # height of a row of names


@dataclass(frozen=True)
class Scale:
    """Where the tokens of neighbouring runs stand on a line: run i from `edges[i][0]` to `edges[i][1]`."""

    runs: tuple[Run, ...]
    edges: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, runs: Sequence[Run], start: float, room: float, least: float, gap: float = 0) -> "Scale":
        """Runs share the room by their tokens, but none gets less than `least` (or than an equal share).

        `gap` lies between what is read and what is drawn.
        """
        gaps = [gap if a.state == "read" != b.state else 0 for a, b in pairwise(runs)]
        sizes = _shares([len(run) for run in runs], room - sum(gaps), least)
        begins = accumulate((s + g for s, g in zip(sizes, gaps, strict=False)), initial=start)
        return cls(tuple(runs), tuple((x, x + size) for x, size in zip(begins, sizes, strict=False)))

    def __iter__(self) -> Iterator[tuple[Run, float, float]]:
        return ((run, *ends) for run, ends in zip(self.runs, self.edges, strict=True))

    @property
    def even(self) -> bool:
        """Is every token equally wide?"""
        cells = [(end - start) / len(run) for run, start, end in self]
        return max(cells) < 1.02 * min(cells)


def _shares(counts: Sequence[int], room: float, least: float) -> list[float]:
    least = min(least, room / len(counts))
    small: set[int] = set()
    while True:
        left = room - least * len(small)
        total = sum(n for i, n in enumerate(counts) if i not in small)
        sizes = [least if i in small else left * n / total for i, n in enumerate(counts)]
        narrow = {i for i, size in enumerate(sizes) if size < least - 1e-9}
        if not narrow - small:
            return sizes
        small |= narrow


def picture(layout: Layout) -> Canvas:
    """The whole picture."""
    canvas = Canvas(WIDTH)
    drawn = sum(len(r) for r in layout.runs if r.state == "noisy")
    canvas.text((EDGE, 40), f"{layout.task.replace('_', ' ')} · {layout.model}", size=17, bold=True)
    many = f"{len(layout.samples)} samples, " if len(layout.samples) > 1 else ""
    told = f"{many}{len(layout):,} tokens, {drawn:,} of them noisy"
    canvas.text((WIDTH - EDGE, 40), told, anchor="end", colour=QUIET)
    first = [run for run in layout.runs if run.sample == 0]
    scale = Scale.of(first, LEFT, WIDTH - EDGE - LEFT, LEAST, GAP)
    _tokens(canvas, scale, 104)
    bottom = _positions(canvas, scale, 104 + BAR + 26)
    names = _names(layout, Scale.of(layout.runs, 0, MASK, 16))
    top = bottom + 30 + (ROW * max(row for _, _, row in names) + 14 if names else 0)
    for name, at, row in names:
        canvas.text((at, top - 8 - ROW * row), name, anchor="middle", size=12, colour=QUIET)
    _mask(canvas, layout, top)
    low = _legend(canvas, layout, scale, LEFT + MASK + 36, top)
    canvas.height = round(max(top + MASK, low) + EDGE)
    return canvas


# -- the bar of tokens -------------------------------------------------------------------------------


def _tokens(canvas: Canvas, scale: Scale, top: float) -> None:
    canvas.text((EDGE, top + 19), "tokens")
    for run, start, end in scale:
        canvas.box((start, top), (end - start, BAR), COLOURS[run.kind], hatched=run.state == "noisy")
        cell = (end - start) / len(run)
        if cell >= 5:
            for i in range(1, len(run)):
                x = start + i * cell
                canvas.line([(x, top), (x, top + BAR)], "#ffffff", 0.75)
    for kind, start, end, count in _kinds(scale):
        label = f"{WORDS[kind]} {count:,}"
        if words_width(label, 13) <= end - start + 8:
            canvas.text(((start + end) / 2, top - 10), label, anchor="middle", size=13)
    for drawn, title in ((False, "the AR tower reads"), (True, "the DM tower draws")):
        ends = [(a, b) for run, a, b in scale if (run.state != "read") == drawn]
        if ends:
            left, right = ends[0][0], ends[-1][1]
            canvas.line([(left, top - 29), (right, top - 29)], RULE)
            at = min(max((left + right) / 2, left + words_width(title, 14) / 2), WIDTH - EDGE - 64)
            canvas.text((at, top - 37), title, anchor="middle", bold=True)


def _kinds(scale: Scale) -> Iterator[tuple[str, float, float, int]]:
    """Neighbouring runs of one kind together: kind, start, end, tokens."""
    for kind, group in groupby(scale, key=lambda item: item[0].kind):
        members = list(group)
        yield kind, members[0][1], members[-1][2], sum(len(run) for run, _, _ in members)


# -- positions ---------------------------------------------------------------------------------------


def _positions(canvas: Canvas, scale: Scale, top: float) -> float:
    """A strip an axis; what is read and what is drawn have each their own height. Returns the bottom."""
    for axis, name in enumerate(AXES):
        canvas.text((EDGE, top + STRIP - 16), name)
        for drawn in (False, True):
            side = [item for item in scale if (item[0].state != "read") == drawn]
            if side:
                _strip(canvas, side, axis, top)
        top += STRIP + 26
    return top - 26


def _strip(canvas: Canvas, side: Sequence[tuple[Run, float, float]], axis: int, top: float) -> None:
    low = min(run.span[axis][0] for run, _, _ in side)
    high = max(run.span[axis][1] for run, _, _ in side)
    left, right, base = side[0][1], side[-1][2], top + STRIP
    canvas.line([(left, base + 4), (right, base + 4)], RULE)
    told = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    canvas.text((left, top - 2), told, size=12, colour=QUIET)
    room = STRIP - 14
    for run, start, end in side:
        values = run.positions_3N[axis]
        heights = base - (values - low) / ((high - low) or 1) * room
        _points(canvas, heights, start, end, COLOURS[run.kind])


def _points(canvas: Canvas, heights: np.ndarray, start: float, end: float, colour: str) -> None:
    """A dot a token; where they would run together, the lowest and highest of each pixel."""
    cell = (end - start) / len(heights)
    if cell >= 3:
        for i, y in enumerate(heights.tolist()):
            canvas.dot((start + (i + 0.5) * cell, y), 2.2, colour)
        return
    count = min(len(heights), max(1, round(end - start)))
    begins = np.linspace(0, len(heights), count, endpoint=False).astype(int)
    upper = (np.minimum.reduceat(heights, begins) - 1.2).tolist()
    lower = (np.maximum.reduceat(heights, begins) + 1.2).tolist()
    xs = np.linspace(start, end, count + 1).tolist()
    middle = [(a + b) / 2 for a, b in pairwise(xs)]
    ahead, back = zip(middle, upper, strict=True), zip(reversed(middle), reversed(lower), strict=True)
    canvas.area([(xs[0], upper[0]), *ahead, (xs[-1], upper[-1]), (xs[-1], lower[-1]), *back], colour)


# -- who sees whom -----------------------------------------------------------------------------------


def _mask(canvas: Canvas, layout: Layout, top: float) -> None:
    """Rows look, columns are seen, both in the order of the pack."""
    scale = Scale.of(layout.runs, 0, MASK, 16)
    canvas.text((EDGE, top + 14), "who sees")
    canvas.text((EDGE, top + 32), "whom")
    canvas.box((LEFT, top), (MASK, MASK), UNSEEN)
    for number in range(len(layout.samples)):
        own = [item for item in scale if item[0].sample == number]
        read = [item for item in own if item[0].state == "read"]
        drawn = [item for item in own if item[0].state != "read"]
        for run, start, end in read:
            _causal(canvas, run, (start, end), read[-1][2], top)
        for run, start, end in own if drawn else ():
            size = (end - start, drawn[-1][2] - drawn[0][1])
            hatched = run.state == "noisy"
            canvas.box((LEFT + start, top + drawn[0][1]), size, COLOURS[run.kind], hatched=hatched)
    _lines(canvas, scale, top)


def _causal(canvas: Canvas, run: Run, ends: tuple[float, float], bottom: float, top: float) -> None:
    """The rows from this run on see it; its own tokens see those before them and themselves."""
    (start, end), count = ends, len(run)
    cell = (end - start) / count
    steps = [(start, start)]
    if cell >= 2:
        for i in range(1, count):
            steps += [(start + i * cell, start + (i - 1) * cell), (start + i * cell, start + i * cell)]
        steps.append((end, end - cell))
    else:
        steps.append((end, end))
    corners = [*steps, (end, bottom), (start, bottom)]
    canvas.area([(LEFT + x, top + y) for x, y in corners], COLOURS[run.kind])


def _sides(scale: Scale) -> Iterator[tuple[int, float, float]]:
    """What is read and what is drawn of each sample: the sample's number, start, end."""
    for (_, number), group in groupby(scale, key=lambda item: (item[0].state == "read", item[0].sample)):
        members = list(group)
        yield number, members[0][1], members[-1][2]


def _names(layout: Layout, scale: Scale) -> list[tuple[str, float, int]]:
    """The name of each sample over its columns, where there are many: name, middle, and in which row above
    the mask, so that no name runs into another."""
    names: list[tuple[str, float, int]] = []
    ends: list[float] = []  # of each row
    for number, start, end in _sides(scale) if len(layout.samples) > 1 else ():
        name = layout.samples[number]
        half, middle = words_width(name, 12) / 2, LEFT + (start + end) / 2
        row = next((i for i, last in enumerate(ends) if last <= middle - half), len(ends))
        ends[row:] = [middle + half + 8, *ends[row + 1 :]]
        names.append((name, middle, row))
    return names


def _lines(canvas: Canvas, scale: Scale, top: float) -> None:
    """Borders between what is read and drawn of each sample."""
    for _, _, at in _sides(scale):
        if at < MASK - 1:
            canvas.line([(LEFT, top + at), (LEFT + MASK, top + at)], INK, 0.75)
            canvas.line([(LEFT + at, top), (LEFT + at, top + MASK)], INK, 0.75)
    corners = [(0, 0), (MASK, 0), (MASK, MASK), (0, MASK), (0, 0)]
    canvas.line([(LEFT + x, top + y) for x, y in corners], INK, 1)


# -- words -------------------------------------------------------------------------------------------


def _legend(canvas: Canvas, layout: Layout, scale: Scale, x: float, top: float) -> float:
    """What the colours mean and what the picture says; returns where it ends."""
    y = top + 14
    for kind, state in dict.fromkeys((run.kind, run.state) for run in layout.runs):
        canvas.box((x, y - 13), (18, 16), COLOURS[kind], hatched=state == "noisy")
        canvas.text((x + 28, y), f"{WORDS[kind]}, {STATES[state]}")
        y += 25
    for sentence in _sentences(layout, scale):
        y += 10
        for line in _wrapped(sentence, WIDTH - EDGE - x):
            canvas.text((x, y), line, colour=QUIET)
            y += 20
    return y - 14


def _sentences(layout: Layout, scale: Scale) -> Iterator[str]:
    yield "A row looks, a column is seen."
    drawn = [run for run in layout.runs if run.state != "read" and run.sample == 0]
    if not drawn:
        yield "The AR tower reads causally: a token sees itself and what stands before it."
    else:
        yield "The AR tower reads causally and never sees what is drawn: it reads once for all steps."
        start = min(run.span[0][0] for run in drawn)
        yield f"The DM tower sees all that was read and drawn, both ways. Its time starts at {start:g}."
    if len(layout.samples) > 1:
        others = ", ".join(dict.fromkeys(layout.samples[1:]))
        yield f"Samples of a pack never see each other. Beside the request: {others}."
    if not scale.even:
        yield "Short runs are drawn wider than to scale."


def _wrapped(sentence: str, width: float) -> Iterator[str]:
    line = ""
    for word in sentence.split():
        longer = f"{line} {word}".strip()
        if words_width(longer, 14) > width:
            yield line
            longer = word
        line = longer
    yield line
