"""Controls: clips that say how another clip moves. Edges and blur are computed here, other maps are given.

Shape letters: T frames, H W height and width in pixels, N pixels laid flat.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armillary.media.source import Pixels
from armillary.requests import Hint, Strength

# Of gradients 0 to 2040: what is surely an edge, and what is one if it touches such a place (the second).
EDGES: dict[Strength, tuple[int, int]] = {
    "very_low": (50, 20),
    "low": (100, 50),
    "medium": (200, 100),
    "high": (300, 200),
    "very_high": (400, 300),
}
# How much smaller a frame becomes before it is smoothed, and after that before it is made large again.
BLURS: dict[Strength, tuple[int, int]] = {
    "very_low": (1, 4),
    "low": (4, 4),
    "medium": (2, 10),
    "high": (1, 16),
    "very_high": (4, 16),
}
# Spread of the bilateral filter: that of a window of 30 pixels where the longer side has 720, and in colour.
SMOOTH_PX, SMOOTH_COLOUR = 30 / 12**0.5, 150 / 255


@dataclass(frozen=True, eq=False)
class Control:
    """A clip uint8 [T, H, W, 3]. strength: compute edges or blur from it; None: it is the map itself."""

    hint: Hint
    frames: Pixels
    weight: float | None = None
    strength: Strength | None = None

    def map(self, frames_THW3: Pixels) -> Pixels:
        """The control map of frames that have been brought to size, uint8 of the same shape."""
        if self.strength is None:
            return frames_THW3
        return (edges if self.hint == "edge" else blurred)(frames_THW3, self.strength)


def weights(controls: tuple[Control, ...]) -> tuple[float, ...]:
    """How much each counts, together 1; none if no control says so, which is one attention over all."""
    if all(control.weight is None for control in controls):
        return ()
    given = [1.0 if control.weight is None else control.weight for control in controls]
    return tuple(weight / sum(given) for weight in given)


def edges(frames_THW3: Pixels, strength: Strength) -> Pixels:
    """White lines on black where brightness changes fast (Canny 1986, without smoothing first)."""
    return np.stack(
        [np.repeat(_canny(frame_HW3, *EDGES[strength])[..., None], 3, -1) for frame_HW3 in frames_THW3]
    )


def _canny(frame_HW3: Pixels, sure: int, likely: int) -> Pixels:
    across_HW, down_HW = _gradient(frame_HW3)
    size_HW = np.abs(across_HW) + np.abs(down_HW)
    ridge_HW = _is_ridge(size_HW, across_HW, down_HW)
    kept_HW = _grow(ridge_HW & (size_HW > sure), ridge_HW & (size_HW > likely))
    return (kept_HW * 255).astype(np.uint8)


def _gradient(frame_HW3: Pixels) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sobel's slopes to the right and down, of the channel in which they are steepest."""
    p = np.pad(frame_HW3.astype(np.int32), ((1, 1), (1, 1), (0, 0)), mode="edge")
    across = (p[:-2, 2:] - p[:-2, :-2]) + 2 * (p[1:-1, 2:] - p[1:-1, :-2]) + (p[2:, 2:] - p[2:, :-2])
    down = (p[2:, :-2] - p[:-2, :-2]) + 2 * (p[2:, 1:-1] - p[:-2, 1:-1]) + (p[2:, 2:] - p[:-2, 2:])
    steepest = (np.abs(across) + np.abs(down)).argmax(-1)[..., None]
    return np.take_along_axis(across, steepest, -1)[..., 0], np.take_along_axis(down, steepest, -1)[..., 0]


def _is_ridge(
    size_HW: NDArray[np.int32], across_HW: NDArray[np.int32], down_HW: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Where the slope is no smaller than on either side of the edge: the middle line of each edge."""
    p = np.pad(size_HW, 1)
    height, width = size_HW.shape

    def beside(dy: int, dx: int) -> NDArray[np.int32]:
        return p[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    flat_HW = np.abs(down_HW) < np.tan(np.pi / 8) * np.abs(across_HW)  # an upright edge
    steep_HW = np.abs(down_HW) > np.tan(3 * np.pi / 8) * np.abs(across_HW)  # a level one
    falling_HW = (across_HW < 0) != (down_HW < 0)
    before, after = (
        np.select([flat_HW, steep_HW, falling_HW], [beside(0, s), beside(s, 0), beside(-s, s)], beside(s, s))
        for s in (-1, 1)
    )
    return (size_HW > before) & (size_HW >= after)


def _grow(sure_HW: NDArray[np.bool_], likely_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The sure places and every likely one that a chain of likely ones ties to them."""
    kept, likely = np.pad(sure_HW, 1), np.pad(likely_HW, 1)
    width = kept.shape[1]
    around = np.array([-width - 1, -width, -width + 1, -1, 1, width - 1, width, width + 1])
    front_N = np.flatnonzero(kept)
    while front_N.size:
        near_N = np.unique(front_N[:, None] + around)
        front_N = near_N[likely.flat[near_N] & ~kept.flat[near_N]]
        kept.flat[front_N] = True
    return kept[1:-1, 1:-1]


def blurred(frames_THW3: Pixels, strength: Strength) -> Pixels:
    """The frames smoothed inside their edges, then coarse: made small and large again."""
    from av import VideoFormat, VideoFrame
    from av.filter import Graph

    first, second = BLURS[strength]
    _, height, width, _ = frames_THW3.shape
    reach = max(height, width) / 720
    inner, small = (f"{max(1, width // n)}:{max(1, height // n)}" for n in (first, first * second))
    graph = Graph()
    steps: tuple[tuple[str, str], ...] = (
        ("scale", f"{inner}:flags=area"),
        ("format", "gbrp"),
        ("bilateral", f"sigmaS={SMOOTH_PX * reach / first:.3f}:sigmaR={SMOOTH_COLOUR:.3f}:planes=7"),
        ("scale", f"{small}:flags=area"),
        ("scale", f"{width}:{height}:flags=bilinear"),
        ("format", "rgb24"),
    )
    plain = VideoFormat("rgb24", width, height)
    source = graph.add_buffer(width=width, height=height, format=plain, time_base=Fraction(1, 25))
    nodes = [source, *(graph.add(name, options) for name, options in steps), graph.add("buffersink")]
    for node, following in pairwise(nodes):
        node.link_to(following)
    graph.configure()
    made: list[Pixels] = []
    for frame_HW3 in frames_THW3:
        graph.push(VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24"))
        drawn: Any = graph.pull()
        made.append(drawn.to_ndarray(format="rgb24"))
    return np.stack(made)
