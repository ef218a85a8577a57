"""The model card of pocket says what was measured, in the form that the hub reads."""

import json
from pathlib import Path

from huggingface_hub import ModelCard

import armillary
from docs.card import card

ROOT = Path(__file__).parents[1]
CARD = Path(armillary.__file__).parent / "pocket" / "checkpoint" / "README.md"
FIGURES = json.loads((ROOT / "docs" / "pocket.json").read_text(encoding="utf-8"))


def test_the_card_is_written_from_the_figures() -> None:
    again = "python docs/card.py docs/pocket.json armillary/pocket/checkpoint/README.md"
    assert CARD.read_text(encoding="utf-8") == card(FIGURES), again


def test_the_hub_reads_every_figure_that_has_a_bar() -> None:
    told = ModelCard(CARD.read_text(encoding="utf-8"), ignore_metadata_errors=False).data
    assert told.license == "apache-2.0"
    assert told.eval_results is not None
    found = {(r.task_type, r.metric_name): r.metric_value for r in told.eval_results}
    measured = {
        (suite, f["name"]): f["value"]
        for suite, part in FIGURES["suites"].items()
        for f in part["figures"]
        if f["bar"] is not None and f["n"]
    }
    assert found == measured
