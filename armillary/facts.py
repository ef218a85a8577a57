"""What a checkpoint can do, and what a request about it comes to: numbers of a run, and a canvas.

Nothing here reads media, weights or json files.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from armillary.guard import Guard
from armillary.requests import GridName, NoiseName


@dataclass(frozen=True)
class Usual:
    """The numbers of a denoising run that a checkpoint sets for a task unless others are asked for."""

    steps: int
    guidance: float
    shift: float | None  # None: the checkpoint's own grid, which has no shift


@dataclass(frozen=True)
class Facts:
    """What one checkpoint can do, read from its json files and the table of robots."""

    model: str
    digest: str
    sees: bool  # has a vision tower
    draws: bool  # has a video autoencoder
    sounds: bool  # has a sound port and an audio autoencoder
    frames: int  # of a clip, if not asked for
    fps: float
    size: tuple[int, int]  # (width, height) in pixels
    time_factor: int  # pixel frames a latent frame
    space_factor: int  # pixels a latent, on a side
    image: Usual
    video: Usual
    action: Usual
    sound_rate: int = 48000  # samples a second
    sound_channels: int = 2
    edit: Usual = Usual(35, 6.0, 5.0)
    edit_side: int = 512  # pixels on the longer side of an edited picture
    robots: tuple[str, ...] = ()
    ports: int = 0  # of actions: how many robots the network can tell apart
    untaught: frozenset[int] = frozenset()  # ports that no training has touched
    action_width: int = 0  # numbers of an action, at most
    fixed_steps: bool = False  # a few-step student: its schedule is part of its weights
    memory: str | None = None  # where it is loaded: the memory mode
    guard: Guard | None = None  # where it is loaded: what looks at requests and results
    small: bool = False  # no released checkpoint: it was taught few and simple sentences
    table: int = 0  # version of the table of defaults
    starts_from_state: bool = False  # a policy's first row of actions is the robot's state, clean
    weights: str | None = None  # how its towers are rounded, in its files or when loaded; None is not at all
    adapters: tuple[tuple[str, float], ...] = ()  # files that change it when loaded, and how strongly each


@dataclass(frozen=True)
class Numbers:
    """A denoising run as it will be made."""

    steps: int
    guidance: float
    shift: float | None
    seed: int
    grid: GridName | Literal["fixed"] = "native"
    interval: tuple[float, float] | None = None
    noise: NoiseName = "own"
    control_guidance: float | None = None  # where something controls
    control_interval: tuple[float, float] | None = None

    def told(self) -> dict[str, Any]:
        """What a receipt says of it: not what is as it usually is."""
        usual = {"interval": None, "noise": "own", "control_guidance": None, "control_interval": None}
        return {k: v for k, v in asdict(self).items() if k not in usual or v != usual[k]}


@dataclass(frozen=True)
class Canvas:
    """A picture (one frame) or clip as it will be made; width and height in pixels.

    chunk: frames drawn at once, None for all of them. A longer clip is drawn in chunks, each of which starts
    with the last `overlap` frames of the one before; what the last one has too many is cut off.
    """

    frames: int
    fps: float
    width: int
    height: int
    chunk: int | None = None
    overlap: int = 1

    @property
    def starts(self) -> range:
        """The first frame of each chunk."""
        if self.chunk is None or self.frames <= self.chunk:
            return range(1)
        return range(0, self.frames - self.overlap, self.chunk - self.overlap)
