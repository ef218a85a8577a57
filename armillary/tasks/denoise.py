"""One run of the sampler for any task: contexts of the prompts, grid, start noise, and the latents drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from armillary.codecs.text import VISION_START
from armillary.errors import BadRequest, nearest
from armillary.flow import (
    Branch,
    Grid,
    Noise,
    fixed_grid,
    karras_grid,
    native_grid,
    noise_like_diffusers,
    noise_state,
    sample_many,
    stock_grid,
)
from armillary.media.source import Pixels
from armillary.sequence import Context, Kind, Sample, text_context
from armillary.step import OnStep, Step
from armillary.tasks.frames import require_video
from armillary.tasks.parts import Parts
from armillary.tasks.preview import paint
from armillary.tasks.segments import Latents
from armillary.weights import Checkpoint

GridName = Literal["native", "stock", "karras", "fixed"]
NOISES_A_RUN = 1000  # no run has more steps: chunk c starts from noise number 1000 c


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw. Every field changes the result or is refused.

    shift: None means that of the checkpoint's scheduler file. grid: None means the checkpoint's own few steps
    if it was distilled, else "native". intervals: the network times (low, high), 0 to 1000, both included, at
    which guidance counts. control_guidance: how strongly controls are followed, beyond being seen (1). noise:
    "diffusers" starts where that library's pipeline starts. chunk, chunks: which run of how many this is;
    each has its own noise, and progress is counted over all of them.
    """

    steps: int
    guidance: float = 1.0
    shift: float | None = None
    seed: int = 0
    grid: GridName | None = None
    interval: tuple[float, float] | None = None
    control_guidance: float = 1.0
    control_interval: tuple[float, float] | None = None
    noise: Literal["own", "diffusers"] = "own"
    on_step: OnStep | None = None
    chunk: int = 0
    chunks: int = 1


@dataclass(frozen=True)
class Contexts:
    """A prompt as the AR tower reads it, and what to guide away from, if anything."""

    positive: Context
    negative: Context | None


def few_steps(checkpoint: Checkpoint) -> list[float] | None:
    """The sigmas a distilled checkpoint was trained for, without the final 0; None for all others."""
    fixed = checkpoint.scheduler.get("fixed_step_sampler_config") or {}
    return fixed.get("t_list")


def choose_grid(checkpoint: Checkpoint, options: SamplingOptions) -> tuple[GridName, Grid]:
    """The grid of a run. Raises BadRequest for options that this checkpoint or this grid cannot follow."""
    scheduler, sigmas = checkpoint.scheduler, few_steps(checkpoint)
    name: GridName = options.grid or ("fixed" if sigmas else "native")
    if name not in get_args(GridName):
        raise BadRequest("grid", name, f"nearest are {', '.join(nearest(name, get_args(GridName)))}")
    if (name == "fixed") != bool(sigmas):
        legal = "fixed" if sigmas else "native, stock or karras"
        raise BadRequest("grid", name, f"this checkpoint is sampled with {legal}")
    if name in ("fixed", "karras") and options.shift is not None:
        raise BadRequest("shift", options.shift, f"the {name} grid has none; leave it out")
    if sigmas:
        if options.steps != len(sigmas):
            raise BadRequest("steps", options.steps, f"this checkpoint was distilled to {len(sigmas)} steps")
        if options.guidance != 1:
            raise BadRequest(
                "guidance", options.guidance, "a distilled checkpoint holds its guidance; only 1 is legal"
            )
        return name, fixed_grid(sigmas)
    if name == "karras":
        low, high = scheduler.get("sigma_min") or 0.147, scheduler.get("sigma_max") or 200.0
        return name, karras_grid(options.steps, low, high)
    shift = used_shift(checkpoint, options)
    return name, (native_grid if name == "native" else stock_grid)(options.steps, shift)


def used_shift(checkpoint: Checkpoint, options: SamplingOptions) -> float:
    """The shift of a native or stock grid."""
    return float(checkpoint.scheduler.get("flow_shift", 1.0)) if options.shift is None else options.shift


def read_prompts(
    parts: Parts, positive: str, negative: str, *, guidance: float, system: str | None = None
) -> Contexts:
    """Both prompts through the chat template. Without guidance (1) no negative is read.

    Raises BadRequest for one that is longer than the checkpoint's reasoner reads.
    """
    return Contexts(
        _context(parts, positive, system, "prompt"),
        None if guidance == 1 else _context(parts, negative, system, "negative"),
    )


def require_use(negative: str, guidance: float) -> None:
    """Refuse a negative prompt that nothing would read."""
    if negative and guidance == 1:
        raise BadRequest(
            "negative", negative, "is read only where guidance is not 1; raise guidance or leave it out"
        )


def _context(parts: Parts, text: str, system: str | None, field: str) -> Context:
    messages = [{"role": "system", "content": system}] if system else []
    limit = parts.checkpoint.longest
    parts.text.check_size(len(text.encode()), limit, field)
    ids = parts.text.render([*messages, {"role": "user", "content": text}])
    ids = [*ids, parts.text.eos, parts.text.special(VISION_START)]
    if limit and len(ids) > limit:
        message = f"takes {len(ids)} of this checkpoint's {limit} tokens; make it shorter"
        raise BadRequest(field, text, message)
    return text_context(torch.tensor(ids, device=parts.device))


def draw(parts: Parts, latents: Latents, contexts: Contexts, options: SamplingOptions) -> Latents:
    """`draw_many` for one sample."""
    return draw_many(parts, [latents], contexts, options)[0]


def draw_many(
    parts: Parts, latents: Sequence[Latents], contexts: Contexts, options: SamplingOptions
) -> list[Latents]:
    """Fill in everything that is not clean, float32, of several samples of one prompt in one pack.

    Sample i starts from the noise of `options.seed` + i and is what it would be alone.
    Raises BadRequest for illegal options, Cancelled when `on_step` returns False (or 0, or numpy's False),
    FloatingPointError naming step and modality for NaN.
    """
    _, grid = choose_grid(parts.checkpoint, options)
    _require_steps_inside("interval", options.interval, grid)
    _require_steps_inside("control_interval", options.control_interval, grid)
    traits = parts.checkpoint.traits
    positives = [x.sample(contexts.positive, traits) for x in latents]

    def told(step: int, of: int, clean: tuple[Tensor, ...]) -> bool:
        def look(i: int) -> Pixels:
            shown = latents[i].of(positives[i].with_state(clean[i]), traits)
            return paint(require_video(parts), shown.vision_ZThw)

        done = Step(options.chunk * of + step, options.chunks * of, look)
        said = options.on_step(done) if options.on_step else None
        return said is None or bool(said)

    states = sample_many(
        parts.network,
        positives,
        branches=_branches(latents, contexts, options, parts),
        grid=grid,
        seeds=[_noise(x, options.seed + i, options, parts) for i, x in enumerate(latents)],
        on_step=told if options.on_step else None,
    )
    return [x.of(s.with_state(v), traits) for x, s, v in zip(latents, positives, states, strict=True)]


def _require_steps_inside(field: str, interval: tuple[float, float] | None, grid: Grid) -> None:
    """Refuse an interval of guidance that no step falls into."""
    times = [round(float(t)) for t in grid.times]
    if interval is not None and not any(interval[0] <= float(t) <= interval[1] for t in grid.times):
        close = " or ".join(str(t) for t in sorted(times, key=lambda t: abs(t - interval[0]))[:2])
        message = f"no step falls into it; they are at times {times[0]} down to {times[-1]}, nearest {close}"
        raise BadRequest(field, list(interval), message)


def _branches(
    latents: Sequence[Latents], contexts: Contexts, options: SamplingOptions, parts: Parts
) -> list[Branch]:
    """What to guide away from: first the same prompt without its controls, then the negative with them."""
    found, traits = list[Branch](), parts.checkpoint.traits
    if latents[0].controls:
        bare = [replace(x, controls=(), weights=()) for x in latents]
        samples = tuple(x.sample(contexts.positive, traits) for x in bare)
        found.append(Branch(samples, options.control_guidance, options.control_interval))
    if contexts.negative is not None:
        samples = tuple(x.sample(contexts.negative, traits) for x in latents)
        found.append(Branch(samples, options.guidance, options.interval))
    return found


def _noise(latents: Latents, seed: int, options: SamplingOptions, parts: Parts) -> Noise:
    """The noise of a sample at each step, in the chunk of a long clip that is drawn."""
    if options.noise == "diffusers":
        return _diffusers_noise(latents, seed, options.chunk, parts)
    return lambda of, step: noise_state(of, seed, step=options.chunk * NOISES_A_RUN + step)


def _diffusers_noise(latents: Latents, seed: int, chunk: int, parts: Parts) -> Noise:
    """Noise in the shapes of that library's latents, cut into tokens as the latents are.

    One generator goes on from step to step, where noise is drawn at each, and from chunk to chunk.
    """
    traits = parts.checkpoint.traits
    before = chunk * (1 + len(few_steps(parts.checkpoint) or ()))
    shapes: dict[Kind, tuple[int, ...]] = {"vision": (1, *latents.vision_ZThw.shape)}
    if latents.sound_SL is not None:
        shapes["sound"] = tuple(latents.sound_SL.shape)
    if latents.actions_KD is not None:
        shapes["action"] = (len(latents.actions_KD), traits.action_dim or latents.actions_KD.shape[1])

    def draw_noise(of: Sample, step: int) -> Tensor:
        fresh = noise_like_diffusers(seed, shapes, before=before + step)
        drawn = {k: x.to(parts.device) for k, x in fresh.items()}
        sound_SL, actions_KD = drawn.get("sound"), drawn.get("action")
        if actions_KD is not None and latents.actions_KD is not None:
            actions_KD = actions_KD[:, : latents.actions_KD.shape[1]]
        noisy = replace(latents, vision_ZThw=drawn["vision"][0], sound_SL=sound_SL, actions_KD=actions_KD)
        return replace(of, segments=noisy.segments(traits)).state()

    return draw_noise


def count_tokens(latents: Latents, contexts: Contexts, parts: Parts) -> dict[str, int]:
    """Tokens of each kind, for receipts."""
    counts = {"context": len(contexts.positive)}
    if contexts.negative is not None:
        counts["negative"] = len(contexts.negative)
    for segment in latents.segments(parts.checkpoint.traits):
        counts[segment.kind] = counts.get(segment.kind, 0) + len(segment)
    return counts
