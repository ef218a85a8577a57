"""What a request will take, by the configs alone: tokens, work, and bytes of each stage in each memory mode.

Stages follow one another, so the peak is that of the largest. A stage holds weights (by the memory mode), the
keys and values of what was read, and what is computed at the moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from armillary.codecs.wan_sizes import decoder_levels, decoding_bytes, encoding_bytes
from armillary.codecs.wan_tiles import tile_side
from armillary.codecs.wan_vae import WanVAEConfig
from armillary.lowbit import BUFFER, Form
from armillary.memory import MODES, Choice, Mode, Weights, decoding_room, gigabytes
from armillary.model import Config
from armillary.sequence import Pack
from armillary.slots import ROOM
from armillary.tasks.parts import Parts


@dataclass(frozen=True)
class Stage:
    """Bytes that a stage holds at most, by what they are."""

    name: str
    weights: int  # of its own; those that are used where they lie in a file count as mapped
    mapped: int
    kept: int  # keys and values
    working: int  # what is computed at the moment

    @property
    def own(self) -> int:
        """Bytes beyond what the system keeps of files."""
        return self.weights + self.kept + self.working


@dataclass(frozen=True)
class Plan:
    """What one request will take."""

    task: str
    model: str
    memory: Choice
    tokens: Mapping[str, int]
    flops: Mapping[str, float]
    stages: Mapping[Mode, Sequence[Stage]]
    tile: int | None = None  # latents on the side of a tile, where not one latent frame can be decoded whole

    def peak(self, mode: Mode | None = None) -> int:
        """Bytes of the largest stage; of the chosen memory mode if none is named."""
        return max(stage.own for stage in self.stages[mode or self.memory.mode])

    def table(self) -> str:
        """For people: a line a stage, a column a mode."""
        names = [stage.name for stage in self.stages["resident"]]
        lines = [["", *MODES]]
        for i, name in enumerate(names):
            lines.append([name, *(gigabytes(self.stages[mode][i].own) for mode in MODES)])
        lines.append(["at most", *(gigabytes(self.peak(mode)) for mode in MODES)])
        if mapped := max(stage.mapped for stage in self.stages["resident"]):
            lines.append(["in files", *(gigabytes(mapped) for _ in MODES)])
        wide = [max(len(line[i]) for line in lines) for i in range(4)]
        rows = ["  ".join(cell.rjust(n) for cell, n in zip(line, wide, strict=True)) for line in lines]
        tokens = ", ".join(f"{count:,} {kind}" for kind, count in self.tokens.items())
        work = ", ".join(f"{name} {count / 1e12:.3g}" for name, count in self.flops.items())
        chosen = f"memory {self.memory.mode}: {self.memory.why}"
        if self.tile is not None:
            chosen += f"\ndecoded in tiles of {self.tile}x{self.tile} latents, which is approximate"
        return "\n".join([*rows, "", f"tokens: {tokens}", f"TFLOP: {work}", chosen])

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self) | {"peaks": {mode: self.peak(mode) for mode in MODES}}


@dataclass(frozen=True)
class Job:
    """One request as the networks meet it."""

    pack: Pack  # as it is first drawn, or read to be answered
    used: Mapping[str, Any]  # of its receipt
    config: Config
    video: WanVAEConfig | None
    patch: int  # latents a token, on a side
    looked: int  # patches of the vision tower
    sound: tuple[int, int]  # channels of the audio decoder's last level, samples
    tile: int | None  # latents on the side of a tile that is decoded at a time
    widened: int  # numbers of low-bit weights that are widened at a time
    reserved: int  # rows behind a context that take memory before they are written

    @classmethod
    def of(
        cls,
        parts: Parts,
        pack: Pack,
        used: Mapping[str, Any],
        *,
        itemsize: int,
        device: torch.device,
        weights: Form | None,
    ) -> "Job":
        """A pack that `parts`, with or without weights, were given for a request that settled on `used`."""
        visual, sounds = pack.visual(), [s for s in pack.samples[0].segments if s.kind == "sound"]
        looked = 0 if visual is None or parts.sight is None else len(visual.rows_V) * parts.sight.merge**2
        sound = (0, 0)
        if parts.audio is not None and sounds:
            sound = parts.audio.config.dec_dim, len(sounds[0]) * parts.audio.hop
        checkpoint, video = parts.checkpoint, parts.video and parts.video.config
        patch = checkpoint.traits.latent_patch_size
        c, on_cpu = checkpoint.config, device.type == "cpu"  # there, memory is what was written to
        widened = 0 if weights is None else min(BUFFER if on_cpu else c.mlp * c.width, c.mlp * c.width)
        job = cls(pack, used, c, video, patch, looked, sound, None, widened, 0 if on_cpu else ROOM)
        if video is None or job.answers:
            return job
        return replace(job, tile=tile_side(video, *job.latents[1:], itemsize, decoding_room(device)))

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each kind: what is read, and what is drawn of one sample."""
        return tokens(self.pack) | ({"answer": int(self.used["max_tokens"])} if self.answers else {})

    @property
    def answers(self) -> bool:
        return not self.pack.segments

    @property
    def latents(self) -> tuple[int, int, int]:
        """Latent frames, height and width of what is drawn."""
        time, rows, columns = (len(axis.unique()) for axis in self.pack.segments[0].positions_3N)
        return time, rows * self.patch, columns * self.patch

    @property
    def encoded(self) -> int:
        """Frames that are given as pixels."""
        vision = self.pack.segments[0]
        time, _, _ = self.latents
        given = int((~vision.noisy_N).sum()) * time // len(vision)
        return 0 if not given else 1 + 4 * (given - 1)


def tokens(pack: Pack) -> dict[str, int]:
    """Tokens of each kind in a pack: what is read, and what is drawn of one sample."""
    first, *others = pack.lengths_A
    counts = {"context": first} | ({"negative": others[0]} if others else {})
    return counts | {segment.kind: len(segment) for segment in pack.samples[0].segments}


def lay(job: Job, weights: Weights, *, itemsize: int, mapped: Weights) -> dict[Mode, list[Stage]]:
    """Every stage of a request in every mode; `mapped` of the weights are used where they lie in files."""
    moments = _answering(job, itemsize) if job.answers else _drawing(job, itemsize)
    laid: dict[Mode, list[Stage]] = {}
    for mode in MODES:
        looks = job.looked > 0
        own, lying = weights.beyond(mapped).held(mode, looks=looks), mapped.held(mode, looks=looks)
        laid[mode] = [Stage(name, own[name], lying[name], kept, at_work) for name, kept, at_work in moments]
    return laid


Moment = tuple[str, int, int]  # name, bytes kept, bytes being worked on


def _answering(job: Job, itemsize: int) -> list[Moment]:
    count, c = sum(job.pack.lengths_A), job.config
    token, scores = _kept(c, itemsize), c.vocabulary * (itemsize + 4)
    widened = job.widened * itemsize
    read = 2 * count + job.reserved, _block(c, count, itemsize) + scores + widened
    looking = [("look", 0, _looking(job, itemsize))] if job.looked else []
    grown = count + max(job.reserved, int(job.used["max_tokens"]))
    answering = "answer", grown * token, scores + widened
    return [("load", 0, 0), *looking, ("read", read[0] * token, read[1]), answering]


def _drawing(job: Job, itemsize: int) -> list[Moment]:
    c, pack = job.config, job.pack
    token, read, drawn = _kept(c, itemsize), sum(pack.lengths_A), sum(pack.lengths_D)
    moments: list[Moment] = [("load", 0, 0)]
    frames, (time, h, w) = job.encoded, job.latents
    assert job.video is not None  # it draws
    side = job.video.scale_factor_spatial
    pixels = 3 * h * w * side**2
    if frames:
        bytes_ = encoding_bytes(job.video, frames, h * side, w * side, itemsize) + 4 * pixels * frames
        moments.append(("encode", 0, bytes_))
    widened = job.widened * itemsize
    moments.append(("read", read * token, _block(c, read, itemsize) + widened))
    moments.append(("draw", (2 * read + drawn) * token, _block(c, drawn, itemsize) + widened))
    if job.used.get("decode", True):
        made = pixels * (1 + 4 * (time - 1))
        rows, columns = (side if job.tile is None else min(side, job.tile) for side in (h, w))
        piece = decoding_bytes(job.video, rows, columns, itemsize)
        moments.append(("decode", 0, max(piece + made * itemsize, 3 * 4 * made)))
    if job.sound[1]:
        moments.append(("sound", 0, 5 * job.sound[0] * job.sound[1] * itemsize))
    return moments


def _kept(c: Config, itemsize: int) -> int:
    """Bytes of a token's keys and values in all layers; Edge keeps its keys twice."""
    return c.layers * (3 if c.shown_norm else 2) * c.kv_heads * c.head_size * itemsize


def _block(c: Config, tokens: int, itemsize: int) -> int:
    """Bytes alive in a block's widest moment, its MLP: gate, up and their product; queries, keys, values and
    what was attended; the stream before, between and normalised."""
    inner = (3 if c.gated else 2) * c.mlp
    return tokens * (inner + 3 * c.width + 2 * (c.heads + c.kv_heads) * c.head_size) * itemsize


def _looking(job: Job, itemsize: int) -> int:
    return job.looked * 12 * job.config.width * itemsize


def work(job: Job) -> dict[str, float]:
    """Floating point operations of each stage: matrices, attention and the video decoder."""
    c, pack = job.config, job.pack
    inner, kv = c.heads * c.head_size, c.kv_heads * c.head_size
    tower = c.layers * c.width * (2 * inner + 2 * kv + (3 if c.gated else 2) * c.mlp)  # numbers in matrices
    pair = 4 * c.layers * inner  # operations for a query and a key
    read = 2 * tower * sum(pack.lengths_A) + pair / 2 * sum(n * n for n in pack.lengths_A)
    if job.answers:
        each = 2 * (tower + c.width * c.vocabulary) + pair * sum(pack.lengths_A)
        return {"read": read, "answer": each * int(job.used["max_tokens"])}
    seen = sum(d * (a + d) for a, d in zip(pack.lengths_A, pack.lengths_D, strict=True))
    draw = 2 * tower * sum(pack.lengths_D) + pair * seen
    found = {"read": read, "draw": draw * int(job.used["steps"])}
    if job.video is not None and job.used.get("decode", True):
        time, h, w = job.latents
        found["decode"] = time * sum(level.flops for level in decoder_levels(job.video, h, w))
    return found
