"""A request against one checkpoint: what was left open filled in, what cannot be served refused; the receipt.

What comes out is complete: every number is known, and what was filled in or rounded is noted. Reads neither
media nor weights.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from armillary import __version__
from armillary.errors import BadRequest, nearest
from armillary.guard import Guard, screen_request
from armillary.requests import (
    ChoiceRequest,
    DrawRequest,
    ForwardDynamicsRequest,
    GenerateRequest,
    GridName,
    InverseDynamicsRequest,
    NoiseName,
    PolicyRequest,
    ReasonRequest,
    Request,
    Task,
    shown,
)

MAX_PIXELS = 1_000_000_000  # of a clip, all frames together
MAX_LATENTS = 65_536  # of one frame: the attention over them grows with their square


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
    kept: int = 5  # frames of a video that a continuation starts with
    robots: tuple[str, ...] = ()
    ports: int = 0  # of actions: how many robots the network can tell apart
    action_width: int = 0  # numbers of an action, at most
    fixed_steps: bool = False  # a few-step student: its schedule is part of its weights
    memory: str | None = None  # where it is loaded: the memory mode
    guard: Guard | None = None  # where it is loaded: what looks at requests and results
    small: bool = False  # no released checkpoint: it was taught few and simple sentences
    table: int = 0  # version of the table of defaults
    starts_from_state: bool = False  # a policy's first row of actions is the robot's state, clean
    weights: str | None = None  # and how its towers are rounded; None is not at all
    adapters: tuple[tuple[str, float], ...] = ()  # and what changes them: files, and how strongly each counts


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

    def told(self) -> dict[str, Any]:
        """What a receipt says of it: not what is as it usually is."""
        usual = {"interval": None, "noise": "own"}
        return {k: v for k, v in asdict(self).items() if k not in usual or v != usual[k]}


@dataclass(frozen=True)
class Canvas:
    """A picture (one frame) or clip as it will be made; width and height in pixels."""

    frames: int
    fps: float
    width: int
    height: int


@dataclass(frozen=True)
class Receipt:
    """What was used, what of it was filled in, what was rounded, by which model, at which cost."""

    task: Task
    model: str
    digest: str
    used: Mapping[str, Any]
    defaulted: tuple[str, ...] = ()
    rounded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    memory: str | None = None  # the memory mode; None where nothing was loaded
    guard: Mapping[str, str] = field(default_factory=dict[str, str])  # its name or "off", and its verdicts
    choice: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what a judge gave each candidate
    weights: str | None = None  # how the towers were rounded; None is not at all
    table: int = 0  # version of the table that `defaulted` came from
    adapters: tuple[tuple[str, float], ...] = ()  # files, and how strongly each counted
    version: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: what is written into files."""
        told = asdict(self) | {
            "defaulted": list(self.defaulted),
            "adapters": [list(pair) for pair in self.adapters],
        }
        return told if self.choice else {name: value for name, value in told.items() if name != "choice"}

    def seeded(self, i: int) -> "Receipt":
        """That of the i-th of several results: each has a seed of its own."""
        return replace(self, used={**self.used, "seed": self.used["seed"] + i}) if i else self

    def spent(self, tokens: Mapping[str, int], seconds: Mapping[str, float]) -> "Receipt":
        """The same with its costs."""
        return replace(self, tokens=dict(tokens), seconds={k: round(v, 3) for k, v in seconds.items()})


def settle_reason(request: ReasonRequest, facts: Facts) -> Receipt:
    """Check a question against a checkpoint. Raises BadRequest."""
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("prompt", request.prompt, "give either a prompt or messages, one of them")
    for name, media in (("images", request.images), ("videos", request.videos)):
        if media and request.messages is not None:
            raise BadRequest(name, shown(media), "with messages, put pictures and clips into them")
        if media and not facts.sees:
            raise BadRequest(name, shown(media), f"{facts.model} has no vision tower: it reads text only")
    used = {"max_tokens": request.max_tokens, "temperature": request.temperature, **request.given}
    if request.temperature:
        return _receipt(request, facts, used | {"seed": request.seed or 0})
    for name in ("seed", "top_k", "top_p"):
        if name in used:
            raise BadRequest(name, used[name], "greedy ignores it; give a temperature above 0")
    if request.n > 1:
        raise BadRequest("n", request.n, "greedy answers are all alike; give a temperature above 0")
    return _receipt(request, facts, used)


def settle_generate(request: GenerateRequest, facts: Facts) -> tuple[Numbers, Canvas, Receipt]:
    """Check a picture or clip against a checkpoint and fill in what was left open. Raises BadRequest."""
    _check_draws(facts)
    canvas = _canvas(request, facts)
    numbers = _numbers(request, facts, facts.image if canvas.frames == 1 else facts.video)
    moving = {"fps": canvas.fps, "sound": request.sound} if canvas.frames > 1 else {}
    made = {"frames": canvas.frames, **moving, "size": f"{canvas.width}x{canvas.height}"}
    judged = _choice(request, facts)
    if judged and request.n is not None:
        raise BadRequest("n", request.n, "a judge keeps one of its candidates; leave n or judge out")
    return numbers, canvas, _receipt(request, facts, request.given | judged | made | numbers.told())


def settle_act(
    request: ForwardDynamicsRequest | InverseDynamicsRequest | PolicyRequest, facts: Facts
) -> tuple[Numbers, Receipt]:
    """Check a robot's request against a checkpoint and fill in what was left open. Raises BadRequest."""
    _check_draws(facts)
    if not facts.robots:
        raise BadRequest("model", facts.model, "has no action port: it knows no robots")
    if request.domain not in facts.robots:
        close, known = " or ".join(nearest(request.domain, facts.robots)), ", ".join(facts.robots)
        raise BadRequest("domain", request.domain, f"no such robot here; nearest: {close}; all: {known}")
    judged = _choice(request, facts) if isinstance(request, ChoiceRequest) else {}
    numbers = _numbers(request, facts, facts.action)
    return numbers, _receipt(request, facts, request.given | judged | numbers.told())


def _choice(request: ChoiceRequest, facts: Facts) -> dict[str, Any]:
    """What is used to choose, if anything is: candidates need a judge, and a judge needs candidates."""
    if request.judge is None:
        for name in ("candidates", "wanted"):
            if name in request.given:
                message = "needs judge, a question about what is made that picks the best"
                raise BadRequest(name, request.given[name], message)
        return {}
    if request.candidates is None:
        raise BadRequest("judge", request.judge, "has nothing to choose from; give candidates, 2 or more")
    if not facts.sees:
        raise BadRequest("judge", request.judge, f"{facts.model} has no vision tower: it cannot look")
    return {"wanted": request.wanted}


def _check_draws(facts: Facts) -> None:
    if not facts.draws:
        raise BadRequest("model", facts.model, "has no video autoencoder: it only reasons")


def _canvas(request: GenerateRequest, facts: Facts) -> Canvas:
    frames = facts.frames if request.frames is None else request.frames
    if frames == 1:
        _check_picture(request, facts)
    if request.image is not None and request.video is not None:
        raise BadRequest("video", shown(request.video), "a clip starts from image or video, not from both")
    if request.sound and not facts.sounds:
        raise BadRequest("sound", True, f"{facts.model} makes no sound; leave it out")
    width, height = request.size or facts.size
    _check_size(width, height, facts.space_factor)
    made = 1 + math.ceil((frames - 1) / facts.time_factor) * facts.time_factor
    if request.video is not None and made < facts.kept + facts.time_factor:
        fewest = facts.kept + facts.time_factor
        raise BadRequest("frames", frames, f"{facts.kept} are kept of the video; give {fewest} or more")
    if made * width * height > MAX_PIXELS:
        most = MAX_PIXELS // (width * height)
        raise BadRequest("frames", frames, f"at {width}x{height} at most {most} frames fit")
    return Canvas(made, facts.fps if request.fps is None else request.fps, width, height)


def _check_picture(request: GenerateRequest, facts: Facts) -> None:
    """One frame has no rate and no sound, and nothing is left to draw when it is given."""
    for name in ("image", "video", "fps", "sound"):
        value = getattr(request, name)
        if value is not None and value is not False:
            message = f"not used for a picture (frames=1); give frames={1 + facts.time_factor} or more"
            raise BadRequest(name, shown(value), message)


def _check_size(width: int, height: int, factor: int) -> None:
    share = MAX_LATENTS * factor**2 / (width * height)
    if share < 1:
        largest = "x".join(str(int(side * math.sqrt(share) / factor) * factor) for side in (width, height))
        raise BadRequest("size", f"{width}x{height}", f"larger than this model can hold; nearest: {largest}")
    down, up = (
        "x".join(str(max(factor, rounding(side / factor) * factor)) for side in (width, height))
        for rounding in (math.floor, math.ceil)
    )
    close = down if down == up else f"{down} or {up}"
    if close != f"{width}x{height}":
        raise BadRequest("size", f"{width}x{height}", f"sides are multiples of {factor}; nearest: {close}")


def _numbers(request: DrawRequest, facts: Facts, usual: Usual) -> Numbers:
    if facts.fixed_steps:
        for name in ("steps", "guidance", "shift", "grid", "interval", "noise"):
            if name in request.given:
                message = f"{facts.model} was trained for its own {usual.steps} steps; leave it out"
                raise BadRequest(name, request.given[name], message)
    guidance = usual.guidance if request.guidance is None else request.guidance
    for name in ("negative", "interval"):
        if name in request.given and guidance == 1:
            raise BadRequest(name, request.given[name], "guidance 1 ignores it; give more, usually 3 to 7")
    if request.grid == "karras" and request.shift is not None:
        raise BadRequest(
            "shift", request.shift, "the karras grid has none; leave it out, or take another grid"
        )
    shift = usual.shift if request.shift is None else request.shift
    return Numbers(
        usual.steps if request.steps is None else request.steps,
        guidance,
        None if request.grid == "karras" else shift,
        request.seed or 0,
        "fixed" if facts.fixed_steps else request.grid or "native",
        request.interval,
        request.noise,
    )


def _receipt(request: Request, facts: Facts, used: Mapping[str, Any]) -> Receipt:
    given = request.given
    asked, made = given.get("frames"), used.get("frames")
    return Receipt(
        request.task,
        facts.model,
        facts.digest,
        used={name: shown(value) for name, value in used.items()},
        defaulted=tuple(name for name in used if name not in given),
        rounded={} if asked in (None, made) else {"frames": {"asked": asked, "made": made}},
        memory=facts.memory,
        weights=facts.weights,
        table=facts.table,
        adapters=facts.adapters,
        guard=screen_request(facts.guard, given),
    )
