"""Public failures of other generators, each made by script. The numbers are rows of the list of failures."""

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from armillary import cli
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest
from armillary.flow import native_grid
from armillary.guard import Blocked
from armillary.loading import load, validate
from armillary.media import Clip, read_picture
from armillary.model import Config, Network
from armillary.sequence import pack
from armillary.tasks.frames import Placement
from armillary.train.video import pocket_video_config
from armillary.world import World
from tests.random_pocket import random_pocket
from tests.scene import scene
from tests.solo import sample
from tests.test_sampling import Fake

QUICK: dict[str, Any] = {"steps": 1, "guidance": 1.0, "size": "16x16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return load(folder, device="cpu")


def numbered(count: int) -> np.ndarray:
    """Frame k has grey 20 + 20 k: a frame tells which one it is."""
    levels = (20 + 20 * np.arange(count)).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (count, 16, 16, 3)).copy()


# -- A. media in: conditioning


@pytest.mark.parametrize("count", range(1, 10))
def test_b25_no_frame_of_a_conditioning_clip_vanishes(world: World, count: int) -> None:
    """The autoencoder takes 4n + 1 frames and gives as many back, or refuses; a continuation keeps 5 or says
    how many it needs; a robot's clip of any length has an action between all its neighbours."""
    video = WanVAE(pocket_video_config()).eval()
    frames_13THW = torch.zeros(1, 3, count, 16, 16)
    if count % 4 == 1:
        assert video.decode(video.encode(frames_13THW)).shape == frames_13THW.shape
    else:
        with pytest.raises(BadRequest, match="frames"):
            video.encode(frames_13THW)
    clip = Clip(numbered(count), 8.0)
    if count >= 5:
        assert len(world.generate("on", video=clip, frames=9, **QUICK).frames) == 9
    else:
        with pytest.raises(BadRequest, match=f"has {count} frames?; a continuation needs 5"):
            world.generate("on", video=clip, frames=9, **QUICK)
    if count > 1:
        assert len(world.inverse_dynamics(clip, domain="tabletop", steps=1)) == count - 1


@pytest.mark.parametrize(
    ("keep", "kept"), [(None, slice(-5, None)), ("last", slice(-5, None)), ("first", slice(5))]
)
def test_b26_a_clip_goes_on_from_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, keep: str | None, kept: slice
) -> None:
    seen: list[torch.Tensor] = []
    real = WanVAE.encode
    monkeypatch.setattr(WanVAE, "encode", lambda self, frames: seen.append(frames) or real(self, frames))
    options = {} if keep is None else {"keep": keep}
    world.generate("on", video=Clip(numbered(11), 8.0), frames=9, **QUICK, **options)
    levels = (seen[0][0, 0, :, 0, 0] / 2 + 0.5) * 255
    assert levels.round().int().tolist() == numbered(11)[kept][:, 0, 0, 0].tolist()


# -- C. guards


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("plain", [None, "1"])
@pytest.mark.parametrize(("words", "code"), [("a * b, *bold*", 0), ("a * gore", 2)])
def test_b42_a_verdict_is_no_text_and_does_not_depend_on_the_terminal(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    plain: str | None,
    words: str,
    code: int,
) -> None:
    (tmp_path / "words.txt").write_text("gore\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", plain)
    guard = ["--guard", str(tmp_path / "words.txt")]
    monkeypatch.setattr(
        sys, "argv", ["armillary", "validate", "generate", words, "--model", str(folder), *guard]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == code
    if code:
        with pytest.raises(Blocked) as caught:
            validate("generate", folder, guard=tmp_path / "words.txt", prompt=words)
        assert caught.value.verdict.state == "blocked"


# -- D. sampling and numerics


@pytest.mark.parametrize("times", [0.0, 1.0, 500.0, 1000.0])
def test_b49_a_time_of_a_thousand_is_scaled_to_one_once(times: float) -> None:
    network, seen = small_network(), list[torch.Tensor]()
    network.time.first.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    one = scene(action_width=1)
    vision = replace(one, segments=one.segments[:1])
    network(pack([vision]), torch.tensor([times]))
    first, last = 1.0, 10_000 ** (-127 / 128)  # of the 128 frequencies
    angles = torch.tensor([first, last], dtype=torch.float64) * times / 1000
    assert seen[0][0, [0, 127, 128, 255]].tolist() == pytest.approx(
        [*angles.cos().tolist(), *angles.sin().tolist()], abs=1e-6
    )


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 1.0001, 4.0])
@pytest.mark.parametrize("words", [(), (5,)])
def test_b53_one_branch_at_scale_one_and_two_at_any_other(scale: float, words: tuple[int, ...]) -> None:
    fake, grid = Fake(), native_grid(2, 5)
    negative = scene(ids=words) if words else scene(ids=(0,))
    drawn = sample(fake, scene(), negative=negative, grid=grid, guidance=scale, seed=0)
    assert [n for n, _ in fake.draws] == [1 if scale == 1 else 2] * 2
    alone = sample(Fake(), scene(), grid=grid, seed=0)
    assert torch.equal(drawn, alone) == (scale == 1)


def test_b58_a_request_is_checked_at_once_and_without_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "light", ignore=shutil.ignore_patterns("*.safetensors"))
    taken_s: list[float] = []
    for _ in range(5):  # the first imports
        started = time.process_time()
        with pytest.raises(BadRequest, match="nearest: 56x64 or 64x64"):
            validate("generate", tmp_path / "light", prompt="a disc", size="60x64")
        taken_s.append(time.process_time() - started)
    assert min(taken_s) < 0.05


def test_b59_the_size_that_is_made_is_told_before_the_run(folder: Path) -> None:
    for size in ("16x16", "24x16", "64x64"):
        assert validate("generate", folder, prompt="a disc", size=size).used["size"] == size
    square, wide = (Placement.choose(h, w, 256, 16, longest=64) for h, w in ((100, 100), (90, 160)))
    assert (square.width, square.height, wide.width, wide.height) == (256, 256, 320, 192)


@pytest.mark.parametrize("cast", [False, True])
def test_b61_positions_stay_exact_in_half_precision(cast: bool) -> None:
    network, positions = small_network().to(torch.bfloat16), torch.arange(2001.0).expand(3, -1)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        cos, sin = network.rope(positions)
    config = network.config
    half = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    angles = torch.arange(2001, dtype=torch.float64)[:, None] / config.rope_theta**half
    for found, exact in ((cos, angles.cos()), (sin, angles.sin())):
        found = found.double().reshape(2001, -1)[:, : len(half)]
        assert (found - exact).abs().max() < 2**-8  # the rounding of the result alone; 257 would be 256


def test_b67_the_command_makes_what_the_library_makes(
    world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ["--frames", "1", "--steps", "2", "--size", "16x16", "--seed", "3", "-o", str(tmp_path / "a.png")]
    monkeypatch.setattr(sys, "argv", ["armillary", "generate", "a disc", "--model", str(folder), *told])
    with pytest.raises(SystemExit):
        cli.main()
    alone = world.generate("a disc", frames=1, steps=2, size="16x16", seed=3).frames[0]
    assert np.array_equal(read_picture(tmp_path / "a.png"), alone)


def test_b69_six_results_in_lots_of_three_are_six(world: World) -> None:
    lots = [world.generate("a disc", n=3, seed=seed, frames=1, **QUICK) for seed in (0, 3)]
    made = [clip for lot in lots for clip in lot]
    assert [clip.receipt["used"]["seed"] for clip in made] == [0, 1, 2, 3, 4, 5]
    assert len({clip.frames.tobytes() for clip in made}) == 6


def test_b70_what_is_given_is_left_as_it_was(world: World) -> None:
    video, caption = Clip(numbered(6), 8.0), {"subjects": ["a disc"], "more": {"a": [1, 2]}}
    given = {"prompt": caption, "video": video, "frames": 9, "steps": 1, "size": "16x16"}
    first = world.generate(**given)
    assert given == {"prompt": caption, "video": video, "frames": 9, "steps": 1, "size": "16x16"}
    assert caption == {"subjects": ["a disc"], "more": {"a": [1, 2]}}
    assert np.array_equal(video.frames, numbered(6))
    assert np.array_equal(world.generate(**given).frames, first.frames)


def test_b71_the_autoencoders_statistics_follow_its_weights() -> None:
    """Tensors on a device without numbers: an operation that mixes them with one left on the CPU raises."""
    video = WanVAE(pocket_video_config()).to("meta")
    latents = video.encode(torch.zeros(1, 3, 5, 16, 16, device="meta"))
    assert latents.device.type == video.decode(latents).device.type == "meta"


def small_network() -> Network:
    torch.manual_seed(0)
    config = Config(
        width=32, layers=1, heads=2, kv_heads=1, head_size=16, mlp=32, vocabulary=20, features={"vision": 8},
        rope_axes=(4, 2, 2),
    )  # fmt: skip
    return Network(config).eval()
