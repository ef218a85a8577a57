"""A request against one checkpoint: what was left open filled in, what cannot be served refused; the receipt.

What comes out is complete: every number is known, and what was filled in or rounded is noted. Reads neither
media nor weights.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from armillary import __version__
from armillary.errors import BadRequest, nearest
from armillary.facts import Canvas, Facts, Numbers, Usual
from armillary.guard import screen_request
from armillary.modes import check_together, kept_latents, plan_canvas, tuning
from armillary.requests import (
    LARGEST_SEED,
    ChoiceRequest,
    DrawRequest,
    ForwardDynamicsRequest,
    GenerateRequest,
    InverseDynamicsRequest,
    PolicyRequest,
    ReasonRequest,
    Request,
    Task,
    UpsampleRequest,
    shown,
)
from armillary.schema import grammar, json_schema
from armillary.tools import toolbox


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
    tile: int | None = None  # latents on the side of the tiles it was decoded in; None is whole, and exact
    version: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: what is written into files."""
        told = asdict(self) | {
            "defaulted": list(self.defaulted),
            "adapters": [list(pair) for pair in self.adapters],
        }
        unusual = {"choice": self.choice, "tile": self.tile}  # left out where there is none
        return {name: value for name, value in told.items() if unusual.get(name, True)}

    def seeded(self, i: int) -> "Receipt":
        """That of the i-th of several results: each has a seed of its own."""
        return replace(self, used={**self.used, "seed": self.used["seed"] + i}) if i else self

    def spent(
        self, tokens: Mapping[str, int], seconds: Mapping[str, float], tile: int | None = None
    ) -> "Receipt":
        """The same with its costs, and whether its frames had to be decoded in tiles."""
        rounded = {k: round(v, 3) for k, v in seconds.items()}
        return replace(self, tokens=dict(tokens), seconds=rounded, tile=tile)


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
    if request.form is not None:
        used["schema"] = json_schema(request.form)
        grammar(used["schema"])
        if request.stop:
            raise BadRequest(
                "stop", request.stop, "a schema ends the answer by itself; leave one of them out"
            )
    _check_tools(request)
    if request.temperature:
        return _receipt(request, facts, used | {"seed": request.seed or 0})
    for name in ("seed", "top_k", "top_p"):
        if name in used:
            raise BadRequest(name, used[name], "greedy ignores it; give a temperature above 0")
    if request.n > 1:
        raise BadRequest("n", request.n, "greedy answers are all alike; give a temperature above 0")
    return _receipt(request, facts, used)


def _check_tools(request: ReasonRequest) -> None:
    if not request.tools:
        if "tool_choice" in request.given:
            raise BadRequest("tool_choice", request.tool_choice, "there are no tools to choose from")
        return
    if request.form is not None:
        raise BadRequest("tools", "...", "an answer held to a schema calls none; leave one of them out")
    forced = toolbox(request.tools, request.tool_choice).grammar is not None
    if forced and request.stop:
        raise BadRequest("stop", request.stop, "a call ends the answer by itself; leave one of them out")


def settle_generate(
    request: GenerateRequest, facts: Facts, *, length: int | None = None
) -> tuple[Numbers, Canvas, Receipt]:
    """Check a picture or clip against a checkpoint and fill in what was left open. Raises BadRequest.

    length: frames of the controls.
    """
    _check_draws(facts)
    check_together(request, facts)
    canvas = plan_canvas(request, facts, length)
    usual = facts.edit if request.edit is not None else facts.image if canvas.frames == 1 else facts.video
    made, tuned = _made(request, canvas), tuning(request)
    if request.controls and tuned:
        usual = replace(usual, guidance=tuned.guidance)
        made |= {"controls": {hint: control.told() for hint, control in request.controls.items()}}
    numbers = replace(
        _numbers(request, facts, usual),
        control_guidance=tuned and tuned.control_guidance,
        control_interval=request.control_interval,
    )
    judged = _choice(request, facts)
    if judged and request.n is not None:
        raise BadRequest("n", request.n, "a judge keeps one of its candidates; leave n or judge out")
    return numbers, canvas, _receipt(request, facts, request.given | judged | made | numbers.told())


def _made(request: GenerateRequest, canvas: Canvas) -> dict[str, Any]:
    """What a receipt says of the canvas and of what stands on it."""
    made: dict[str, Any] = {"frames": canvas.frames}
    if canvas.frames > 1:
        made |= {"fps": canvas.fps, "sound": request.sound}
    if len(canvas.starts) > 1:
        made |= {"chunk": canvas.chunk, "overlap": canvas.overlap}
    if request.video is not None:
        made |= {"keep": request.keep, "clean_latents": kept_latents(request)}
    return made | {"size": f"{canvas.width}x{canvas.height}"}


def settle_upsample(request: UpsampleRequest, facts: Facts) -> tuple[Canvas, Receipt]:
    """Check a prompt to be upsampled against a checkpoint. Raises BadRequest."""
    told = {name: value for name, value in request.given.items() if name != "seed"}
    canvas = plan_canvas(GenerateRequest.model_construct(**told), facts, None)
    if request.image is not None and not facts.sees:
        raise BadRequest("image", shown(request.image), f"{facts.model} has no vision tower: it cannot look")
    if request.seed is not None and facts.small:
        raise BadRequest("seed", request.seed, f"{facts.model} upsamples greedily; leave it out")
    moving = {"fps": canvas.fps} if canvas.frames > 1 else {}
    made = {"frames": canvas.frames, **moving, "size": f"{canvas.width}x{canvas.height}"}
    return canvas, _receipt(request, facts, request.given | made)


def settle_act(
    request: ForwardDynamicsRequest | InverseDynamicsRequest | PolicyRequest, facts: Facts
) -> tuple[Numbers, Receipt]:
    """Check a robot's request against a checkpoint and fill in what was left open. Raises BadRequest."""
    _check_draws(facts)
    if not facts.robots:
        raise BadRequest("model", facts.model, "has no action port: it knows no robots")
    if request.domain not in facts.robots:
        close, known = " or ".join(nearest(request.domain, facts.robots)), ", ".join(facts.robots)
        raise BadRequest(
            "domain", request.domain, f"this model knows no such robot; nearest: {close}; all: {known}"
        )
    judged = _choice(request, facts) if isinstance(request, ChoiceRequest) else {}
    if judged and isinstance(request, PolicyRequest) and request.state is not None:
        raise BadRequest(
            "state", shown(request.state), "candidates are drawn without one; give it or a judge"
        )
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


def _numbers(request: DrawRequest, facts: Facts, usual: Usual) -> Numbers:
    if facts.fixed_steps:
        for name in ("steps", "guidance", "shift", "grid", "interval", "noise"):
            if name in request.given:
                message = f"{facts.model} was trained for its own {usual.steps} steps; leave it out"
                raise BadRequest(name, request.given[name], message)
    guidance = usual.guidance if request.guidance is None else request.guidance
    for name in ("negative", "negative_style", "interval"):
        if name in request.given and guidance == 1:
            raise BadRequest(name, request.given[name], "guidance 1 ignores it; give more, usually 3 to 7")
    if request.grid == "karras" and request.shift is not None:
        raise BadRequest(
            "shift", request.shift, "the karras grid has none; leave it out, or take another grid"
        )
    shift = usual.shift if request.shift is None else request.shift
    _check_seeds(request)
    return Numbers(
        usual.steps if request.steps is None else request.steps,
        guidance,
        None if request.grid == "karras" else shift,
        request.seed or 0,
        "fixed" if facts.fixed_steps else request.grid or "native",
        request.interval,
        request.noise,
    )


def _check_seeds(request: DrawRequest) -> None:
    """Of several results each is drawn from a seed of its own, which can be asked for alone."""
    count = request.given.get("n") or request.given.get("candidates") or 1
    last = LARGEST_SEED - count + 1
    if (request.seed or 0) > last:
        raise BadRequest("seed", request.seed, f"{count} results count up from it; nearest: {last}")


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
