"""Decoding in tiles: nearly the whole's numbers, and only where not one latent frame fits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from armillary.codecs.wan_sizes import decoding_bytes
from armillary.codecs.wan_tiles import LEAST, decode_tiled, ramps, spans, tile_side
from armillary.codecs.wan_vae import WanVAE
from armillary.loading import load, plan
from armillary.locate import POCKET
from armillary.memory import Keeper
from armillary.sim import episode
from armillary.tasks import frames
from armillary.tasks.parts import load_video
from armillary.weights import Checkpoint


class Room:
    """So many bytes are free, on any device."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, device: torch.device) -> int:
        return self.count


@pytest.fixture(scope="module")
def network() -> WanVAE:
    loaded = load_video(
        Checkpoint(POCKET), Keeper("resident", device=torch.device("cpu"), dtype=torch.float32)
    )
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def latents_BZthw(network: WanVAE) -> Tensor:
    """Of a clip 128 pixels wide and high, mirrored together from one of the table-top."""
    x_3THW = torch.tensor(episode("push", 3, split="test").frames[:5]).permute(3, 0, 1, 2) / 127.5 - 1
    wide_3THW = torch.cat([x_3THW, x_3THW.flip(-1)], dim=-1)
    return network.encode(torch.cat([wide_3THW, wide_3THW.flip(-2)], dim=-2)[None])


def test_tiles_differ_little_from_the_whole(network: WanVAE, latents_BZthw: Tensor) -> None:
    whole = network.decode(latents_BZthw)
    for side, levels in ((8, 5.0), (12, 2.0)):
        error = (decode_tiled(network, latents_BZthw, side) - whole) * 127.5
        assert 0 < error.square().mean().sqrt() < levels


def test_one_tile_is_the_whole(network: WanVAE, latents_BZthw: Tensor) -> None:
    assert torch.equal(decode_tiled(network, latents_BZthw, 16), network.decode(latents_BZthw))


@pytest.mark.parametrize(("size", "side"), [(16, 8), (17, 8), (45, 20), (80, 33), (9, 8), (5, 8), (12, 4)])
def test_weights_of_tiles_cover_every_pixel_once(size: int, side: int) -> None:
    tiles, total = spans(size, side), torch.zeros(size * 2)
    for (begin, end), weight_N in zip(tiles, ramps(tiles, 2), strict=True):
        total[begin * 2 : end * 2] += weight_N
    assert torch.allclose(total, torch.ones(size * 2))
    assert all(end - begin == min(size, side) for begin, end in tiles)


def test_the_largest_tile_that_fits_is_taken(network: WanVAE) -> None:
    config = network.config
    needed = decoding_bytes(config, 16, 20, 4)
    assert tile_side(config, 16, 20, 4, needed) is None
    side = tile_side(config, 16, 20, 4, needed // 3)
    assert side is not None
    assert (
        decoding_bytes(config, side, side, 4) <= needed // 3 < decoding_bytes(config, side + 1, side + 1, 4)
    )
    assert tile_side(config, 16, 20, 4, 1) == LEAST


def test_tiles_are_used_only_where_a_latent_frame_does_not_fit(
    network: WanVAE, latents_BZthw: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, none = frames.decode(network, latents_BZthw[0])
    monkeypatch.setattr(frames, "decoding_room", Room(decoding_bytes(network.config, 10, 10, 4)))
    tiled, side = frames.decode(network, latents_BZthw[0])
    assert (none, side) == (None, 10)
    assert tiled.shape == whole.shape
    assert not np.array_equal(tiled, whole)


def test_the_plan_says_so_beforehand(network: WanVAE, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"prompt": "a disc", "frames": 1, "size": "256x256"}
    assert plan("generate", POCKET, **asked).tile is None
    few = decoding_bytes(network.config, 12, 12, 4)
    monkeypatch.setattr("armillary.budget.decoding_room", Room(few))
    found = plan("generate", POCKET, device="cpu", **asked)
    assert found.tile == 12
    assert "in tiles of 12x12 latents" in found.table()


def test_a_receipt_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world, picture = load("pocket", device="cpu"), np.zeros((64, 64, 3), np.uint8)
    quick: dict[str, Any] = {"steps": 1, "seed": 0}
    assert "tile" not in world.generate("a disc", frames=1, **quick).receipt
    assert world.parts.video is not None
    monkeypatch.setattr(
        frames, "decoding_room", Room(decoding_bytes(world.parts.video.config, LEAST, LEAST, 4))
    )
    acting: dict[str, Any] = {"domain": "tabletop", **quick}
    assert world.generate("a disc", frames=1, **quick).receipt["tile"] == LEAST
    assert world.policy("push it", picture, **acting).receipt["tile"] == LEAST
    assert world.forward_dynamics(picture, [[0.0, 0.0]], **acting).receipt["tile"] == LEAST
