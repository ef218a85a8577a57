"""Requests made ready: checked against a checkpoint's json files, their pictures, clips and actions read.

Nothing here needs weights: `validate` stops after it, a World goes on. Shape letters: T frames, H W height
and width in pixels, K actions, D numbers of one action.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from armillary import arguments
from armillary.codecs.audio_vae import AudioVAEConfig
from armillary.errors import BadRequest
from armillary.facts import Canvas, Facts, Numbers, Usual
from armillary.media import read_picture
from armillary.media.source import Pixels, open_binary
from armillary.prompts import structured
from armillary.requests import (
    ForwardDynamicsRequest,
    GenerateRequest,
    InverseDynamicsRequest,
    PolicyRequest,
    ReasonRequest,
    UpsampleRequest,
    ask,
    shown,
)
from armillary.robots import ROBOTS, Actions, Floats, Robot, robot
from armillary.settle import Receipt, settle_act, settle_generate, settle_reason, settle_upsample
from armillary.tasks.act import check_body, check_moving
from armillary.tasks.defaults import VERSION, DrawTask, defaults, is_small
from armillary.tasks.denoise import few_steps
from armillary.tasks.frames import Placement
from armillary.tasks.generate import Given
from armillary.tasks.inputs import all_frames, fit_facts, picture, rate, read_given, require_rate
from armillary.tasks.parts import require_listed
from armillary.weights import Checkpoint
from armillary.wording import Wording

Act = TypeVar("Act", ForwardDynamicsRequest, InverseDynamicsRequest, PolicyRequest)
ENDS = 65536  # bytes at each end of a weight file that a digest reads


def read_facts(name: str, folder: Path) -> Facts:
    """What a checkpoint can do, by its json files alone. Raises BadRequest for one missing or damaged."""
    with describing(folder):
        checkpoint = Checkpoint(folder)
        checkpoint.check_family()
        checkpoint.check_answers()
        require_listed(checkpoint)
        traits, config, vae = checkpoint.traits, checkpoint.config, checkpoint.part("vae")
        clip, width = defaults(checkpoint, "video"), traits.action_dim or 0 if traits.action_gen else 0
        heard = AudioVAEConfig.from_dict(checkpoint.part("sound_tokenizer") or {})
        taught = set(range(config.domains)) - checkpoint.untaught
        time_factor, space_factor = (
            arguments.whole((vae or {}).get(name, usual), f"vae.{name}", 1, 64)
            for name, usual in (("scale_factor_temporal", 4), ("scale_factor_spatial", 16))
        )
        return Facts(
            model=name,
            digest=digest(folder),
            sees=checkpoint.sees,
            draws=vae is not None,
            sounds=traits.sound_gen and checkpoint.part("sound_tokenizer") is not None,
            frames=clip.frames,
            fps=clip.fps,
            size=(clip.width, clip.height),
            time_factor=time_factor,
            space_factor=space_factor,
            image=_usual(checkpoint, "image"),
            video=_usual(checkpoint, "video"),
            action=_usual(checkpoint, "policy"),
            sound_rate=heard.sampling_rate,
            sound_channels=heard.channels,
            edit=_usual(checkpoint, "edit"),
            edit_side=defaults(checkpoint, "edit").width,
            robots=tuple(r.name for r in ROBOTS.values() if r.domain in taught and _fits(r, width)),
            ports=config.domains,
            untaught=checkpoint.untaught,
            action_width=width,
            fixed_steps=few_steps(checkpoint) is not None,
            small=is_small(checkpoint),
            table=VERSION,
            starts_from_state=checkpoint.starts_from_state,
            weights=checkpoint.quantised.form,
        )


@contextmanager
def describing(folder: Path) -> Generator[None]:
    """Loading goes on under it: whatever a checkpoint's json files break is a BadRequest naming the folder.

    A config may hold any type anywhere; what reads it stays free of a check at every key.
    """
    try:
        yield
    except BadRequest:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise BadRequest("model", str(folder), f"its json files are damaged or unknown ({found})") from error


def _fits(body: Robot, width: int) -> bool:
    return body.width != 0 and (body.width or 1) <= width


def _usual(checkpoint: Checkpoint, task: DrawTask) -> Usual:
    row = defaults(checkpoint, task)
    own = None if few_steps(checkpoint) else float(checkpoint.scheduler.get("flow_shift", 1.0))
    return Usual(row.steps, row.guidance, own if row.shift is None else row.shift)


def digest(folder: Path) -> str:
    """Twelve hexadecimal digits of a checkpoint: its configs, and each weight file's name, size and ends.

    The head of a weight file lists every tensor; reading only the ends keeps it quick for any size.
    """
    total = hashlib.sha256()
    for path in sorted(folder.glob("**/*.safetensors")) + sorted(folder.glob("**/config.json")):
        size = path.stat().st_size
        total.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
        with path.open("rb") as file:
            total.update(file.read(ENDS))
            file.seek(max(0, size - ENDS))
            total.update(file.read())
    return total.hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture or clip that will be made: the request checked, its media read."""

    request: GenerateRequest
    numbers: Numbers
    canvas: Canvas
    given: Given
    receipt: Receipt

    @property
    def wording(self) -> Wording:
        """The prompt and what is done with it."""
        asked = self.request
        style = asked.negative_style or ("plain" if asked.verbatim else "inverse")
        return Wording(asked.prompt, asked.negative or "", style, asked.system, asked.verbatim)


@dataclass(frozen=True, eq=False)
class Upsampling:
    """A prompt that will become a structured caption: checked, its first frame [H, W, 3] read."""

    request: UpsampleRequest
    canvas: Canvas
    image: Pixels | None
    receipt: Receipt


@dataclass(frozen=True, eq=False)
class Acting(Generic[Act]):
    """A robot's request that will be served: checked, its picture [H, W, 3] or clip [T, H, W, 3] read."""

    request: Act
    numbers: Numbers
    body: Robot
    pixels: Pixels
    receipt: Receipt


def question(options: Mapping[str, Any], facts: Facts) -> tuple[ReasonRequest, Receipt, list[dict[str, Any]]]:
    """A question checked, and the messages that ask it."""
    request = ask(ReasonRequest, {**options, **_lists(options)})
    receipt = settle_reason(request, facts)
    if request.messages is not None:
        return request, receipt, request.messages
    content: list[dict[str, Any]] = []
    for i, source in enumerate(request.images):
        content.append({"type": "image", "image": read_picture(source, field=f"images[{i}]")})
    for i, source in enumerate(request.videos):
        rate(source, f"videos[{i}]")
        content.append({"type": "video", "video": source})
    content.append({"type": "text", "text": request.prompt})
    return request, receipt, [{"role": "user", "content": content}]


def _lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Sequences as the request's lists, empty ones as not given; what is none is for it to refuse."""
    found: dict[str, Any] = {}
    for name in ("messages", "images", "videos"):
        value = options.get(name)
        if isinstance(value, list | tuple):
            items = [dict(v) if isinstance(v, Mapping) else v for v in cast("list[Any]", value)]
            value = items if items or name == "messages" else None
        found[name] = value
    return found


def drawing(options: Mapping[str, Any], facts: Facts) -> Drawing:
    request = ask(GenerateRequest, options)
    facts, length = fit_facts(request, facts)
    numbers, canvas, receipt = settle_generate(request, facts, length=length)
    if request.upsample:
        names = ("prompt", "frames", "fps", "size", "image")
        upsampling({name: value for name, value in request.given.items() if name in names}, facts)
    return Drawing(request, numbers, canvas, read_given(request, facts, canvas), receipt)


def upsampling(options: Mapping[str, Any], facts: Facts) -> Upsampling:
    request = ask(UpsampleRequest, options)
    if structured(request.prompt) is not None:
        raise BadRequest("prompt", request.prompt, "is a structured caption already: nothing to upsample")
    canvas, receipt = settle_upsample(request, facts)
    image = None if request.image is None else picture(request.image)
    return Upsampling(request, canvas, image, receipt)


def acting(kind: type[Act], options: Mapping[str, Any], facts: Facts) -> Acting[Act]:
    domain = options.get("domain")
    own = own_robot(domain)
    request = ask(kind, {**options, "domain": own.name if own else domain})
    if own is not None and facts.robots:
        facts = replace(facts, robots=(*facts.robots, own.name))
    numbers, receipt = settle_act(request, facts)
    body = own or robot(request.domain)
    check_body(body, ports=facts.ports, room=facts.action_width, untaught=facts.untaught)
    receipt = replace(receipt, used={**receipt.used, "fps": body.fps, "contract": body.digest})
    if isinstance(request, PolicyRequest) and request.state is not None:
        body.check([request.state], field="state")
    if not isinstance(request, InverseDynamicsRequest):
        image = picture(request.image)
        return Acting(request, numbers, body, image, _shrunk(receipt, "image", image, body, facts))
    _require_acting_rate(rate(request.video, "video"), body, "video")
    frames = check_moving(all_frames(request.video))
    return Acting(request, numbers, body, frames, _shrunk(receipt, "video", frames, body, facts))


def _shrunk(receipt: Receipt, name: str, pixels: Pixels, body: Robot, facts: Facts) -> Receipt:
    """The receipt, with a note if the pictures [..., H, W, 3] are looked at smaller than they came."""
    height, width = pixels.shape[-3:-1]
    placed = Placement.choose(
        height, width, body.tier, facts.space_factor, longest=max(facts.size), field=name
    )
    if (placed.content_height, placed.content_width) == (height, width):
        return receipt
    made = {"asked": f"{width}x{height}", "made": f"{placed.content_width}x{placed.content_height}"}
    return replace(receipt, rounded={**receipt.rounded, name: made})


def _require_acting_rate(found: float | None, body: Robot, field: str) -> None:
    require_rate(found, body.fps, f"{body.name} acts {body.fps:g} times a second", field)


def own_robot(domain: Any) -> Robot | None:
    """The robot of a file or of the caller's making; None for a name. Raises BadRequest."""
    named = isinstance(domain, str) and not (domain.endswith(".toml") or (domain and Path(domain).is_dir()))
    return robot(domain) if isinstance(domain, Robot | os.PathLike | str) and not named else None


def forward(options: Mapping[str, Any], facts: Facts) -> tuple[Acting[ForwardDynamicsRequest], Floats]:
    """Forward dynamics checked, and the actions [K, D] read."""
    ready = acting(ForwardDynamicsRequest, options, facts)
    source, name = ready.request.actions, ready.body.name
    if isinstance(source, str | os.PathLike):
        with open_binary(source, "actions") as file:
            text = file.read()
        try:
            source = Actions.from_json(text, domain=ready.body)
        except BadRequest as error:
            if error.field != "actions":
                raise
            raise BadRequest("actions", shown(ready.request.actions), error.message) from None
    if isinstance(source, Actions):
        if source.domain != name:
            raise BadRequest("domain", name, f"these actions are for {source.domain!r}")
        if source.digest != ready.body.with_width(source.values.shape[1]).digest:
            raise BadRequest(
                "digest", source.digest, f"{name} is {ready.body.digest}: other columns or scale"
            )
        _require_acting_rate(source.fps, ready.body, "actions")
        source = source.values
    return ready, ready.body.check(source)


def checker(task: str) -> Callable[[Mapping[str, Any], Facts], Receipt]:
    """What checks a request of this task: it gives what would be used, filled in and rounded, or raises the
    BadRequest that the World's method would. Raises BadRequest for no task."""
    checks: dict[str, Callable[[Mapping[str, Any], Facts], Receipt]] = {
        "reason": lambda given, facts: question(given, facts)[1],
        "upsample": lambda given, facts: upsampling(given, facts).receipt,
        "generate": lambda given, facts: drawing(given, facts).receipt,
        "forward_dynamics": lambda given, facts: forward(given, facts)[0].receipt,
        "inverse_dynamics": lambda given, facts: acting(InverseDynamicsRequest, given, facts).receipt,
        "policy": lambda given, facts: acting(PolicyRequest, given, facts).receipt,
    }
    arguments.one_of(task, "task", checks)
    return checks[task]
