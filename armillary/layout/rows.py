"""What stands where in the packed sequence of a request: the rows of its table.

Shape letters: N tokens of a run, 3 the axes (time, height, width).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from armillary import arguments
from armillary.errors import BadRequest, nearest
from armillary.sequence import Pack, Sample

AXES = ("time", "height", "width")
SUFFIXES = (".svg", ".png")
State = Literal["read", "clean", "noisy"]


@dataclass(frozen=True, eq=False)
class Run:
    """Neighbouring tokens of one kind and one state, and where they stand on each axis.

    kind: text and seen (what the vision tower saw) are read; vision, sound and action are given (clean) or
    drawn (noisy).
    """

    sample: int
    kind: str
    state: State
    positions_3N: NDArray[np.float32]

    def __len__(self) -> int:
        return self.positions_3N.shape[1]

    @property
    def span(self) -> tuple[tuple[float, float], ...]:
        """The first and last position on each axis (time, height, width)."""
        return tuple((float(axis.min()), float(axis.max())) for axis in self.positions_3N)


@dataclass(frozen=True, eq=False)
class Layout:
    """The packed sequence that the network would be given for a request.

    runs: in the order of the pack, the contexts of all samples and then what is drawn after each. samples:
    what each is for. A context's token sees itself and what its own context holds before it; a drawn token
    sees its whole context and all that is drawn with it.
    """

    task: str
    model: str
    samples: tuple[str, ...]
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, pack: Pack, *, task: str, model: str, margin: int) -> "Layout":
        """Read off a pack; `margin` as in the network's config."""
        contexts = [run for i, s in enumerate(pack.samples) for run in _context_runs(i, s)]
        segments = [run for i, s in enumerate(pack.samples) for run in _segment_runs(i, s, margin)]
        return cls(task, model, tuple(_names(pack.samples)), (*contexts, *segments))

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a run, as plain JSON; positions are [first, last]."""
        return [
            {
                "sample": self.samples[run.sample],
                "kind": run.kind,
                "tokens": len(run),
                "state": run.state,
                **{axis: [round(x, 3) for x in ends] for axis, ends in zip(AXES, run.span, strict=True)},
            }
            for run in self.runs
        ]

    def table(self) -> str:
        """The rows for a person, with a line of totals."""
        head = ["sample", "kind", "tokens", "state", *AXES]
        lines = [head, *([_cell(row[name]) for name in head] for row in self.rows())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines]
        noisy = sum(len(run) for run in self.runs if run.state == "noisy")
        total = f"{len(self)} tokens in {len(self.samples)} {_plural('sample', len(self.samples))}"
        return "\n".join([*(line.rstrip() for line in text), "", f"{total}, {noisy} of them noisy"])

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as .svg or .png, whole or not at all. Raises BadRequest for another suffix."""
        check_picture(path)
        from armillary.layout.picture import picture
        from armillary.media.encode import replacing

        canvas = picture(self)
        with replacing(path) as temporary:
            if Path(path).suffix.lower() == ".svg":
                temporary.write_text(canvas.svg(), encoding="utf-8")
            else:
                canvas.image().save(temporary, format="PNG")


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuse a name that `Layout.draw` cannot write."""
    suffix = arguments.path(path, "output").suffix.lower()
    if suffix not in SUFFIXES:
        close = " or ".join(nearest(suffix, SUFFIXES))
        raise BadRequest("output", os.fspath(path), f"a layout is drawn as .svg or .png; nearest: {close}")


def _cell(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    first, last = value
    return f"{first:g}" if first == last else f"{first:g} to {last:g}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _names(samples: Sequence[Sample]) -> Iterator[str]:
    """What each sample is for, told by what it shares with the first."""
    first, counts = samples[0], dict[str, int]()
    for sample in samples:
        if sample.context is first.context:
            name = "request" if len(sample.segments) == len(first.segments) else "without control"
        else:
            name = "negative"
        counts[name] = counts.get(name, 0) + 1
        yield name if counts[name] == 1 else f"{name} {counts[name]}"


def _context_runs(number: int, sample: Sample) -> Iterator[Run]:
    context = sample.context
    seen = set[int]() if context.visual is None else set(context.visual.rows_V.tolist())
    positions = context.positions_3A.numpy()
    for is_seen, tokens in groupby(range(len(context)), key=lambda i: i in seen):
        places = list(tokens)
        yield Run(number, "seen" if is_seen else "text", "read", positions[:, places])


def _segment_runs(number: int, sample: Sample, margin: int) -> Iterator[Run]:
    start = np.array([[sample.context.end + margin], [0], [0]], np.float32)
    for segment in sample.segments:
        positions = segment.positions_3N.numpy() + start
        noisy_N = segment.noisy_N.numpy()
        borders = [0, *(np.flatnonzero(np.diff(noisy_N)) + 1).tolist(), len(noisy_N)]
        for begin, end in pairwise(borders):
            state: State = "noisy" if noisy_N[begin] else "clean"
            yield Run(number, segment.kind, state, positions[:, begin:end])
