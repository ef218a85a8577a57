"""Robots that a checkpoint was never taught: ports as they began are known for it, and refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from armillary import doctor
from armillary.cli import app
from armillary.errors import BadRequest
from armillary.loading import load, validate
from armillary.robots import robot
from armillary.weights import TRANSFORMER, Checkpoint
from tests.random_pocket import random_pocket

PICTURE = np.zeros((16, 16, 3), np.uint8)
BIASES, WEIGHTS = ([f"action_proj_{way}.{leaf}.weight" for way in ("in", "out")] for leaf in ("bias", "fc"))

State = dict[str, Tensor]
Change = Callable[[Callable[[State], None]], Checkpoint]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


@pytest.fixture
def changed(folder: Path) -> Change:
    file = folder / "transformer" / f"{TRANSFORMER}.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for name in BIASES:  # as they began, whatever another test made of them
        state[name][:] = 0
    for name in WEIGHTS:
        state[name][:] = state[name][0].clone()

    def change(how: Callable[[State], None]) -> Checkpoint:
        new = {name: tensor.clone() for name, tensor in state.items()}
        how(new)
        file.unlink()  # what was loaded before may still lie in it
        save_file(new, file)
        return Checkpoint(folder)

    return change


def train(state: State, port: int) -> None:
    """Move the numbers of one port."""
    for name in (*BIASES, *WEIGHTS):
        state[name][port] += torch.randn(state[name].shape[1], generator=torch.Generator().manual_seed(port))


def test_ports_that_are_as_they_began_are_refused_and_the_others_named(
    changed: Change,
) -> None:
    folder = changed(lambda state: train(state, 10)).folder
    world = load(folder, device="cpu")
    assert world.facts.robots == ("tabletop",)
    body = replace(robot("tabletop"), name="mine", domain=4)
    for ask in (world.policy, lambda *a, **o: validate("policy", folder, prompt=a[0], image=a[1], **o)):
        with pytest.raises(BadRequest, match=r"^domain='pusht': .*all: tabletop"):
            ask("push it", PICTURE, domain="pusht", steps=1)
        with pytest.raises(BadRequest, match=r"^domain='mine': has port 4, .*taught 10 \(tabletop\)"):
            ask("push it", PICTURE, domain=body, steps=1)
        ask("push it", PICTURE, domain="tabletop", steps=1)


def test_where_no_port_was_trained_none_is_refused(changed: Change) -> None:
    assert changed(lambda _state: None).untaught == set()


def test_only_ports_that_began_alike_are_told_apart(
    changed: Change,
) -> None:
    def without_biases(state: State) -> None:
        train(state, 10)
        train(state, 4)
        for name in BIASES:
            state[name][4] = 0

    assert changed(without_biases).untaught == set(range(32)) - {4, 10}

    def of_their_own(state: State) -> None:
        for port in range(32):
            train(state, port)
        for name in BIASES:
            state[name][:10] = 0

    assert changed(of_their_own).untaught == set()


def test_ports_of_zeros_are_untaught(
    changed: Change,
) -> None:
    def emptied(state: State) -> None:
        train(state, 10)
        for name in WEIGHTS:
            state[name][:10] = 0
            state[name][11:] = 0

    assert changed(emptied).untaught == set(range(32)) - {10}


def test_pocket_knows_the_table_top_alone(tmp_path: Path) -> None:
    assert doctor.describe("pocket")["robots"] == ["tabletop"]
    picture = tmp_path / "scene.png"
    Image.fromarray(PICTURE).save(picture)
    command = ["policy", "push it", "--image", str(picture), "--domain", "pusht"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "tabletop" in result.output
