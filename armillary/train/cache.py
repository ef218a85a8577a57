"""Episodes turned into latents once, kept on disk: a generator step then costs no rendering and no encoding.

Shape letters: B episodes, Z latent channels, T latent frames, h w latent height and width, S sound
channels, N latent steps, K actions, D numbers of an action, V tokens of a picture or clip, X what is known of
each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from armillary.codecs.audio_vae import AudioVAE
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest
from armillary.sim.scenes import Episode, Kind, episode
from armillary.train import files
from armillary.train.dense import heard, truth
from armillary.train.video import to_model

CHUNK = 128
PIECES = 4  # clips that a long one is cut into
SIDE = 4  # tokens along each side of a latent frame
Stored = Literal[Kind, "roam"]


@dataclass(frozen=True)
class Cache:
    """Clips, or stills where `sounds`, `heard` and `actions` are empty; one row an episode.

    Rows stored as "roam" are pieces of longer clips of kind "wander": they begin as one leaves off, with the
    pusher at an object, and not as an episode starts.
    """

    kinds: list[Kind]
    seeds: list[int]
    captions: list[str]
    instructions: list[str | None]
    latents_BZThw: Tensor  # raw, not normalised
    sounds_BSN: Tensor
    actions_BKD: Tensor  # px/s, zero where there is no pusher
    truths_BVX: Tensor  # `dense.Truth.table` of the tokens of each
    heard_BNX: Tensor  # `dense.heard` of its sound

    def __len__(self) -> int:
        return len(self.kinds)


@torch.no_grad()
def encode_chunk(episodes: Sequence[Episode], video: WanVAE, audio: AudioVAE) -> Cache:
    frames = to_model([torch.from_numpy(e.frames) for e in episodes])
    pieces = [video.encode_moments(x)[0] for x in frames.split(16)]
    sounds, actions, marks = torch.empty(0), torch.empty(0), torch.empty(0)
    if episodes[0].moving:
        waves = torch.stack([torch.from_numpy(e.sound) for e in episodes if e.sound is not None])
        sounds = torch.cat([audio.encode(x) for x in waves.split(16)])
        steps = len(episodes[0].positions) - 1
        actions = torch.stack(
            [torch.zeros(steps, 2) if e.actions is None else torch.from_numpy(e.actions) for e in episodes]
        )
        marks = torch.stack([heard(e, sounds.shape[-1]) for e in episodes])
    kinds: list[Kind] = [e.kind for e in episodes]
    names = [e.seed for e in episodes], [e.caption for e in episodes], [e.instruction for e in episodes]
    truths = torch.stack([truth(e, slices(len(e.positions)), side=SIDE).table() for e in episodes])
    return Cache(kinds, *names, torch.cat(pieces).half(), sounds.half(), actions, truths.half(), marks)


def slices(frames: int) -> list[list[int]]:
    """The frames that each latent frame holds: the first alone, then four and four."""
    return [[0], *([*range(i, i + 4)] for i in range(1, frames, 4))]


def stored(name: Stored, seed: int) -> list[Episode]:
    """The training episodes that stand under a name and seed in a cache."""
    if name != "roam":
        return [episode(name, seed)]
    size = len(episode("wander", seed).positions) - 1
    return cut(episode("wander", seed, frames=PIECES * size + 1), size)


def cut(e: Episode, size: int) -> list[Episode]:
    """Its pieces of `size` frames and a first one each: what the world's "wander" is from there on."""
    assert e.pusher is not None
    assert e.actions is not None
    pieces = list[Episode]()
    for a in range(0, len(e.positions) - 1, size):
        seconds = (a / e.fps, (a + size + 1) / e.fps)
        x, y = e.pusher[a].tolist()
        start = replace(e.start, positions=tuple((x, y) for x, y in e.positions[a].tolist()), pusher=(x, y))
        events = [replace(v, time=v.time - seconds[0]) for v in e.events if seconds[0] <= v.time < seconds[1]]
        part = slice(a, a + size + 1)
        pieces.append(
            replace(
                e,
                start=start,
                positions=e.positions[part],
                velocities=e.velocities[part],
                pusher=e.pusher[part],
                actions=e.actions[a : a + size],
                events=tuple(events),
            )
        )
    return pieces


def fill(
    folder: Path,
    name: Stored,
    count: int,
    video: WanVAE,
    audio: AudioVAE,
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Write what is missing of the training episodes of the first `count` seeds of a name, a chunk a file.

    A chunk that was the last of a smaller count is encoded anew. Raises BadRequest as `load` does.
    """
    for start in range(0, count, CHUNK):
        path = folder / f"{name}-{start:07d}.pt"
        end = min(start + CHUNK, count)
        if path.exists() and len(set(read_chunk(path, peek=True).seeds)) >= end - start:
            continue
        chunk = encode_chunk([e for seed in range(start, end) for e in stored(name, seed)], video, audio)
        files.save(vars(chunk), path)
        tell(f"{name}: {end} of {count} episodes encoded")


def read_chunk(path: Path, *, peek: bool = False) -> Cache:
    """Raises BadRequest for a file that is damaged or of an older form."""
    content = files.read(path, "cache", peek=peek)
    try:
        chunk = Cache(**content)
        sizes = {len(values) for values in vars(chunk).values()}
    except TypeError as error:
        message = f"{path.name} is of an older form; remove the folder to make it anew"
        raise BadRequest("cache", str(path.parent), message) from error
    if sizes - {0} != {len(chunk)}:  # sounds, actions and what is heard are empty for stills
        raise BadRequest("cache", str(path), "is damaged; remove it to begin anew")
    return chunk


def load(folder: Path, names: Sequence[Stored]) -> Cache:
    """Every chunk of the names, in one.

    Raises BadRequest for a name that has none, but "roam", and for a file that is damaged or of an older
    form.
    """
    found = {name: sorted(folder.glob(f"{name}-*.pt")) for name in names}
    lacking = [name for name, paths in found.items() if not paths and name != "roam"]
    if lacking:
        message = f"holds no episodes of kind {lacking[0]!r}: the stage 'cache' must come first"
        raise BadRequest("cache", str(folder), message)
    chunks = [read_chunk(path) for paths in found.values() for path in paths]
    return Cache(
        [k for c in chunks for k in c.kinds],
        [s for c in chunks for s in c.seeds],
        [t for c in chunks for t in c.captions],
        [t for c in chunks for t in c.instructions],
        torch.cat([c.latents_BZThw for c in chunks]),
        torch.cat([c.sounds_BSN for c in chunks]),
        torch.cat([c.actions_BKD for c in chunks]),
        torch.cat([c.truths_BVX for c in chunks]),
        torch.cat([c.heard_BNX for c in chunks]),
    )


def statistics(cache: Cache) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each latent channel."""
    x = cache.latents_BZThw.float().transpose(0, 1).flatten(1)
    return tuple(x.mean(1).tolist()), tuple(x.std(1).tolist())
