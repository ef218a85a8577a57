"""What the generator learns from: pieces of longer clips, and the truth that is kept beside latents."""

import math

import numpy as np
import torch

from armillary.model import Stream
from armillary.sequence import Sample, pack, text_context
from armillary.sim.physics import FPS, replay
from armillary.sim.scenes import Episode, episode
from armillary.tasks.segments import vision_segment
from armillary.train.cache import PIECES, SIDE, cut, slices, stored
from armillary.train.dense import HEARD, Truth, heard, truth
from armillary.train.generator import TOLD_AFTER, overheard
from armillary.train.layout import Pocket, pocket_traits


def test_pieces_lie_end_to_end_and_each_is_an_episode_of_its_own() -> None:
    whole = episode("wander", 5, frames=PIECES * 8 + 1)
    pieces = cut(whole, 8)
    assert len(pieces) == PIECES
    for k, e in enumerate(pieces):
        assert np.array_equal(e.frames, whole.frames[8 * k : 8 * k + 9])
        assert e.actions is not None
        assert np.abs(replay(e.start, e.actions).positions - e.positions).max() < 0.5
        assert all(0 <= event.time < 9 / FPS for event in e.events)
    assert sum(len(e.events) for e in pieces) >= len(
        whole.events
    )  # the last frame of one is the next's first


def test_many_pieces_begin_with_the_pusher_at_an_object_as_no_episode_does() -> None:
    def gap(e: Episode) -> float:
        assert e.start.pusher is not None
        return min(math.dist(place, e.start.pusher) for place in e.start.positions)

    first = [gap(episode("wander", seed)) for seed in range(20)]
    later = [gap(e) for seed in range(20) for e in stored("roam", seed)[1:]]
    assert np.quantile(later, 0.25) < np.quantile(first, 0.25) - 2


def test_the_truth_of_tokens_is_read_from_its_table_as_it_was_written() -> None:
    for e in (episode("slide", 3), episode("push", 4), episode("still", 5)):
        right = truth(e, slices(len(e.positions)), side=SIDE)
        again = Truth.of_table(right.table().half())
        assert len(right.present_V) == SIDE * SIDE * (1 + (len(e.positions) - 1) // 4)
        for name, values in vars(right).items():
            assert torch.allclose(vars(again)[name].float(), values.float(), atol=5e-3), name


def test_a_token_of_sound_tells_whose_tone_begins_in_it_and_has_begun() -> None:
    told = 0
    for seed in range(20):
        e = episode("slide", seed)
        begins, begun = heard(e, 18).view(18, 2, HEARD // 2).unbind(1)
        for event in e.events:
            told += 1
            assert begins[int(event.time * 16)].sum() >= 1
        assert torch.equal(begun, begins.cummax(dim=0).values)
        assert begins.any() == bool(e.events)
    assert told > 5


def test_what_is_overheard_is_what_the_next_block_is_given() -> None:
    model = Pocket(0)
    blocks = model.network.blocks
    given = list[Stream | None]()
    hook = blocks[TOLD_AFTER + 1].register_forward_pre_hook(lambda _, args: given.append(args[1]))
    picture = vision_segment(torch.zeros(8, 1, 8, 8), (), FPS, pocket_traits())
    packed = pack([Sample(text_context(torch.arange(5)), (picture,))])
    with torch.no_grad(), overheard(blocks[TOLD_AFTER]) as thought:
        memory = model.network.read(packed).memory
        assert not thought
        model.network.draw(packed, torch.tensor([500.0]), memory)
    hook.remove()
    assert given[-1] is not None
    assert torch.equal(thought[0], given[-1].x_NE)
    assert not blocks[TOLD_AFTER]._forward_hooks


def test_the_heads_teach_the_tower_only_once_they_have_learnt() -> None:
    model = Pocket(0)
    see, _ = model.tell_drawn
    x = torch.randn(3, 192, requires_grad=True)
    see(x).square().sum().backward()
    assert x.grad is not None
    assert not x.grad.any()
