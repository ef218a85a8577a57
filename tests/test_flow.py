import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from armillary.errors import BadRequest
from armillary.flow import (
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
    sde_step,
    shift_sigma,
    stock_grid,
    velocity_target,
)
from armillary.sequence import Kind, Sample
from tests.scene import scene

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
def test_a_grid_that_cannot_be_walked_is_refused(make: Callable[[], Grid], field: str) -> None:
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
