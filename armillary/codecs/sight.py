"""What the reasoner sees: pictures and clips as patches for a vision tower, and places in the AR sequence.

Pictures arrive as uint8 RGB, upright, [H, W, 3]; clips as [T, H, W, 3] with the presentation time of every
frame. The arithmetic is that of the transformers 5.23 processors (Qwen2-VL pictures, Qwen3-VL clips, Edge):
bicubic with antialias on uint8, the kernel that torchvision's `resize` calls on a CPU, then one fused
(x - 255 mean) / (255 std) in fp32. Their PIL variants differ from it by a level here and there.

Shape letters: T frames, C channels, H and W pixels, N patches, P numbers a patch, A AR tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from armillary import arguments
from armillary.codecs.qwen_vit import Grid
from armillary.errors import BadRequest

MAX_ASPECT = 200
MOST = 2**31 - 1  # of any whole number in these files
DEFAULT_FPS = 24.0  # of a clip that does not know its own rate


@dataclass(frozen=True)
class PictureRules:
    """`preprocessor_config.json`. `min_pixels` and `max_pixels` bound a picture's area after resizing."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    min_pixels: int
    max_pixels: int
    edge: bool = False  # patches in (row, column, channel) order, and small pictures enlarged first
    file: ClassVar[str] = "preprocessor_config"

    def __post_init__(self) -> None:
        for name in ("temporal_patch_size", "min_pixels"):
            arguments.whole(getattr(self, name), f"{self.file}.{name}", 1, MOST)
        arguments.whole(self.max_pixels, f"{self.file}.max_pixels", self.min_pixels, MOST)
        arguments.numbers(self.image_mean, f"{self.file}.image_mean", 3)
        arguments.numbers(self.image_std, f"{self.file}.image_std", 3, above=0)

    @property
    def factor(self) -> int:
        """Sides are multiples of this many pixels: one token's side."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read the published json. An absent key takes Cosmos 3's value, not the class's default."""
        return cls(**_shared_rules(config, cls.file, "image_processor_type", 64, 16384))

    def to_dict(self) -> dict[str, Any]:
        """The published json again."""
        kind = "Cosmos3EdgeImageProcessor" if self.edge else "Qwen2VLImageProcessor"
        return {"image_processor_type": kind} | _shared_json(self)


@dataclass(frozen=True)
class ClipRules(PictureRules):
    """`video_preprocessor_config.json`. The pixel limits bound a whole clip: frames x height x width."""

    fps: float = 2.0  # frames a second that are looked at
    min_frames: int = 4
    max_frames: int = 768
    file: ClassVar[str] = "video_preprocessor_config"

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.positive(self.fps, f"{self.file}.fps")
        arguments.whole(self.min_frames, f"{self.file}.min_frames", 1, MOST)
        arguments.whole(self.max_frames, f"{self.file}.max_frames", self.min_frames, MOST)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read the published json. An absent key takes Cosmos 3's value, not the class's default."""
        names = ("fps", "min_frames", "max_frames")
        own = {name: config[name] for name in names if config.get(name) is not None}
        return cls(**_shared_rules(config, cls.file, "video_processor_type", 4, 24576), **own)

    def to_dict(self) -> dict[str, Any]:
        """The published json again."""
        kind = "Cosmos3EdgeVideoProcessor" if self.edge else "Qwen3VLVideoProcessor"
        own = {"fps": self.fps, "min_frames": self.min_frames, "max_frames": self.max_frames}
        return {"video_processor_type": kind} | _shared_json(self) | own


def _shared_rules(
    config: Mapping[str, Any], file: str, type_key: str, least: int, most: int
) -> dict[str, Any]:
    """least, most: tokens of a picture or clip where the file has no limits; those in pixels would be for one
    size of patch, and make many more tokens of small ones."""
    edge = "Edge" in config.get(type_key, "") or config.get("temporal_patch_size") == 1
    size = config.get("size") or {}
    patch = arguments.whole(config.get("patch_size", 16), f"{file}.patch_size", 1, MOST)
    merge = arguments.whole(config.get("merge_size", 2), f"{file}.merge_size", 1, MOST)
    token = (patch * merge) ** 2  # pixels
    return {
        "patch_size": patch,
        "temporal_patch_size": config.get("temporal_patch_size", 1 if edge else 2),
        "merge_size": merge,
        "image_mean": tuple(config.get("image_mean", (0.5, 0.5, 0.5))),
        "image_std": tuple(config.get("image_std", (0.5, 0.5, 0.5))),
        # Older files spell the limits min_pixels and max_pixels, which win over `size` as they do upstream.
        "min_pixels": config.get("min_pixels") or size.get("shortest_edge", least * token),
        "max_pixels": config.get("max_pixels") or size.get("longest_edge", most * token),
        "edge": edge,
    }


def _shared_json(rules: PictureRules) -> dict[str, Any]:
    return {
        "processor_class": "Cosmos3EdgeProcessor" if rules.edge else "Qwen3VLProcessor",
        "patch_size": rules.patch_size,
        "temporal_patch_size": rules.temporal_patch_size,
        "merge_size": rules.merge_size,
        "image_mean": list(rules.image_mean),
        "image_std": list(rules.image_std),
        # Published names: "edges" that are really pixel counts.
        "size": {"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels},
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }


HALF = (0.5, 0.5, 0.5)
POCKET_PICTURES = PictureRules(4, 2, 2, HALF, HALF, min_pixels=32 * 32, max_pixels=64 * 64)
"""A 64 x 64 picture stays as it is, 64 tokens; a larger one shrinks to about that many."""

POCKET_CLIPS = ClipRules(4, 2, 2, HALF, HALF, min_pixels=2 * 32 * 32, max_pixels=32 * 64 * 64, fps=8.0)
"""Up to 32 frames stay at 64 x 64, 64 tokens a pair of frames; longer clips shrink."""


@dataclass(frozen=True)
class Patches:
    """What a vision tower reads of one picture or clip."""

    pixels_NP: Tensor  # float32, block-major within a slice
    grid: Grid  # (slices, patch rows, patch columns)


def picture_size(height: int, width: int, rules: PictureRules, *, field: str = "image") -> tuple[int, int]:
    """The (height, width) in pixels at which a picture is looked at."""
    _check_shape(height, width, field)
    return _fit(*_enlarge(height, width, rules.factor if rules.edge else 1), rules)


def clip_size(
    frames: int, height: int, width: int, rules: ClipRules, *, field: str = "video"
) -> tuple[int, int]:
    """The (height, width) in pixels at which each of `frames` sampled frames is looked at."""
    _check_shape(height, width, field)
    step = rules.temporal_patch_size
    frames = max(frames, step)  # a shorter clip is filled up with its last frame
    return _fit(*_enlarge(height, width, rules.factor), rules, frames, counted=round(frames / step) * step)


def _check_shape(height: int, width: int, field: str) -> None:
    if min(height, width) >= 1 and max(height, width) <= MAX_ASPECT * min(height, width):
        return
    longest = MAX_ASPECT * max(1, min(height, width))
    raise BadRequest(
        field,
        f"{width}x{height}",
        f"the longer side may be at most {MAX_ASPECT} times the shorter; "
        f"crop it to {min(width, longest)}x{min(height, longest)}",
    )


def _enlarge(height: int, width: int, factor: int) -> tuple[int, int]:
    """Scale a picture with a side below `factor` up until it reaches it."""
    scale = max(1.0, factor / height, factor / width)
    return int(height * scale), int(width * scale)


def _fit(
    height: int, width: int, rules: PictureRules, frames: int = 1, *, counted: int = 1
) -> tuple[int, int]:
    """Multiples of `factor`, near the given shape, that keep counted x height x width within the limits.

    Rounds half to even, as published: 720 becomes 704. The scaling ratio uses the true number of frames, the
    comparison the `counted` one.
    """
    factor, pixels = rules.factor, frames * height * width
    high, wide = (round(side / factor) * factor for side in (height, width))
    if counted * high * wide > rules.max_pixels:
        ratio = math.sqrt(pixels / rules.max_pixels)
        high, wide = (max(factor, math.floor(side / ratio / factor) * factor) for side in (height, width))
    elif counted * high * wide < rules.min_pixels:
        ratio = math.sqrt(rules.min_pixels / pixels)
        high, wide = (math.ceil(side * ratio / factor) * factor for side in (height, width))
    return high, wide


def picture_patches(image_HWC: NDArray[np.uint8], rules: PictureRules, *, field: str = "image") -> Patches:
    """Patches of one upright RGB picture [H, W, 3], uint8.

    Raises BadRequest naming `field` if one side is more than 200 times the other.
    """
    height, width, _ = image_HWC.shape
    size = picture_size(height, width, rules, field=field)
    return _patches(image_HWC[None], size, rules)


def clip_patches(
    frames_THWC: NDArray[np.uint8], times_s: Sequence[float], rules: ClipRules, *, field: str = "video"
) -> tuple[Patches, list[float]]:
    """Patches of a clip's sampled frames [T, H, W, 3], uint8, and the time of each temporal slice in seconds.

    `times_s` are the frames' presentation times. A slice's time is the mean of its first and last frame's; a
    last slice that is not full repeats the last frame.

    Raises BadRequest naming `field` if one side is more than 200 times the other.
    """
    if not len(frames_THWC) == len(times_s) > 0:
        given = f"{len(frames_THWC)} frames, {len(times_s)} times"
        raise BadRequest(field, given, "needs at least one frame, and a time for each")
    frames, height, width, _ = frames_THWC.shape
    size = clip_size(frames, height, width, rules, field=field)
    step = rules.temporal_patch_size
    starts = range(0, len(times_s), step)
    slices_s = [(times_s[i] + times_s[min(i + step, len(times_s)) - 1]) / 2 for i in starts]
    return _patches(frames_THWC, size, rules), slices_s


def _patches(frames_THWC: NDArray[np.uint8], size: tuple[int, int], rules: PictureRules) -> Patches:
    frames = np.array(frames_THWC)  # a copy: the source may be read-only or reversed, which torch refuses
    frames_TCHW = torch.from_numpy(frames).permute(0, 3, 1, 2)
    if frames_TCHW.shape[-2:] != size:
        frames_TCHW = F.interpolate(frames_TCHW, size, mode="bicubic", align_corners=False, antialias=True)
    mean, std = (torch.tensor(x)[:, None, None] * 255.0 for x in (rules.image_mean, rules.image_std))
    return _patchify((frames_TCHW.float() - mean) / std, rules)


def _patchify(frames_TCHW: Tensor, rules: PictureRules) -> Patches:
    step, patch, merge = rules.temporal_patch_size, rules.patch_size, rules.merge_size
    missing = -len(frames_TCHW) % step
    frames_TCHW = torch.cat([frames_TCHW, frames_TCHW[-1:].expand(missing, -1, -1, -1)])
    slices, (h, w) = len(frames_TCHW) // step, (side // patch for side in frames_TCHW.shape[-2:])
    # (slice, frame, channel, block row, row in block, pixel row, block column, column in block, pixel column)
    cells = frames_TCHW.reshape(slices, step, -1, h // merge, merge, patch, w // merge, merge, patch)
    inside = (5, 8, 2, 1) if rules.edge else (2, 1, 5, 8)
    pixels_NP = cells.permute(0, 3, 6, 4, 7, *inside).reshape(slices * h * w, -1)
    return Patches(pixels_NP, (slices, h, w))


def sample_frames(
    total: int, fps: float | None, rules: ClipRules, num_frames: int | None = None, *, field: str = "video"
) -> list[int]:
    """Which of a clip's `total` frames are looked at: evenly spread, first and last included.

    Without `num_frames` they are as many as `rules.fps` asks for, within `min_frames` and `max_frames`, never
    more than there are. `fps` is the clip's own rate; None means 24.

    Raises BadRequest if the clip is empty or `num_frames` is not in 1..total.
    """
    if total < 1:
        raise BadRequest(field, total, "has no frames; needs at least 1")
    if num_frames is not None and not 1 <= num_frames <= total:
        raise BadRequest("num_frames", num_frames, f"the clip has {total} frames; give 1 to {total}")
    if num_frames is None:
        wanted = int(total / (fps or DEFAULT_FPS) * rules.fps)
        num_frames = min(max(wanted, rules.min_frames), rules.max_frames, total)
    return [int(i) for i in np.linspace(0, total - 1, num_frames).round()]


def tokens(grid: Grid, merge: int) -> int:
    """How many AR tokens a picture or clip of this patch grid takes."""
    return math.prod(grid) // merge**2


def slice_text(time_s: float) -> str:
    """What stands before one temporal slice of a clip."""
    return f"<{time_s:.1f} seconds>"


def reasoner_positions(parts: Sequence[int | Grid], merge: int) -> tuple[Tensor, int]:
    """mRoPE positions of an AR sequence of text runs (lengths) and visual grids (in patches), in order.

    Text advances all three axes together. A visual slice stands at one time, spreads its rows and columns
    over the other axes, and what follows continues behind its longer side. A grid of several slices counts as
    that many in a row; a clip with times between its slices gives each as (1, rows, columns).

    Returns:
        Positions [3, A] (time, height, width), whole numbers in fp32, and delta: token n, decoded later,
        stands at n + delta on every axis.
    """
    placed_3A: list[Tensor] = []
    start = 0
    for part in parts:
        slices, h, w = (
            (part, 1, 1) if isinstance(part, int) else (part[0], part[1] // merge, part[2] // merge)
        )
        time = start + torch.arange(slices) * max(h, w)
        time_thw, row_thw, column_thw = torch.meshgrid(time, torch.arange(h), torch.arange(w), indexing="ij")
        placed_3A.append(torch.stack([time_thw, time_thw + row_thw, time_thw + column_thw]).flatten(1))
        start += slices * max(h, w)
    positions_3A = torch.cat(placed_3A, dim=1).float()
    return positions_3A, start - positions_3A.shape[1]
