"""How answers are marked, and what the blind would say."""

import json

import pytest

from armillary.eval.asking import PLANS, Blind, exact, mask, near_in_time, overlap, same_json
from armillary.sim import HELD_OUT_PAIRS, episode
from armillary.sim.recording import Kind


@pytest.mark.parametrize(
    ("answer", "right", "mark"),
    [
        ("0.5 seconds", "0.5 seconds", 1.0),
        ("0.4 seconds", "0.5 seconds", 1.0),
        ("0.2 seconds", "0.5 seconds", 0.0),
        ("0.5", "0.5 seconds", 0.0),
        ("a low tone at 0.6 seconds", "a high tone at 0.6 seconds", 0.0),
    ],
)
def test_times_may_be_one_frame_off_and_words_may_not(answer: str, right: str, mark: float) -> None:
    assert near_in_time(answer, right) == mark


def test_json_is_marked_by_what_it_says() -> None:
    right = json.dumps({"a": [{"time": "0.0s-0.5s"}], "b": "red disc"})
    assert same_json('{"b":"red disc", "a":[{"time":"0.0s-0.6s"}]}', right) == 1.0
    assert same_json('{"b":"red disc", "a":[{"time":"0.0s-0.9s"}]}', right) == 0.0
    assert same_json('{"b":"blue disc", "a":[{"time":"0.0s-0.5s"}]}', right) == 0.0
    assert same_json(right[:-1], right) == 0.0


def test_boxes_are_marked_by_their_overlap() -> None:
    def box(*edges: int) -> str:
        return json.dumps([{"bbox_2d": edges, "label": "it"}])

    assert overlap(box(0, 0, 500, 500), box(0, 0, 500, 500)) == pytest.approx(1.0)
    assert overlap(box(0, 0, 500, 500), box(250, 0, 750, 500)) == pytest.approx(1 / 3)
    assert overlap(box(0, 0, 100, 100), box(500, 500, 600, 600)) == 0.0
    assert overlap("nowhere", box(0, 0, 100, 100)) == 0.0


def test_right_answers_get_full_marks() -> None:
    kinds: tuple[Kind, ...] = ("still", "slide", "wander")
    questions = [q for kind in kinds for seed in range(4) for q in episode(kind, seed).questions()]
    for plan in PLANS:
        for q in questions:
            if q.kind == plan.question:
                assert plan.mark(q.answer, q.answer) == pytest.approx(1.0)


def test_questions_of_unseen_pairs_are_about_unseen_pairs() -> None:
    plan = next(p for p in PLANS if p.name == "shape, unseen pairs")
    asked = [q for seed in range(30) for q in plan.usable(episode("still", seed, split="heldout_pairs"))]
    assert asked
    assert {q.answer for q in asked} == {pair.shape for pair in HELD_OUT_PAIRS}
    assert not any(q for seed in range(10) for q in plan.usable(episode("still", seed, split="test")))


def test_the_blind_give_the_commonest_answer_to_the_same_words() -> None:
    plan = next(p for p in PLANS if p.name == "will it hit")
    episodes = [episode("slide", seed) for seed in range(40)]
    blind = Blind.learnt(plan, episodes)
    questions = [q for e in episodes for q in e.questions() if q.kind == "will it hit"]
    for q in questions:
        same = [other.answer for other in questions if mask(other.text) == mask(q.text)]
        assert same.count(blind(q)) >= len(same) / 2
    assert exact(blind(questions[0]), questions[0].answer) in (0.0, 1.0)


def test_names_are_blotted_out() -> None:
    assert mask("Will the red disc hit the blue square?") == "Will the # # hit the # #?"
    assert mask("What is at the bottom right?") == "What is at the #?"
