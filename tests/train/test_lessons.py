"""What the reasoner is taught: seeing, watching, reading, things without a name, and every token's truth."""

import colorsys
from dataclasses import replace
from random import Random

import numpy as np
import torch

from armillary.codecs.text import TextCodec
from armillary.locate import locate
from armillary.sim.drawing import COLOURS, GROUNDS
from armillary.sim.physics import EXTENTS
from armillary.sim.scenes import HELD_OUT_PAIRS, episode
from armillary.train.dense import SIDE, WIDTH, dense_loss, truth
from armillary.train.layout import Pocket
from armillary.train.reasoner import ReasonerJob, lesson_loss
from armillary.train.strange import in_strange_colours, in_strange_shapes, strange_colour

CODEC = TextCodec.load(locate("pocket")[1] / "text_tokenizer")


def job() -> ReasonerJob:
    torch.set_num_threads(1)
    return ReasonerJob(Pocket(), CODEC, pictures=3, clips=2, asked=2)


def test_every_lesson_has_a_loss_that_teaches_the_reasoner_alone() -> None:
    teacher, rng = job(), Random(0)
    lessons = [teacher.lesson(rng, done) for done in (0.0, *(0.9,) * 15)]
    kinds = {(s.patches is None, s.times is None, bool(s.words)) for x in lessons for s in x.shown}
    assert {(False, True, False), (False, False, False), (True, True, True)} <= kinds
    for lesson in lessons:
        loss, dense, marks = lesson_loss(teacher.model, lesson, teacher.spell)
        assert torch.isfinite(loss + dense)
        assert bool(dense.detach() > 0) == any(s.truth is not None for s in lesson.shown)
        assert len(marks) == sum(len(q) for q in lesson.questions)
        (loss + dense).backward()
    learnt = {n for n, p in teacher.model.named_parameters() if p.grad is not None}
    assert any(n.startswith("sight.") for n in learnt)
    assert not any(".dm." in n or n.startswith("network.ports") for n in learnt)


def test_things_in_strange_colours_stand_where_they_stood_in_their_shapes() -> None:
    e = episode("still", 3)
    ground = np.array(GROUNDS["table"])
    covered = [
        np.abs(p.astype(int) - ground).max(axis=2) > 60
        for p in (e.picture(), in_strange_colours(e, Random(1)))
    ]
    assert (covered[0] & covered[1]).sum() > 0.9 * max(c.sum() for c in covered)


def test_blobs_have_the_colours_and_places_of_what_they_stand_for() -> None:
    e = episode("still", 3)
    picture = in_strange_shapes(e, Random(1))
    for thing, (x, y) in zip(e.objects, e.positions[0].round().astype(int), strict=True):
        assert tuple(picture[y, x]) == COLOURS[thing.colour]
    assert (picture != e.picture()).any()


def test_no_strange_colour_makes_a_pair_that_is_held_out() -> None:
    rng = Random(0)
    for pair in HELD_OUT_PAIRS:
        red, green, blue = COLOURS[pair.colour]
        hue = colorsys.rgb_to_hsv(red, green, blue)[0]
        for _ in range(300):
            found, saturation, _ = colorsys.rgb_to_hsv(*strange_colour(pair.shape, rng))
            assert saturation < 0.26 or 0.06 < (found - hue) % 1 < 0.94


def test_the_truth_of_a_token_leads_to_its_object() -> None:
    e = episode("slide", 3)
    slices = [[i] for i in range(len(e.positions))]
    right = truth(e, slices)
    per_slice = right.present_V.view(len(slices), SIDE, SIDE)
    for t, s in enumerate(slices):
        for row, column in per_slice[t].nonzero().tolist():
            token = (t * SIDE + row) * SIDE + column
            to, way = right.motion_V6[token, :2] * 8, right.motion_V6[token, 2:4] * 8
            spot = np.array([column, row]) * 8 + 4 + to.numpy()
            (i,) = (i for i, p in enumerate(e.positions[s[0]]) if np.abs(p - spot).max() < 0.01)
            assert np.abs(way.numpy() - (e.positions[s[0], i] - e.positions[0, i])).max() < 0.01
            assert list(EXTENTS)[right.shape_V[token]] == e.objects[i].shape
            assert list(COLOURS)[right.colour_V[token]] == e.objects[i].colour
    assert per_slice.flatten(1).any(1).all()


def test_a_trail_is_told_behind_what_slides_with_its_speed() -> None:
    e = next(e for s in range(50) if len((e := episode("slide", s)).objects) == 1)
    right = truth(e, [[0]])
    streak = right.trail_V & ~right.present_V
    velocity = torch.from_numpy(e.velocities[0, 0])
    assert streak.any()
    assert torch.allclose(
        right.motion_V6[streak, 4:] * 8 / 4 * e.fps, velocity.expand(int(streak.sum()), 2), atol=1e-3
    )
    assert (right.motion_V6[streak, :2] @ velocity > 0).all()
    assert not truth(episode("wander", 0), [[0]]).trail_V.any()


def test_hits_are_told_from_their_frame_on() -> None:
    e = next(e for s in range(50) if (e := episode("slide", s)).events and len(e.objects) == 2)
    when = e.events[0].time
    right = truth(e, [[i] for i in range(len(e.positions))])
    struck = right.hits_VK.view(len(e.positions), SIDE * SIDE, 4)
    owned = right.present_V.view(len(e.positions), -1)
    hit = 0 if e.events[0].kind == "object-object" else 1
    for t in range(len(e.positions)):
        of_objects = struck[t][owned[t]]
        assert of_objects[:, hit].any() == (when <= t / e.fps)
        assert of_objects[:, 2 + hit].any()


def test_what_tells_the_truth_has_no_loss() -> None:
    right = truth(episode("still", 3), [[0]])
    told = torch.zeros(SIDE * SIDE, WIDTH)
    told[:, 0], told[:, 1] = right.present_V * 60.0 - 30, right.trail_V * 60.0 - 30
    for start, names in ((2, right.shape_V), (5, right.colour_V)):
        known = names >= 0
        told[known, start + names[known]] = 30
    told[:, 11:17], told[:, 17:] = right.motion_V6, right.hits_VK * 60 - 30
    for watched in (False, True):
        assert float(dense_loss(told, right, watched=watched)) < 1e-4
        assert float(dense_loss(-told, right, watched=watched)) > 10


def test_what_one_slice_does_not_show_counts_only_where_it_was_watched() -> None:
    e = episode("slide", 3)
    right = truth(e, [[0], [8]])
    blind = replace(
        right, motion_V6=right.motion_V6 * torch.tensor([1.0, 1, 0, 0, 1, 1]), hits_VK=1 - right.hits_VK
    )
    told = torch.zeros(len(right.present_V), WIDTH)
    unwatched = [float(dense_loss(told, t, watched=False)) for t in (right, blind)]
    assert unwatched[0] == unwatched[1]
    assert float(dense_loss(told, right, watched=True)) > unwatched[0]
