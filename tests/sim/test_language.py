import json
import re
from itertools import islice, pairwise

import numpy as np
import pytest

from armillary.sim import language
from armillary.sim.experts import DIRECTIONS, Goal, reached
from armillary.sim.recording import KINDS, Kind
from armillary.sim.scenes import Episode, corpus, episode


@pytest.fixture(scope="module")
def made() -> dict[Kind, list[Episode]]:
    return {kind: [episode(kind, seed) for seed in range(80)] for kind in KINDS}


def test_still_captions_name_every_object_at_its_place(made: dict[Kind, list[Episode]]):
    for one in made["still"]:
        parts = re.split(r", | and ", one.caption)
        assert len(parts) == len(one.objects)
        for part in parts:
            found = re.fullmatch(r"an? (\w+ \w+) at the (.+)", part)
            assert found
            index = [thing.name for thing in one.objects].index(found[1])
            x, y = one.positions[0, index]
            row, column = next((r, c) for r in range(3) for c in range(3) if language.CELLS[r][c] == found[2])
            assert abs(x - (14 + 18 * column)) <= 4.5
            assert abs(y - (14 + 18 * row)) <= 4.5


def test_push_captions_and_instructions_agree_with_what_moved(made: dict[Kind, list[Episode]]):
    for one in made["push"]:
        assert one.goal is not None
        name = one.objects[one.goal.index].name
        assert one.instruction == f"push the {name} {one.goal.direction}"
        assert one.caption.startswith(f"the pusher pushes the {name} {one.goal.direction}")


def test_slide_captions_agree_with_the_events(made: dict[Kind, list[Episode]]):
    for one in made["slide"]:
        mover = int(np.abs(one.velocities[0]).sum(1).argmax())
        way = re.search(r"slides (\w+) and hits (.+?)(,|$)", one.caption)
        assert way
        np.testing.assert_allclose(np.sign(one.velocities[0, mover]), DIRECTIONS[way[1]])
        kinds = [event.kind for event in one.events if mover in event.objects]
        expected = {"nothing": [], "the wall": ["object-wall"]}.get(way[2], ["object-object"])
        assert kinds[:1] == expected


def test_wander_captions_tell_exactly_who_moved(made: dict[Kind, list[Episode]]):
    for one in made["wander"]:
        moved = np.hypot(*(one.positions[-1] - one.positions[0]).T) >= language.STILL_DISTANCE
        pushed = one.caption.partition(", the" if ", the" in one.caption else "\0")[0]
        for thing, went in zip(one.objects, moved, strict=True):
            assert (thing.name in pushed and "pushes" in pushed) == went


def test_when_and_did_it_hit_agree_with_the_events(made: dict[Kind, list[Episode]]):
    for one in made["slide"]:
        answers = {question.kind: question.answer for question in one.questions()}
        assert answers["will it hit"] == answers["did it hit"]
        assert ("when" in answers) == (answers["what does it hit"] != "nothing") == bool(one.events)
        if "when" in answers:
            assert abs(float(answers["when"].split()[0]) - one.events[0].time) <= 0.5 / 8 + 0.051


def test_is_it_done_agrees_with_the_policys_success(made: dict[Kind, list[Episode]]):
    answers = list[str]()
    for one in [*made["wander"], *made["push"]]:
        goals = [Goal(i, way) for i in range(len(one.objects)) for way in DIRECTIONS]
        right = {language.outcome_question(one.objects, g)[0]: reached(g, one.positions) for g in goals}
        asked = [q for q in one.questions() if q.kind == "is it done"]
        assert all(q.answer == ("yes" if right[q.text] else "no") for q in asked)
        answers += [q.answer for q in asked]
        if one.goal:
            assert (language.outcome_question(one.objects, one.goal)[0], "yes") in [
                (q.text, q.answer) for q in asked
            ]
    assert 0.3 < answers.count("yes") / len(answers) < 0.6


def test_times_of_neighbouring_frames_read_differently():
    assert len({language.seconds(frame / 8, 8) for frame in range(17)}) == 17


def test_boxes_are_valid_and_normalised(made: dict[Kind, list[Episode]]):
    for one in (one for kind in KINDS for one in made[kind][:20]):
        for question in one.questions():
            if question.kind == "box":
                for found in json.loads(question.answer):
                    index = [thing.name for thing in one.objects].index(found["label"])
                    np.testing.assert_allclose(
                        np.array(found["bbox_2d"]) * 0.064, one.boxes(0)[index], atol=0.04
                    )


def test_structured_captions_keep_the_schema_order(made: dict[Kind, list[Episode]]):
    order = ["subjects", "background_setting", "actions", "temporal_caption", "audio_description"]
    order += ["resolution", "aspect_ratio", "duration", "fps"]
    for kind in KINDS:
        one = made[kind][1]
        keys = list(one.structured)
        assert keys == [key for key in order if key in keys]
        assert ("fps" in keys) == ("audio_description" in keys) == (kind != "still")
    assert json.loads(json.dumps(made["slide"][0].structured)) == made["slide"][0].structured


def test_events_cover_the_clip_without_gaps(made: dict[Kind, list[Episode]]):
    for one in made["slide"] + made["push"]:
        spans = json.loads(next(q.answer for q in one.questions() if q.kind == "events"))
        assert spans[0]["start"] == 0.0
        assert spans[-1]["end"] == 1.0
        assert all(a["end"] == b["start"] for a, b in pairwise(spans))


def test_no_question_is_asked_twice_with_two_answers(made: dict[Kind, list[Episode]]):
    for one in (one for kind in KINDS for one in made[kind]):
        seen: dict[tuple[str, bool], str] = {}
        for question in one.questions():
            assert seen.setdefault((question.text, question.needs_clip), question.answer) == question.answer
            assert not (question.needs_clip and one.kind == "still")


def test_the_corpus_is_endless_repeatable_and_of_few_words():
    lines = list(islice(corpus(1), 1500))
    assert lines == list(islice(corpus(1), 1500))
    words = {word for line in lines for word in re.findall(r"[a-z]+", line.lower())}
    assert len(words) < 160
