"""The report: where it may be written, that it is whole, and what its page says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import armillary.eval
from armillary.errors import BadRequest
from armillary.eval import evaluate, report
from armillary.eval.bench import Example, Outcome
from armillary.eval.scores import Figure, Score
from docs.card import card
from tests.conftest import Run

EVAL = Path(report.__file__).parent
PICTURE = Image.new("RGB", (8, 8))


def outcome(score: Score, *examples: Example) -> Outcome:
    return Outcome([Figure("direction", score, bar=0.85)], {"policy": PICTURE}, examples)


def result(**outcomes: Outcome) -> dict[str, Any]:
    suites = {name: {"figures": [f.to_dict() for f in o.figures]} for name, o in outcomes.items()}
    return {"seconds": 60.0, "digest": "abc", "date": "2026-12-01", "command": "eval", "suites": suites}


def page(folder: Path, **outcomes: Outcome) -> str:
    return report.write(folder, "any", result(**outcomes), outcomes).read_text(encoding="utf-8")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "out", ["file", "file/below", "x" * 300, "new/" + "x" * 300, "/proc/x", "pictured", "paged"]
)
def test_a_place_for_no_report_is_refused_before_anything_is_loaded(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pictured", "paged/nowhere.md"):
        Path(folder).mkdir(parents=True)
    for file in ("file", "pictured/pictures"):
        Path(file).write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadRequest) as refused:
        evaluate("nowhere", out=out)
    assert (refused.value.field, refused.value.value) == ("out", out)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_is_tried_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for folder in ("old", "new/deep"):
        report.check_place(tmp_path / folder, "pocket")
    assert [p.name for p in tmp_path.rglob("*")] == ["old"]


def test_a_report_that_breaks_off_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page(tmp_path, policy=outcome(Score(0.5, 0.4, 0.6, 50)))
    before = files(tmp_path)
    assert set(before) == {"any.json", "any.md", "pictures/any-policy.png"}
    write_text = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.suffix == ".md":
            write_text(path, text[:10], **options)
            raise OSError(28, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        page(tmp_path, policy=outcome(Score(0.9, 0.8, 1.0, 50)))
    assert files(tmp_path) == before


def test_figures_are_told_even_if_the_report_cannot_be_written(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Figure("colour", Score(0.9, 0.8, 0.95, 12), bar=0.85).to_dict()

    def measured(*_: Any, on_result: Any, **__: Any) -> None:
        on_result({"suites": {"reasoner": {"figures": [few]}}})
        raise OSError("No space left on device")

    monkeypatch.setattr(armillary.eval, "evaluate", measured)
    assert run("eval", "pocket", "--out", "report") == 1
    told = capsys.readouterr()
    assert told.out == "reasoner: colour: 0.900 (0.800 to 0.950, n = 12); bar 0.85: too few cases\n"
    assert "No space left on device; nothing is left half written" in told.err


def test_names_that_are_no_utf8_are_spelled(tmp_path: Path) -> None:
    found = result() | {"command": "armillary eval pocket --out \udcff"}
    path = report.write(tmp_path, "any", found, {})
    assert r"--out \udcff" in path.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "any.json").read_text(encoding="utf-8")) == found


def test_json_page_card_and_terminal_show_the_same_numbers(tmp_path: Path) -> None:
    twice = 219 / 256  # .85547 is .8555, and that .856
    told = page(tmp_path, video=outcome(Score(twice, 0.80714, 0.89303, 256)))
    kept = json.loads((tmp_path / "any.json").read_text())
    assert "| direction | **0.855** (0.807 to 0.893) |" in told
    assert "| direction | **0.855** (0.807 to 0.893) |" in card(kept)
    assert "direction: 0.855 (0.807 to 0.893, " in report.line(kept["suites"]["video"]["figures"][0])


def test_bars_with_too_few_cases_are_told_apart_and_not_counted(tmp_path: Path) -> None:
    scores = {"image": (1.0, 43), "video": (0.5, 20), "policy": (1.0, 3)}
    told = page(tmp_path, **{name: outcome(Score(v, v, v, n)) for name, (v, n) in scores.items()})
    assert "1 of 2 bars are reached.\nBelow the bar: video: direction.\n" in told
    assert "Too few cases to judge: policy: direction.\n" in told
    assert "| 3 | ≥ 0.85 (too few cases) |" in told


def test_long_answers_are_shown_from_shortly_before_their_first_difference(tmp_path: Path) -> None:
    same = "the red disc stays and " * 20
    long = Example("Describe this.", f"{same}falls left", f"{same}falls right, then it stays")
    short = Example("Which way?", "left", "right")
    rows = page(tmp_path, reasoner=outcome(Score(0, 0, 0, 20), long, short)).splitlines()
    assert "| `Which way?` | `left` | `right` |" in rows
    (row,) = [row for row in rows if row.startswith("| `Describe")]
    begun = f"…{same}falls "[-40:]
    assert row.endswith(f" | `…{begun}left` | `…{begun}right, then it stays` |")


def test_every_sheet_says_what_right_means_in_it(tmp_path: Path) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in EVAL.glob("*.py"))
    sheets = re.findall(r'"([\w-]+)": contact_sheet\(', code)
    assert len(sheets) == 7
    for sheet in sheets:
        found = Outcome([], {sheet: PICTURE})
        told = page(tmp_path, any=found)
        assert re.search(rf"judged.*\n\n!\[{sheet}\]|nothing else; first.*\n\n!\[{sheet}\]", told)


def test_a_number_beside_its_bar_has_a_digit_more() -> None:
    assert [report.number(x, "share", 0.99) for x in (0.989746, 0.99, 0.9889, 0.9902)] == [
        "0.9897",
        "0.990",
        "0.989",
        "0.9902",
    ]
    assert report.number(5.004, "px", 5.0) == "5.004"
