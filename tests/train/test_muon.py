"""Muon equals torch's, whose arithmetic is coarser, and makes matrices orthogonal."""

import pytest
import torch
from torch import nn

from armillary.train.muon import Muon, orthogonal

SHAPES = [(96, 256), (256, 96), (32, 96), (96, 96), (96, 96)]


def test_its_steps_are_torchs_but_for_their_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    pair = (
        Muon(ours, lr=0.01, weight_decay=0.02),
        torch.optim.Muon(theirs, lr=0.01, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
    )
    start = [p.detach().clone() for p in ours]
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for optimizer in pair:
            optimizer.step()
    for mine, other, before in zip(ours, theirs, start, strict=True):
        assert (mine - other).norm() < 0.04 * (mine - before).norm()


def test_singular_values_come_near_one_and_singular_vectors_stay() -> None:
    x_BMN = torch.randn(3, 48, 96, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(x_BMN, full_matrices=False)
    inside = u.mT @ orthogonal(x_BMN) @ v.mT
    values = inside.diagonal(dim1=1, dim2=2)
    assert ((values > 0.6) & (values < 1.3)).all()
    assert (inside - torch.diag_embed(values)).abs().max() < 1e-3


def test_a_parameter_without_a_gradient_stays_and_a_vector_is_refused() -> None:
    idle = nn.Parameter(torch.ones(2, 3))
    Muon([idle], lr=0.1, weight_decay=0.1).step()
    assert torch.equal(idle, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        Muon([nn.Parameter(torch.ones(3))], lr=0.1)
