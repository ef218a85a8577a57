"""One sample through the sampler, which takes many."""

from collections.abc import Callable

from torch import Tensor

from armillary.flow import Branch, Grid, Noise, sample_many
from armillary.model import Network
from armillary.sequence import Sample


def sample(
    network: Network,
    positive: Sample,
    *,
    negative: Sample | None = None,
    grid: Grid,
    guidance: float = 1.0,
    interval: tuple[float, float] | None = None,
    seed: int | Noise,
    on_step: Callable[[int, int, Tensor], bool | None] | None = None,
) -> Tensor:
    """Its final state; the negative is guided away from where the time is inside `interval`."""

    def first(step: int, of: int, clean: tuple[Tensor, ...]) -> bool | None:
        return on_step(step, of, clean[0]) if on_step else None

    branches = [] if negative is None else [Branch((negative,), guidance, interval)]
    return sample_many(network, [positive], branches=branches, grid=grid, seeds=[seed], on_step=first)[0]
