"""Many cases at once through one checkpoint: pictures, sounds, drawings and answers, each as if it were
alone.

A suite asks for hundreds of small things; packed by the dozen they cost a tenth of what they would one by
one.

Shape letters: T frames, H W height and width in pixels, Z latent channels, t h w latent frames, height and
width, C audio channels, N samples, S sound channels, L sound latents, A tokens of a context, E width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch

from armillary.codecs.audio_vae import AudioVAE
from armillary.codecs.wan_vae import WanVAE
from armillary.decode import Sampling, Token
from armillary.flow import Branch, sample_many
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.prompts import SYSTEM_IMAGE, SYSTEM_VIDEO, with_metadata
from armillary.sequence import Sample
from armillary.sim.language import Question
from armillary.sim.physics import FPS, SIZE, Floats
from armillary.sim.scenes import Episode
from armillary.slots import Decoder
from armillary.tasks.defaults import Defaults, DrawTask, defaults
from armillary.tasks.denoise import Contexts, SamplingOptions, choose_grid, read_prompts
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts
from armillary.tasks.reason import stop_tokens
from armillary.tasks.segments import Latents

PACKED: Final = 32  # samples drawn, or answers written, together
CODED: Final = 16  # clips through a codec together

Thing = TypeVar("Thing")


def groups(things: Sequence[Thing], size: int) -> Iterator[Sequence[Thing]]:
    """The things in order, `size` at a time."""
    return (things[start : start + size] for start in range(0, len(things), size))


@torch.no_grad()
def encode_clips(video: WanVAE, clips: Sequence[Pixels], device: torch.device) -> list[torch.Tensor]:
    """Normalised latents [Z, t, h, w] of clips uint8 [T, H, W, 3] of one length."""
    found = list[torch.Tensor]()
    for some in groups(clips, CODED):
        frames_BTHW3 = torch.from_numpy(np.stack(some)).to(device)
        found += video.encode(frames_BTHW3.movedim(-1, 1).float() / 127.5 - 1).float()
    return found


@torch.no_grad()
def decode_clips(video: WanVAE, latents: Sequence[torch.Tensor]) -> list[Pixels]:
    """Frames uint8 [T, H, W, 3] of normalised latents [Z, t, h, w] of one length."""
    found = list[Pixels]()
    for some in groups(latents, CODED):
        frames_B3THW = video.decode(torch.stack(list(some))).float()
        frames_BTHW3 = ((frames_B3THW / 2 + 0.5) * 255).round().clamp(0, 255).to(torch.uint8).movedim(1, -1)
        found += list(frames_BTHW3.cpu().numpy())
    return found


def round_trip(video: WanVAE, clips: Sequence[Pixels], device: torch.device) -> list[Pixels]:
    """The clips as the autoencoder gives them back: what no drawing can surpass."""
    return decode_clips(video, encode_clips(video, clips, device))


@torch.no_grad()
def decode_sounds(audio: AudioVAE, latents: Sequence[torch.Tensor], samples: int) -> list[Floats]:
    """Waveforms float32 [C, N] of sound latents [S, L] of one length."""
    found = list[Floats]()
    for some in groups(latents, CODED):
        found += list(audio.decode(torch.stack(list(some))).float()[..., :samples].cpu().numpy())
    return found


@torch.no_grad()
def round_trip_sounds(audio: AudioVAE, sounds: Sequence[Floats], device: torch.device) -> list[Floats]:
    """The waveforms float32 [C, N], of one length, as the autoencoder gives them back."""
    found = list[torch.Tensor]()
    for some in groups(sounds, CODED):
        found += audio.encode(torch.from_numpy(np.stack(some)).to(device)).float()
    return decode_sounds(audio, found, sounds[0].shape[1])


@dataclass(frozen=True)
class Wanted:
    """Something to draw: the finished prompt, what guidance steers away from, and latents with what is
    given."""

    prompt: str
    denial: str
    latents: Latents


def wanted_clip(caption: str, latents: Latents) -> Wanted:
    """A picture or clip of the table-top by its caption, asked for as `tasks.generate` asks."""
    count = 4 * latents.vision_ZThw.shape[1] - 3
    prompt, denial = (
        with_metadata(text, frames=count, fps=FPS, height=SIZE, width=SIZE, negative=negative)
        for text, negative in ((caption, False), ("", True))
    )
    return Wanted(prompt, denial, latents)


def draw_many(
    parts: Parts,
    task: DrawTask,
    wanted: Sequence[Wanted],
    *,
    seeds: Sequence[int] | None = None,
    row: Defaults | None = None,
) -> list[Latents]:
    """Everything that is wanted, with `row` or the checkpoint's own defaults for `task`; case i starts from
    noise i or seeds[i]."""
    row = row or defaults(parts.checkpoint, task)
    _, grid = choose_grid(parts.checkpoint, SamplingOptions(row.steps, row.guidance, row.shift))
    read = _Reader(parts, task, row.guidance)
    contexts = [read(w) for w in wanted]
    found: list[Latents] = [w.latents for w in wanted]
    # contexts of equal lengths side by side share their attention calls
    order = sorted(range(len(wanted)), key=lambda i: len(contexts[i].positive))
    traits = parts.checkpoint.traits
    for some in groups(order, PACKED):
        segments = [wanted[i].latents.segments(traits) for i in some]
        positives = [Sample(contexts[i].positive, s) for i, s in zip(some, segments, strict=True)]
        negatives = [
            Sample(context, s)
            for i, s in zip(some, segments, strict=True)
            if (context := contexts[i].negative)
        ]
        states = sample_many(
            parts.network,
            positives,
            branches=[Branch(tuple(negatives), row.guidance)] if negatives else [],
            grid=grid,
            seeds=[seeds[i] if seeds else i for i in some],
        )
        for i, positive, state_X in zip(some, positives, states, strict=True):
            found[i] = wanted[i].latents.of(positive.with_state(state_X), traits)
    return found


class _Reader:
    """Contexts of prompts; equal prompts share one, so that it is read once."""

    def __init__(self, parts: Parts, task: DrawTask, guidance: float) -> None:
        self._parts, self._guidance = parts, guidance
        self._system = {"image": SYSTEM_IMAGE, "video": SYSTEM_VIDEO}.get(task)
        if not parts.checkpoint.index.get("default_use_system_prompt", True):
            self._system = None
        self._known: dict[tuple[str, str], Contexts] = {}

    def __call__(self, wanted: Wanted) -> Contexts:
        key = wanted.prompt, wanted.denial
        if key not in self._known:
            self._known[key] = read_prompts(self._parts, *key, guidance=self._guidance, system=self._system)
        return self._known[key]


@dataclass(frozen=True)
class Asked:
    """A question about an episode."""

    episode: Episode
    question: Question

    def messages(self) -> list[dict[str, object]]:
        """The whole clip where the question needs it, else its first frame; then the question."""
        e = self.episode
        clip, picture = {"type": "video", "video": None}, {"type": "image", "image": None}
        shown = (
            clip | {"video": Clip(e.frames, e.fps)}
            if self.question.needs_clip
            else picture | {"image": e.picture()}
        )
        return [{"role": "user", "content": [shown, {"type": "text", "text": self.question.text}]}]


def answer_many(parts: Parts, asked: Sequence[Asked], *, limit: int) -> list[str]:
    """Greedy answers of at most `limit` tokens, each question seeing its own picture and itself only."""
    decoder = Decoder(parts.network, eos=stop_tokens(parts), slots=PACKED)
    sampling, ids = Sampling(max_tokens=limit), dict[int, list[int]]()
    for a in asked:
        talk = converse(parts, a.messages())
        ids[decoder.add(talk.context, sampling, cuts=talk.cuts)] = []
    while decoder.busy:
        for ticket, token in decoder.step():
            if not isinstance(token, Token):
                raise token
            if token.finish != "stop":
                ids[ticket].append(token.id)
    return [parts.text.decode(written).strip() for written in ids.values()]
