"""Poses as numbers and back: rotations in three forms, and paths told as moves.

A pose is a 4x4 matrix T that takes points of the body (camera, tool) to the world. Nine numbers tell it: the
translation, then the first and the second column of the rotation matrix ("rot6d", Zhou et al. 2019).
Source: the released framework's action spaces.

Shape letters: N poses or rotations, K = N - 1 actions, 3 4 6 9 numbers of one.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from armillary.errors import BadRequest, nearest

Array = NDArray[np.float64]
Convention = Literal["delta", "anchored", "absolute"]

POSE = ("tx", "ty", "tz", "r00", "r10", "r20", "r01", "r11", "r21")


# -- rotations -----------------------------------------------------------------------------------------


def to_rot6d(rotations_N33: ArrayLike) -> Array:
    """The first two columns of each rotation matrix, one after the other."""
    return np.swapaxes(_shaped(rotations_N33, (3, 3), "rotations")[..., :2], 1, 2).reshape(-1, 6)


def from_rot6d(columns_N6: ArrayLike) -> Array:
    """Rotation matrices of two columns each that need not be exact, as drawn ones are not: the first one's
    direction is kept, the second is made orthogonal to it, the third is their cross product.

    Raises BadRequest where a column is zero or both point the same way.
    """
    first_N3, second_N3 = np.split(_shaped(columns_N6, (6,), "rot6d"), 2, axis=1)
    x_N3 = _unit(first_N3, "rot6d")
    z_N3 = _unit(np.cross(x_N3, second_N3), "rot6d")
    return np.stack([x_N3, np.cross(z_N3, x_N3), z_N3], axis=2)


def to_quaternion(rotations_N33: ArrayLike) -> Array:
    """Unit quaternions (x, y, z, w) with w >= 0."""
    r = _shaped(rotations_N33, (3, 3), "rotations")
    trace_N = np.trace(r, axis1=1, axis2=2)
    # Four times each product of two parts; the row with the largest square is divided by its root.
    xx, yy, zz = (1 + 2 * r[:, i, i] - trace_N for i in range(3))
    ww = 1 + trace_N
    xy, xz, yz = r[:, 0, 1] + r[:, 1, 0], r[:, 0, 2] + r[:, 2, 0], r[:, 1, 2] + r[:, 2, 1]
    xw, yw, zw = r[:, 2, 1] - r[:, 1, 2], r[:, 0, 2] - r[:, 2, 0], r[:, 1, 0] - r[:, 0, 1]
    rows_N44 = np.stack(
        [
            np.stack(row, -1)
            for row in ((xx, xy, xz, xw), (xy, yy, yz, yw), (xz, yz, zz, zw), (xw, yw, zw, ww))
        ],
        axis=1,
    )
    largest_N = np.argmax(np.stack([xx, yy, zz, ww], axis=1), axis=1)
    quaternions_N4 = _unit(rows_N44[np.arange(len(r)), largest_N], "rotations")
    return np.where(quaternions_N4[:, 3:] < 0, -quaternions_N4, quaternions_N4)


def from_quaternion(quaternions_N4: ArrayLike) -> Array:
    """Rotation matrices of quaternions (x, y, z, w) of any length but zero."""
    x, y, z, w = _unit(_shaped(quaternions_N4, (4,), "quaternion"), "quaternion").T
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, -1) for row in rows], axis=1)


def to_euler(rotations_N33: ArrayLike) -> Array:
    """Angles (roll, pitch, yaw) in radians: about the fixed x, then y, then z axis; pitch in [-pi/2, pi/2].

    Where the pitch is a right angle only roll and yaw together matter; then the yaw is 0.
    """
    r = _shaped(rotations_N33, (3, 3), "rotations")
    pitch_N = np.arctan2(-r[:, 2, 0], np.hypot(r[:, 0, 0], r[:, 1, 0]))
    upright_N = np.hypot(r[:, 0, 0], r[:, 1, 0]) < 1e-7
    yaw_N = np.where(upright_N, 0.0, np.arctan2(r[:, 1, 0], r[:, 0, 0]))
    roll_N = np.where(upright_N, np.arctan2(-r[:, 1, 2], r[:, 1, 1]), np.arctan2(r[:, 2, 1], r[:, 2, 2]))
    return np.stack([roll_N, pitch_N, yaw_N], axis=1)


def from_euler(angles_N3: ArrayLike) -> Array:
    """Rotation matrices Rz(yaw) Ry(pitch) Rx(roll) of angles in radians."""
    roll, pitch, yaw = _shaped(angles_N3, (3,), "euler").T
    one, zero = np.ones_like(roll), np.zeros_like(roll)
    (cr, sr), (cp, sp), (cy, sy) = ((np.cos(a), np.sin(a)) for a in (roll, pitch, yaw))
    x_N33 = _matrix(((one, zero, zero), (zero, cr, -sr), (zero, sr, cr)))
    y_N33 = _matrix(((cp, zero, sp), (zero, one, zero), (-sp, zero, cp)))
    z_N33 = _matrix(((cy, -sy, zero), (sy, cy, zero), (zero, zero, one)))
    return z_N33 @ y_N33 @ x_N33


def _matrix(rows: Any) -> Array:
    return np.stack([np.stack(row, -1) for row in rows], axis=1)


# -- poses and paths -----------------------------------------------------------------------------------


def join(translations_N3: ArrayLike, rotations_N33: ArrayLike) -> Array:
    """Poses [N, 4, 4] of translations and rotation matrices."""
    t_N3 = _shaped(translations_N3, (3,), "translations")
    r_N33 = _shaped(rotations_N33, (3, 3), "rotations")
    if len(t_N3) != len(r_N33):
        raise BadRequest("rotations", len(r_N33), f"there are {len(t_N3)} translations")
    poses_N44 = np.tile(np.eye(4), (len(t_N3), 1, 1))
    poses_N44[:, :3, 3], poses_N44[:, :3, :3] = t_N3, r_N33
    return poses_N44


def to_actions(poses_N44: ArrayLike, convention: Convention = "delta") -> Array:
    """A path of N poses as N - 1 actions [K, 9]; action k leads to pose k + 1.

    delta: the move from the pose before, T_k^-1 T_(k+1). anchored: from the first one, T_0^-1 T_(k+1).
    absolute: T_(k+1) itself.
    """
    t_N44 = _shaped(poses_N44, (4, 4), "poses")
    if len(t_N44) < 2:
        raise BadRequest("poses", len(t_N44), "a path has at least 2")
    origins_K44 = _origins(t_N44, convention)
    told_K44 = t_N44[1:] if origins_K44 is None else _inverse(origins_K44) @ t_N44[1:]
    return np.concatenate([told_K44[:, :3, 3], to_rot6d(told_K44[:, :3, :3])], axis=1)


def to_path(actions_K9: ArrayLike, start_44: ArrayLike, convention: Convention = "delta") -> Array:
    """The inverse of `to_actions`: the K + 1 poses [N, 4, 4] from `start_44` on.

    Rotations that are not exact, as drawn ones are not, become the nearest that `from_rot6d` finds.
    """
    told_K9 = _shaped(actions_K9, (9,), "actions")
    moves_K44 = join(told_K9[:, :3], from_rot6d(told_K9[:, 3:]))
    path = [_shaped(np.asarray(start_44)[None], (4, 4), "start")[0]]
    _check_convention(convention)
    for move_44 in moves_K44:
        origin_44 = {"delta": path[-1], "anchored": path[0]}.get(convention)
        path.append(move_44 if origin_44 is None else origin_44 @ move_44)
    return np.stack(path)


def _origins(poses_N44: Array, convention: Convention) -> Array | None:
    """What each pose but the first is told from."""
    _check_convention(convention)
    return {"delta": poses_N44[:-1], "anchored": poses_N44[:1]}.get(convention)


def _check_convention(convention: str) -> None:
    if convention not in get_args(Convention):
        close = " or ".join(nearest(convention, get_args(Convention)))
        raise BadRequest("convention", convention, f"nearest: {close}")


def _inverse(poses_N44: Array) -> Array:
    """Of rigid moves: the transposed rotation, and the translation turned back."""
    turned_N33 = np.swapaxes(poses_N44[:, :3, :3], 1, 2)
    back_N31 = -turned_N33 @ poses_N44[:, :3, 3:]
    return join(back_N31[..., 0], turned_N33)


def _unit(vectors_NX: Array, field: str) -> Array:
    lengths_N1 = np.linalg.norm(vectors_NX, axis=1, keepdims=True)
    if not (lengths_N1 > 1e-9).all():
        row = int(np.argmin(lengths_N1))
        raise BadRequest(f"{field}[{row}]", vectors_NX[row].tolist(), "tells no rotation: a length is 0")
    return vectors_NX / lengths_N1


def _shaped(values: ArrayLike, shape: tuple[int, ...], field: str) -> Array:
    """The values as float64 [N, *shape]. Raises BadRequest for others, NaN and infinity."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise BadRequest(field, values, "must be numbers") from None
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        wanted = ", ".join(["N", *map(str, shape)])
        raise BadRequest(f"{field}.shape", list(array.shape), f"must be [{wanted}]")
    if not np.isfinite(array).all():
        raise BadRequest(field, "NaN or infinity", "every number is finite")
    return array
