"""What every visual token is told besides: what lies at its place, how that moved, and what it hit.

An answer is a few bits about a picture, the truth about each of its tokens is hundreds. Linear heads, on the
vision tower's tokens, on what the AR tower makes of them and on what the DM tower makes of those it draws,
must tell it; their loss teaches the towers where things are, and the heads are thrown away with the training.

Shape letters: V visual tokens, E width, T slices of a clip, n objects, K kinds of hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from armillary.sim.drawing import COLOURS, trail
from armillary.sim.physics import EXTENTS, SIZE, Event
from armillary.sim.recording import Recording

SIDE: Final = 8  # tokens along each side of a picture that the reasoner is shown
REACH: Final = 2.0  # px around its box in which a token still belongs to an object
_SHAPES, _COLOURS = list(EXTENTS), list(COLOURS)
_SIZES = (1, 1, len(_SHAPES), len(_COLOURS), 6, 4)  # present, trail, shape, colour, motion, hits
_TRAIL = 0.3  # share of a token's cell that a trail must cover
WIDTH: Final = sum(_SIZES)
HEARD: Final = 2 * len(_SHAPES)  # begins, and has begun: each shape has a tone of its own


@dataclass(frozen=True)
class Truth:
    """Of every visual token of one picture or clip, slice after slice, row after row."""

    present_V: Tensor  # bool: is there an object?
    trail_V: Tensor  # bool: is there a trail? Its tokens are told about the object that drew it
    shape_V: Tensor  # index, or -1: none, or not to be told
    colour_V: Tensor
    motion_V6: Tensor  # from the token to the object, its way since the first frame, its velocity; in cells
    hits_VK: Tensor  # 0 or 1: hit a thing by now, a wall by now, a thing ever, a wall ever

    def table(self) -> Tensor:
        """All of it in one tensor [V, 14], to be kept; `of_table` reads it."""
        return torch.cat([x.float().view(len(x), -1) for x in vars(self).values()], dim=1)

    @classmethod
    def of_table(cls, rows_VX: Tensor) -> "Truth":
        parts = rows_VX.float().split((1, 1, 1, 1, *_SIZES[4:]), dim=1)
        present, streak, shape, colour, motion, hits = parts
        return cls(present[:, 0] > 0, streak[:, 0] > 0, shape[:, 0].long(), colour[:, 0].long(), motion, hits)

    @classmethod
    def join(cls, parts: Sequence["Truth"]) -> "Truth":
        return cls(*(torch.cat([vars(p)[name] for p in parts]) for name in cls.__dataclass_fields__))


def truth(
    e: Recording,
    slices: Sequence[Sequence[int]],
    *,
    side: int = SIDE,
    shapes: bool = True,
    colours: bool = True,
) -> Truth:
    """The truth about side x side tokens that each see the frames of one slice; without `shapes` or `colours`
    those are not told."""
    cell = SIZE / side  # px
    middle = (np.arange(side) + 0.5) * cell
    grid_V2 = np.stack(np.meshgrid(middle, middle), axis=-1).reshape(-1, 2)
    places_Tn2 = np.stack([e.positions[list(s)].mean(axis=0) for s in slices])
    speeds_Tn2 = np.stack([e.velocities[s[-1]] for s in slices])
    to_TVn2 = places_Tn2[:, None] - grid_V2[None, :, None]
    reach_n2 = np.array([EXTENTS[o.shape] for o in e.objects]) + REACH
    share_TVn = (np.abs(to_TVn2) / reach_n2).max(axis=-1)  # of the way from the object's middle to its border
    present_TV, trail_TVn = share_TVn.min(axis=-1) <= 1, _trails(e, slices, side) > _TRAIL
    owner_TV = np.where(trail_TVn, np.minimum(share_TVn, 1), share_TVn).argmin(axis=-1)
    pick = (np.arange(len(slices))[:, None], owner_TV)
    way_Tn2 = places_Tn2 - e.positions[0]
    to_TV2 = np.take_along_axis(to_TVn2, owner_TV[..., None, None], axis=2)[:, :, 0]
    motion = np.concatenate([to_TV2, way_Tn2[pick], speeds_Tn2[pick] / e.fps * 4], axis=-1) / cell
    names = ([_SHAPES.index(o.shape) for o in e.objects], [_COLOURS.index(o.colour) for o in e.objects])
    shape_TV, colour_TV = (
        np.where(present_TV & told, np.array(n)[owner_TV], -1)
        for n, told in zip(names, (shapes, colours), strict=True)
    )
    hits_TnK = np.array([[_hits(e.events, i, s[-1] / e.fps) for i in range(len(e.objects))] for s in slices])
    return Truth(
        torch.from_numpy(present_TV.flatten()),
        torch.from_numpy(trail_TVn.any(axis=-1).flatten()),
        torch.from_numpy(shape_TV.flatten()),
        torch.from_numpy(colour_TV.flatten()),
        torch.from_numpy(motion.reshape(-1, 6)).float(),
        torch.from_numpy(hits_TnK[pick].reshape(-1, _SIZES[-1])).float(),
    )


def heard(e: Recording, tokens: int) -> Tensor:
    """Of each of the tokens of a clip's sound: does the tone of each shape begin in it, and has it begun by
    its end? bool [tokens, HEARD]."""
    seconds = len(e.positions) / e.fps / tokens
    begins_NS = torch.zeros(tokens, len(_SHAPES), dtype=torch.bool)
    for event in e.events:
        for i in event.objects:
            begins_NS[min(int(event.time / seconds), tokens - 1), _SHAPES.index(e.objects[i].shape)] = True
    return torch.cat([begins_NS, begins_NS.cummax(dim=0).values], dim=1)


def _trails(e: Recording, slices: Sequence[Sequence[int]], side: int) -> NDArray[np.float32]:
    """How much of every token's cell the trail of each object covers in the last frame: [T, V, n]."""
    last = [s[-1] for s in slices]
    drawn = [trail(e.positions[last, i], e.velocities[last, i]) for i in range(len(e.objects))]
    cells_nTrycx = np.stack(drawn).reshape(len(drawn), len(last), side, SIZE // side, side, SIZE // side)
    shares_nTV = (cells_nTrycx > 0).mean(axis=(3, 5)).reshape(len(drawn), len(last), -1)
    return shares_nTV.transpose(1, 2, 0) * (e.background == "ice")


def _hits(events: Sequence[Event], index: int, now: float) -> list[bool]:
    """Did, and will, the object hit a thing (also the pusher), and a wall?"""
    own = [event for event in events if index in event.objects]
    return [
        any((event.kind == "object-wall") == wall and event.time <= until for event in own)
        for until in (now, float("inf"))
        for wall in (False, True)
    ]


def dense_loss(told_VX: Tensor, right: Truth, *, watched: bool) -> Tensor:
    """How far what a head tells of every token [V, WIDTH] is from the truth, a number. Without `watched` the
    way and the hits do not count: one slice does not show them."""
    present, streak, shape, colour, motion, hits = told_VX.float().split(_SIZES, dim=1)
    there = right.present_V | right.trail_V
    off = F.smooth_l1_loss(motion[there], right.motion_V6[there], beta=0.1, reduction="none").mean(0)
    loss = (
        F.binary_cross_entropy_with_logits(present[:, 0], right.present_V.float())
        + F.binary_cross_entropy_with_logits(streak[:, 0], right.trail_V.float())
        + _named(shape, right.shape_V)
        + _named(colour, right.colour_V)
        + 4 * (off[:2].mean() + off[4:].mean())
    )
    if not watched:
        return loss
    return loss + 4 * off[2:4].mean() + F.binary_cross_entropy_with_logits(hits[there], right.hits_VK[there])


def _named(logits: Tensor, right_V: Tensor) -> Tensor:
    known = right_V >= 0
    return F.cross_entropy(logits[known], right_V[known]) if known.any() else logits.new_zeros(())
