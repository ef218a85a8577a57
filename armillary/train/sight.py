"""The vision tower alone, before the reasoner: it learns where things are, what they are and how they move.

Nothing is asked. A head must tell the truth about every token, which costs little and teaches much: questions
alone hardly teach the tower to the pixel where an object is.
"""

from random import Random

import torch
from torch import Tensor
from torch.optim import Optimizer

from armillary.sim.scenes import episode
from armillary.train.dense import Truth, dense_loss
from armillary.train.layout import Pocket
from armillary.train.loop import Draw, Metrics
from armillary.train.reasoner import Shown, look, optimizers, show, show_strange

KINDS = ("still", "slide", "slide", "wander")
STRANGE = 0.3  # share of the stills that show things without a name
CLIPS = 0.2  # share of the moving episodes that are shown whole


class SightJob:
    """Pictures and clips of every kind."""

    def __init__(self, model: Pocket, *, pictures: int = 24) -> None:
        self.model, self.pictures = model, pictures
        model.requires_grad_(False)
        model.sight.requires_grad_(True)
        model.tell[0].requires_grad_(True)

    def optimizers(self, rate: float) -> list[Optimizer]:
        return optimizers(self.model, rate)

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        shown = [_shown(draw.python) for _ in range(self.pictures)]
        seen = look(self.model, [s.patches for s in shown if s.patches is not None])
        right = Truth.join([s.truth for s in shown if s.truth is not None])
        told_VX = self.model.tell[0](torch.cat([features_VE for features_VE, *_ in seen]))
        loss = dense_loss(told_VX, right, watched=False)
        return loss, {"loss": float(loss.detach())}


def _shown(rng: Random) -> Shown:
    e = episode(rng.choice(KINDS), rng.randrange(1 << 40))
    if e.moving or rng.random() >= STRANGE:
        return show(e, clip=e.moving and rng.random() < CLIPS)
    return show_strange(e, rng, shape=rng.random() < 0.6)
