"""The sampling loop, with a network that is a plain function and with a small one."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from armillary.errors import Cancelled
from armillary.flow import (
    Branch,
    Grid,
    UniPC,
    fixed_grid,
    guide,
    native_grid,
    noise_state,
    sample_many,
)
from armillary.model import Config, Network
from armillary.sequence import Kind, Pack, Sample
from tests.scene import scene
from tests.solo import sample

Velocity = Callable[[Tensor, float, int], Tensor]


def bend(x: Tensor, time: float, length: int) -> Tensor:
    return torch.tanh(x) * 1.3 - 0.0002 * time + 0.01 * length


class Fake:
    """A network whose velocity is a plain function of (state, time, number of context tokens)."""

    def __init__(self, velocity: Velocity = bend) -> None:
        self.velocity = velocity
        self.read_packs: list[Pack] = []
        self.draws: list[tuple[int, list[float]]] = []

    def read(self, pack: Pack) -> SimpleNamespace:
        self.read_packs.append(pack)
        return SimpleNamespace(memory=[])

    def draw(self, pack: Pack, time_S: Tensor, memory: list[object]) -> list[Tensor]:
        self.draws.append((len(pack.samples), time_S.tolist()))
        return [
            self.velocity(s.state(), t, len(s.context))
            for s, t in zip(pack.samples, time_S.tolist(), strict=True)
        ]


def tiny_network() -> Network:
    torch.manual_seed(0)
    features: dict[Kind, int] = {"vision": 8, "sound": 6, "action": 4}
    small = Config(
        width=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_size=8,
        mlp=48,
        vocabulary=20,
        features=features,
        rope_axes=(2, 1, 1),
    )
    return Network(small).eval()


def test_sampling_is_noise_then_guided_solver_steps() -> None:
    positive, negative, grid, fake = scene(clean=1), scene(clean=1, ids=(5,)), native_grid(5, 5), Fake()
    assert positive.segments[2].valid_NF is not None
    padded = ~torch.cat([torch.ones(64 + 30, dtype=torch.bool), positive.segments[2].valid_NF.flatten()])
    state, solver = noise_state(positive, 9), UniPC(grid.sigmas)
    for time in grid.times.tolist():
        v = guide(fake.velocity(state, time, 3), fake.velocity(state, time, 1), 4.0)
        state = solver.step(v.masked_fill(padded, 0), state)
    drawn = sample(fake, positive, negative=negative, grid=grid, guidance=4.0, seed=9)
    assert torch.equal(drawn, state)
    assert drawn.dtype == torch.float32
    assert len(fake.read_packs) == 1
    assert fake.draws == [(2, [t, t]) for t in grid.times.tolist()]
    assert torch.equal(
        positive.with_state(drawn).segments[0].tokens_NF[:4], positive.segments[0].tokens_NF[:4]
    )


def test_guidance_one_never_reads_or_draws_the_negative() -> None:
    fake, positive = Fake(), scene()
    guided = sample(fake, positive, negative=scene(ids=(5,)), grid=native_grid(3, 5), guidance=1.0, seed=0)
    assert [len(p.samples) for p in fake.read_packs] == [1]
    assert [n for n, _ in fake.draws] == [1, 1, 1]
    assert torch.equal(guided, sample(Fake(), positive, grid=native_grid(3, 5), seed=0))


def test_outside_its_interval_the_negative_is_not_drawn() -> None:
    fake, grid = Fake(), native_grid(6, 3)  # 999 937 856 749 599 374
    sample(fake, scene(), negative=scene(ids=(5,)), grid=grid, guidance=4.0, interval=(749, 937), seed=0)
    assert [n for n, _ in fake.draws] == [1, 2, 2, 2, 1, 1]
    assert len(fake.read_packs) == 1
    never = Fake()
    sample(never, scene(), negative=scene(ids=(5,)), grid=grid, guidance=4.0, interval=(0, 100), seed=0)
    assert [len(p.samples) for p in never.read_packs] == [1]


def test_transfer_guides_away_from_absent_controls_then_from_the_negative() -> None:
    full, bare, negative, grid, fake = scene(), scene(ids=(1, 2)), scene(ids=(5,)), native_grid(1, 5), Fake()
    branches = [Branch((bare,), 1.5), Branch((negative,), 3.0)]
    (drawn,) = sample_many(fake, [full], branches=branches, grid=grid, seeds=[0])
    x, time = noise_state(full, 0), grid.times.item()
    v_full, v_bare, v_negative = (fake.velocity(x, time, n) for n in (3, 2, 1))
    controlled = v_bare + 1.5 * (v_full - v_bare)
    expected = x - float(grid.sigmas[0]) * (v_negative + 3.0 * (controlled - v_negative))
    sound = slice(96, 96 + 30)
    torch.testing.assert_close(drawn[sound], expected[sound])


@pytest.mark.parametrize("grid", [native_grid(3, 5), fixed_grid([1.0, 0.9375, 0.625])])
def test_padded_numbers_stay_zero_even_if_the_network_answers_nan(grid: Grid) -> None:
    s = scene(action_width=1)
    last_column = torch.arange(sum(s.sizes)) >= sum(s.sizes) - 1
    fake = Fake(lambda x, *_: torch.sin(x).masked_fill(last_column, float("nan")) + 1)
    action = sample(fake, s, grid=grid, seed=0).split(s.sizes)[2].view(4, 4)
    assert (action[:, 1:] == 0).all()
    assert (action[:, 0] != 0).all()


@pytest.mark.parametrize("grid", [native_grid(4, 5), fixed_grid([1.0, 0.9375, 0.8333333, 0.625])])
def test_samples_in_one_pack_equal_each_alone(grid: Grid) -> None:
    network = tiny_network()
    positives = [scene(), scene(clean=1, ids=(4, 5, 6, 7, 8)), scene(clean=2, ids=(9,))]
    negatives = [scene(ids=(0,)), scene(clean=1, ids=(0, 1)), scene(clean=2, ids=(0,))]
    together = sample_many(
        network, positives, branches=[Branch(tuple(negatives), 3.0)], grid=grid, seeds=[1, 2, 3]
    )
    for p, n, seed, drawn in zip(positives, negatives, [1, 2, 3], together, strict=True):
        alone = sample(network, p, negative=n, grid=grid, guidance=3.0, seed=seed)
        torch.testing.assert_close(drawn, alone, atol=2e-5, rtol=0)


def test_candidates_share_one_reading_and_equal_each_alone() -> None:
    network, positive, packs = tiny_network(), scene(), []
    read = network.read
    network.read = lambda pack: packs.append(pack) or read(pack)  # pyright: ignore[reportAttributeAccessIssue]
    negative = scene(ids=(0, 2))
    branch = Branch((negative,) * 3, 2.0, interval=(900, 1000))
    drawn = sample_many(network, [positive] * 3, branches=[branch], grid=native_grid(3, 5), seeds=[1, 2, 3])
    assert [len(p.samples) for p in packs] == [2]
    for seed, state in zip([1, 2, 3], drawn, strict=True):
        alone = sample(
            network,
            positive,
            negative=negative,
            grid=native_grid(3, 5),
            guidance=2.0,
            interval=(900, 1000),
            seed=seed,
        )
        torch.testing.assert_close(state, alone, atol=2e-5, rtol=0)
    assert not torch.allclose(drawn[0], drawn[1], atol=0.1)


def test_a_network_samples_alike_whether_contexts_are_read_once_or_jointly() -> None:
    network, positive, negative, grid = (
        tiny_network(),
        scene(clean=1),
        scene(clean=1, ids=(5, 6)),
        native_grid(3, 5),
    )
    state, solver = noise_state(positive, 0), UniPC(grid.sigmas)
    with torch.no_grad():
        for time in grid.times:
            pair = [
                network(Pack((s.with_state(state),)), time[None]).velocities[0] for s in (positive, negative)
            ]
            state = solver.step(guide(pair[0], pair[1], 3.0), state)
    drawn = sample(network, positive, negative=negative, grid=grid, guidance=3.0, seed=0)
    torch.testing.assert_close(drawn, state, atol=2e-5, rtol=0)
    assert not drawn.requires_grad


def test_the_callers_own_noise_starts_the_run_and_feeds_the_sde() -> None:
    asked: list[int] = []

    def own(s: Sample, step: int) -> Tensor:
        asked.append(step)
        return torch.full((sum(s.sizes),), 0.5)

    still = Fake(lambda x, *_: torch.zeros_like(x))
    drawn = sample(still, scene(action_width=4), grid=native_grid(3, 5), seed=own)
    assert asked == [0]
    torch.testing.assert_close(drawn, torch.full_like(drawn, 0.5))
    sample(still, scene(), grid=fixed_grid([1.0, 0.9, 0.5]), seed=own)
    assert asked == [0, 0, 1, 2, 3]


def test_progress_counts_every_step_and_sees_the_data_it_points_at() -> None:
    seen: list[tuple[int, int]] = []
    states: list[Tensor] = []

    def on_step(step: int, of: int, state: Tensor) -> None:
        seen.append((step, of))
        states.append(state)

    drawn = sample(Fake(), scene(), grid=native_grid(3, 5), seed=0, on_step=on_step)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    torch.testing.assert_close(states[-1], drawn)


def test_returning_false_cancels_and_the_network_rests() -> None:
    fake = Fake()
    with pytest.raises(Cancelled, match="step 2 of 5"):
        sample(fake, scene(), grid=native_grid(5, 5), seed=0, on_step=lambda step, *_: step < 2)
    assert len(fake.draws) == 2


def test_what_on_step_raises_comes_through() -> None:
    def stop(step: int, of: int, state: Tensor) -> None:
        raise Cancelled("gone")

    with pytest.raises(Cancelled, match="gone"):
        sample(Fake(), scene(), grid=native_grid(5, 5), seed=0, on_step=stop)


@pytest.mark.parametrize(("bad", "kind"), [(0, "vision"), (100, "sound"), (-3, "action")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_names_step_and_modality(bad: int, kind: str, value: float) -> None:
    def velocity(x: Tensor, time: float, length: int) -> Tensor:
        x = x.clone()
        if time < 900:
            x[bad] = value
        return x

    with pytest.raises(FloatingPointError, match=f"step 3 of 6: the velocity of {kind}"):
        sample(Fake(velocity), scene(), grid=native_grid(6, 3), seed=0)  # 999 937 856


def test_a_state_that_overflows_is_caught() -> None:
    def low(s: Sample, step: int) -> Tensor:
        return torch.full((sum(s.sizes),), -3e38)

    high = Fake(lambda x, *_: torch.full_like(x, 3e38))
    with pytest.raises(FloatingPointError, match="step 1 of 2: the state of vision"):
        sample(high, scene(), grid=fixed_grid([1.0, 0.5]), seed=low)


def test_a_run_does_not_touch_its_inputs() -> None:
    positive = scene()
    before = positive.state().clone()
    first = sample(Fake(), positive, grid=native_grid(4, 5), seed=0)
    assert torch.equal(positive.state(), before)
    assert torch.equal(sample(Fake(), positive, grid=native_grid(4, 5), seed=0), first)
