"""The detectors against what the simulator knows."""

import math
from collections import Counter

import numpy as np
import pytest

from armillary.eval.detectors import Onset, Scene, heard, look, onsets, score_onsets
from armillary.sim import Episode, Object, episode
from armillary.sim.audio import SAMPLE_RATE, tone
from armillary.sim.drawing import COLOURS, GROUNDS, draw
from armillary.sim.physics import EXTENTS
from armillary.sim.scenes import SPLITS

Look = tuple[Episode, int, Scene]  # an episode, one of its frames, and what the detectors see there


@pytest.fixture(scope="module")
def looks() -> list[Look]:
    stills = [(episode("still", seed, split=split), 0) for split in SPLITS[1:] for seed in range(40)]
    clips = [episode(kind, seed, split="test") for kind in ("wander", "slide") for seed in range(8)]
    shown = [*stills, *((e, frame) for e in clips for frame in (0, 4, 8))]
    return [(e, frame, look(e.picture(frame))) for e, frame in shown]


def test_objects_of_every_picture_are_found_with_colour_and_shape(looks: list[Look]) -> None:
    right = [Counter(o.kind for o in scene.objects) == Counter(e.objects) for e, _, scene in looks]
    assert sum(right) >= 0.99 * len(right)


def test_objects_are_found_within_half_a_pixel(looks: list[Look]) -> None:
    errors = list[float]()
    for e, frame, scene in looks:
        for thing, place in zip(e.objects, e.positions[frame].tolist(), strict=True):
            found = scene.of_colour(thing.colour)
            errors.append(math.dist(found.place, place) if found else 99.0)
    assert np.mean(errors) < 0.15
    assert np.quantile(errors, 0.99) < 0.5


def test_the_pusher_is_found_where_it_is_and_nowhere_else(looks: list[Look]) -> None:
    for e, frame, scene in looks:
        assert (scene.pusher is None) == (e.pusher is None)
        if scene.pusher is not None and e.pusher is not None:
            assert math.dist(scene.pusher, e.pusher[frame].tolist()) < 0.3


def test_every_pair_of_colour_and_shape_is_told_apart() -> None:
    for colour in COLOURS:
        for shape in EXTENTS:
            for ground in GROUNDS:
                place = np.array([[[31.3, 30.6]]], np.float32)
                scene = look(draw([Object(colour, shape)], place, background=ground)[0])
                assert [o.kind for o in scene.objects] == [Object(colour, shape)]


def test_noise_and_blur_are_borne() -> None:
    rng = np.random.default_rng(0)
    for seed in range(12):
        e = episode("still", seed, split="test")
        frame = e.picture().astype(np.float32)
        blurred = (np.roll(frame, 1, 0) + np.roll(frame, -1, 0) + np.roll(frame, 1, 1) + 3 * frame) / 6
        rough = np.clip(blurred + rng.normal(0, 8, frame.shape), 0, 255).astype(np.uint8)
        assert {o.kind for o in look(rough).objects} == set(e.objects)


def test_an_empty_table_and_plain_noise_show_nothing() -> None:
    empty = draw([], np.zeros((1, 0, 2), np.float32))[0]
    noise = np.random.default_rng(0).integers(0, 256, empty.shape, np.uint8)
    for frame in (empty, noise):
        assert look(frame).objects == ()
        assert look(frame).pusher is None


def test_onsets_are_found_with_their_time_and_pitch() -> None:
    counts = np.zeros(4, int)
    for kind in ("slide", "wander"):
        for seed in range(50):
            e = episode(kind, seed, split="test")
            assert e.sound is not None
            counts += score_onsets(onsets(e.sound), heard(e.events, e.objects), 0.02)
    right, wrong, missed, pitched = counts.tolist()
    assert right > 50
    assert pitched >= 0.99 * (right + missed)
    assert wrong <= 0.01 * right


def test_tones_of_two_pitches_at_once_make_one_onset() -> None:
    sound = np.zeros((2, SAMPLE_RATE), np.float32)
    for shape in ("disc", "triangle"):
        sound[:, 8000 : 8000 + len(tone(shape))] += 0.3 * tone(shape)
    (found,) = onsets(sound)
    assert found.shapes == {"disc", "triangle"}
    assert abs(found.time - 0.5) < 0.01


def test_silence_and_hiss_have_no_onset() -> None:
    hiss = np.random.default_rng(0).normal(0, 0.01, (2, SAMPLE_RATE)).astype(np.float32)
    assert onsets(np.zeros_like(hiss)) == []
    assert onsets(hiss) == []


def test_each_wanted_onset_takes_one_found_one() -> None:
    disc, square = frozenset({"disc"}), frozenset({"square"})
    found = [Onset(0.10, disc), Onset(0.50, disc)]
    wanted = [Onset(0.12, disc), Onset(0.13, disc), Onset(0.52, square)]
    assert score_onsets(found, wanted, 0.05) == (2, 0, 1, 1)
    assert score_onsets([], wanted, 0.05) == (0, 0, 3, 0)
    assert score_onsets(found, [], 0.05) == (0, 2, 0, 0)
