"""The generator's training: one flow-matching loss over whatever a batch holds.

A mode is nothing but which tokens are noisy. At first the reasoner is frozen (spec/training 1.2): contexts
are read without gradients, the DM tower and its ports learn. At the end all learn together, the reasoner
slowly and kept in practice by its own lessons: only so it comes to read a prompt for what the generator must
know. The prompts are the very texts that generation will send, boilerplate and all; one in ten is dropped for
the denial that guidance steers away from.

Shape letters: B samples, N tokens of a segment, M noisy tokens, F numbers in a token.
"""

import json
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from armillary.codecs.text import TextCodec
from armillary.errors import BadRequest
from armillary.flow import draw_sigma, interpolate, velocity_target
from armillary.model import Stream
from armillary.prompts import action_caption, with_metadata
from armillary.robots import robot
from armillary.sequence import Context, Sample, Segment, pack, text_context
from armillary.shards import read_json, write_json
from armillary.sim.scenes import Kind, episode
from armillary.tasks.segments import action_segment, patchify, sound_segment, vision_segment
from armillary.train.cache import SIDE, Cache, load, statistics
from armillary.train.dense import Truth, dense_loss
from armillary.train.layout import FLOW_SHIFT, LATENT, Pocket, pocket_traits
from armillary.train.loop import Draw, Metrics
from armillary.train.reasoner import ReasonerJob, draws, optimizers

DROPPED = 0.1  # prompts replaced by the denial
LESSONS = 0.25  # share of the joint steps that are the reasoner's lessons
READERS_RATE = 0.5  # of the rate, at which the reasoner learns beside the generator
AS_JSON = 0.12  # captions given as the structured caption that `upsample` makes of them
SMUDGED = 0.5  # share of given first frames that are noisy: in a chain of chunks they were drawn, not seen
SMUDGE = 0.25  # greatest standard deviation of that noise
WEIGHTS = {"vision": 1.0, "sound": 2.0, "action": 1.0}
TOLD = 0.1  # weight of what is told of every token that is drawn
HEARING = 10.0  # weight, beside what is seen, of what is told of sound: most of its tokens are silent
TOLD_AFTER = 2  # the block after which it is told: two more blocks then turn it into velocities
SIZE, FPS = 64, 8.0
TOKENS_A_FRAME = SIDE * SIDE
STATISTICS = "statistics.json"  # of a cache
BODY = robot("tabletop")


@dataclass(frozen=True)
class Rows:
    """A cache in the numbers that the network sees: everything a sample needs but its noise."""

    cache: Cache
    vision_BNF: Tensor
    sound_BSN: Tensor
    action_BKD: Tensor

    @classmethod
    def of(cls, cache: Cache, mean: Sequence[float], std: Sequence[float]) -> "Rows":
        m, s = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (mean, std))
        normal_BZThw = (cache.latents_BZThw.float() - m) / s
        vision_BNF = torch.stack([patchify(x, 2) for x in normal_BZThw])
        actions = [torch.from_numpy(BODY.to_model(x.numpy())) for x in cache.actions_BKD]
        return cls(
            cache,
            vision_BNF,
            cache.sounds_BSN.float(),
            torch.stack(actions) if actions else cache.actions_BKD,
        )

    def where(self, *kinds: str) -> list[int]:
        return [i for i, k in enumerate(self.cache.kinds) if k in kinds]


@dataclass(frozen=True)
class Mode:
    """Which latent frames and actions are given, and what is drawn beside the picture."""

    name: str
    clean: tuple[int, ...] = ()  # latent frames
    action: bool | None = None  # None: no actions; True: given; False: drawn
    sound: bool | None = None


IMAGE = Mode("image")
VIDEOS = tuple(
    Mode(name, clean, sound=sound)
    for sound in (None, False)
    for name, clean in (("video", ()), ("image to video", (0,)), ("continuation", (0, 1)))
)
SOUNDING = Mode("clip to sound", (0, 1, 2), sound=False)  # never asked for, but shows best what sounds when
FORWARD = Mode("forward", (0,), action=True)
INVERSE = Mode("inverse", (0, 1, 2), action=False)
POLICY = Mode("policy", (0,), action=False)


class GeneratorJob:
    """Batches of one shape: stills, clips with or without sound, or clips with actions."""

    joint = False  # does the reasoner learn too?

    def __init__(self, model: Pocket, codec: TextCodec, folder: Path, *, size: int = 32) -> None:
        self.model, self.codec, self.size = model, codec, size
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(draws(name))
        mean, std = latent_statistics(folder)
        self.clips = Rows.of(load(folder, ("push", "wander", "roam", "slide")), mean, std)
        self.stills = Rows.of(load(folder, ("still",)), mean, std)
        self.groups = {k: self.clips.where(*k.split()) for k in ("push", "push wander", "slide")}
        self.prompts: dict[str, Context] = {}

    def optimizers(self, rate: float) -> list[Optimizer]:
        return optimizers(self.model, rate)

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        rng, pick = draw.python, draw.python.random()
        if pick < 0.06:
            stills = rng.choices(range(len(self.stills.cache)), k=2 * self.size)
            return self.flow(draw, self.stills, [(IMAGE, i) for i in stills])
        if pick < 0.66:
            silent = rng.random() < 0.25
            odds = (0.8, 0.15, 0.05) if silent else (0.2, 0.4, 0.05, 0.35)
            modes = rng.choices(VIDEOS[:3] if silent else (*VIDEOS[3:], SOUNDING), odds, k=self.size)
            groups = rng.choices(("slide", "push"), (0.7, 0.3), k=self.size)
            chosen = [(m, rng.choice(self.groups[g])) for m, g in zip(modes, groups, strict=True)]
            return self.flow(draw, self.clips, chosen)
        mixed = [(FORWARD, "push wander")] * 5 + [(INVERSE, "push wander"), (POLICY, "push")]
        chosen = [(m, rng.choice(self.groups[g])) for m, g in rng.choices(mixed, k=self.size * 4 // 3)]
        return self.flow(draw, self.clips, chosen)

    def flow(self, draw: Draw, rows: Rows, chosen: Sequence[tuple[Mode, int]]) -> tuple[Tensor, Metrics]:
        """The velocity loss of the chosen episodes, each in its mode, and that of what is told of them."""
        samples = [self.sample(rows, mode, i, draw) for mode, i in chosen]
        order = sorted(
            range(len(samples)), key=lambda i: len(samples[i].context)
        )  # equal lengths share a call
        samples, chosen = [samples[i] for i in order], [chosen[i] for i in order]
        sigma_B = draw_sigma(draw.torch, len(samples), kind="uniform", shift=FLOW_SHIFT)
        noisy, targets = zip(
            *(add_noise(s, float(g), draw.torch) for s, g in zip(samples, sigma_B, strict=True)), strict=True
        )
        with torch.set_grad_enabled(self.joint):
            memory = self.model.network.read(pack(noisy)).memory
        with overheard(self.model.network.blocks[TOLD_AFTER]) as thought:
            found = self.model.network.draw(pack(noisy), sigma_B * 1000, memory)
        total, metrics = found[0].new_zeros(()), dict[str, list[float]]()
        for sample, (mode, _), v, target in zip(samples, chosen, found, targets, strict=True):
            for segment, error in zip(
                sample.segments, (v - target).square().split(sample.sizes), strict=True
            ):
                if segment.noisy_size:
                    valid = 1.0 if segment.valid_NF is None else float(segment.valid_NF.float().mean())
                    mean = error.mean() / valid
                    total = total + WEIGHTS[segment.kind] * mean
                    metrics.setdefault(f"{mode.name}/{segment.kind}", []).append(float(mean.detach()))
        told = self.told(rows, [i for _, i in chosen], samples, thought[0])
        averages = {k: sum(v) / len(v) for k, v in metrics.items()}
        return total / len(samples) + TOLD * told, averages | {"told": float(told.detach())}

    def told(self, rows: Rows, indices: Sequence[int], samples: Sequence[Sample], x_DE: Tensor) -> Tensor:
        """How far what the heads tell of the DM tower's tokens is from the truth."""
        segments = [(i, s) for i, sample in zip(indices, samples, strict=True) for s in sample.segments]
        parts: dict[str, list[Tensor]] = {"vision": [], "sound": [], "action": []}
        for (_, segment), x_NE in zip(segments, x_DE.split([len(s) for _, s in segments]), strict=True):
            parts[segment.kind].append(x_NE)
        see, hear = self.model.tell_drawn
        right = Truth.join([Truth.of_table(rows.cache.truths_BVX[i]) for i in indices])
        loss = dense_loss(see(torch.cat(parts["vision"])), right, watched=rows.cache.actions_BKD.numel() > 0)
        if parts["sound"]:
            heard = torch.cat([rows.cache.heard_BNX[i] for i, s in segments if s.kind == "sound"])
            told = hear(torch.cat(parts["sound"]))
            loss = loss + HEARING * F.binary_cross_entropy_with_logits(told, heard.float())
        return loss

    def sample(self, rows: Rows, mode: Mode, i: int, draw: Draw) -> Sample:
        traits, cache, tokens_NF = pocket_traits(), rows.cache, rows.vision_BNF[i]
        if mode is FORWARD and draw.python.random() < SMUDGED:
            tokens_NF = smudge(tokens_NF, SMUDGE * draw.python.random(), draw.torch)
        segments = [replace(_vision(mode, len(tokens_NF)), tokens_NF=tokens_NF)]
        if mode.sound is not None:
            segments.append(sound_segment(rows.sound_BSN[i], clean=mode.sound, traits=traits))
        if mode.action is not None:
            action_KD = rows.action_BKD[i]
            clean = range(len(action_KD)) if mode.action else ()
            segments.append(
                action_segment(action_KD, clean=clean, fps=FPS, domain=BODY.domain, traits=traits)
            )
        return Sample(self.context(prompt_of(mode, cache, i, draw.python)), tuple(segments))

    def context(self, text: str) -> Context:
        if text not in self.prompts:
            self.prompts[text] = prompt_context(self.codec, text)
        return self.prompts[text]


class JointJob(GeneratorJob):
    """The generator's batches with gradients into the reasoner, and between them the reasoner's lessons."""

    joint = True

    def __init__(self, model: Pocket, codec: TextCodec, folder: Path, *, size: int = 32) -> None:
        super().__init__(model, codec, folder, size=size)
        self.reasoner = ReasonerJob(model, codec)
        model.requires_grad_(True)

    def optimizers(self, rate: float) -> list[Optimizer]:
        return optimizers(self.model, rate, reasoner=READERS_RATE)

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        if draw.python.random() < LESSONS:
            return self.reasoner.loss(draw, 1.0)
        return super().loss(draw, done)


def prompt_context(codec: TextCodec, text: str) -> Context:
    """The generator's context of a finished prompt text: chat template, end of turn, start of vision."""
    ids = codec.render([{"role": "user", "content": text}])
    return text_context(torch.tensor([*ids, codec.eos, codec.special("<|vision_start|>")]))


def _vision(mode: Mode, tokens: int) -> Segment:
    frames = tokens // TOKENS_A_FRAME
    return vision_segment(torch.zeros(8, frames, 8, 8), mode.clean, FPS, pocket_traits())


def prompt_of(mode: Mode, cache: Cache, i: int, rng: Random) -> str:
    """The text that generation would send for this episode in this mode, or now and then the denial."""
    dropped = rng.random() < DROPPED
    if mode.action is None:
        frames = 1 if mode is IMAGE else 9
        text = "" if dropped else cache.captions[i]
        if text and rng.random() < AS_JSON:
            text = structured_caption(cache.kinds[i], cache.seeds[i])
        return with_metadata(text, frames=frames, fps=FPS, height=SIZE, width=SIZE, negative=dropped)
    if dropped and mode is POLICY:
        return ""
    told = cache.instructions[i] or ""
    task = told if mode is POLICY or rng.random() < 0.2 else ""
    return action_caption(task, view=BODY.view, frames=9, fps=FPS, height=SIZE, width=SIZE)


@lru_cache(maxsize=1 << 16)
def structured_caption(kind: Kind, seed: int) -> str:
    """What `upsample` should make of an episode's caption; remembered, for a push takes long to find."""
    return json.dumps(episode(kind, seed).structured)


def add_noise(sample: Sample, sigma: float, generator: torch.Generator) -> tuple[Sample, Tensor]:
    """The sample at noise level sigma, and the velocity the network should find, flat as `Sample.state`."""
    x0 = sample.state()
    eps = torch.randn(x0.shape, generator=generator)
    keep = torch.cat(
        [s.mask(torch.ones(s.rows_M.shape[0], s.tokens_NF.shape[1])).flatten() for s in sample.segments]
    )
    eps = eps * keep
    return sample.with_state(interpolate(x0, eps, sigma)), velocity_target(x0, eps)


def smudge(tokens_NF: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """The tokens of a clip whose first latent frame has noise of this standard deviation."""
    first = TOKENS_A_FRAME
    eps = torch.randn(first, tokens_NF.shape[1], generator=generator)
    return torch.cat([tokens_NF[:first] + sigma * eps, tokens_NF[first:]])


@contextmanager
def overheard(block: nn.Module) -> Generator[list[Tensor]]:
    """A list that gets the DM tower's tokens [D, E] after each run of a block."""
    thought = list[Tensor]()

    def listen(_block: nn.Module, _given: object, out: tuple[Stream | None, Stream | None, object]) -> None:
        if out[1] is not None:
            thought.append(out[1].x_NE)

    hook = block.register_forward_hook(listen)
    try:
        yield thought
    finally:
        hook.remove()


def latent_statistics(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the latents of every clip in the cache, computed once.

    Raises BadRequest if the file that keeps them is damaged.
    """
    path = folder / STATISTICS
    if not path.exists():
        keep_statistics(folder, *statistics(load(folder, ("push", "wander", "slide"))))
    kept = read_json(path)
    try:
        mean, std = (tuple(float(x) for x in kept[name]) for name in ("mean", "std"))
    except (KeyError, OverflowError, TypeError, ValueError):
        mean, std = (), ()
    if len(mean) != LATENT or len(std) != LATENT or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        message = f"must hold a mean and a std above zero for each of {LATENT} channels"
        raise BadRequest("cache", str(path), f"{message}; remove it, and the stage 'cache' makes it anew")
    return mean, std


def keep_statistics(folder: Path, mean: Sequence[float], std: Sequence[float]) -> None:
    """Say by which numbers the latents of a cache are normalised."""
    write_json({"mean": mean, "std": std}, folder / STATISTICS)
