"""Episodes turned into latents once, kept on disk: a generator step then costs no rendering and no encoding.

Shape letters: B episodes, Z latent channels, T latent frames, h w latent height and width, S sound
channels, N latent steps,
K actions, D numbers of an action.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from armillary.codecs.audio_vae import AudioVAE
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest
from armillary.sim.scenes import Episode, Kind, episode
from armillary.train.video import to_model

CHUNK = 128


@dataclass(frozen=True)
class Cache:
    """Clips, or stills where `sounds` and `actions` are empty; one row an episode."""

    kinds: list[Kind]
    seeds: list[int]
    captions: list[str]
    instructions: list[str | None]
    latents_BZThw: Tensor  # raw, not normalised
    sounds_BSN: Tensor
    actions_BKD: Tensor  # px/s, zero where there is no pusher

    def __len__(self) -> int:
        return len(self.kinds)


@torch.no_grad()
def encode_chunk(episodes: Sequence[Episode], video: WanVAE, audio: AudioVAE) -> Cache:
    frames = to_model([torch.from_numpy(e.frames) for e in episodes])
    pieces = [video.encode_moments(x)[0] for x in frames.split(16)]
    sounds, actions = torch.empty(0), torch.empty(0)
    if episodes[0].moving:
        waves = torch.stack([torch.from_numpy(e.sound) for e in episodes if e.sound is not None])
        sounds = torch.cat([audio.encode(x) for x in waves.split(16)])
        steps = len(episodes[0].positions) - 1
        actions = torch.stack(
            [torch.zeros(steps, 2) if e.actions is None else torch.from_numpy(e.actions) for e in episodes]
        )
    kinds: list[Kind] = [e.kind for e in episodes]
    names = [e.seed for e in episodes], [e.caption for e in episodes], [e.instruction for e in episodes]
    return Cache(kinds, *names, torch.cat(pieces).half(), sounds.half(), actions)


def fill(
    folder: Path,
    kind: Kind,
    count: int,
    video: WanVAE,
    audio: AudioVAE,
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Write what is missing of the first `count` training episodes of a kind, a chunk a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, count, CHUNK):
        path = folder / f"{kind}-{start:07d}.pt"
        if path.exists():
            continue
        end = min(start + CHUNK, count)
        chunk = encode_chunk([episode(kind, seed) for seed in range(start, end)], video, audio)
        partial = path.with_suffix(".partial")
        torch.save(vars(chunk), partial)
        partial.replace(path)
        tell(f"{kind}: {end} of {count} episodes encoded")


def load(folder: Path, kinds: Sequence[Kind]) -> Cache:
    """Every chunk of the kinds, in one. Raises BadRequest for files of an older form."""
    files = [path for kind in kinds for path in sorted(folder.glob(f"{kind}-*.pt"))]
    try:
        chunks = [Cache(**torch.load(path, weights_only=True)) for path in files]
    except TypeError as error:
        message = "holds latents of an older form; remove it to make them anew"
        raise BadRequest("cache", str(folder), message) from error
    return Cache(
        [k for c in chunks for k in c.kinds],
        [s for c in chunks for s in c.seeds],
        [t for c in chunks for t in c.captions],
        [t for c in chunks for t in c.instructions],
        torch.cat([c.latents_BZThw for c in chunks]),
        torch.cat([c.sounds_BSN for c in chunks]),
        torch.cat([c.actions_BKD for c in chunks]),
    )


def statistics(cache: Cache) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each latent channel."""
    x = cache.latents_BZThw.float().transpose(0, 1).flatten(1)
    return tuple(x.mean(1).tolist()), tuple(x.std(1).tolist())
