"""What must hold of any network, context and segment: one-way attention, packs, order, seeds, devices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from armillary import flow
from armillary.flow import Branch, Grid, native_grid, noise_state, sample_many
from armillary.model import Config, Network
from armillary.sequence import Context, Pack, Sample, Segment, Visual, pack, text_context
from armillary.tasks.segments import Latents
from armillary.weights import Traits
from tests.solo import sample

TRAITS = Traits(latent_channel=2, base_fps=8, action_gen=True, action_dim=5, sound_gen=True, sound_dim=3)
NANO = Config(
    width=24,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=8,
    mlp=32,
    vocabulary=50,
    features={"vision": 8, "sound": 3, "action": 5},
    domains=6,
    rope_axes=(2, 1, 1),
    margin=10,
)
EDGE = replace(NANO, gated=False, text_norm=False, shown_norm=True, eps=1e-5)
SAME = {"atol": 2e-6, "rtol": 0.0}
SEEDS = range(4)


def build(config: Config, dtype: torch.dtype = torch.float32) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(config)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.25)
    return network.to(dtype).requires_grad_(False).eval()


@pytest.fixture(params=[NANO, EDGE], ids=["nano", "edge"])
def network(request: pytest.FixtureRequest) -> Network:
    return build(request.param)


def a_context(rng: Random, *, seen: bool = False) -> Context:
    context = text_context(torch.tensor([rng.randrange(50) for _ in range(rng.randint(2, 9))]))
    if not seen:
        return context
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    features_VE, deep_VE = (torch.randn(2, NANO.width, generator=generator) for _ in range(2))
    return replace(context, visual=Visual(torch.tensor([0, 1]), features_VE, (deep_VE,)))


def a_sample(seed: int, *, context: Context | None = None) -> Sample:
    """Vision of any size, mostly with sound or actions, some of it clean."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    frames, count = rng.randint(1, 3), 4 * rng.randint(1, 2)
    latents = Latents(
        numbers(2, frames, rng.randint(2, 5), rng.randint(2, 5)),
        rng.choice((8.0, 10.0, 24.0)),
        clean_frames=range(rng.randrange(frames)),
        sound_SL=numbers(3, rng.randint(1, 6)) if rng.random() < 0.6 else None,
        actions_KD=numbers(count, rng.randint(1, 5)) if rng.random() < 0.7 else None,
        clean_actions=range(rng.choice((0, 1, count))),
        domain=rng.randrange(6),
    )
    return Sample(context or a_context(rng, seen=seed % 2 == 1), latents.segments(TRAITS))


def unlike() -> list[Sample]:
    return [a_sample(seed) for seed in (1, 2, 3, 4)]


def times(*values: float) -> Tensor:
    return torch.tensor(values)


def velocities(network: Network, samples: list[Sample], time: float = 600.0) -> list[Tensor]:
    together = pack(samples)
    return network.draw(together, times(*[time] * len(samples)), network.read(together).memory)


# -- one-way attention ---------------------------------------------------------------------------------------


def shaken(segment: Segment) -> list[Segment]:
    """The segment with one thing changed at a time."""
    changed = [
        replace(segment, tokens_NF=segment.tokens_NF + 1),
        replace(segment, positions_3N=segment.positions_3N + 3),
        replace(segment, noisy_N=~segment.noisy_N, rows_M=None),
    ]
    return [*changed, replace(segment, domain=5)] if segment.kind == "action" else changed


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_the_dm_side_reaches_the_ar_side(network: Network, seed: int) -> None:
    one = a_sample(seed)
    hidden_AE = network(pack([one]), times(600.0)).hidden_AE
    others = [replace(one, segments=one.segments[:n]) for n in range(1, len(one.segments))]
    for i, segment in enumerate(one.segments):
        left, right = one.segments[:i], one.segments[i + 1 :]
        others += [replace(one, segments=(*left, new, *right)) for new in shaken(segment)]
    for other in others:
        assert torch.equal(network(pack([other]), times(123.0)).hidden_AE, hidden_AE)
    assert torch.equal(network.read(pack([one])).hidden_AE, hidden_AE)


def test_the_ar_side_reaches_the_dm_side(network: Network) -> None:
    one = a_sample(2)
    other = replace(one, context=text_context(one.context.ids_A.flip(0)))
    assert (velocities(network, [one])[0] - velocities(network, [other])[0]).abs().max() > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_then_drawing_is_one_joint_pass(network: Network, seed: int) -> None:
    one = pack([a_sample(seed)])
    joint = network(one, times(600.0)).velocities[0]
    torch.testing.assert_close(velocities(network, list(one.samples))[0], joint, **SAME)
    assert joint.numel() == 0 or joint.abs().max() > 1e-2


def test_reading_in_two_pieces_is_reading_at_once(network: Network) -> None:
    one = a_sample(2)
    ids_A, positions_3A, end = one.context.ids_A, one.context.positions_3A, one.context.end
    first = Context(ids_A[:2], positions_3A[:, :2], end)
    second = Context(ids_A[2:], positions_3A[:, 2:], end)
    memory = network.read(pack([Sample(first)])).memory
    pieces = network.read(pack([Sample(second)]), memory)
    whole = network.read(pack([one]))
    torch.testing.assert_close(pieces.hidden_AE, whole.hidden_AE[2:], **SAME)
    drawn = network.draw(pack([one]), times(600.0), pieces.memory)
    torch.testing.assert_close(drawn[0], velocities(network, [one])[0], **SAME)


# -- packs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", [False, True])
def test_packed_is_alone(network: Network, reserve: bool) -> None:
    samples = unlike()
    assert len({len(s.context) for s in samples}) > 1
    assert len({len(s) for s in samples}) > 1
    together, time_S = pack(samples), times(900.0, 600.0, 300.0, 7.0)
    read = network.read(together)
    memory = [past.reserve(together.lengths_D) for past in read.memory] if reserve else read.memory
    drawn = network.draw(together, time_S, memory)
    hidden = read.hidden_AE.split(together.lengths_A)
    for one, time, velocity_X, hidden_AE in zip(samples, time_S.tolist(), drawn, hidden, strict=True):
        torch.testing.assert_close(velocity_X, velocities(network, [one], time)[0], **SAME)
        torch.testing.assert_close(hidden_AE, network.read(pack([one])).hidden_AE, **SAME)


def test_reserved_room_can_be_drawn_into_again(network: Network) -> None:
    together = pack(unlike())
    memory = [past.reserve(together.lengths_D) for past in network.read(together).memory]
    first = network.draw(together, times(*[600.0] * 4), memory)
    network.draw(together, times(*[1.0] * 4), memory)
    again = network.draw(together, times(*[600.0] * 4), memory)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_order_of_samples_does_not_matter(network: Network) -> None:
    samples = unlike()
    for a, b in zip(velocities(network, samples), velocities(network, samples[::-1])[::-1], strict=True):
        torch.testing.assert_close(a, b, **SAME)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_segments_does_not_matter(network: Network, seed: int) -> None:
    one = a_sample(seed)
    turned = replace(one, segments=one.segments[::-1])
    straight = velocities(network, [one])[0].split(one.sizes)
    back = velocities(network, [turned])[0].split(turned.sizes)[::-1]
    for a, b in zip(straight, back, strict=True):
        torch.testing.assert_close(a, b, **SAME)


def test_robots_have_ports_of_their_own(network: Network) -> None:
    one = next(s for s in unlike() if s.segments[-1].kind == "action")

    def of(domain: int) -> Tensor:
        *others, action = one.segments
        return velocities(network, [replace(one, segments=(*others, replace(action, domain=domain)))])[0]

    assert (of(1) - of(2)).abs().max() > 1e-3
    assert torch.equal(of(1), of(1))


# -- sampling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_a_context_is_read_once_however_many_steps(network: Network, steps: int) -> None:
    calls: list[str] = []
    for block in network.blocks:
        block.ar.register_forward_hook(lambda *_: calls.append("ar"))
        block.dm.register_forward_hook(lambda *_: calls.append("dm"))
    one = a_sample(2)
    negative = replace(one, context=a_context(Random(9)))
    sample(network, one, negative=negative, grid=native_grid(steps, 3.0), guidance=4.0, seed=0)
    assert calls.count("ar") == len(network.blocks)
    assert calls.count("dm") == steps * len(network.blocks)


def test_a_seed_is_a_result(network: Network) -> None:
    def run(seed: int) -> Tensor:
        return sample(network, a_sample(2), grid=native_grid(3, 3.0), seed=seed)

    assert torch.equal(run(1), run(1))
    assert (run(1) - run(2)).abs().max() > 0.1


def test_samples_drawn_together_are_those_drawn_alone(network: Network) -> None:
    samples, grid = unlike(), native_grid(3, 3.0)
    negatives = tuple(replace(s, context=a_context(Random(9))) for s in samples)
    together = sample_many(
        network, samples, branches=[Branch(negatives, 3.0)], grid=grid, seeds=list(range(4))
    )
    for seed, (one, negative, state_X) in enumerate(zip(samples, negatives, together, strict=True)):
        alone = sample(network, one, negative=negative, grid=grid, guidance=3.0, seed=seed)
        torch.testing.assert_close(state_X, alone, atol=1e-4, rtol=1e-4)


# -- devices and precisions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainGrid:
    """A grid of Python numbers: tensors that have no numbers cannot be listed."""

    sigmas: list[float]
    times: list[float]
    solver: str = "unipc"

    @classmethod
    def of(cls, grid: Grid) -> "PlainGrid":
        return cls(grid.sigmas.tolist(), grid.times.tolist())

    def __len__(self) -> int:
        return len(self.times)


ELSEWHERE = "lazy:0"  # stands for an accelerator: it needs no backend to be loaded, and it is not the CPU


@contextmanager
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """Tensors without numbers on a device that need not exist; yields what moves a value there.

    Any operation that mixes them with a tensor left on the CPU raises.
    """
    monkeypatch.setattr(flow, "_require_finite", lambda *_: None)
    mode = FakeTensorMode()

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return mode.from_tensor(value).to(ELSEWHERE)
        if isinstance(value, nn.Module):
            for module in value.modules():
                for name, parameter in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(move(parameter), requires_grad=False))
            return value
        if isinstance(value, Context | Segment | Sample | Visual):
            return replace(value, **{k: move(v) for k, v in vars(value).items()})
        return tuple(map(move, value)) if isinstance(value, tuple) else value

    with mode:
        yield move


def run_everything(network: Network, samples: list[Sample], negative: Sample, grid: Any) -> list[Tensor]:
    together = Pack(tuple(samples))
    device = network.head.weight.device
    memory = network.read(together).memory
    time_S = torch.full((len(samples),), 600.0, device=device)
    drawn = network.draw(together, time_S, memory)
    joint = network(together, time_S).velocities
    state = sample(network, samples[0], negative=negative, grid=grid, guidance=3.0, seed=1)
    return [*drawn, *joint, state, network.logits(network.read(together).hidden_AE)]


def everything(config: Config, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    grid, samples, network = PlainGrid.of(native_grid(3, 3.0)), unlike(), build(config, dtype)
    negative = replace(samples[0], context=a_context(Random(9)))
    with accelerator(monkeypatch) as move:
        return run_everything(move(network), [move(s) for s in samples], move(negative), grid)


@pytest.mark.parametrize("config", [NANO, EDGE], ids=["nano", "edge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_left_on_another_device(
    config: Config, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    *flat, logits = everything(config, dtype, monkeypatch)
    assert {str(x.device) for x in (*flat, logits)} == {ELSEWHERE}
    assert {x.dtype for x in flat} == {torch.float32}
    assert logits.dtype == dtype


@pytest.mark.parametrize("place", ["positions", "mask", "noise"])
def test_a_stray_tensor_is_noticed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    if place == "positions":
        real = Pack.positions_3D
        monkeypatch.setattr(Pack, "positions_3D", lambda self, margin: real(self, margin).cpu())
    elif place == "mask":
        real_mask = Segment.mask
        monkeypatch.setattr(Segment, "mask", lambda self, x: real_mask(self, x) * torch.ones(x.shape))
    else:
        monkeypatch.setattr(flow, "noise_state", lambda *a, **k: noise_state(*a, **k).cpu())
    with pytest.raises(RuntimeError, match=r"at least two devices.*cpu"):
        everything(NANO, torch.float32, monkeypatch)


def precisions(modules: Iterator[nn.Module], run: Callable[[], object]) -> set[torch.dtype]:
    """Of what goes in and out of the linear layers, and of their weights, during a run."""
    seen: set[torch.dtype] = set()

    def look(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        seen.update({given[0].dtype, out.dtype, layer.weight.dtype})

    hooks = [m.register_forward_hook(look) for m in modules if isinstance(m, nn.Linear)]
    run()
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("config", [NANO, EDGE], ids=["nano", "edge"])
def test_half_precision_stays_in_the_towers(config: Config) -> None:
    network, one = build(config, torch.bfloat16), a_sample(1)

    def run() -> Tensor:
        return network(pack([one]), times(600.0)).velocities[0]

    assert precisions(network.blocks.modules(), run) == {torch.bfloat16}
    assert precisions(network.time.modules(), run) == {torch.float32}
    state_X = sample(network, one, grid=native_grid(2, 3.0), seed=1)
    assert run().dtype == state_X.dtype == torch.float32
    exact_X = build(config)(pack([one]), times(600.0)).velocities[0]
    assert (run() - exact_X).abs().max() < 0.1 * exact_X.abs().max()


def test_a_stray_precision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    real = Network.rope
    monkeypatch.setattr(Network, "rope", lambda self, x: tuple(part.float() for part in real(self, x)))
    with pytest.raises((RuntimeError, AssertionError)):
        test_half_precision_stays_in_the_towers(NANO)
