"""How an unfinished picture looks: latents to colours by a linear map, one pixel a latent.

The map is found anew each time, so it needs no table: a piece of the first frame is decoded, and least
squares finds how its colours follow from its latents. That costs what decoding 256 x 256 pixels costs,
whatever the size of the picture and however long the clip.

Shape letters: Z latent channels, T latent frames, H W latent rows and columns, h w those of the piece, P
pixels on a side of the piece, N latents of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from armillary.codecs.wan_vae import WanVAE
from armillary.media.source import Pixels

PIECE = 16  # latents on a side: 256 of them, several times as many as a latent has channels
RIDGE = 1e-2  # so that channels that hardly vary in the piece weigh little elsewhere


def paint(video: WanVAE, latents_ZTHW: Tensor) -> Pixels:
    """Latents as pixels, uint8 [T, H, W, 3]."""
    height, width = latents_ZTHW.shape[2:]
    top, left = max(0, height - PIECE) // 2, max(0, width - PIECE) // 2
    piece_Z1hw = latents_ZTHW[:, :1, top : top + PIECE, left : left + PIECE].float()
    with torch.no_grad():
        pixels_3PP = video.decode(piece_Z1hw[None])[0, :, 0].float()
    known_NZ = piece_Z1hw.flatten(1).T
    colours_N3 = F.avg_pool2d(pixels_3PP, video.config.scale_factor_spatial).flatten(1).T
    mean_Z, mean_3 = known_NZ.mean(0), colours_N3.mean(0)
    known_NZ, colours_N3 = known_NZ - mean_Z, colours_N3 - mean_3
    square_ZZ = known_NZ.T @ known_NZ
    square_ZZ.diagonal().add_(RIDGE * len(known_NZ))
    map_Z3 = torch.linalg.solve(square_ZZ, known_NZ.T @ colours_N3)
    rgb_THW3 = (latents_ZTHW.float().movedim(0, -1) - mean_Z) @ map_Z3 + mean_3
    return ((rgb_THW3 / 2 + 0.5) * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
