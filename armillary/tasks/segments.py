"""Latents and actions as DM segments, and back: the one place where modalities are cut into tokens.

Shape letters: Z latent channels, T latent frames, h w latent height and width, S sound channels, L sound
latents, K actions, D numbers of a robot's action, N tokens, F numbers in a token.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from armillary.sequence import Context, Kind, Sample, Segment, grid_positions
from armillary.weights import Traits

TIME_FACTOR = 4  # pixel frames a latent frame, and the factor that positions count base frames in


@dataclass(frozen=True)
class Latents:
    """Everything the DM side holds of one sample, before it is cut into tokens or after it was drawn.

    `clean_*` say which latent frames, action rows and sound are given; all others are drawn.
    `controls` are clips of the picture's size, all given, that say how it moves; `weights` how much each of
    them counts, none for all in one attention. `reference` [Z, 1, h, w] is a given picture that stands before
    the one drawn.
    """

    vision_ZThw: Tensor
    fps: float  # of pixel frames, which is also that of actions
    clean_frames: Collection[int] = ()
    sound_SL: Tensor | None = None
    clean_sound: bool = False
    actions_KD: Tensor | None = None  # in model units
    clean_actions: Collection[int] = ()
    domain: int = 0
    first_action: int = 1  # the frame that action row 0 belongs to, as in `action_segment`
    controls: tuple[Tensor, ...] = ()
    weights: tuple[float, ...] = ()
    reference: Tensor | None = None

    def sample(self, context: Context, traits: Traits) -> Sample:
        """What is drawn after a context."""
        return Sample(context, self.segments(traits), self.weights)

    def segments(self, traits: Traits) -> tuple[Segment, ...]:
        """Controls or reference, then the picture, sound and action, as far as they are there."""
        every = range(self.vision_ZThw.shape[1])
        found = [vision_segment(x, every, self.fps, traits) for x in self.controls]
        later = 0
        if self.reference is not None:
            found.append(vision_segment(self.reference, (0,), self.fps, traits))
            later = 1  # pictures stand one after another in time
        found.append(vision_segment(self.vision_ZThw, self.clean_frames, self.fps, traits, first=later))
        if self.sound_SL is not None:
            found.append(sound_segment(self.sound_SL, clean=self.clean_sound, traits=traits))
        if self.actions_KD is not None:
            found.append(
                action_segment(
                    self.actions_KD,
                    clean=self.clean_actions,
                    fps=self.fps,
                    domain=self.domain,
                    traits=traits,
                    first=self.first_action,
                )
            )
        return tuple(found)

    def of(self, sample: Sample, traits: Traits) -> "Latents":
        """The inverse of `segments`: the same latents with the numbers of the sample's segments."""
        tokens = {s.kind: s.tokens_NF for s in sample.segments}  # of several pictures, the last is drawn
        shape, patch = self.vision_ZThw.shape, traits.latent_patch_size
        vision_ZThw = unpatchify(tokens["vision"], (shape[0], shape[1], shape[2], shape[3]), patch)
        sound_SL = None if self.sound_SL is None else tokens["sound"].T
        actions_KD = None if self.actions_KD is None else tokens["action"][:, : self.actions_KD.shape[1]]
        return replace(self, vision_ZThw=vision_ZThw, sound_SL=sound_SL, actions_KD=actions_KD)


def patchify(latents_ZThw: Tensor, patch: int) -> Tensor:
    """Tokens [T * ceil(h/p) * ceil(w/p), p*p*Z]: frame, row, column; inside a token row, column, channel
    (fastest).

    Odd sizes are padded with zeros at the bottom and right.
    """
    z, t, h, w = latents_ZThw.shape
    x = F.pad(latents_ZThw, (0, -w % patch, 0, -h % patch))
    rows, columns = x.shape[2] // patch, x.shape[3] // patch
    return x.view(z, t, rows, patch, columns, patch).permute(1, 2, 4, 3, 5, 0).reshape(t * rows * columns, -1)


def unpatchify(tokens_NF: Tensor, shape: tuple[int, int, int, int], patch: int) -> Tensor:
    """The inverse of `patchify` for latents of `shape` (Z, T, h, w); what stood on padding is cropped."""
    z, t, h, w = shape
    rows, columns = -(-h // patch), -(-w // patch)
    x = tokens_NF.view(t, rows, columns, patch, patch, z).permute(5, 0, 1, 3, 2, 4)
    return x.reshape(z, t, rows * patch, columns * patch)[:, :, :h, :w]


def vision_segment(
    latents_ZThw: Tensor, clean: Collection[int], fps: float, traits: Traits, *, first: int = 0
) -> Segment:
    """A picture or clip of normalised latents; `clean` are the latent frames that condition.

    `first` is the place in time of the first one.
    """
    _, t, h, w = latents_ZThw.shape
    patch = traits.latent_patch_size
    rows, columns = -(-h // patch), -(-w // patch)
    noisy_T = torch.tensor([f not in clean for f in range(t)], device=latents_ZThw.device)
    spacing = (
        (fps / TIME_FACTOR, traits.base_fps / TIME_FACTOR) if traits.enable_fps_modulation and t > 1 else None
    )
    padded = h % patch or w % patch
    return _segment(
        "vision",
        patchify(latents_ZThw, patch),
        noisy_T.repeat_interleave(rows * columns, output_size=t * rows * columns),
        grid_positions((t, rows, columns), per_step=spacing, first=first),
        patchify(torch.ones_like(latents_ZThw), patch).bool() if padded else None,
    )


def sound_segment(latents_SL: Tensor, *, clean: bool, traits: Traits) -> Segment:
    """A waveform's latents: all noisy, or all clean when the sound is given."""
    count = latents_SL.shape[1]
    spacing = (traits.sound_latent_fps, traits.base_fps) if traits.enable_fps_modulation else None
    noisy_N = torch.full((count,), not clean, device=latents_SL.device)
    return _segment(
        "sound", latents_SL.T.contiguous(), noisy_N, grid_positions((count, 1, 1), per_step=spacing)
    )


def action_segment(
    actions_KD: Tensor, *, clean: Collection[int], fps: float, domain: int, traits: Traits, first: int = 1
) -> Segment:
    """Normalised actions, padded with zeros to the model's width; `clean` are the rows that are given.

    `first` is the frame that row 0 belongs to: 1 when rows are transitions, 0 when row 0 is the state.
    """
    count, raw = actions_KD.shape
    width = traits.action_dim or raw
    spacing = (fps, traits.base_fps / TIME_FACTOR) if traits.enable_fps_modulation else None
    valid_NF = (torch.arange(width, device=actions_KD.device) < raw).expand(count, width)
    noisy_N = torch.tensor([k not in clean for k in range(count)], device=actions_KD.device)
    positions_3N = grid_positions((count, 1, 1), per_step=spacing, first=first)
    return _segment("action", F.pad(actions_KD, (0, width - raw)), noisy_N, positions_3N, valid_NF, domain)


def _segment(
    kind: Kind,
    tokens_NF: Tensor,
    noisy_N: Tensor,
    positions_3N: Tensor,
    valid_NF: Tensor | None = None,
    domain: int = 0,
) -> Segment:
    return Segment(kind, tokens_NF, noisy_N, positions_3N.to(tokens_NF.device), valid_NF, domain)
