"""The script that trains pocket again from another seed: a share of every stage, two reports side by side."""

import json
from pathlib import Path

from armillary.train.recipe import read_recipe
from benchmarks.retrain import Row, rows, settings, side_by_side

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "pocket.toml"


def test_the_codecs_get_all_of_their_steps_and_every_other_stage_a_tenth(tmp_path: Path) -> None:
    whole = read_recipe(RECIPE, ())
    small = read_recipe(RECIPE, settings(RECIPE, 0.1, 7, tmp_path))
    assert (small.seed, small.folder) == (7, tmp_path)
    assert whole.seed != 7
    for before, after in zip(whole.stages, small.stages, strict=True):
        if hasattr(before, "steps"):
            tenth = before.kind not in {"video", "audio"}
            assert after.steps == (round(before.steps / 10) if tenth else before.steps)
    (cache,) = [s for s in small.stages if s.kind == "cache"]
    assert cache.push == 800


def test_reports_stand_side_by_side() -> None:
    figures = json.loads((ROOT / "docs" / "pocket.json").read_text(encoding="utf-8"))
    head, *lines, last = side_by_side([*rows(figures, figures)])
    assert head.split() == ["shipped", "again", "no", "skill"]
    assert len(lines) == sum(len(found["figures"]) for found in figures["suites"].values())
    (line,) = [x for x in lines if x.startswith("policy: success ")]
    shipped, again, blind = map(float, line.split()[-3:])
    assert shipped == again > blind
    assert last.endswith("not so:")


def test_a_figure_that_lost_its_skill_is_named() -> None:
    found = [
        Row("good", (0.9, 0.6), (0.5, 0.5), False),
        Row("blind", (0.9, 0.5), (0.5, 0.5), False),
        Row("far", (2.0, 9.0), (8.0, 8.0), True),
        Row("never", (0.4, 0.4), (0.5, 0.5), False),
    ]
    told = list(side_by_side(found))[-3:]
    assert told[0].startswith("1 of the 3 figures")
    assert [x.strip() for x in told[1:]] == ["blind", "far"]
