"""Rotations and paths: every form there and back, and known ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armillary.errors import BadRequest
from armillary.robots import ROBOTS, poses

Array = np.ndarray
quaternions = (
    hnp.arrays(np.float64, (5, 4), elements=st.floats(-1, 1))
    .filter(lambda q: bool((np.linalg.norm(q, axis=1) > 0.05).all()))
    .map(lambda q: q / np.linalg.norm(q, axis=1, keepdims=True))
)
places = hnp.arrays(np.float64, (5, 3), elements=st.floats(-3, 3))
quick = settings(max_examples=40, deadline=None)


def turn(axis: str, degrees: float) -> Array:
    """A rotation about one axis, written out."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rows = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }
    return np.array([rows[axis]], np.float64)


@quick
@given(quaternions)
def test_every_form_of_a_rotation_leads_there_and_back(q_N4: Array) -> None:
    r_N33 = poses.from_quaternion(q_N4)
    identity = np.broadcast_to(np.eye(3), r_N33.shape)
    np.testing.assert_allclose(r_N33 @ np.swapaxes(r_N33, 1, 2), identity, atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(r_N33), 1, atol=1e-12)
    np.testing.assert_allclose(poses.from_rot6d(poses.to_rot6d(r_N33)), r_N33, atol=1e-12)
    np.testing.assert_allclose(poses.from_euler(poses.to_euler(r_N33)), r_N33, atol=1e-7)
    again_N4 = poses.to_quaternion(r_N33)
    np.testing.assert_allclose(poses.from_quaternion(again_N4), r_N33, atol=1e-12)
    assert (again_N4[:, 3] >= 0).all()
    np.testing.assert_allclose(np.abs((again_N4 * q_N4).sum(axis=1)), 1, atol=1e-12)  # q and -q are one


@pytest.mark.parametrize("axis", "xyz")
@pytest.mark.parametrize("degrees", [-179, -90, -30, 0, 45, 90, 120, 180])
def test_turns_about_an_axis_are_what_is_written_in_books(axis: str, degrees: float) -> None:
    r_133, half = turn(axis, degrees), math.radians(degrees) / 2
    q = np.array([[math.sin(half) * (axis == a) for a in "xyz"] + [math.cos(half)]])
    np.testing.assert_allclose(poses.from_quaternion(q), r_133, atol=1e-12)
    angles = np.array([[math.radians(degrees) * (axis == a) for a in "xyz"]])
    np.testing.assert_allclose(poses.from_euler(angles), r_133, atol=1e-12)


def test_euler_angles_turn_about_fixed_axes_first_x_then_y_then_z() -> None:
    angles = np.radians([[20, -35, 70]])
    np.testing.assert_allclose(
        poses.from_euler(angles), turn("z", 70) @ turn("y", -35) @ turn("x", 20), atol=1e-12
    )
    np.testing.assert_allclose(poses.to_euler(poses.from_euler(angles)), angles, atol=1e-12)


@pytest.mark.parametrize("pitch", [-90, 90])
def test_an_upright_pitch_keeps_the_rotation(pitch: float) -> None:
    r_133 = turn("z", 30) @ turn("y", pitch) @ turn("x", 50)
    angles = poses.to_euler(r_133)
    assert angles[0, 2] == 0
    np.testing.assert_allclose(poses.from_euler(angles), r_133, atol=1e-7)


def test_rot6d_is_two_columns_the_first_one_first() -> None:
    assert poses.to_rot6d(np.arange(9).reshape(1, 3, 3)).tolist() == [[0, 3, 6, 1, 4, 7]]


def test_two_rough_columns_become_the_rotation_that_keeps_the_first() -> None:
    r_133 = poses.from_rot6d([[2, 0, 0, 0.3, 1, 0]])
    np.testing.assert_allclose(r_133, np.eye(3)[None], atol=1e-12)


@quick
@given(quaternions, places, st.sampled_from(["delta", "anchored", "absolute"]))
def test_a_path_told_as_actions_is_the_same_path_again(q_N4: Array, t_N3: Array, convention: str) -> None:
    path_N44 = poses.join(t_N3, poses.from_quaternion(q_N4))
    actions_K9 = poses.to_actions(path_N44, convention)  # pyright: ignore[reportArgumentType]
    assert actions_K9.shape == (4, 9)
    again_N44 = poses.to_path(actions_K9, path_N44[0], convention)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(again_N44, path_N44, atol=1e-9)


def test_a_delta_is_told_in_the_frame_of_the_pose_before() -> None:
    """A body that looks along y and goes one ahead moves along its own x."""
    start, ahead = (np.r_[turn("z", 90)] for _ in range(2))
    path_N44 = poses.join([[5, 5, 0], [5, 6, 0], [5, 7, 0]], np.concatenate([start, ahead, ahead]))
    np.testing.assert_allclose(poses.to_actions(path_N44)[:, :3], [[1, 0, 0]] * 2, atol=1e-12)
    np.testing.assert_allclose(
        poses.to_actions(path_N44, "anchored")[:, :3], [[1, 0, 0], [2, 0, 0]], atol=1e-12
    )
    assert poses.to_actions(path_N44, "absolute")[:, :3].tolist() == [[5, 6, 0], [5, 7, 0]]


@quick
@given(quaternions, places, quaternions, places)
def test_deltas_do_not_depend_on_where_the_world_begins(
    q_N4: Array, t_N3: Array, world_q: Array, world_t: Array
) -> None:
    path_N44 = poses.join(t_N3, poses.from_quaternion(q_N4))
    moved_44 = poses.join(world_t[:1], poses.from_quaternion(world_q[:1]))[0]
    np.testing.assert_allclose(poses.to_actions(moved_44 @ path_N44), poses.to_actions(path_N44), atol=1e-9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: poses.from_rot6d([[0, 0, 0, 0, 1, 0]]), r"rot6d\[0\]"),
        (lambda: poses.from_rot6d([[1, 0, 0, 2, 0, 0]]), "tells no rotation"),
        (lambda: poses.from_quaternion([[0, 0, 0, 0]]), "tells no rotation"),
        (lambda: poses.from_euler([[0, math.nan, 0]]), "every number is finite"),
        (lambda: poses.to_actions([np.eye(4)]), "at least 2"),
        (lambda: poses.to_actions(np.zeros((3, 3, 3))), r"must be \[N, 4, 4\]"),
        (lambda: poses.to_actions([np.eye(4)] * 2, "deltas"), "nearest: delta"),  # pyright: ignore[reportArgumentType]
        (lambda: poses.join([[0, 0, 0]], np.stack([np.eye(3)] * 2)), "1 translations"),
    ],
)
def test_what_tells_no_pose_is_refused(call: object, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        call()  # pyright: ignore[reportCallIssue]


def test_robots_that_tell_poses_say_where_they_are() -> None:
    starts = {name: body.pose_columns for name, body in ROBOTS.items() if body.poses}
    assert starts["av"] == (0,)
    assert starts["robomind-franka-dual"] == (0, 10)
    assert starts["agibotworld"] == (0, 9, 19)
    assert starts["hand_pose"] == (0, 9, 33)
    assert all(starts.values())
