"""The table of robot bodies, their scaling, and actions as they travel."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armillary.errors import BadRequest
from armillary.robots import ROBOTS, Actions, Robot, robot

PUSH = [[12.0, -20.0], [0.0, 5.5]]


def test_every_body_fits_the_published_ports() -> None:
    for body in ROBOTS.values():
        assert 0 <= body.domain < 32
        assert body.width is None or 0 <= body.width <= 64
        assert body.chunk % 4 == 0
        assert len(body.columns) in (0, body.width)
        assert len(set(body.columns)) == len(body.columns)
        if body.statistics:
            assert len(body.statistics.low) == len(body.statistics.high) == body.width


@pytest.mark.parametrize(
    ("name", "domain", "width", "fps", "chunk"),
    [
        ("av", 1, 9, 10, 60),
        ("camera_pose", 2, 9, 30, 60),
        ("hand_pose", 3, 57, 15, 16),
        ("bridge_orig_lerobot", 7, 10, 5, 16),
        ("droid_lerobot", 8, 10, 15, 16),
        ("droid_joints", 8, 8, 15, 32),
        ("tabletop", 10, 2, 8, 8),
        ("robomind-franka-dual", 12, 20, 10, 16),
        ("agibot_gear_gripper", 15, 29, 10, 16),
        ("fractal", 20, 10, 3, 16),
    ],
)
def test_known_bodies(name: str, domain: int, width: int, fps: float, chunk: int) -> None:
    body = robot(name)
    assert (body.domain, body.width, body.fps, body.chunk) == (domain, width, fps, chunk)


def test_only_the_tabletop_is_scaled() -> None:
    assert [b.name for b in ROBOTS.values() if b.scaled] == ["tabletop"]
    values = np.array([[20.0, -10.0]], np.float32)
    assert robot("tabletop").to_model(values).tolist() == [[1.0, -0.5]]
    assert robot("tabletop").from_model(robot("tabletop").to_model(values)).tolist() == values.tolist()
    arm = np.full((1, 10), 0.25, np.float32)
    assert robot("umi").to_model(arm) is arm
    assert robot("umi").from_model(arm) is arm


@pytest.mark.parametrize("name", [b.name for b in ROBOTS.values() if b.statistics and not b.scaled])
def test_quantiles_become_minus_one_and_one(name: str) -> None:
    statistics = robot(name).statistics
    assert statistics is not None
    vary = np.array(statistics.high) > statistics.low
    np.testing.assert_allclose(statistics.normalise([statistics.low])[0], -1, atol=1e-6)
    np.testing.assert_allclose(statistics.normalise([statistics.high])[0][vary], 1, atol=1e-6)
    values = np.random.default_rng(0).normal(size=(5, len(statistics.low)))
    restored = statistics.denormalise(statistics.normalise(values))
    np.testing.assert_allclose(restored, values, atol=1e-6)


def test_digests_tell_bodies_of_equal_width_apart() -> None:
    arms = [b for b in ROBOTS.values() if b.width == 10]
    assert len({b.digest for b in arms}) == len(arms) > 5


def test_a_digest_depends_on_the_meaning_only() -> None:
    body = robot("umi")
    assert replace(body, chunk=8, view="wrist_view", tier=256, fps=20).digest == body.digest
    assert replace(body, statistics=robot("fractal").statistics).digest != body.digest
    assert replace(body, columns=body.columns[::-1]).digest != body.digest


def test_an_unknown_body_names_its_neighbours() -> None:
    with pytest.raises(BadRequest, match="nearest: tabletop") as caught:
        robot("table_top")
    assert (caught.value.field, caught.value.value) == ("domain", "table_top")


def test_widths_vary_only_where_data_sets_differ() -> None:
    assert robot("libero", width=7).width == 7
    assert robot("hand_pose", width=48).columns == ()
    assert robot("umi", width=10) is robot("umi")
    with pytest.raises(BadRequest, match="umi has 10 columns"):
        robot("umi", width=9)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [[]],
        3.0,
        [1.0, 2.0],
        [[1.0], [2.0]],
        [[1.0, 2.0, 3.0]],
        [[1.0, 2.0], [3.0]],
        [["left", "right"]],
        [[None, 1.0]],
        [[1.0, float("nan")]],
        [[1.0, float("inf")]],
        [[[1.0, 2.0]], [[1.0, 2.0]]],
    ],
)
def test_what_is_no_action_is_refused(values: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        Actions(values, "tabletop", 8)
    assert caught.value.field.startswith("actions")


def test_an_error_names_the_number() -> None:
    with pytest.raises(BadRequest) as caught:
        robot("tabletop").check([*PUSH, [0.0, float("nan")]])
    assert caught.value.field == "actions[2][1]"


def test_values_are_float32_and_a_copy() -> None:
    given = np.array(PUSH)
    actions = Actions(given, "tabletop", 8)  # pyright: ignore[reportArgumentType]
    given[:] = 0
    assert actions.values.dtype == np.float32
    assert actions.values.tolist() == PUSH
    assert len(actions) == 2


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_a_rate_is_positive(fps: float) -> None:
    with pytest.raises(BadRequest, match="fps"):
        Actions(np.array(PUSH), "tabletop", fps)


def test_columns_are_named_all_or_none() -> None:
    with pytest.raises(BadRequest, match="names"):
        Actions(np.array(PUSH), "tabletop", 8, ("vx",))


def test_json_and_back() -> None:
    actions = Actions(np.array(PUSH, np.float32), "tabletop", 8, ("vx", "vy"), receipt={"seed": 3})
    again = Actions.from_json(actions.to_json())
    assert again.values.tolist() == PUSH
    assert (again.domain, again.fps, again.names) == ("tabletop", 8, ("vx", "vy"))
    assert again.receipt == {"seed": 3}


def test_json_is_plain() -> None:
    content = json.loads(Actions(np.array(PUSH), "tabletop", 8, ("vx", "vy")).to_json())
    assert content["values"] == PUSH
    assert content["shape"] == [2, 2]
    assert content["digest"] == robot("tabletop").digest


@pytest.mark.parametrize("text", [json.dumps(PUSH), json.dumps([PUSH]), json.dumps({"values": PUSH})])
def test_bare_numbers_need_the_domain(text: str) -> None:
    actions = Actions.from_json(text, domain="tabletop")
    assert actions.values.tolist() == PUSH
    assert (actions.fps, actions.names) == (8, ("vx", "vy"))
    with pytest.raises(BadRequest, match="domain"):
        Actions.from_json(text)


def test_actions_of_another_body_are_refused() -> None:
    text = Actions(np.array(PUSH), "pusht", 10).to_json()
    with pytest.raises(BadRequest, match="written for 'pusht'"):
        Actions.from_json(text, domain="tabletop")


def test_actions_of_another_scaling_are_refused() -> None:
    content = json.loads(Actions(np.array(PUSH), "tabletop", 8).to_json())
    text = json.dumps({**content, "digest": "000000000000"})
    with pytest.raises(BadRequest, match=robot("tabletop").digest):
        Actions.from_json(text, domain="tabletop")


@pytest.mark.parametrize(
    "text", ["", "no", "3", '{"domain": "tabletop"}', '"values"', b"\xff", '{"values": [[1, 2]], "fps": "x"}']
)
def test_other_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadRequest):
        Actions.from_json(text, domain="tabletop")


def test_the_digest_of_a_body_of_any_width_counts_its_columns() -> None:
    seven, ten = (Actions(np.zeros((1, n)), "libero", 20) for n in (7, 10))
    assert seven.digest != ten.digest
    assert Actions.from_json(seven.to_json()).digest == seven.digest


def test_robots_load_no_torch() -> None:
    code = "import sys, armillary.robots; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_on_acting_lists_every_body_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs/acting.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [row(body) for body in ROBOTS.values() if body.width != 0]


def row(body: Robot) -> str:
    """A line of the table of robots."""
    columns = f"{len(body.pose_columns)} pose{'s' * (len(body.pose_columns) > 1)}" if body.poses else ""
    columns = columns or ", ".join(body.columns[:2]) + (", ..." if len(body.columns) > 2 else "")
    fps = "?" if "fps" in body.unknown else f"{body.fps:g}"
    scale = f"{body.statistics.kind}" + (", applied" if body.scaled else "") if body.statistics else "?"
    width = f"{body.width or '?'}" + (" or as the data" if body.varies else "")
    cells = (f"`{body.name}`", body.domain, width, columns or "?", fps, body.chunk, scale, f"`{body.digest}`")
    return f"| {' | '.join(map(str, cells))} |"
