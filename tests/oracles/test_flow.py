"""Grids and solver steps against diffusers' schedulers, configured as the published checkpoints are."""

import numpy as np
import pytest
import torch

from armillary.flow import Grid, UniPC, fixed_grid, karras_grid, native_grid, sde_step, stock_grid

STEPS = [1, 2, 3, 4, 9, 24, 35, 50]


def unipc(steps: int, *, sigmas: np.ndarray | None = None, **config: object):
    from diffusers import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, solver_order=2, solver_type="bh2", **config
    )
    if sigmas is None:
        scheduler.set_timesteps(steps)
    else:
        scheduler.set_timesteps(steps, sigmas=sigmas)
    scheduler.set_begin_index(0)
    return scheduler


def pairs(steps: int):
    """(our grid, the scheduler it must equal)"""
    base = np.linspace(1 - 1 / 1000, 0, steps + 1)[:-1]
    for shift in (1.0, 3.0, 10.0):
        yield native_grid(steps, shift), unipc(steps, sigmas=base, flow_shift=shift)
        yield stock_grid(steps, shift), unipc(steps, flow_shift=shift)
    karras = {"use_karras_sigmas": True, "sigma_min": 0.147, "sigma_max": 200.0}
    yield karras_grid(steps), unipc(steps, flow_shift=1.0, **karras)


def velocity(x: torch.Tensor, sigma: float) -> torch.Tensor:
    return torch.tanh(x) * 1.3 - 0.2 * sigma


def start() -> torch.Tensor:
    return torch.randn(1, 4, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("steps", STEPS)
def test_grids_are_the_schedulers(steps: int) -> None:
    for grid, scheduler in pairs(steps):
        torch.testing.assert_close(grid.sigmas, scheduler.sigmas, atol=1e-7, rtol=0)
        assert grid.times.tolist() == scheduler.timesteps.tolist()


@pytest.mark.parametrize("steps", STEPS)
def test_unipc_steps_are_the_schedulers(steps: int) -> None:
    for grid, scheduler in pairs(steps):
        x = start()
        state, ours = x.flatten(), UniPC(grid.sigmas)
        for sigma, time in zip(grid.sigmas.tolist(), scheduler.timesteps, strict=False):
            x = scheduler.step(velocity(x, sigma), time, x).prev_sample
            state = ours.step(velocity(state, sigma), state)
            torch.testing.assert_close(state, x.flatten(), atol=1e-6, rtol=0)


def test_sde_steps_are_the_four_step_schedulers() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    sigmas = [1.0, 0.9375, 0.8333333333333334, 0.625]
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0, stochastic_sampling=True)
    scheduler.set_timesteps(sigmas=sigmas)
    grid: Grid = fixed_grid(sigmas)
    assert torch.equal(grid.sigmas, scheduler.sigmas)
    assert torch.equal(grid.times, scheduler.timesteps)
    x = start()
    state, theirs, ours = x.flatten(), torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for i, time in enumerate(scheduler.timesteps):
        sigma, sigma_next = grid.sigmas[i].item(), grid.sigmas[i + 1].item()
        x = scheduler.step(velocity(x, sigma), time, x, generator=theirs).prev_sample
        fresh = torch.randn(x.shape, generator=ours).flatten()
        state = sde_step(velocity(state, sigma), state, sigma=sigma, sigma_next=sigma_next, noise_X=fresh)
        torch.testing.assert_close(state, x.flatten(), atol=1e-6, rtol=0)
