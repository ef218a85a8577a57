"""Rectified flow: noise, sigma grids, solver steps, guidance, and the loop that joins them.

A sigma says how noisy a number is: 1 is pure noise, 0 is data. On the straight line between them

    x = (1 - sigma) * x0 + sigma * eps          velocity = dx/dsigma = eps - x0

and sampling walks sigma from 1 to 0 with the network's velocity. The sampler's state is the flat float32
vector of a sample's noisy numbers (`Sample.state()`); clean tokens are constants and never enter it.

Shape letters: X = noisy numbers laid flat (of one sample, or of samples end to end), N = tokens of a segment,
F = numbers in a token, G = steps of a grid, S = samples of a pack.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from armillary.errors import BadRequest, Cancelled, nearest
from armillary.model import Memory, Network
from armillary.sequence import Kind, Pack, Sample

Solver = Literal["unipc", "sde"]
SigmaKind = Literal["uniform", "logitnormal", "waver"]
Noise = Callable[[Sample, int], Tensor]  # (sample, step) -> [X] as in `Sample.state()`; step 0 starts a run

TIME_SCALE = 1000  # the network's time is 1000 * sigma


# -- noise -----------------------------------------------------------------------------------------


def noise(seed: int, kind: Kind, shape: Sequence[int], *, step: int = 0) -> Tensor:
    """Standard normal float32 numbers from (seed, kind, step) alone, drawn on the CPU whatever the device."""
    digest = hashlib.sha256(f"armillary/noise/{seed}/{kind}/{step}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)


def noise_like_diffusers(
    seed: int, shapes: Mapping[Kind, Sequence[int]], before: int = 0
) -> dict[Kind, Tensor]:
    """The noise diffusers 0.42 draws on a CPU: vision, sound, action, from the generator that drew `before`.

    Shapes are that library's: vision [1, C, T, h, w], sound [S, Ts], action [K, A], not yet cut into tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    order: tuple[Kind, ...] = ("vision", "sound", "action")
    drawn: dict[Kind, Tensor] = {}
    for _ in range(before + 1):
        drawn = {k: torch.randn(tuple(shapes[k]), generator=generator) for k in order if k in shapes}
    return drawn


def noise_state(sample: Sample, seed: int, *, step: int = 0) -> Tensor:
    """`noise` for every noisy number of a sample, [X] on the sample's device; padded numbers get zero.

    A segment's noise is drawn for all of its tokens and the noisy ones are kept, so making a frame clean does
    not change the noise of the others. Raises ValueError when two segments of one kind are noisy.
    """
    noisy = [segment for segment in sample.segments if segment.noisy_size]
    if len({segment.kind for segment in noisy}) < len(noisy):
        raise ValueError("two noisy segments of one kind would start from the same noise")
    parts = [noise(seed, s.kind, s.tokens_NF.shape, step=step)[s.rows_M.cpu()].flatten() for s in noisy]
    valid_X = valid_numbers(sample)
    noise_X = torch.cat([torch.empty(0), *parts]).to(valid_X.device)
    return noise_X.masked_fill(~valid_X, 0.0)


def valid_numbers(sample: Sample) -> Tensor:
    """Which numbers of `sample.state()` are real (True) and which only fill up a row (False), bool [X]."""
    ones = [s.mask(torch.ones_like(s.tokens_NF[s.rows_M])) for s in sample.segments]
    return torch.cat([x_MF.flatten() for x_MF in ones]).bool()


def interpolate(x0: Tensor, eps: Tensor, sigma: Tensor | float) -> Tensor:
    """The noisy point (1 - sigma) * x0 + sigma * eps. Compute it in float32 and cast afterwards."""
    return (1 - sigma) * x0 + sigma * eps


def velocity_target(x0: Tensor, eps: Tensor) -> Tensor:
    """What the network learns to predict: eps - x0, the same at every sigma."""
    return eps - x0


# -- sigmas ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The sigmas of a run, float32 [G + 1], the last 0, and the times it tells the network, float32 [G]."""

    sigmas: Tensor
    times: Tensor
    solver: Solver = "unipc"

    def __post_init__(self) -> None:
        # UniPC works in log((1 - sigma) / sigma), which sigma = 1 sends to minus infinity.
        below = self.sigmas[0] < 1 or (self.solver == "sde" and self.sigmas[0] == 1)
        falling = below and bool((self.sigmas.diff() < 0).all()) and self.sigmas[-1] == 0
        if not falling or len(self) == 0 or len(self.sigmas) != len(self) + 1:
            message = "must fall strictly from 1 (unipc: below 1) to 0; too many steps or too much shift?"
            raise BadRequest("sigmas", self.sigmas.tolist(), message)

    def __len__(self) -> int:
        return len(self.times)


def native_grid(steps: int, shift: float) -> Grid:
    """Cosmos 3's own grid (and Edge's `use_native_flow_schedule`): 0.999 down to 0, shifted."""
    return _integer_grid(shift_sigma(_falling(0.999, 0.0, steps), shift))


def stock_grid(steps: int, shift: float) -> Grid:
    """The grid of diffusers' UniPC with `use_flow_sigmas`: 1 down to 0.001, shifted, kept below 1."""
    return _integer_grid(shift_sigma(_falling(1.0, 1 / TIME_SCALE, steps), shift).clamp(max=1 - 1e-6))


def karras_grid(steps: int, sigma_min: float = 0.147, sigma_max: float = 200.0) -> Grid:
    """The grid of the published Nano and Super scheduler files; it has no shift.

    k falls from `sigma_max` to `sigma_min` evenly in k^(1/7), Karras et al. 2022, eq. 5; sigma = k / (1 + k).
    """
    if not 0 < sigma_min < sigma_max:
        raise BadRequest("sigma_min", sigma_min, f"must lie between 0 and sigma_max={sigma_max}")
    low, high = sigma_min ** (1 / 7), sigma_max ** (1 / 7)
    k = torch.linspace(high, low, _legal_steps(steps), dtype=torch.float64) ** 7
    return _integer_grid(k / (1 + k))


def fixed_grid(sigmas: Sequence[float], solver: Solver = "sde") -> Grid:
    """The grid of a few-step student: its own sigmas, the final 0 left out, told to the network unrounded."""
    sigmas_G = torch.tensor(list(sigmas), dtype=torch.float32)
    return Grid(torch.cat([sigmas_G, torch.zeros(1)]), sigmas_G * TIME_SCALE, solver)


def shift_sigma(sigma: Tensor, shift: float) -> Tensor:
    """Moves sigmas in [0, 1] towards noise for shift > 1: logit(sigma) + ln(shift)."""
    if not 0 < shift < math.inf:
        raise BadRequest("shift", shift, "must be a number above 0, usually 1 to 10")
    return shift * sigma / (1 + (shift - 1) * sigma)


def draw_sigma(
    generator: torch.Generator, count: int, *, kind: SigmaKind = "uniform", shift: float = 1.0
) -> Tensor:
    """`count` training sigmas, float32 in [0, 1] on the generator's device, shifted.

    `logitnormal` (images) favours the middle; `waver` (video) is mode sampling with heavy tails,
    t = 1 - u - 1.29 (cos^2(pi u / 2) - 1 + u), after Esser et al. 2024, eq. 20.
    """
    draw = torch.randn if kind == "logitnormal" else torch.rand
    u = draw(count, generator=generator, device=generator.device, dtype=torch.float32)
    match kind:
        case "uniform":
            t = u
        case "logitnormal":
            t = torch.sigmoid(u)
        case "waver":
            t = 1 - u - 1.29 * (torch.cos(torch.pi / 2 * u) ** 2 - 1 + u)
        case _:
            legal = ("uniform", "logitnormal", "waver")
            raise BadRequest("kind", kind, f"nearest are {', '.join(nearest(kind, legal))}")
    return shift_sigma(t.clamp(0, 1), shift)


def _legal_steps(steps: int) -> int:
    if steps < 1:
        raise BadRequest("steps", steps, "must be at least 1")
    return steps


def _falling(start: float, end: float, steps: int) -> Tensor:
    """`steps` even steps that leave out `end`, rounded as numpy rounds them, so that times are cut alike."""
    step = (end - start) / _legal_steps(steps)
    return torch.arange(steps, dtype=torch.float64) * step + start


def _integer_grid(sigmas_G: Tensor) -> Grid:
    """Steps use the exact sigmas; the network was trained to be told whole numbers, cut, not rounded."""
    sigmas = torch.cat([sigmas_G, sigmas_G.new_zeros(1)]).float()
    return Grid(sigmas, (sigmas_G * TIME_SCALE).trunc().float())


# -- solvers ---------------------------------------------------------------------------------------


class UniPC:
    """UniPC of order 2 (Zhao et al. 2023, B2(h) form, data prediction) over one flat vector.

    Holds the history of one run: make a new one for every run. Elementwise, so one over all modalities equals
    one for each. Coefficients are Python floats (float64), vectors stay float32.
    """

    def __init__(self, sigmas: Tensor) -> None:
        self._sigmas = [float(s) for s in sigmas]
        self._lambdas = [math.log((1 - s) / s) if s > 0 else math.inf for s in self._sigmas]
        self._done = 0
        self._order = 0  # of the last predictor
        self._clean: list[Tensor] = []  # data predictions of the last two steps, older first
        self._start = torch.empty(0)  # where the last predictor started from

    def step(self, velocity: Tensor, state: Tensor) -> Tensor:
        """The state at the next sigma, from the velocity at this one; the last step returns the data."""
        i, steps = self._done, len(self._sigmas) - 1
        clean = state - self._sigmas[i] * velocity
        if i > 0:
            state = self._correct(clean)
        self._clean = [*self._clean[-1:], clean]
        self._order = min(2, i + 1, steps - i)
        self._start, self._done = state, i + 1
        return self._predict(state)

    def _predict(self, state: Tensor) -> Tensor:
        """UniP from step i to i + 1."""
        i, clean = self._done - 1, self._clean[-1]
        h = self._lambdas[i + 1] - self._lambdas[i]
        next_state = self._exponential(i, h, state, clean)
        if self._order == 1:
            return next_state
        ratio = (self._lambdas[i - 1] - self._lambdas[i]) / h
        slope = (self._clean[-2] - clean) * (1 / ratio)
        return next_state - self._scale(i + 1, h) * 0.5 * slope

    def _correct(self, clean: Tensor) -> Tensor:
        """UniC: takes the step from i - 1 to i again, now that the data prediction at i is known."""
        i, before = self._done, self._clean[-1]
        h = self._lambdas[i] - self._lambdas[i - 1]
        change = clean - before
        if self._order == 1:
            correction = 0.5 * change
        else:
            ratio = (self._lambdas[i - 2] - self._lambdas[i - 1]) / h
            slope = (self._clean[-2] - before) * (1 / ratio)
            rho_slope, rho_change = _corrector_weights(ratio, h)
            correction = rho_slope * slope + rho_change * change
        return self._exponential(i - 1, h, self._start, before) - self._scale(i, h) * correction

    def _exponential(self, i: int, h: float, state: Tensor, clean: Tensor) -> Tensor:
        """The step from i to i + 1 that is exact when the data prediction does not change."""
        return (self._sigmas[i + 1] / self._sigmas[i]) * state - self._scale(i + 1, h) * clean

    def _scale(self, i: int, h: float) -> float:
        return (1 - self._sigmas[i]) * math.expm1(-h)


def _corrector_weights(ratio: float, h: float) -> tuple[float, float]:
    """Solves rho1 + rho2 = b1, ratio * rho1 + rho2 = b2, the order conditions of UniC-2."""
    growth = math.expm1(-h)
    p2 = growth / -h - 1
    p3 = p2 / -h - 0.5
    b1, b2 = p2 / growth, 2 * p3 / growth
    rho1 = (b1 - b2) / (1 - ratio)
    return rho1, b1 - rho1


def sde_step(velocity: Tensor, state: Tensor, *, sigma: float, sigma_next: float, noise_X: Tensor) -> Tensor:
    """A distilled student's step: down to the data prediction, back up to `sigma_next` with fresh noise."""
    return interpolate(state - sigma * velocity, noise_X, sigma_next)


# -- guidance --------------------------------------------------------------------------------------


def guide(v_cond: Tensor, v_uncond: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance v_u + scale * (v_c - v_u), in float32 whatever comes in."""
    v_uncond = v_uncond.float()
    return v_uncond + scale * (v_cond.float() - v_uncond)


@dataclass(frozen=True, eq=False)
class Branch:
    """Another view of the positives' noisy numbers to guide away from: negative prompts, absent controls.

    samples: one for each positive, with the same noisy numbers. scale: 1 means the branch is never run.
    interval: network times (low, high), both included, at which it counts; None for all of them.
    """

    samples: tuple[Sample, ...]
    scale: float
    interval: tuple[float, float] | None = None

    def active(self, time: float) -> bool:
        inside = self.interval is None or self.interval[0] <= time <= self.interval[1]
        return inside and self.scale != 1.0


class _Guided:
    """The guided velocity of all positives at once. Every context is read once; each step draws one pack."""

    def __init__(self, network: Network, positives: Sequence[Sample], branches: Sequence[Branch]) -> None:
        self._network, self._positives, self._branches = network, tuple(positives), branches
        self._sizes = [sum(s.sizes) for s in positives]
        everyone = [*positives, *(s for branch in branches for s in branch.samples)]
        readers = {id(s.context): s for s in everyone}  # candidates share a context
        self._place = {key: i for i, key in enumerate(readers)}
        self._contexts = network.read(Pack(tuple(readers.values()))).memory
        self._laid: Memory = []
        self._active: list[Branch] | None = None

    def __call__(self, state_X: Tensor, time: float) -> Tensor:
        active = [branch for branch in self._branches if branch.active(time)]
        states, views = state_X.split(self._sizes), [self._positives, *(branch.samples for branch in active)]
        pack = Pack(tuple(s.with_state(x) for view in views for s, x in zip(view, states, strict=True)))
        if active != self._active:
            places = [self._place[id(s.context)] for s in pack.samples]
            self._laid = [past.pick(places).reserve(pack.lengths_D) for past in self._contexts]
            self._active = active
        time_S = torch.full((len(pack.samples),), time, dtype=torch.float32, device=state_X.device)
        parts = self._network.draw(pack, time_S, self._laid)
        count = len(self._positives)
        guided_X, *others = [torch.cat(parts[i : i + count]).float() for i in range(0, len(parts), count)]
        for branch, velocity_X in zip(active, others, strict=True):
            guided_X = guide(guided_X, velocity_X, branch.scale)
        return guided_X


# -- the loop --------------------------------------------------------------------------------------


def sample_many(
    network: Network,
    positives: Sequence[Sample],
    *,
    branches: Sequence[Branch] = (),
    grid: Grid,
    seeds: Sequence[int | Noise],
    on_step: Callable[[int, int, tuple[Tensor, ...]], bool | None] | None = None,
) -> list[Tensor]:
    """Denoises several samples in one pack, each equal to itself alone; returns their states, float32 [X].

    branches: views to guide away from, applied in order, v <- guide(v, v_branch, scale): transfer guides away
    from absent controls first, then from the negative prompt. Samples with the same Context object share one
    reading. seeds: an int each, or the caller's own `Noise`. on_step(step, of, clean): called after each
    step, step = 1..of, with the data [X] of each sample that the step points at, after the last one the
    result; returning False raises Cancelled. Raises FloatingPointError (step, modality) for NaN or inf.
    """
    sizes, times = [sum(s.sizes) for s in positives], [float(t) for t in grid.times]
    sigmas = [float(s) for s in grid.sigmas]
    padded_X = ~torch.cat([valid_numbers(s) for s in positives])
    unipc = UniPC(grid.sigmas) if grid.solver == "unipc" else None

    def draw(step: int) -> Tensor:
        sources = zip(positives, seeds, strict=True)
        parts = [x(s, step) if callable(x) else noise_state(s, x, step=step) for s, x in sources]
        return torch.cat(parts).float().masked_fill(padded_X, 0.0)

    with torch.no_grad():
        used = [branch for branch in branches if any(branch.active(t) for t in times)]
        velocity_of, state_X = _Guided(network, positives, used), draw(0)
        for i, time in enumerate(times):
            where = f"step {i + 1} of {len(grid)}"
            velocity_X = velocity_of(state_X, time).masked_fill(padded_X, 0.0)
            _require_finite(velocity_X, positives, f"{where}: the velocity")
            clean_X = state_X - sigmas[i] * velocity_X
            if unipc is not None:
                state_X = unipc.step(velocity_X, state_X)
            else:
                fresh_X = draw(i + 1)
                state_X = sde_step(
                    velocity_X, state_X, sigma=sigmas[i], sigma_next=sigmas[i + 1], noise_X=fresh_X
                )
            _require_finite(state_X, positives, f"{where}: the state")
            if on_step is not None and on_step(i + 1, len(grid), clean_X.split(sizes)) is False:
                raise Cancelled(f"stopped by the caller after {where}")
    return list(state_X.split(sizes))


def _require_finite(values_X: Tensor, samples: Sequence[Sample], what: str) -> None:
    if bool(torch.isfinite(values_X).all()):
        return
    segments = [segment for s in samples for segment in s.segments]
    parts = zip(segments, values_X.split([s.noisy_size for s in segments]), strict=True)
    kind = next(segment.kind for segment, part in parts if not bool(torch.isfinite(part).all()))
    raise FloatingPointError(f"{what} of {kind} is not finite")
