"""Pocket's video autoencoder: the Wan VAE class with small numbers, trained on the table-top world.

Stills first (they are cheap and hold all the shapes), clips later. Pixels that differ from the empty table
weigh more, pixels that move weigh more again: the background is easy and would drown them. At the end the
encoder rests and the decoder alone learns to make the best of its latents, with these weights made milder.

Shape letters: B clips, T frames, H height, W width.
"""

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.sim.scenes import episode
from armillary.train.loop import Draw, Metrics

DECODER_ALONE = 0.35  # share of the run, at its end
MOVING = ("wander", "wander", "slide")  # a "push" looks like a "wander" and takes longer to arrange


def pocket_video_config() -> WanVAEConfig:
    """The Wan VAE with small numbers; the statistics of its latents are measured after training."""
    return WanVAEConfig(
        latents_mean=(0.0,) * 8,
        latents_std=(1.0,) * 8,
        z_dim=8,
        base_dim=16,
        decoder_base_dim=16,
        dim_mult=(1, 2, 2),
        num_res_blocks=1,
        temperal_downsample=(True, True),
        scale_factor_spatial=8,
    )


def to_model(frames: list[Tensor]) -> Tensor:
    """uint8 clips [T, H, W, 3] -> [B, 3, T, H, W] in [-1, 1]."""
    return torch.stack(frames).permute(0, 4, 1, 2, 3).float().div(127.5).sub(1).contiguous()


class VideoJob:
    """Reconstruction of stills for the first `still_share` of the run, then of clips."""

    def __init__(self, *, stills: int = 12, clips: int = 2, still_share: float = 0.2, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = WanVAE(pocket_video_config())
        self.stills, self.clips, self.still_share = stills, clips, still_share

    def optimizers(self, rate: float) -> list[Optimizer]:
        return [AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]

    def batch(self, draw: Draw, done: float) -> tuple[Tensor, Tensor]:
        """Frames and the weight of each pixel."""
        frames: list[Tensor] = []
        still = done < self.still_share or draw.python.random() < 0.1
        for _ in range(self.stills if still else self.clips):
            kind = draw.python.choice(("still", *MOVING) if still else MOVING)
            e = episode(kind, draw.python.randrange(1 << 40))
            frames.append(
                torch.from_numpy(
                    e.picture(draw.python.randrange(len(e.positions)))[None] if still else e.frames
                )
            )
        x_B3THW = to_model(frames)
        return x_B3THW, pixel_weight(x_B3THW)

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        x_B3THW, weight = self.batch(draw, done)
        alone = done >= 1 - DECODER_ALONE
        with torch.set_grad_enabled(not alone):
            mean, logvar = self.model.encode_moments(x_B3THW)
        noise = torch.randn(mean.shape, generator=draw.torch)
        error = self.model.decode_raw(mean + 0.05 * noise) - x_B3THW
        if alone:
            fit, prior = (weight.sqrt() * (0.05 * error.abs() + error.square())).mean(), 0.0
        else:
            fit = (weight * (0.2 * error.abs() + error.square())).mean()
            # the spread is held near the noise that decoding is trained with, the scale loosely near one
            prior = 1e-4 * mean.square().mean() + 1e-6 * (logvar + 6.0).square().mean()
        psnr = -10 * torch.log10(error.detach().square().mean() / 4)
        kind = "stills" if x_B3THW.shape[2] == 1 else "clips"
        return fit + prior, {"loss": float(fit.detach()), f"psnr {kind}": float(psnr)}


def pixel_weight(x_B3THW: Tensor) -> Tensor:
    """1 on the empty table, more on objects (unlike the clip's commonest colour), more again where
    something moves."""
    common = x_B3THW.flatten(2).median(dim=2).values[:, :, None, None, None]
    weight = 1 + 4 * ((x_B3THW - common).abs().amax(1, keepdim=True) > 0.15).float()
    return weight + 4 * ((x_B3THW - x_B3THW[:, :, :1]).abs().amax(1, keepdim=True) > 0.1).float()
