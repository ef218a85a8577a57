"""The words around prompts: media fields of structured captions, and what the reasoner is asked."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from armillary import prompts
from armillary.answers import find_marks
from armillary.prompts import Ask, Boxes, Events, Judgement, Plan, Points, Subject, with_media, with_metadata
from armillary.sim import episode
from tests.test_requests import FACTS

CANVAS: dict[str, Any] = {"frames": 9, "fps": 8.0, "height": 64, "width": 96}
POCKET, RELEASED = replace(FACTS, small=True), replace(FACTS, small=False)


def test_media_fields_are_forced_where_they_stand_and_added_where_they_are_missing() -> None:
    given = {"fps": 30, "subjects": [], "duration": "10s", "resolution": {"H": 1, "W": 1}}
    made = with_media(given, **CANVAS)
    assert list(made) == ["fps", "subjects", "duration", "resolution", "aspect_ratio"]
    assert made == {
        "fps": 8.0,
        "subjects": [],
        "duration": "1s",
        "resolution": {"H": 64, "W": 96},
        "aspect_ratio": "4,3",
    }
    assert list(with_media({}, **CANVAS)) == ["duration", "fps", "resolution", "aspect_ratio"]
    assert given["fps"] == 30


def test_a_picture_has_no_duration_and_no_rate() -> None:
    made = with_media({"duration": "10s", "fps": 30, "context": "x"}, **(CANVAS | {"frames": 1}))
    assert list(made) == ["context", "resolution", "aspect_ratio"]


def test_a_structured_prompt_gets_fields_and_prose_gets_sentences() -> None:
    text = with_metadata('{"context": "caf\\u00e9", "fps": 1}', **CANVAS)
    assert text == (
        '{"context": "caf\\u00e9", "fps": 8.0, "duration": "1s", '
        '"resolution": {"H": 64, "W": 96}, "aspect_ratio": "4,3"}'
    )
    for prose in ("a disc", "[1, 2]", '{"cut": ', "5"):
        assert with_metadata(prose, **CANVAS).endswith("This video is of 64x96 resolution.")
    assert with_metadata('{"a": 1}', negative=True, **CANVAS).endswith(
        "This video is not of 64x96 resolution."
    )


@pytest.mark.parametrize("facts", [POCKET, RELEASED], ids=["pocket", "released"])
@pytest.mark.parametrize(
    ("name", "words", "form"),
    [
        ("caption", (), None),
        ("ground", (), Boxes),
        ("ground", ("the red disc",), Boxes),
        ("point", ("the red disc",), Points),
        ("trace", ("the gripper", "open the drawer"), Points),
        ("locate", (), Events),
        ("locate", ("the disc hits the wall",), Events),
        ("judge", (), Judgement),
        ("plan", ("clear the table",), Plan),
        ("region", (3,), Subject),
    ],
)
def test_every_capability_has_a_question_and_the_form_of_its_answer(
    facts: Any, name: str, words: tuple[Any, ...], form: Any
) -> None:
    asked: Ask = getattr(prompts, name)(facts, *words)
    assert asked.schema is form
    for word in words:
        assert str(word) in asked.prompt
    assert getattr(prompts, name)(facts, *words) == asked


def test_pocket_is_asked_what_it_was_taught() -> None:
    scene = episode("slide", 0, split="test")
    taught = {question.text: question for question in scene.questions()}
    name = scene.objects[0].name
    asks = [
        prompts.caption(POCKET),
        prompts.ground(POCKET),
        prompts.ground(POCKET, f"the {name}"),
        prompts.locate(POCKET),
    ]
    for asked in asks:
        right = taught[asked.prompt].answer
        if asked.schema:
            asked.schema.model_validate_json(right)


def test_an_answer_in_its_form_is_read_as_marks() -> None:
    boxes = Boxes.model_validate([{"bbox_2d": [0, 0, 500, 1000], "label": "a"}])
    points = Points.model_validate([{"point_2d": [x, 0], "label": "gripper trajectory"} for x in (0, 1000)])
    events = Events.model_validate([{"start": 0.5, "end": 2, "caption": "b"}])
    assert len(find_marks(boxes.model_dump_json(), (10, 10)).boxes) == 1
    assert len(find_marks(points.model_dump_json(), (10, 10)).trajectories) == 1
    assert len(find_marks(events.model_dump_json(), (10, 10)).events) == 1
    assert "gripper trajectory" in prompts.trace(RELEASED, "the gripper", "x").prompt


@pytest.mark.parametrize("box", [[0, 0, 1, 1001], [0, 0, 1], [0, 0, 1, -1], [0.5, 0, 1, 1]])
def test_a_box_outside_the_picture_has_not_the_form(box: list[float]) -> None:
    with pytest.raises(ValidationError):
        Boxes.model_validate_json(json.dumps([{"bbox_2d": box, "label": ""}]))
