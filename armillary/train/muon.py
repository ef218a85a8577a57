"""Muon (Jordan 2024): momentum whose update of a matrix is made orthogonal.

torch's own works in bfloat16, which is slow on processors that must emulate it. This one works in the
parameters' own type, and on all matrices of one shape at once.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of Jordan's quintic, which sends singular values to about 1
_TURNS = 5
_ALIKE = 0.2  # root mean square of AdamW's updates, which these are scaled to (Liu 2025, section 2.2)


class Muon(Optimizer):
    """For matrices alone. lr: as AdamW's. Raises ValueError for a parameter of another rank than two."""

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            if wrong := [tuple(p.shape) for p in group["params"] if p.dim() != 2]:
                raise ValueError(f"Muon is for matrices, not for the shapes {wrong}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            alike = defaultdict[torch.Size, list[nn.Parameter]](list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.shape].append(p)
            for (rows, columns), matrices in alike.items():
                updates = orthogonal(torch.stack([self._momentum(p, group["momentum"]) for p in matrices]))
                step = group["lr"] * _ALIKE * max(rows, columns) ** 0.5
                for p, update in zip(matrices, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step * update)

    def _momentum(self, p: nn.Parameter, momentum: float) -> Tensor:
        """Nesterov's: the gradient, drawn towards its running mean."""
        assert p.grad is not None
        kept = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        kept.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(kept, momentum)


def orthogonal(x_BMN: Tensor) -> Tensor:
    """Matrices with the singular vectors of the given ones and singular values of about 1, by five steps of
    the Newton-Schulz iteration (Jordan 2024)."""
    tall = x_BMN.shape[1] > x_BMN.shape[2]
    x = x_BMN.mT if tall else x_BMN
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_TURNS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x
