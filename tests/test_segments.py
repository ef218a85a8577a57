"""Latents and actions as segments: order, padding, what is clean, and the way back."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from armillary.flow import native_grid
from armillary.model import Config, Network
from armillary.sequence import Sample, text_context
from armillary.tasks.segments import (
    Latents,
    action_segment,
    patchify,
    sound_segment,
    unpatchify,
    vision_segment,
)
from armillary.train.layout import pocket_traits
from armillary.weights import Traits
from tests.solo import sample

TRAITS = Traits(latent_channel=3, base_fps=8, action_gen=True, action_dim=5, sound_gen=True, sound_dim=2)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole() -> Latents:
    return Latents(
        random(3, 3, 5, 4),
        8.0,
        clean_frames=(0,),
        sound_SL=random(2, 6, seed=1),
        actions_KD=random(8, 2, seed=2),
        clean_actions=(0,),
        domain=4,
    )


def test_tokens_are_cut_frame_row_column_and_inside_row_column_channel() -> None:
    z, t, h, w = 3, 2, 4, 6
    latents = torch.arange(z * t * h * w).view(z, t, h, w)
    tokens = patchify(latents, 2)
    assert tokens.shape == (t * 2 * 3, 12)
    frame, row, column = 1, 1, 2
    token = tokens[frame * 6 + row * 3 + column]
    want = [latents[c, frame, 2 * row + i, 2 * column + j] for i in (0, 1) for j in (0, 1) for c in range(z)]
    assert token.tolist() == [int(x) for x in want]


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (1, 1), (4, 3)])
@pytest.mark.parametrize("patch", [1, 2])
def test_unpatchify_restores_latents(size: tuple[int, int], patch: int) -> None:
    latents = random(3, 2, *size)
    assert torch.equal(unpatchify(patchify(latents, patch), (3, 2, *size), patch), latents)


def test_numbers_beyond_an_odd_edge_are_no_part_of_the_picture() -> None:
    segment = vision_segment(torch.ones(3, 2, 5, 4), (), 8.0, TRAITS)
    assert segment.valid_NF is not None
    assert torch.equal(segment.tokens_NF.bool(), segment.valid_NF)
    assert vision_segment(torch.ones(3, 2, 4, 4), (), 8.0, TRAITS).valid_NF is None


def test_clean_frames_are_the_tokens_of_those_frames() -> None:
    segment = vision_segment(random(3, 4, 4, 6), (0, 2), 8.0, TRAITS)
    assert segment.noisy_N.view(4, 6).all(1).tolist() == [False, True, False, True]
    assert segment.noisy_N.view(4, 6).any(1).tolist() == [False, True, False, True]
    assert segment.noisy_size == 2 * 6 * 12


def test_actions_are_padded_to_the_port() -> None:
    actions = random(4, 2)
    segment = action_segment(actions, clean=(1,), fps=8, domain=3, traits=TRAITS)
    assert segment.tokens_NF.shape == (4, 5)
    assert torch.equal(segment.tokens_NF[:, :2], actions)
    assert not segment.tokens_NF[:, 2:].any()
    assert segment.valid_NF is not None
    assert segment.valid_NF[0].tolist() == [True, True, False, False, False]
    assert segment.noisy_N.tolist() == [True, False, True, True]
    assert segment.domain == 3


def test_sound_is_all_noisy_or_all_given() -> None:
    latents = random(2, 6)
    assert sound_segment(latents, clean=False, traits=TRAITS).noisy_N.all()
    given = sound_segment(latents, clean=True, traits=TRAITS)
    assert not given.noisy_N.any()
    assert torch.equal(given.tokens_NF, latents.T)


def test_a_sound_of_pocket_stands_at_the_frame_that_it_sounds_with() -> None:
    traits, second = pocket_traits(), 16
    vision = vision_segment(random(8, 3, 8, 8), (), 8.0, traits)
    sound = sound_segment(random(16, second + 2), clean=False, traits=traits)
    frames = vision.positions_3N[0].unique()
    assert sound.positions_3N[0, [0, second // 2, second]].tolist() == frames.tolist()


def test_without_modulation_time_counts_steps() -> None:
    latents = whole()
    segments = latents.segments(replace(TRAITS, enable_fps_modulation=False))
    times = [s.positions_3N[0].unique_consecutive().tolist() for s in segments]
    assert times == [[0, 1, 2], [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_state_row_stands_at_the_first_frame() -> None:
    vision, _, action = replace(whole(), first_action=0).segments(TRAITS)
    times = action.positions_3N[0].tolist()
    assert times == [k / 4 for k in range(8)]
    assert times[4] == vision.positions_3N[0].unique()[1]


def test_latents_come_back_from_their_segments() -> None:
    latents = whole()
    held = Sample(text_context(torch.arange(3)), latents.segments(TRAITS))
    again = replace(latents, vision_ZThw=torch.zeros(3, 3, 5, 4)).of(held, TRAITS)
    assert torch.equal(again.vision_ZThw, latents.vision_ZThw)
    assert again.sound_SL is not None
    assert again.actions_KD is not None
    assert latents.sound_SL is not None
    assert latents.actions_KD is not None
    assert torch.equal(again.sound_SL, latents.sound_SL)
    assert torch.equal(again.actions_KD, latents.actions_KD)


def test_drawing_moves_what_is_noisy_and_nothing_else() -> None:
    torch.manual_seed(0)
    features = {"vision": 12, "sound": 2, "action": 5}
    network = Network(
        Config(16, 1, 2, 1, 8, 16, 10, features, domains=5, rope_axes=(2, 1, 1), margin=4)  # pyright: ignore[reportArgumentType]
    ).requires_grad_(False)
    latents = whole()
    held = Sample(text_context(torch.arange(3)), latents.segments(TRAITS))
    state = sample(network, held, grid=native_grid(3, 2.0), seed=1)
    drawn = held.with_state(state)
    for before, after in zip(held.segments, drawn.segments, strict=True):
        moved = (before.tokens_NF != after.tokens_NF).any(1)
        assert torch.equal(moved, before.noisy_N)
        if after.valid_NF is not None:
            assert not after.tokens_NF[~after.valid_NF].any()
