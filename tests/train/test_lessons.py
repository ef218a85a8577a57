"""What the reasoner is taught: seeing, watching, reading, and shapes without colours."""

from random import Random

import numpy as np
import torch

from armillary.codecs.text import TextCodec
from armillary.locate import locate
from armillary.sim.scenes import episode
from armillary.train.layout import Pocket
from armillary.train.reasoner import ReasonerJob, answer_loss, washed_out

CODEC = TextCodec.load(locate("pocket")[1] / "text_tokenizer")


def job() -> ReasonerJob:
    torch.set_num_threads(1)
    return ReasonerJob(Pocket(), CODEC, pictures=3, clips=2, asked=2)


def test_every_lesson_has_a_loss_that_teaches_the_reasoner_alone() -> None:
    teacher, rng = job(), Random(0)
    lessons = [teacher.lesson(rng, done) for done in (0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)]
    kinds = {(s.patches is None, s.times is None, bool(s.words)) for x in lessons for s in x.shown}
    assert {(False, True, False), (False, False, False), (True, True, True)} <= kinds
    for lesson in lessons:
        loss, marks = answer_loss(teacher.model, lesson, teacher.spell)
        assert torch.isfinite(loss)
        assert len(marks) == sum(len(q) for q in lesson.questions)
        loss.backward()
    learnt = {n for n, p in teacher.model.named_parameters() if p.grad is not None}
    assert any(n.startswith("sight.") for n in learnt)
    assert not any(".dm." in n or n.startswith("network.ports") for n in learnt)


def test_a_washed_out_picture_keeps_its_shapes_and_loses_its_colours() -> None:
    picture = episode("still", 3).picture(0)
    grey = next(g for s in range(9) if not np.ptp(g := washed_out(picture, Random(s)), axis=2).any())
    edges = [np.abs(np.diff(p.astype(int), axis=1)).max(axis=2) > 12 for p in (picture, grey)]
    assert (edges[0] & edges[1]).sum() > 0.6 * edges[0].sum()
    assert np.ptp(picture, axis=2).max() > 90
