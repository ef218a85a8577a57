"""One sample of every modality, small enough to think about."""

import math
from dataclasses import replace

import torch

from armillary.sequence import Kind, Sample, Segment, grid_positions, text_context


def scene(*, clean: int = 0, ids: tuple[int, ...] = (1, 2, 3), action_width: int = 2) -> Sample:
    """Three frames of 2x2 vision tokens (the first `clean` of them given), five of sound, four of action."""
    made = torch.Generator().manual_seed(7)

    def segment(kind: Kind, grid: tuple[int, int, int], numbers: int) -> Segment:
        count = math.prod(grid)
        tokens = torch.randn(count, numbers, generator=made)
        return Segment(kind, tokens, torch.ones(count, dtype=torch.bool), grid_positions(grid))

    vision, sound = segment("vision", (3, 2, 2), 8), segment("sound", (5, 1, 1), 6)
    action = segment("action", (4, 1, 1), 4)
    noisy = torch.ones(12, dtype=torch.bool)
    noisy[: 4 * clean] = False
    valid = torch.zeros(4, 4, dtype=torch.bool)
    valid[:, :action_width] = True
    vision = Segment("vision", vision.tokens_NF, noisy, vision.positions_3N)
    action = replace(action, valid_NF=valid, tokens_NF=action.tokens_NF * valid)
    return Sample(text_context(torch.tensor(ids)), (vision, sound, action))
