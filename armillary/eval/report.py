"""The report: one JSON file for programs, one page of Markdown with contact sheets for people."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from armillary.eval.bench import Outcome
from armillary.eval.scores import Figure, Score, Unit

_DECIMALS: dict[Unit, int] = {"share": 3, "dB": 2, "px": 2, "R2": 3, "F1": 3, "IoU": 3}
_INTRODUCTION = """\
Every figure is measured on episodes that no training has seen: other seeds of the table-top world, and for
"unseen pairs" colours and shapes that were never trained together. In brackets is the 95 % interval
(Wilson's for shares, bootstrap for the rest); *n* is the number of cases. Beside each figure stand what no
skill would score on the same cases, and the ceiling: the truth, read by the same detectors after the
autoencoder, or acted by the scripted expert. Shares run from 0 to 1."""


def write(folder: Path, stem: str, result: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> Path:
    """Write `<stem>.json`, `<stem>.md` and `pictures/<stem>-*.png` into `folder`; returns the page's path.

    Where somebody has written `<stem>-limits.md` into the folder, the page points to it.
    """
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes.values():
        for name, sheet in outcome.sheets.items():
            small = sheet.quantize(128, Image.Quantize.FASTOCTREE)
            small.save(pictures / f"{stem}-{name}.png", optimize=True)
    (folder / f"{stem}.json").write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    page = folder / f"{stem}.md"
    limits = f"{stem}-limits.md"
    lines = _page(stem, result, outcomes, limits if (folder / limits).exists() else None)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def _page(
    stem: str, result: Mapping[str, Any], outcomes: Mapping[str, Outcome], limits: str | None
) -> Iterator[str]:
    yield f"# What {stem} can do, measured"
    yield ""
    minutes = result["seconds"] / 60
    yield f"Checkpoint `{result['digest']}`, {result['date']}, {minutes:.1f} minutes: `{result['command']}`"
    yield ""
    yield _INTRODUCTION
    yield ""
    yield from _summary(outcomes)
    if limits:
        yield f"What keeps them there, by experiment, and what would help: [{limits}]({limits})."
    for name, outcome in outcomes.items():
        yield f"\n## {name}\n"
        yield from _table(outcome.figures)
        for sheet in outcome.sheets:
            yield f"\n![{sheet}](pictures/{stem}-{sheet}.png)"
        if outcome.examples:
            yield from _examples(outcome)


def _summary(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    judged = [f for outcome in outcomes.values() for f in outcome.figures if f.bar is not None]
    short = [
        f"{name}: {f.name}"
        for name, o in outcomes.items()
        for f in o.figures
        if f.bar is not None and not f.reached
    ]
    yield f"{len(judged) - len(short)} of {len(judged)} bars are reached."
    if short:
        yield f"Below the bar: {'; '.join(short)}."


def _table(figures: Sequence[Figure]) -> Iterator[str]:
    yield "| figure | score | n | bar | beside it |"
    yield "|---|---|---|---|---|"
    for f in figures:
        beside = "; ".join(f"{name} {_number(score.value, f.unit)}" for name, score in f.beside.items())
        bar = (
            ""
            if f.bar is None
            else f"{'≤' if f.smaller_is_better else '≥'} {f.bar:g} {'✓' if f.reached else '✗'}"
        )
        yield f"| {f.name} | {_score(f.score, f.unit)} | {f.score.n} | {bar} | {beside} |"


def line(figure: Mapping[str, Any]) -> str:
    """One figure (`Figure.to_dict`) for a terminal: score, interval, cases, what stands beside it, bar."""
    unit: Unit = figure["unit"]
    value, low, high = (_number(_or_nan(figure[name]), unit) for name in ("value", "low", "high"))
    measured = f"{value}{f' {unit}' if unit in ('dB', 'px') else ''} ({low} to {high}, n = {figure['n']})"
    beside = [f"{name} {_number(_or_nan(s['value']), unit)}" for name, s in figure["beside"].items()]
    if figure["bar"] is not None:
        beside.append(f"bar {figure['bar']:g} {'reached' if figure['reached'] else 'missed'}")
    return "; ".join([f"{figure['name']}: {measured}", *beside])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _score(score: Score, unit: Unit) -> str:
    low, high = _number(score.low, unit), _number(score.high, unit)
    return f"**{_number(score.value, unit)}**{f' {unit}' if unit in ('dB', 'px') else ''} ({low} to {high})"


def _number(value: float, unit: Unit) -> str:
    return f"{value:.{_DECIMALS[unit]}f}" if math.isfinite(value) else "–"


def _examples(outcome: Outcome) -> Iterator[str]:
    yield "\nThe first wrong answers of each kind:\n"
    yield "| asked | answered | right |"
    yield "|---|---|---|"
    for example in outcome.examples:
        yield f"| {_cell(example.asked)} | {_cell(example.answered)} | {_cell(example.right)} |"


def _cell(text: str) -> str:
    """Text for one cell of a table, cut where it gets long."""
    text = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    return f"`{text[:120]}{'…' if len(text) > 120 else ''}`" if text else "(nothing)"
