"""The report: one JSON file for programs, one page of Markdown with contact sheets for people.

The page, the terminal and the model card show the numbers that the JSON holds, rounded by `number`.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from PIL import Image

from armillary.errors import BadRequest
from armillary.eval.bench import Example, Outcome

Told = Mapping[str, Any]  # a figure as `Figure.to_dict` gives it

_DECIMALS = {"dB": 2, "px": 2}  # shares and the like have three
_SHOWN, _BEFORE = 120, 40  # letters of a long answer, and of those before the first difference
_INTRODUCTION = """\
Every figure is measured on episodes that no training has seen: other seeds of the table-top world, and for
"unseen pairs" colours and shapes that were never trained together. In brackets is the 95 % interval
(Wilson's for shares, bootstrap for the rest); *n* is the number of cases. Beside each figure stand what no
skill would score on the same cases, and the ceiling: the truth, read by the same detectors after the
autoencoder, or acted by the scripted expert. Shares run from 0 to 1; errors in px are over the objects that
are found.

Contact sheets show the first right cases and then the first wrong ones, half and half as far as there are
any: what either looks like, not how often it happens. Above each stands what its "right" means."""
_SHEETS = {
    "codecs": "Some of the clips, as they are and after the autoencoder; nothing is judged here.",
    "image": (
        "Right: every object in its asked place, with its colour and shape, and nothing else; first asked for"
        " pairs of colour and shape that were trained together, then for unseen ones."
    ),
    "text-to-video": "Right: the sliding object goes the asked way; nothing else is judged here.",
    "image-to-video": "Right: the named object goes the asked way; nothing else is judged here.",
    "sound": (
        "Right: something sounds within a frame of every collision, and at no other time; pitch, loudness and"
        " side are not judged here."
    ),
    "forward-dynamics": (
        "Of clips in which an object is pushed. Right: it ends within 3 px of where it truly does; nothing"
        " else is judged here."
    ),
    "policy": (
        "Success: one chunk of actions, played in the simulator without a second look, moves the named object"
        " the asked way; what was imagined is not judged."
    ),
}


def check_place(folder: Path, stem: str) -> None:
    """Raises BadRequest for a folder in which no report can be written; it is made for a trial."""
    pictures, made = folder / "pictures", list[Path]()
    try:
        made += [place for place in (pictures, folder, *folder.parents) if not place.exists()]
        pictures.mkdir(parents=True, exist_ok=True)
        for place in (folder, pictures):
            tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise BadRequest("out", str(folder), f"no report can be written there: {error.strerror}") from None
    finally:
        for place in made:
            with suppress(OSError):
                place.rmdir()
    for name in (f"{stem}.json", f"{stem}.md"):
        if (folder / name).is_dir():
            raise BadRequest("out", str(folder), f"no report can be written there: {name} is a folder")


def write(folder: Path, stem: str, result: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> Path:
    """Write `<stem>.json`, `<stem>.md` and `pictures/<stem>-*.png` into `folder`; returns the page's path.

    They take the place of an earlier report when all of them are written. Where somebody has written
    `<stem>-limits.md` into the folder, the page points to it.
    """
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    limits = f"{stem}-limits.md"
    lines = _page(stem, result, outcomes, limits if (folder / limits).exists() else None)
    texts = {
        f"{stem}.json": json.dumps(result, indent=1, ensure_ascii=False),
        f"{stem}.md": "\n".join(lines),
    }
    sheets = {name: sheet for outcome in outcomes.values() for name, sheet in outcome.sheets.items()}
    names = [*(f"pictures/{stem}-{name}.png" for name in sheets), *texts]
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as fresh:
        (Path(fresh) / "pictures").mkdir()
        for name, sheet in sheets.items():
            small = sheet.quantize(128, Image.Quantize.FASTOCTREE)
            small.save(Path(fresh) / f"pictures/{stem}-{name}.png", optimize=True)
        for name, text in texts.items():  # names of files may hold what UTF-8 does not
            (Path(fresh) / name).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        for name in names:
            (Path(fresh) / name).replace(folder / name)
    return folder / f"{stem}.md"


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
    yield from _summary(result)
    if limits:
        yield f"What keeps them there, by experiment, and what would help: [{limits}]({limits})."
    for name, outcome in outcomes.items():
        yield f"\n## {name}\n"
        yield from _table(result["suites"][name]["figures"])
        for sheet in outcome.sheets:
            yield f"\n{_SHEETS[sheet]}"
            yield f"\n![{sheet}](pictures/{stem}-{sheet}.png)"
        if outcome.examples:
            yield from _examples(outcome.examples)


def _summary(result: Mapping[str, Any]) -> Iterator[str]:
    bars = [
        (f"{name}: {f['name']}", f["reached"])
        for name, found in result["suites"].items()
        for f in found["figures"]
        if f["bar"] is not None
    ]
    judged = [reached for _, reached in bars if reached is not None]
    yield f"{sum(judged)} of {len(judged)} bars are reached."
    for words, verdict in (("Below the bar", False), ("Too few cases to judge", None)):
        named = [name for name, reached in bars if reached is verdict]
        if named:
            yield f"{words}: {'; '.join(named)}."


def _table(figures: Sequence[Told]) -> Iterator[str]:
    yield "| figure | score | n | bar | beside it |"
    yield "|---|---|---|---|---|"
    for f in figures:
        value, low, high = numbers(f)
        sign = "≤" if f["smaller_is_better"] else "≥"
        bar = "" if f["bar"] is None else f"{sign} {f['bar']:g} {mark(f['reached'])}"
        beside = "; ".join(_beside(f))
        yield f"| {f['name']} | **{value}**{_suffix(f)} ({low} to {high}) | {f['n']} | {bar} | {beside} |"


def line(figure: Told) -> str:
    """One figure for a terminal: score, interval, cases, what stands beside it, bar."""
    value, low, high = numbers(figure)
    told = [f"{figure['name']}: {value}{_suffix(figure)} ({low} to {high}, n = {figure['n']})"]
    told += _beside(figure)
    if figure["bar"] is not None:
        verdict = {True: " reached", False: " missed", None: ": too few cases"}[figure["reached"]]
        told.append(f"bar {figure['bar']:g}{verdict}")
    return "; ".join(told)


def mark(reached: bool | None) -> str:
    """Whether a bar is reached, for a table."""
    return {True: "✓", False: "✗", None: "(too few cases)"}[reached]


def number(value: float | None, unit: str, bar: float | None = None) -> str:
    """A number of the JSON as people read it, with one more digit where it would look like its bar."""
    if value is None:
        return "–"
    digits = _DECIMALS.get(unit, 3)
    return f"{value:.{digits + (value != bar == round(value, digits))}f}"


def numbers(figure: Told) -> tuple[str, str, str]:
    """A figure's value and the ends of its interval."""
    value, low, high = (figure[name] for name in ("value", "low", "high"))
    unit = figure["unit"]
    return number(value, unit, figure["bar"]), number(low, unit), number(high, unit)


def _beside(figure: Told) -> list[str]:
    return [f"{name} {number(score['value'], figure['unit'])}" for name, score in figure["beside"].items()]


def _suffix(figure: Told) -> str:
    return f" {figure['unit']}" if figure["unit"] in _DECIMALS else ""


def _examples(examples: Sequence[Example]) -> Iterator[str]:
    yield "\nThe first wrong answers of each kind, long ones from shortly before their first difference:\n"
    yield "| asked | answered | right |"
    yield "|---|---|---|"
    for example in examples:
        answered, right = (" ".join(text.split()) for text in (example.answered, example.right))
        alike = len([*takewhile(lambda pair: pair[0] == pair[1], zip(answered, right, strict=False))])
        whole = alike <= _SHOWN - _BEFORE or max(len(answered), len(right)) <= _SHOWN
        start = 0 if whole else alike - _BEFORE
        yield f"| {_cell(example.asked)} | {_cell(answered, start)} | {_cell(right, start)} |"


def _cell(text: str, start: int = 0) -> str:
    """Text for one cell of a table, from `start` on, cut where it gets long."""
    shown = f"{'…' * (start > 0)}{text[start : start + _SHOWN]}{'…' * (len(text) > start + _SHOWN)}"
    shown = " ".join(shown.split()).replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown else "(nothing)"
