import hashlib
import random
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from armillary.errors import BadRequest
from armillary.sim.audio import PITCHES, SAMPLE_RATE, TONE_SECONDS
from armillary.sim.drawing import COLOURS
from armillary.sim.experts import random_policy, reached, straight
from armillary.sim.language import success
from armillary.sim.physics import Controller, simulate
from armillary.sim.recording import KINDS, Kind
from armillary.sim.scenes import HELD_OUT_PAIRS, SPLITS, Episode, episode


@pytest.fixture(scope="module")
def made() -> dict[Kind, list[Episode]]:
    return {kind: [episode(kind, seed) for seed in range(120)] for kind in KINDS}


def test_an_episode_shows_itself_in_one_line():
    things = [", ".join(thing.name for thing in episode(kind, 3).objects) for kind in ("push", "still")]
    assert repr(episode("push", 3)) == f"Episode(push 3: {things[0]}; 9 frames)"
    assert repr(episode("still", 3)) == f"Episode(still 3: {things[1]}; 1 frame)"


def digest(kind: Kind, seed: int) -> str:
    made = episode(kind, seed)
    sound = b"" if made.sound is None else made.sound.tobytes()
    parts = made.frames.tobytes(), sound, made.positions.tobytes(), repr(made.events).encode()
    return hashlib.sha256(b"".join(parts) + repr(made.questions()).encode()).hexdigest()


def test_equal_arguments_give_bit_equal_episodes_in_this_and_another_process():
    names = [(kind, seed) for kind in KINDS for seed in (3, 8)]
    here = [digest(*name) for name in names]
    assert here == [digest(*name) for name in reversed(names)][::-1]
    # The other process meets the world in another order and hashes text by another secret.
    code = "\n".join(
        [
            "import sys; sys.path.insert(0, '.')",
            "import importlib.util as u; spec = u.spec_from_file_location('t', sys.argv[1])",
            "t = u.module_from_spec(spec); spec.loader.exec_module(t)",
            "[t.episode('push', i) for i in range(3)]",
            f"print(*[t.digest(*name) for name in {names}])",
        ]
    )
    found = subprocess.run(
        [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == here


def test_shapes_and_ranges_are_as_promised(made: dict[Kind, list[Episode]]):
    for kind in KINDS:
        one = made[kind][0]
        frames = 1 if kind == "still" else 9
        assert one.frames.shape == (frames, 64, 64, 3)
        assert one.frames.dtype == np.uint8
        np.testing.assert_array_equal(one.picture(-1), one.frames[-1])
        assert one.positions.shape == (frames, len(one.objects), 2)
        assert (one.pusher is not None) == (one.actions is not None) == (kind in ("push", "wander"))
        if one.sound is not None:
            assert one.sound.shape == (2, 18_000)
            assert one.sound.dtype == np.float32
        if one.actions is not None:
            assert one.actions.shape == (8, 2)
    long = episode("slide", 1, frames=17)
    assert long.sound is not None
    assert long.sound.shape == (2, 34_000)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(BadRequest, match="push"):
        episode("pushing", 0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadRequest, match="split"):
        episode("push", 0, split="tests")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadRequest, match="frames"):
        episode("push", 0, frames=2)


def test_splits_share_nothing():
    starts = {split: {episode("wander", seed, split=split).start for seed in range(60)} for split in SPLITS}
    assert not starts["train"] & starts["test"]
    for kind in KINDS:
        for seed in range(0, 40, 4):
            train, test = episode(kind, seed), episode(kind, seed, split="test")
            assert not {*train.objects, *test.objects} & {*HELD_OUT_PAIRS}
            assert {*episode(kind, seed, split="heldout_pairs").objects} & {*HELD_OUT_PAIRS}


def test_objects_never_overlap_nor_leave_the_table_at_the_start(made: dict[Kind, list[Episode]]):
    for one in (one for kind in KINDS for one in made[kind]):
        boxes = np.array(one.boxes(0))
        assert (boxes >= 1.99).all()
        assert (boxes <= 62.01).all()
        for i, a in enumerate(boxes):
            assert all(max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3]) >= 0.99 for b in boxes[:i])


def coloured(picture: np.ndarray, colour: str) -> np.ndarray:
    return np.abs(picture.astype(int) - COLOURS[colour]).max(-1) <= 3


def test_boxes_hold_exactly_the_drawn_pixels(made: dict[Kind, list[Episode]]):
    for one in made["still"] + made["slide"][:40]:
        for thing, (x1, y1, x2, y2) in zip(one.objects, one.boxes(0), strict=True):
            rows, columns = np.nonzero(coloured(one.frames[0], thing.colour))
            edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            # a triangle's tip and a disc's edge cover part of a pixel only
            np.testing.assert_allclose(edges, (x1, y1, x2, y2), atol=3.0)
            assert (np.array(edges[:2]) >= np.array((x1, y1)) - 0.5).all()
            assert (np.array(edges[2:]) <= np.array((x2, y2)) + 0.5).all()


def test_each_event_starts_to_sound_in_its_time_and_all_else_is_silence(made: dict[Kind, list[Episode]]):
    heard = 0
    for one in made["push"] + made["slide"] + made["wander"]:
        assert one.sound is not None
        sounding = np.zeros(one.sound.shape[1], bool)
        for event in one.events:
            begin = round(event.time * SAMPLE_RATE)
            if begin + 200 < len(sounding) and not sounding[max(begin - 1, 0)]:
                assert np.abs(one.sound[:, begin : begin + 200]).max() > 0.02
                heard += 1
            sounding[begin : begin + round(TONE_SECONDS * SAMPLE_RATE)] = True
        assert not one.sound[:, ~sounding].any()
        assert np.abs(one.sound).max(initial=0) <= 1
    assert heard > 150


def test_pitch_tells_the_shape_and_balance_the_side(made: dict[Kind, list[Episode]]):
    singles = [one for one in made["slide"] if len(one.events) == 1 and len(one.events[0].objects) == 1]
    singles = [one for one in singles if one.events[0].time < 0.8]
    assert len(singles) > 20
    for one in singles:
        assert one.sound is not None
        event = one.events[0]
        spectrum = np.abs(np.fft.rfft(one.sound.sum(0)))
        pitch = np.argmax(spectrum) * SAMPLE_RATE / one.sound.shape[1]
        assert pitch == pytest.approx(PITCHES[one.objects[event.objects[0]].shape], abs=15)
        left, right = np.square(one.sound).sum(1)
        assert (right > left) == (event.x > 32)


def rate(episodes: list[Episode], control: Controller) -> float:
    return float(np.mean([success(one, simulate(one.start, 9, control).positions) for one in episodes]))


def test_the_expert_obeys_and_neither_chance_nor_the_layout_does(made: dict[Kind, list[Episode]]):
    pushes = made["push"]
    assert np.mean([success(one, one.positions) for one in pushes]) > 0.9
    assert rate(pushes, straight()) < 0.4
    assert rate(pushes, random_policy(random.Random(0))) < 0.15


def test_twins_share_their_start_and_differ_in_their_instruction(made: dict[Kind, list[Episode]]):
    for one, twin in zip(made["push"][::2], made["push"][1::2], strict=True):
        np.testing.assert_array_equal(one.frames[0], twin.frames[0])
        assert one.goal is not None
        assert one.goal != twin.goal
        assert not reached(one.goal, twin.positions)


def test_replaying_the_actions_gives_the_episode(made: dict[Kind, list[Episode]]):
    for one in made["push"][:10] + made["wander"][:10]:
        assert one.actions is not None
        steps = iter(one.actions.tolist())
        again = simulate(one.start, 9, lambda _positions, _pusher, steps=steps: next(steps))
        np.testing.assert_allclose(again.positions, one.positions, atol=1e-3)


def test_success_needs_an_instruction(made: dict[Kind, list[Episode]]):
    with pytest.raises(ValueError, match="instruction"):
        success(made["slide"][0], made["slide"][0].positions)


def test_places_do_not_tell_the_direction_of_a_lone_slider():
    lone = [one for one in (episode("slide", seed) for seed in range(500)) if len(one.objects) == 1]
    places = np.array([one.positions[0, 0] for one in lone])
    moves = np.array([one.velocities[0, 0] for one in lone])
    for axis in (0, 1):
        across = moves[:, axis] != 0
        correlation = np.corrcoef(places[across, axis], np.sign(moves[across, axis]))[0, 1]
        assert abs(correlation) < 0.25


def test_answers_are_balanced():
    slides = [episode("slide", seed) for seed in range(400)]
    counts = Counter((q.kind, q.answer) for one in slides for q in one.questions())
    for kind in ("will it hit", "did it hit"):
        assert 0.42 < counts[kind, "yes"] / (counts[kind, "yes"] + counts[kind, "no"]) < 0.58
    ways = [counts["which way", way] for way in ("left", "right", "up", "down")]
    assert min(ways) > 0.65 * max(ways)
    stills = [episode("still", seed) for seed in range(600)]
    answers = {kind: Counter[str]() for kind in ("where", "count", "shape", "colour")}
    for one in stills:
        for question in one.questions():
            if question.kind in answers:
                answers[question.kind][question.answer] += 1
    for kind, most in (("where", 0.17), ("count", 0.4), ("shape", 0.4), ("colour", 0.22)):
        assert max(answers[kind].values()) / answers[kind].total() < most, kind


def test_simulating_and_drawing_is_fast(made: dict[Kind, list[Episode]]):
    starts = [one.start for one in made["push"][:40]]
    begin = time.process_time()
    for start in starts:
        run = simulate(start, 9, straight())
        _ = Episode(
            "wander", 0, start, run.positions, run.velocities, run.pusher, run.actions, run.events
        ).frames
    assert (time.process_time() - begin) / len(starts) < 0.02  # 3 ms, with room for a busy machine
