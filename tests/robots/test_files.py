"""Robots of one's own: from a TOML file, from a LeRobot data set; what does not fit is refused at once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import armillary
from armillary.errors import BadRequest
from armillary.robots import Actions, from_lerobot, robot
from armillary.sim import episode, write_lerobot
from tests.random_pocket import random_pocket

ARM = """
name = "arm"
port = 11
fps = 8
chunk = 8
tier = 256
columns = ["x", "grip"]
units = ["m", "0 closed, 1 open"]
scaled = true

[statistics]
kind = "min_max"
low = [-0.5, 0]
high = [0.5, 1]
"""


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    (tmp_path / "arm.toml").write_text(ARM)
    return tmp_path / "arm.toml"


def changed(arm: Path, old: str, new: str) -> Path:
    assert old in ARM
    arm.write_text(ARM.replace(old, new))
    return arm


def test_a_file_tells_a_robot(arm: Path) -> None:
    body = robot(arm)
    assert (body.name, body.domain, body.width, body.fps, body.chunk, body.tier) == ("arm", 11, 2, 8, 8, 256)
    assert body.columns == ("x", "grip")
    assert body.to_model(np.array([[0.25, 1]], np.float32)).tolist() == [[0.5, 1.0]]
    assert armillary.robot(str(arm)) == body
    assert robot(changed(arm, "tier = 256", 'tier = "own"')).tier is None


def test_a_file_may_start_from_a_known_robot(arm: Path) -> None:
    arm.write_text('name = "mine"\nlike = "bridge_orig_lerobot"\nfps = 10\nscaled = true\n')
    body, known = robot(arm), robot("bridge_orig_lerobot")
    assert (body.columns, body.statistics, body.domain) == (known.columns, known.statistics, known.domain)
    assert (body.fps, body.scaled) == (10, True)
    assert body.digest != known.digest


def test_what_is_not_published_is_refused_until_it_is_given(arm: Path) -> None:
    with pytest.raises(BadRequest, match=r"fps=None: is not published for galbot"):
        robot("galbot").require_known()
    robot("galbot", fps=15).require_known()
    arm.write_text('name = "mine"\nlike = "galbot"\nfps = 15\n')
    robot(arm).require_known()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("port = 11", "", "port=None: is needed"),
        ("fps = 8", "", "fps=None: is needed"),
        ("fps = 8", "fps = 0", "fps=0"),
        ("fps = 8", "fsp = 8", "fsp=8.*nearest: fps"),
        ("port = 11", "port = -1", "port=-1"),
        ('name = "arm"', 'name = "arm"\nlike = "arm.toml"', "leads back to this file"),
        ("chunk = 8", "chunk = 0", "chunk=0: .*nearest: 1"),
        ("chunk = 8", "chunk = 10000000", "chunk=10000000: .*nearest: 5000"),
        ("chunk = 8", 'chunk = "8"', "chunk='8'"),
        ('units = ["m", "0 closed, 1 open"]', 'units = ["m"]', "units=1: has 1 columns, arm has 2"),
        ('["x", "grip"]', '["x", "x"]', "a name occurs twice"),
        ("high = [0.5, 1]", "high = [0.5]", "low has 2 columns"),
        ("high = [0.5, 1]", "high = [0.5, nan]", r"high\[1\]=nan: must be a finite number"),
        ("high = [0.5, 1]", "high = [-0.6, 1]", r"high\[0\]=-0.6: is less than low"),
        (ARM[ARM.index("kind") :], 'kind = "mean_std"\nlow = [0, 0]\nhigh = [1, 0]\n', "is more than 0"),
        ('"min_max"', '"percentile"', "statistics"),
        ('name = "arm"', 'name = "arm"\nlike = "umi"\nlerobot = "x"', "not from both"),
        ('name = "arm"', 'name = "arm"\ndigest = "0123456789ab"', "the contract in this file is"),
        ('name = "arm"', "name = arm", "is no TOML file"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_by_field(
    arm: Path, old: str, new: str, named: str
) -> None:
    changed(arm, old, new)
    with pytest.raises(BadRequest, match=named):
        robot(arm)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("none.toml", "cannot be opened"),
        (".", "which port"),
        ("tabletp", "nearest: tabletop"),
        (3, "name of a robot"),
    ],
)
def test_what_is_no_robot_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match=named):
        robot(name)


def test_actions_of_ones_own_robot_travel_as_json(arm: Path) -> None:
    actions = Actions.of(robot(arm), [[0.1, 1], [0.2, 0]])
    text = actions.to_json()
    assert json.loads(text)["units"] == ["m", "0 closed, 1 open"]
    again = Actions.from_json(text, domain=arm)
    assert again.values.tolist() == actions.values.tolist()
    assert again.digest == actions.digest
    with pytest.raises(BadRequest, match="no such domain"):
        Actions.from_json(text)
    changed(arm, "low = [-0.5, 0]", "low = [-0.4, 0]")
    with pytest.raises(BadRequest, match="digest="):
        Actions.from_json(text, domain=arm)


# -- LeRobot


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lerobot") / "pushes"
    write_lerobot(folder, (episode("push", i) for i in range(2)))
    return folder


def test_a_data_set_tells_columns_rate_and_scale(pushes: Path) -> None:
    body = from_lerobot(pushes, port=10, statistics="min_max")
    assert (body.name, body.width, body.fps, body.columns) == ("pushes", 2, 8, ("velocity_x", "velocity_y"))
    assert from_lerobot(pushes / "meta", port=10, statistics="min_max").statistics == body.statistics
    actions = np.concatenate([episode("push", i).actions for i in range(2)])
    told = body.to_model(actions.astype(np.float32))
    np.testing.assert_allclose([told.min(), told.max()], [-1, 1], atol=1e-5)
    np.testing.assert_allclose(body.from_model(told), actions, atol=1e-4)


def test_a_file_may_point_at_a_data_set(pushes: Path) -> None:
    file = pushes.parent / "pusher.toml"
    file.write_text('name = "pusher"\nlerobot = "pushes"\nport = 10\nstatistics = "mean_std"\nchunk = 8\n')
    body = robot(file)
    assert body.statistics is not None
    assert (body.name, body.domain, body.chunk, body.statistics.kind) == ("pusher", 10, 8, "mean_std")
    file.write_text('name = "pusher"\nlerobot = "pushes"\n')
    with pytest.raises(BadRequest, match="port=None"):
        robot(file)


def broken(pushes: Path, tmp_path: Path, **parts: Any) -> Path:
    """A copy of the meta folder, statistics of the action replaced; None takes one away."""
    for name in ("info.json", "stats.json"):
        content = json.loads((pushes / "meta" / name).read_text())
        if name == "stats.json":
            content["action"] |= parts
            content["action"] = {key: value for key, value in content["action"].items() if value is not None}
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"min": [0, 0, 0]}, "action.min=3: the feature `action` has 2 columns"),
        ({"min": None}, "these statistics are missing; it has those of .*mean_std"),
        ({"min": [0, float("nan")]}, r"low\[1\]=nan"),
        ({"max": [float("inf"), 0]}, r"high\[0\]=inf"),
        ({"max": [-1e9, 1]}, r"high\[0\]=-1000000000.0: is less than low"),
    ],
)
def test_statistics_that_do_not_fit_are_refused_by_file_and_feature(
    pushes: Path, tmp_path: Path, parts: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named) as caught:
        from_lerobot(broken(pushes, tmp_path, **parts), port=10, statistics="min_max")
    assert "stats.json" in caught.value.field


def test_a_deviation_of_zero_is_refused(pushes: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="more than 0"):
        from_lerobot(broken(pushes, tmp_path, std=[1, 0]), port=10, statistics="mean_std")


def test_a_folder_without_statistics_is_refused(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"stats.json.*cannot be opened"):
        from_lerobot(tmp_path, port=1)


# -- with a model


def test_a_request_may_name_a_file_and_scales_once(
    arm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens that the network is given are the numbers normalised once."""
    from armillary.layout.blank import Shown, blank_parts
    from armillary.tasks.ready import read_facts
    from armillary.world import World

    folder = random_pocket(tmp_path / "checkpoint")
    picture, actions = np.zeros((64, 64, 3), np.uint8), np.tile([[0.25, 0.5]], (8, 1))
    receipt = armillary.validate("policy", folder, prompt="x", image=picture, domain=str(arm))
    assert receipt.used["contract"] == robot(arm).digest
    world = World(blank_parts(folder), read_facts("x", folder))
    with pytest.raises(Shown) as shown:
        world.forward_dynamics(picture, actions.tolist(), domain=arm)
    tokens = next(s for s in shown.value.pack.samples[0].segments if s.kind == "action").tokens_NF
    assert tokens[:, :2].tolist() == [[0.5, 0.0]] * 8
    assert not tokens[:, 2:].any()
    assert next(s for s in shown.value.pack.samples[0].segments if s.kind == "action").domain == 11


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (ARM.replace("port = 11", "port = 32"), "has port 32"),
        (ARM.replace("chunk = 8", "chunk = 6"), "chunk=6: must be a multiple of 4"),
        (ARM.replace("tier = 256", 'view = "moon"'), "view='moon': known views"),
        ('name = "g"\nlike = "galbot"\n', "fps"),
    ],
)
def test_a_robot_that_the_checkpoint_cannot_move_is_refused_without_weights(
    arm: Path, tmp_path: Path, text: str, named: str
) -> None:
    arm.write_text(text)
    picture = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(BadRequest, match=named):
        armillary.validate("policy", prompt="x", image=picture, domain=arm)


def test_actions_of_another_contract_are_refused_at_the_request(arm: Path, tmp_path: Path) -> None:
    known = ARM.replace("port = 11", "port = 10")  # the one that pocket was taught
    arm.write_text(known)
    actions = Actions.of(robot(arm), [[0.1, 1]] * 8)
    arm.write_text(known.replace("low = [-0.5, 0]", "low = [-0.4, 0]"))
    picture = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(BadRequest, match="digest="):
        armillary.validate("forward_dynamics", image=picture, actions=actions, domain=arm)
