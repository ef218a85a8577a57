"""The whole evaluation, on a checkpoint that has learnt nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armillary.errors import BadRequest
from armillary.eval import asking, evaluate
from armillary.eval.suites import NEEDS, SUITES, require
from armillary.loading import load


def quiet(_line: str) -> None:
    """Hears nothing."""


def test_the_untrained_score_no_better_than_the_blind(
    untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [p for p in asking.PLANS if p.name in ("count", "colour", "will it hit", "box, IoU")]
    monkeypatch.setattr(asking, "PLANS", kept)
    monkeypatch.setattr(asking, "_TRAINED", (20, 20))
    result = evaluate(untrained, suites=["reasoner", "sound", "policy"], n=4, tell=quiet)
    for suite, found in result["suites"].items():
        for figure in found["figures"]:
            blind = [s["high"] for name, s in figure["beside"].items() if "ceiling" not in name and s["n"]]
            if blind and figure["value"] is not None and suite != "sound":
                assert figure["value"] <= max(blind), figure
            if figure["bar"] is not None:
                assert not figure["reached"], figure


def test_a_report_is_written_and_says_what_is_returned(untrained: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "untrained-limits.md").write_text("It was never trained.")
    result = evaluate(untrained, suites=["image"], n=4, out=tmp_path / "docs", tell=quiet)
    page = (tmp_path / "docs" / "untrained.md").read_text()
    kept: dict[str, Any] = json.loads((tmp_path / "docs" / "untrained.json").read_text())
    assert kept == result
    assert kept["digest"] in page
    assert kept["command"] in page
    for figure in kept["suites"]["image"]["figures"]:
        assert f"| {figure['name']} | **{figure['value']:.3f}**" in page
    shown = {part.split(")")[0] for part in page.split("](")[1:]}
    pictures = {f"pictures/{path.name}" for path in (tmp_path / "docs" / "pictures").iterdir()}
    assert shown == {"untrained-limits.md", *pictures}


@pytest.mark.parametrize(("options", "field"), [({"suites": ["vidoe"]}, "suite"), ({"n": 2}, "n")])
def test_what_cannot_be_evaluated_is_refused(untrained: Path, options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        evaluate(untrained, tell=quiet, **options)
    assert refused.value.field == field


def test_a_part_that_is_lacking_is_named_before_anything_is_measured(untrained: Path) -> None:
    parts = load(untrained, device="cpu").parts
    assert NEEDS.keys() == SUITES.keys()
    require(parts, tuple(SUITES))
    deaf, blind = replace(parts, audio=None), replace(parts, sight=None)
    named = "needs sound and an audio encoder, which this checkpoint has not; choose others: "
    for names in (("image", "sound"), ("sound",)):
        with pytest.raises(
            BadRequest, match=f"^suite='sound': {named}reasoner, image, video, dynamics, policy$"
        ):
            require(deaf, names)
    require(deaf, ("reasoner", "image", "video", "dynamics", "policy"))
    with pytest.raises(BadRequest, match=r"^suite='policy': needs a vision tower"):
        require(blind, ("image", "policy"))
    with pytest.raises(BadRequest, match="no other suite does without"):
        require(replace(blind, video=None), ("reasoner",))
