"""A number that is not finite is caught where it appears, by the name of the stage; no file is written."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import armillary.loading
from armillary import cli
from armillary.codecs.audio_vae import AudioVAE
from armillary.codecs.wan_vae import WanVAE
from armillary.loading import load
from armillary.media import Clip, write_png
from armillary.model import Network
from armillary.world import World
from tests.random_pocket import random_pocket

PICTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
CLIP = Clip(PICTURE[None].repeat(9, 0), 8.0, np.zeros((2, 18000), np.float32), 16000)
PUSHES = np.zeros((8, 2), np.float32)
SMALL: dict[str, Any] = {"steps": 2, "size": "16x16"}
ACT: dict[str, Any] = {"domain": "tabletop", "steps": 2}

Broken = tuple[type, str]
ENCODE, DECODE, HEAR = (WanVAE, "encode"), (WanVAE, "decode"), (AudioVAE, "decode")
LISTEN, READ, DRAW = (AudioVAE, "encode"), (Network, "read"), (Network, "draw")
STAGES: dict[str, tuple[Broken, Callable[[World], object], str]] = {
    "given picture": (ENCODE, lambda w: w.generate("a", image=PICTURE, **SMALL), "encoding the pictures"),
    "given clip": (ENCODE, lambda w: w.generate("a", video=CLIP, **SMALL), "encoding the pictures"),
    "control": (
        ENCODE,
        lambda w: w.generate("a", controls={"depth": CLIP}, **SMALL),
        "encoding the pictures",
    ),
    "edited picture": (ENCODE, lambda w: w.generate("a", edit=PICTURE, **SMALL), "encoding the pictures"),
    "given sound": (LISTEN, lambda w: w.generate("a", sound=CLIP, **SMALL), "encoding the sound"),
    "prompt": (READ, lambda w: w.generate("a", **SMALL), r"step 1 of 2: the velocity of vision"),
    "velocity": (DRAW, lambda w: w.generate("a", **SMALL), r"step 1 of 2: the velocity of vision"),
    "frames": (DECODE, lambda w: w.generate("a", **SMALL), "decoding the video"),
    "sound": (HEAR, lambda w: w.generate("a", sound=True, **SMALL), "decoding the sound"),
    "robot's picture": (ENCODE, lambda w: w.policy("a", PICTURE, **ACT), "encoding the pictures"),
    "robot's clip": (ENCODE, lambda w: w.inverse_dynamics(CLIP, **ACT), "encoding the pictures"),
    "actions": (DRAW, lambda w: w.inverse_dynamics(CLIP, **ACT), r"step 1 of 2: the velocity of action"),
    "consequences": (DECODE, lambda w: w.forward_dynamics(PICTURE, PUSHES, **ACT), "decoding the video"),
    "what is heard of them": (
        HEAR,
        lambda w: w.forward_dynamics(PICTURE, PUSHES, sound=True, **ACT),
        "decoding the sound",
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return load(random_pocket(tmp_path_factory.mktemp("model")), device="cpu")


def spoil(monkeypatch: pytest.MonkeyPatch, broken: Broken) -> None:
    """From now on this method gives numbers that are not finite."""
    kind, name = broken
    real = getattr(kind, name)

    def spoiled(*args: Any, **others: Any) -> Any:
        made = real(*args, **others)
        if isinstance(made, list):
            return [x * float("nan") for x in made]
        if isinstance(made, torch.Tensor):
            return made * float("nan")
        for past in made.memory:
            past.own.v_MKC.fill_(float("inf"))
        return made

    monkeypatch.setattr(kind, name, spoiled)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_named(world: World, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, ask, named = STAGES[stage]
    spoil(monkeypatch, broken)
    with pytest.raises(FloatingPointError, match=named):
        ask(world)


@pytest.mark.parametrize("broken", [ENCODE, DRAW, DECODE, HEAR], ids=lambda b: f"{b[0].__name__}.{b[1]}")
def test_no_file_is_written(
    world: World, broken: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    spoil(monkeypatch, broken)
    write_png(tmp_path / "now.png", PICTURE)
    monkeypatch.setattr(armillary.loading, "load", lambda *_, **__: world)
    monkeypatch.chdir(tmp_path)
    options = ["--image", "now.png", "--sound", "--size", "16x16", "--steps", "1", "-o", "out.mp4"]
    monkeypatch.setattr(sys, "argv", ["armillary", "generate", "a disc", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "not finite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["now.png"]
