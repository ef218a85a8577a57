import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from armillary.errors import BadRequest, Cancelled
from armillary.flow import (
    Branch,
    Grid,
    SigmaKind,
    UniPC,
    draw_sigma,
    fixed_grid,
    guide,
    interpolate,
    karras_grid,
    native_grid,
    noise,
    noise_like_diffusers,
    noise_state,
    sample,
    sample_many,
    sde_step,
    shift_sigma,
    stock_grid,
    velocity_target,
)
from armillary.model import Config, Network
from armillary.sequence import Kind, Pack, Sample, Segment, grid_positions, text_context


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


# -- grids: the numbers printed by the reference implementations -----------------------------------

PRINTED = {
    "native 35, shift 10, head": (
        native_grid(35, 10),
        "999 996 993 990 987 983 979 975 971 966 961 956 ... 227",
    ),
    "native 35, shift 10, tail": (
        native_grid(35, 10),
        "999 ... 950 944 937 930 922 913 904 893 882 869 855 838 820 799 775 747 714 673 624 563 483 377 227",
    ),
    "native 50, shift 3": (native_grid(50, 3), "999 992 985 978 971 963 ... 206 160 111 57"),
    "native 35, shift 3": (native_grid(35, 3), "999 989 979 969 958 947 ... 278 219 153 81"),
    "native 35, shift 5": (native_grid(35, 5), "999 993 987 981 974 967 ... 391 318 232 128"),
    "native 30, shift 10": (native_grid(30, 10), "999 996 992 988 984 980 ... 605 526 416 256"),
    "native 30, shift 5": (native_grid(30, 5), "999 992 985 978 969 961 ... 434 356 262 146"),
    "native 4, shift 5": (native_grid(4, 5), "999 937 833 624"),
    "native 6, shift 3": (native_grid(6, 3), "999 937 856 749 599 374"),
    "stock 35, shift 10": (stock_grid(35, 10), "999 997 993 990 987 983 ... 565 486 381 233"),
    "stock 50, shift 3": (stock_grid(50, 3), "999 993 986 979 ... 208 162 113 60"),
    "stock 6, shift 10": (stock_grid(6, 10), "999 980 952 909 833 667"),
    "karras 35": (karras_grid(35), "995 994 993 992 991 990 ... 292 229 174 128"),
    "karras 6": (karras_grid(6), "995 987 961 868 559 128"),
    "karras 36, 0.01 to 200": (karras_grid(36, 0.01), "995 994 993 992 990 988 ... 77 49 30 17 9"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_times_are_the_printed_whole_numbers(name: str) -> None:
    grid, printed = PRINTED[name]
    head, _, tail = printed.partition(" ... ")
    first, last = [int(t) for t in head.split()], [int(t) for t in tail.split()]
    times = grid.times.tolist()
    assert times[: len(first)] == first
    assert times[len(times) - len(last) :] == last


def test_sigmas_are_the_printed_ones() -> None:
    printed = (
        "0.9999 0.99696 0.99387 0.9906 0.98715 0.98349 0.97961 0.97549 0.9711 0.96642 0.96141 0.95604 "
        "0.95028 0.94406 0.93735 0.93008 0.92217 0.91354 0.90409 0.89368 0.88217 0.86938 0.85507 0.83896 "
        "0.82068 0.79978 0.77563 0.74742 0.71403 0.67389 0.62473 0.5631 0.4836 0.37711 0.22709 0 "
    )
    assert [round(s, 5) for s in native_grid(35, 10).sigmas.tolist()] == [float(s) for s in printed.split()]
    four = torch.tensor([0.9998, 0.937265, 0.833055, 0.624687, 0])
    torch.testing.assert_close(native_grid(4, 5).sigmas, four, atol=6e-7, rtol=0)
    assert native_grid(50, 3).sigmas[-2].item() == pytest.approx(0.057637, abs=6e-7)
    stock = stock_grid(35, 10).sigmas
    expected = torch.tensor([0.999999, 0.99707, 0.993982, 0.486771, 0.381447, 0.233377, 0])
    torch.testing.assert_close(stock[[0, 1, 2, -4, -3, -2, -1]], expected, atol=6e-7, rtol=0)
    assert stock.dtype == torch.float32


def test_a_students_times_are_not_rounded() -> None:
    grid = fixed_grid([1.0, 0.9375, 0.8333333333333334, 0.625])
    torch.testing.assert_close(grid.times, torch.tensor([1000.0, 937.5, 833.33333, 625.0]))
    assert grid.sigmas.tolist()[-1] == 0
    assert grid.solver == "sde"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: native_grid(0, 5), "steps"),
        (lambda: native_grid(4, 0), "shift"),
        (lambda: stock_grid(4, float("nan")), "shift"),
        (lambda: native_grid(4, 1e9), "sigmas"),
        (lambda: karras_grid(4, sigma_min=0), "sigma_min"),
        (lambda: fixed_grid([]), "sigmas"),
        (lambda: fixed_grid([0.5, 0.7]), "sigmas"),
        (lambda: fixed_grid([1.0, 0.5], solver="unipc"), "sigmas"),
        (lambda: Grid(torch.tensor([0.9, 0.5]), torch.tensor([900.0])), "sigmas"),
    ],
)
def test_a_grid_that_cannot_be_walked_is_refused(make, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        make()
    assert caught.value.field == field


# -- noise and the straight line -------------------------------------------------------------------


def test_noise_is_standard_normal_and_depends_on_seed_kind_and_step() -> None:
    drawn = noise(3, "vision", (200, 100))
    assert drawn.dtype == torch.float32
    assert abs(drawn.mean().item()) < 0.03
    assert abs(drawn.std().item() - 1) < 0.03
    others = [
        noise(4, "vision", (200, 100)),
        noise(3, "sound", (200, 100)),
        noise(3, "vision", (200, 100), step=1),
    ]
    assert all(
        abs(torch.corrcoef(torch.stack([drawn.flatten(), x.flatten()]))[0, 1].item()) < 0.03 for x in others
    )


def test_noise_is_the_same_today_and_tomorrow() -> None:
    expected = torch.tensor([1.2262487, -1.3873811, 0.9161808, -0.1277065])
    torch.testing.assert_close(noise(0, "vision", (4,)), expected, atol=1e-6, rtol=0)


def test_noise_ignores_the_global_generator_and_leaves_it_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = noise(5, "action", (3, 3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(noise(5, "action", (3, 3)), first)


def test_noise_of_a_modality_ignores_its_neighbours_and_their_order() -> None:
    whole = scene()
    vision, sound, action = whole.segments
    parts = noise_state(whole, 11).split(whole.sizes)
    alone = Sample(whole.context, (sound,))
    assert torch.equal(noise_state(alone, 11), parts[1])
    turned = Sample(whole.context, (action, vision, sound))
    assert torch.equal(noise_state(turned, 11).split(turned.sizes)[1], parts[0])


def test_a_clean_frame_does_not_change_the_noise_of_the_others() -> None:
    free, pinned = scene(), scene(clean=1)
    vision = noise_state(free, 2).split(free.sizes)[0]
    assert torch.equal(noise_state(pinned, 2).split(pinned.sizes)[0], vision[4 * 8 :])


def test_two_noisy_segments_of_one_kind_are_refused() -> None:
    s = scene()
    with pytest.raises(ValueError, match="same noise"):
        noise_state(replace(s, segments=(s.segments[0], s.segments[0])), 0)


def test_padded_numbers_get_no_noise() -> None:
    s = scene(action_width=3)
    action = noise_state(s, 0).split(s.sizes)[2].view(4, 4)
    assert (action[:, 3] == 0).all()
    assert (action[:, :3] != 0).all()


def test_noise_like_diffusers_draws_vision_sound_action_from_one_generator() -> None:
    shapes: dict[Kind, tuple[int, ...]] = {"action": (8, 7), "sound": (6, 9), "vision": (1, 4, 3, 4, 6)}
    drawn = noise_like_diffusers(42, shapes)
    generator = torch.Generator().manual_seed(42)
    assert list(drawn) == ["vision", "sound", "action"]
    assert all(torch.equal(x, torch.randn(shapes[kind], generator=generator)) for kind, x in drawn.items())
    assert torch.equal(noise_like_diffusers(42, {"vision": shapes["vision"]})["vision"], drawn["vision"])


def test_data_and_noise_come_back_from_a_point_and_its_velocity() -> None:
    x0, eps, sigma = noise(0, "vision", (50,)), noise(1, "vision", (50,)), 0.3
    x, v = interpolate(x0, eps, sigma), velocity_target(x0, eps)
    torch.testing.assert_close(x - sigma * v, x0)
    torch.testing.assert_close(x + (1 - sigma) * v, eps)


# -- training sigmas -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uniform", "logitnormal", "waver"])
def test_drawn_sigmas_lie_in_the_unit_interval_and_move_with_shift(kind: SigmaKind) -> None:
    plain = draw_sigma(torch.Generator().manual_seed(0), 20000, kind=kind)
    shifted = draw_sigma(torch.Generator().manual_seed(0), 20000, kind=kind, shift=5)
    assert plain.dtype == torch.float32
    assert ((plain >= 0) & (plain <= 1)).all()
    assert plain.median().item() == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(shifted.logit(), plain.logit() + math.log(5), atol=2e-3, rtol=1e-3)


def test_waver_and_logitnormal_follow_their_formulas() -> None:
    u = torch.rand(1000, generator=torch.Generator().manual_seed(3))
    drawn = draw_sigma(torch.Generator().manual_seed(3), 1000, kind="waver")
    torch.testing.assert_close(drawn, (1 - u - 1.29 * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)).clamp(0, 1))
    z = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    drawn = draw_sigma(torch.Generator().manual_seed(3), 1000, kind="logitnormal", shift=3)
    torch.testing.assert_close(drawn, shift_sigma(z.sigmoid(), 3))


def test_an_unknown_distribution_is_named_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match="logitnormal"):
        draw_sigma(torch.Generator(), 1, kind="lognormal")  # pyright: ignore[reportArgumentType]


# -- solvers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [native_grid(35, 10), stock_grid(35, 10), karras_grid(35), native_grid(1, 5)]
)
def test_zero_velocity_leaves_the_state(grid: Grid) -> None:
    x = noise(0, "vision", (100,))
    solver, state = UniPC(grid.sigmas), x
    for _ in range(len(grid)):
        state = solver.step(torch.zeros_like(x), state)
    torch.testing.assert_close(state, x, atol=1e-6, rtol=0)


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_a_straight_path_ends_at_the_data(steps: int) -> None:
    x0, eps = noise(0, "vision", (100,)), noise(1, "vision", (100,))
    grid = native_grid(steps, 3)
    solver, state = UniPC(grid.sigmas), interpolate(x0, eps, float(grid.sigmas[0]))
    for _ in range(steps):
        state = solver.step(velocity_target(x0, eps), state)
    torch.testing.assert_close(state, x0, atol=1e-5, rtol=0)


def test_unipc_converges_with_its_order() -> None:
    def end(steps: int) -> Tensor:
        grid = fixed_grid(
            torch.linspace(0.9, 0, steps + 1, dtype=torch.float64)[:-1].tolist(), solver="unipc"
        )
        solver, state = UniPC(grid.sigmas), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
        for sigma in grid.sigmas[:-1]:
            state = solver.step(torch.sin(state) - 0.3 * float(sigma), state)
        return state

    exact = end(2000)
    errors = [(end(n) - exact).abs().max().item() for n in (20, 40)]
    assert errors[0] / errors[1] > 3


def test_one_unipc_over_the_flat_vector_is_one_for_each_modality() -> None:
    sizes, grid = [96, 30, 17, 3], native_grid(12, 10)
    flat = noise(0, "vision", (sum(sizes),))
    joint, each = UniPC(grid.sigmas), [UniPC(grid.sigmas) for _ in sizes]
    parts = list(flat.split(sizes))
    for sigma in grid.sigmas.tolist()[:-1]:
        flat = joint.step(torch.sin(flat) - sigma, flat)
        parts = [s.step(torch.sin(x) - sigma, x) for s, x in zip(each, parts, strict=True)]
        assert torch.equal(torch.cat(parts), flat)


def test_the_last_sde_step_is_the_data_prediction() -> None:
    x, v = noise(0, "vision", (20,)), noise(1, "vision", (20,))
    assert torch.equal(
        sde_step(v, x, sigma=0.625, sigma_next=0.0, noise_X=noise(2, "vision", (20,))), x - 0.625 * v
    )


def test_guidance_is_fp32_and_ends_at_its_branches() -> None:
    cond, uncond = noise(0, "vision", (9,)).bfloat16(), noise(1, "vision", (9,)).bfloat16()
    assert guide(cond, uncond, 6.0).dtype == torch.float32
    assert torch.equal(guide(cond, uncond, 0.0), uncond.float())
    expected = uncond.float() + 6 * (cond.float() - uncond.float())
    assert torch.equal(guide(cond, uncond, 6.0), expected)


# -- the loop --------------------------------------------------------------------------------------


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


def test_guidance_without_a_negative_is_refused() -> None:
    with pytest.raises(BadRequest, match="negative"):
        sample(Fake(), scene(), grid=native_grid(3, 5), guidance=6.0, seed=0)


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


def test_progress_counts_every_step_and_sees_the_state() -> None:
    seen: list[tuple[int, int]] = []
    states: list[Tensor] = []

    def on_step(step: int, of: int, state: Tensor) -> None:
        seen.append((step, of))
        states.append(state)

    drawn = sample(Fake(), scene(), grid=native_grid(3, 5), seed=0, on_step=on_step)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert torch.equal(states[-1], drawn)


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
