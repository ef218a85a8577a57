"""Pixels to latents and back: given pictures brought to size, canvases of robot clips, the video autoencoder.

Shape letters: T frames, H W height and width in pixels, Z latent channels, t h w latent frames, height and
width.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from armillary.codecs.wan_tiles import decode_tiled, tile_side
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest, nearest
from armillary.media.source import Pixels
from armillary.memory import decoding_room
from armillary.tasks.parts import Parts

LONGEST = 200  # times as long as wide, at most: to cover a canvas, a line of pixels would grow without bound

# Height and width of the canvases robot clips were trained on, for each tier.
TIERS = {
    256: ((256, 256), (256, 320), (320, 256), (192, 320), (320, 192)),
    480: ((640, 640), (544, 736), (736, 544), (480, 832), (832, 480)),
    704: ((960, 960), (832, 1088), (1088, 832), (704, 1280), (1280, 704)),
    720: ((960, 960), (832, 1104), (1104, 832), (720, 1280), (1280, 720)),
}


@dataclass(frozen=True)
class Placement:
    """What is encoded of a robot's picture: a canvas with the picture in its top left corner."""

    height: int
    width: int
    content_height: int
    content_width: int

    @classmethod
    def choose(
        cls, height: int, width: int, tier: int | None, factor: int, *, longest: int, field: str = "image"
    ) -> "Placement":
        """The tier's canvas of the nearest aspect; pictures are made smaller to fit, never larger.

        tier None: the picture is the canvas. If a side is more than `longest`, both are made smaller, to
        multiples of `factor`; else BadRequest naming `field` for one that is none.
        """
        if tier is None:
            scale = longest / max(height, width)
            if scale >= 1:
                legal = [max(1, round(side / factor)) * factor for side in (height, width)]
                if legal != [height, width]:
                    message = f"sides of up to {longest} pixels must be multiples of {factor}"
                    near = f"nearest: {legal[1]}x{legal[0]}"
                    raise BadRequest(field, f"{width}x{height}", f"{message}, larger ones are shrunk; {near}")
                return cls(height, width, height, width)
            high, wide = (max(1, round(scale * side / factor)) * factor for side in (height, width))
            return cls(high, wide, high, wide)
        if tier not in TIERS:
            raise BadRequest("tier", tier, f"nearest are {', '.join(nearest(tier, TIERS))}")
        high, wide = min(TIERS[tier], key=lambda size: abs(size[0] / size[1] - height / width))
        scale = min(wide / width, high / height, 1.0)
        sides = (max(1, int(scale * side + 0.5)) for side in (height, width))
        return cls(high, wide, *sides)

    def made(self, factor: int) -> "Placement":
        """The same canvas for what was drawn on it: whole latents of the content."""
        sides = (max(side // factor, 1) * factor for side in (self.content_height, self.content_width))
        return Placement(self.height, self.width, *sides)

    def place(self, frames_THW3: Pixels, device: torch.device) -> Tensor:
        """Frames [T, 3, H, W] in [-1, 1] on this canvas, mirrored into the rest of it.

        Bicubic with antialiasing, values kept unrounded, as the released models were trained.
        """
        x_T3HW = _to_model(frames_THW3, device)
        if x_T3HW.shape[2:] != (self.content_height, self.content_width):
            size = (self.content_height, self.content_width)
            x_T3HW = F.interpolate(x_T3HW, size, mode="bicubic", align_corners=False, antialias=True)
        right, bottom = self.width - self.content_width, self.height - self.content_height
        if not right and not bottom:
            return x_T3HW
        mirrored = right < self.content_width and bottom < self.content_height
        return F.pad(x_T3HW, (0, right, 0, bottom), mode="reflect" if mirrored else "replicate")


def require_video(parts: Parts) -> WanVAE:
    """The video autoencoder. Raises BadRequest if this checkpoint has none."""
    if parts.video is None:
        raise BadRequest(
            "model", str(parts.checkpoint.folder), "has no video autoencoder, so it draws nothing"
        )
    return parts.video


def check_size(height: int, width: int, factor: int) -> None:
    """Raises BadRequest unless both sides are positive multiples of the autoencoder's factor."""
    for name, side in (("height", height), ("width", width)):
        if side < factor or side % factor:
            legal = nearest(side, range(factor, side + 2 * factor, factor))
            raise BadRequest(name, side, f"must be a multiple of {factor}; nearest: {' or '.join(legal)}")


def check_frames(frames: Any, field: str, *, still: bool = False) -> Pixels:
    """The pixels as uint8 [T, H, W, 3]; `still` takes one picture [H, W, 3]. Raises BadRequest for others.

    Also refused are pictures more than 200 times as long as wide.
    """
    shape, wanted = np.shape(frames), "[H, W, 3]" if still else "[T, H, W, 3]"
    right = len(shape) == (3 if still else 4) and shape[-1] == 3 and 0 not in shape
    if not right or not isinstance(frames, np.ndarray) or frames.dtype != np.uint8:
        kind = getattr(frames, "dtype", type(frames).__name__)
        raise BadRequest(field, f"{kind} {list(shape)}", f"must be an array of uint8 {wanted}, RGB")
    height, width = frames.shape[-3:-1]
    if max(height, width) > LONGEST * min(height, width):
        raise BadRequest(field, f"{width}x{height}", f"at most {LONGEST} times as long as wide; cut it first")
    return frames[None] if still else frames


def cover(frames_THW3: Pixels, height: int, width: int, device: torch.device) -> Tensor:
    """Frames [T, 3, height, width] in [-1, 1]: aspect kept, centre cut out, colours whole again."""
    return fit(frames_THW3, height, width, device) / 127.5 - 1


def fit(frames_THW3: Pixels, height: int, width: int, device: torch.device) -> Tensor:
    """As `cover`, in whole numbers from 0 to 255."""
    x_T3HW = torch.tensor(frames_THW3, device=device).permute(0, 3, 1, 2).float()
    had_height, had_width = x_T3HW.shape[2:]
    scale = max(width / had_width, height / had_height)
    size = (math.ceil(scale * had_height), math.ceil(scale * had_width))
    x_T3HW = F.interpolate(x_T3HW, size, mode="bilinear", align_corners=False, antialias=True)
    top, left = round((size[0] - height) / 2), round((size[1] - width) / 2)
    x_T3HW = x_T3HW[:, :, top : top + height, left : left + width]
    return x_T3HW.round().clamp(0, 255)


def encode(video: WanVAE, frames_T3HW: Tensor) -> Tensor:
    """Normalised latents [Z, t, h, w], float32, of 4n+1 frames in [-1, 1]."""
    latents_ZThw = video.encode(frames_T3HW.movedim(0, 1)[None])[0].float()
    return finite(latents_ZThw, "encoding the pictures")


def decode(video: WanVAE, latents_Zthw: Tensor) -> tuple[Pixels, int | None]:
    """Frames uint8 [T, H, W, 3] of normalised latents, and the side of a tile as `decode_frames` has it."""
    frames_T3HW, side = decode_frames(video, latents_Zthw)
    return to_pixels(frames_T3HW), side


def decode_frames(video: WanVAE, latents_Zthw: Tensor) -> tuple[Tensor, int | None]:
    """Frames [T, 3, H, W] in [-1, 1] of normalised latents, unrounded; in tiles if not one latent fits.

    Then also how many latents were on the side of a tile; else None.
    """
    height, width = latents_Zthw.shape[2:]
    room, itemsize = decoding_room(latents_Zthw.device), video.post_quant_conv.weight.itemsize
    side = tile_side(video.config, height, width, itemsize, room)
    one_Zthw = latents_Zthw[None]
    frames_B3THW = video.decode(one_Zthw) if side is None else decode_tiled(video, one_Zthw, side)
    frames_3THW = finite(frames_B3THW[0].float(), "decoding the video")
    return frames_3THW.movedim(1, 0), side


def to_pixels(frames_T3HW: Tensor) -> Pixels:
    """Frames in [-1, 1] as uint8 [T, H, W, 3]."""
    return ((frames_T3HW / 2 + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def finite(values: Tensor, stage: str) -> Tensor:
    """The values, or FloatingPointError naming the stage that gave NaN or infinity."""
    if not bool(torch.isfinite(values).all()):
        raise FloatingPointError(f"{stage} gave numbers that are not finite")
    return values


def _to_model(frames_THW3: Pixels, device: torch.device) -> Tensor:
    return torch.tensor(frames_THW3, device=device).permute(0, 3, 1, 2).float() / 127.5 - 1
