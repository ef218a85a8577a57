"""What the design buys: on pocket, the way that is used against another way to the same numbers, as ratios.

    make bench

The two ways of a line take turns, so that a busy machine slows both; that they agree is checked first. Times
are medians of a turn, with the middle half of the turns.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from statistics import median, quantiles
from timeit import default_timer, timeit

import torch
from oracle import diffusers_velocity
from torch import Tensor

import armillary
from armillary.decode import Sampling, Token
from armillary.flow import native_grid, noise, noise_state
from armillary.model import Memory, Network
from armillary.prompts import with_metadata
from armillary.sequence import Context, Sample, pack
from armillary.sim import episode
from armillary.slots import Decoder
from armillary.tasks.denoise import read_prompts
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts
from armillary.tasks.segments import Latents

PROMPT = with_metadata("a red disc slides right and hits the wall", frames=9, fps=8.0, height=64, width=64)
LATENTS = Latents(noise(0, "vision", (8, 3, 8, 8)), 8.0)  # 9 frames of 64x64 pixels
TIMES = native_grid(8, 3.0).times  # of the denoising steps
TOKENS, SAMPLES = 24, 8  # of an answer; in a pack
SECONDS, TURNS = 7.0, 5  # a line takes about so long, and at least so many turns

Way = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Line:
    """Two ways to the same numbers."""

    used: str
    other: str
    run_used: Way
    run_other: Way

    def take_turns(self) -> list[tuple[float, float]]:
        """Seconds of both, turn by turn."""
        for x, y in zip(self.run_used(), self.run_other(), strict=True):
            torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
        end, turns = default_timer() + SECONDS, []
        while default_timer() < end or len(turns) < TURNS:
            turns.append((timeit(self.run_used, number=1), timeit(self.run_other, number=1)))
        return turns


def main() -> None:
    parts = armillary.load("pocket", device="cpu", dtype="float32").parts
    context = read_prompts(parts, PROMPT, "", guidance=1.0).positive
    sample = Sample(context, LATENTS.segments(parts.checkpoint.traits))
    cores, threads = os.cpu_count(), torch.get_num_threads()
    print(f"pocket in fp32 on {cores} cores, torch {torch.__version__} with {threads} threads\n")
    print(f"{'':26}{'ms':>20}   {'instead of':26}{'ms':>20}{'times as long':>20}")
    with torch.no_grad():
        for line in (*drawing(parts.network, sample), *answering(parts), *beside_diffusers(parts, sample)):
            turns = line.take_turns()
            used, other = (spread([turn[i] * 1000 for turn in turns]) for i in (0, 1))
            ratio = spread([b / a for a, b in turns])
            print(f"{line.used:26}{used:>20}   {line.other:26}{other:>20}{ratio:>20}", flush=True)


def spread(values: list[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.2f} ({low:.2f}-{high:.2f})"


def room(memory: Memory, lengths_D: tuple[int, ...]) -> Memory:
    return [past.reserve(lengths_D) for past in memory]


def drawing(network: Network, sample: Sample) -> list[Line]:
    """Denoising: what is read once, what is drawn together, where the keys lie."""
    one = pack([sample])
    singles = [pack([sample.with_state(noise_state(sample, seed))]) for seed in range(SAMPLES)]
    many = pack([single.samples[0] for single in singles])
    memory = network.read(one).memory
    loose = [past.pick([0] * SAMPLES) for past in memory]
    laid, laid_for_many = room(memory, one.lengths_D), room(loose, many.lengths_D)
    draw_many = partial(network.draw, many, TIMES[:1].expand(SAMPLES))

    def read_once() -> list[Tensor]:
        known = room(network.read(one).memory, one.lengths_D)
        return [network.draw(one, t[None], known)[0] for t in TIMES]

    def read_again() -> list[Tensor]:
        return [network(one, t[None]).velocities[0] for t in TIMES]

    def one_by_one() -> list[Tensor]:
        return [network.draw(single, TIMES[:1], laid)[0] for single in singles]

    together, joined = partial(draw_many, laid_for_many), partial(draw_many, loose)
    return [
        Line(f"read once, {len(TIMES)} steps", "read again at each step", read_once, read_again),
        Line(f"{SAMPLES} samples in one pack", "one by one", together, one_by_one),
        Line("keys laid once, that pack", "joined at each step", together, joined),
    ]


def answering(parts: Parts) -> list[Line]:
    """Token by token about a picture; then several such answers."""
    picture = {"type": "image", "image": episode("still", 0, split="test").picture()}
    content = [picture, {"type": "text", "text": "Describe this."}]
    context = converse(parts, [{"role": "user", "content": content}]).context
    many = [
        replace(context, ids_A=context.ids_A.index_fill(0, torch.tensor([len(context) - 2]), i))
        for i in range(SAMPLES)
    ]
    write, network = Sampling(max_tokens=TOKENS), parts.network

    def keep() -> list[Tensor]:
        return told(network, [context], write)

    def forget() -> list[Tensor]:
        ids: list[Tensor] = []
        now = context
        for _ in range(TOKENS):
            ids += told(network, [now], Sampling(max_tokens=1))
            positions_3A = torch.cat([now.positions_3A, torch.full((3, 1), float(now.end))], dim=1)
            now = replace(
                now, ids_A=torch.cat([now.ids_A, ids[-1]]), positions_3A=positions_3A, end=now.end + 1
            )
        return [torch.cat(ids)]

    return [
        Line(f"{TOKENS} tokens with a cache", "without", keep, forget),
        Line(
            f"{SAMPLES} answers at once",
            "one by one",
            lambda: told(network, many, write),
            lambda: [ids for one in many for ids in told(network, [one], write)],
        ),
    ]


def told(network: Network, contexts: Sequence[Context], sampling: Sampling) -> list[Tensor]:
    """The ids that follow each context."""
    decoder = Decoder(network, remembered=0)
    ids: dict[int, list[int]] = {decoder.add(context, sampling): [] for context in contexts}
    while decoder.busy:
        for ticket, token in decoder.step():
            assert isinstance(token, Token), token
            ids[ticket].append(token.id)
    return [torch.tensor(said) for said in ids.values()]


def beside_diffusers(parts: Parts, sample: Sample) -> list[Line]:
    """One velocity, where diffusers is installed; its transformer reads the prompt each time."""
    if find_spec("diffusers") is None:
        return []
    one, theirs = pack([sample]), diffusers_velocity(sample, LATENTS, parts.checkpoint.traits)
    ours = partial(parts.network.draw, one, memory=room(parts.network.read(one).memory, one.lengths_D))
    ways = (partial(way, TIMES[:1]) for way in (ours, theirs))
    return [Line("a velocity, prompt read", "diffusers' transformer", *ways)]


if __name__ == "__main__":
    main()
