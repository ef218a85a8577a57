"""World: one checkpoint in memory, and everything that it can be asked.

It keeps nothing between calls, but its networks work on one request at a time: use one World from one thread.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, Unpack, overload

import numpy as np

from armillary import arguments
from armillary.answers import Answer
from armillary.decode import Sampling
from armillary.errors import BadRequest
from armillary.facts import Canvas, Facts, Numbers
from armillary.guard import Guard, screen_frames, screen_words
from armillary.locate import find_dtype
from armillary.media import Clip
from armillary.media.pictures import PictureSource
from armillary.media.source import Pixels
from armillary.memory import Choice
from armillary.options import ActOptions, AnswerOptions, ChoiceOptions, GenerateOptions, UpsampleOptions
from armillary.requests import InverseDynamicsRequest, PolicyRequest, ReasonRequest
from armillary.robots import Actions, Robot
from armillary.settle import Receipt
from armillary.slots import REMEMBERED, SLOTS
from armillary.step import OnStep, Step
from armillary.tasks import act
from armillary.tasks.deltas import Delta
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.generate import Made
from armillary.tasks.generate import generate as draw_clips
from armillary.tasks.inputs import ClipSource
from armillary.tasks.judge import asked_judge, choose_policy
from armillary.tasks.parts import Parts
from armillary.tasks.ready import Drawing, acting, drawing, forward, question, upsampling
from armillary.tasks.reason import Reasoner, drain, gather
from armillary.tasks.save import save_parts
from armillary.tasks.upsample import manner, upsample
from armillary.tools import toolbox

ActionSource = Actions | str | os.PathLike[str] | Sequence[Sequence[float]] | np.ndarray[Any, Any]


class _Clock:
    """Passes each step on, and takes the time of what lies before and after the last one."""

    def __init__(self, on_step: OnStep | None) -> None:
        arguments.callback(on_step, "on_step")
        self.started = self.stepped = time.perf_counter()
        self.on_step = on_step

    def __call__(self, step: Step) -> bool | None:
        self.stepped = time.perf_counter()
        return self.on_step(step) if self.on_step else None

    def options(self, numbers: Numbers) -> SamplingOptions:
        strength = 1.0 if numbers.control_guidance is None else numbers.control_guidance
        return replace(SamplingOptions(**asdict(numbers)), control_guidance=strength, on_step=self)

    def seconds(self) -> dict[str, float]:
        return {"denoise": self.stepped - self.started, "decode": time.perf_counter() - self.stepped}


class World:
    """One checkpoint in memory. Made by `armillary.load`.

    Every method raises BadRequest for a request that cannot be served, before anything is computed.
    `on_step` is called with a `Step` after each denoising step: which of how many, and a preview; if it
    returns False, Cancelled is raised. FloatingPointError names the stage at which numbers stopped being
    finite.
    """

    def __init__(self, parts: Parts, facts: Facts, memory: Choice | None = None) -> None:
        self.parts, self.facts = parts, facts
        self.memory = memory or Choice(parts.memory, "asked for")

    def __repr__(self) -> str:
        dtype = str(self.parts.dtype).removeprefix("torch.")
        held = "" if self.memory.mode == "resident" else f", memory {self.memory.mode}"
        return f"World({self.facts.model}, {dtype} on {self.parts.device}{held})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about this world, such as a head it lacks and what lives in memory."""
        held = () if self.memory.mode == "resident" else (f"memory {self.memory.mode}: {self.memory.why}",)
        return (*self.parts.checkpoint.notes, *held)

    def save(self, folder: str | os.PathLike[str], *, dtype: str | None = None) -> None:
        """Write this world in the published layout, with the adapters that it uses folded in.

        dtype: None is that of each tensor in the checkpoint it came from. Values that were rounded when they
        were loaded stay so; `convert` copies without rounding. Raises BadRequest if `folder` is there.
        """
        kind = None if dtype is None else find_dtype(dtype, self.parts.device)
        save_parts(self.parts, arguments.path(folder, "folder"), dtype=kind)

    @overload
    def reason(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        images: Sequence[PictureSource] | None = None,
        videos: Sequence[ClipSource] | None = None,
        stream: Literal[False] = False,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...

    @overload
    def reason(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        images: Sequence[PictureSource] | None = None,
        videos: Sequence[ClipSource] | None = None,
        stream: Literal[True],
        **options: Unpack[AnswerOptions],
    ) -> Iterator[Delta]: ...

    def reason(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        images: Sequence[PictureSource] | None = None,
        videos: Sequence[ClipSource] | None = None,
        stream: bool = False,
        **options: Unpack[AnswerOptions],
    ) -> Answer | Iterator[Delta]:
        """Answer a prompt about pictures and clips, or the last turn of a conversation (`messages`).

        A picture is a path, bytes, Pillow picture or uint8 array [H, W, 3]; a clip a path, bytes, Clip,
        ClipIn or uint8 frames [T, H, W, 3]. `stream=True` gives an iterator of Delta; the last of each answer
        holds the whole of it. `n` answers of a temperature are read for once; `.others` are those after the
        first. `schema`, a pydantic model or a JSON schema, gives `.parsed`; `logprobs` so many alternatives
        of each token. Thinking ends after `thinking_budget` tokens. `tools`, in OpenAI's form, may be called
        (`tool_choice` "auto"), or one must be ("required", or its name): `.tool_calls` says which.
        """
        if not isinstance(stream, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
            raise BadRequest("stream", arguments.kind(stream), "true or false")
        several = options.get("n") not in (None, 1)  # answers to what is read once
        reasoner = self.reasoner(remembered=sys.maxsize if several else 0)
        self.ask(reasoner, prompt, messages=messages, images=images, videos=videos, **options)
        deltas = drain(reasoner)
        if self.facts.guard is not None:
            # held back until the guard has seen every whole answer
            deltas = iter([screened(delta, self.facts.guard) for delta in deltas])
        return deltas if stream else gather(deltas)

    def reasoner(self, *, slots: int = SLOTS, remembered: int = REMEMBERED) -> Reasoner:
        """To answer many at once: `ask` it, and call its `step` from the thread that this World works in.

        `slots` answers are written at once, others wait; context tokens up to `remembered` are kept for
        conversations that begin alike.
        """
        slots = arguments.whole(slots, "slots", 1, 4096)
        remembered = arguments.whole(remembered, "remembered", 0, sys.maxsize)
        return Reasoner(self.parts, slots=slots, remembered=remembered)

    def ask(
        self,
        reasoner: Reasoner,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        images: Sequence[PictureSource] | None = None,
        videos: Sequence[ClipSource] | None = None,
        **options: Unpack[AnswerOptions],
    ) -> int:
        """Hand a question, as in `reason`, to a `reasoner`. Gives the ticket by which it names the answer."""
        if not isinstance(reasoner, Reasoner):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
            raise BadRequest("reasoner", arguments.kind(reasoner), "must be one of `world.reasoner()`")
        asked = {"prompt": prompt, "messages": messages, "images": images, "videos": videos}
        request, receipt, turns = question({**asked, **options}, self.facts)
        return reasoner.add(
            turns,
            sampling=_sampling(request),
            n=request.n,
            schema=request.form,
            tools=toolbox(request.tools, request.tool_choice) if request.tools else None,
            receipt=receipt,
        )

    @overload
    def generate(
        self,
        prompt: str | dict[str, Any],
        *,
        n: None = None,
        on_step: OnStep | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Clip: ...

    @overload
    def generate(
        self,
        prompt: str | dict[str, Any],
        *,
        n: int,
        on_step: OnStep | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Clip]: ...

    def generate(
        self,
        prompt: str | dict[str, Any],
        *,
        n: int | None = None,
        on_step: OnStep | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Clip | list[Clip]:
        """A picture (frames=1) or a clip from words, and from what is given beside them: see GenerateOptions.

        prompt: prose, or a structured caption as a dictionary. frames are rounded up to 4n + 1. A
        continuation starts with the last 5 frames of its clip unless told otherwise, and takes its rate;
        under controls a clip is as long as they are. n: a list of so many, drawn together; the i-th is what
        `seed` + i alone gives. With `candidates` and a `judge` so many are drawn and the reasoner keeps one.
        `clip.receipt` says what was used, filled in and rounded.
        """
        ready, clock = drawing({"prompt": prompt, "n": n, **options}, self.facts), _Clock(on_step)
        ready = self._upsampled(ready) if ready.request.upsample else ready
        request, receipt, numbers = ready.request, ready.receipt, ready.numbers
        judge = asked_judge(self.parts, request.judge, request.wanted)
        made = draw_clips(
            self.parts,
            ready.wording,
            canvas=ready.canvas,
            given=ready.given,
            sound=request.sound is True,
            count=request.candidates or n or 1,
            options=clock.options(numbers),
        )
        if judge is not None:
            choice = judge.choose(self.parts, [x.clip() for x in made], numbers.seed)
            return self._clip(made[choice.best], replace(receipt, choice=choice.to_dict()), clock)
        clips = [self._clip(x, receipt.seeded(i), clock) for i, x in enumerate(made)]
        return clips[0] if n is None else clips

    def upsample(self, prompt: str, **options: Unpack[UpsampleOptions]) -> dict[str, Any]:
        """The structured caption that the reasoner makes of a short prompt, and of a first frame `image`.

        Duration, rate, size and aspect ratio are those of what would be made; it is a prompt for `generate`.
        """
        ready = upsampling({"prompt": prompt, **options}, self.facts)
        caption = self._caption(ready.request.prompt, ready.canvas, ready.image, ready.request.seed)
        if self.facts.guard is not None:
            screen_words(self.facts.guard, "output", json.dumps(caption))
        return caption

    def _caption(
        self, prompt: str, canvas: Canvas, image: Pixels | None, seed: int | None = None
    ) -> dict[str, Any]:
        asked = manner(small=self.facts.small)
        return upsample(self.parts, prompt, asked, canvas=canvas, image=image, seed=seed)

    def _upsampled(self, ready: Drawing) -> Drawing:
        """The same request, its prompt upsampled; the receipt keeps both. Raises Blocked."""
        text = json.dumps(self._caption(ready.request.prompt, ready.canvas, ready.given.image))
        receipt = replace(ready.receipt, used={**ready.receipt.used, "upsampled": text})
        if self.facts.guard is not None:
            told = str(screen_words(self.facts.guard, "upsampled", text))
            receipt = replace(receipt, guard={**receipt.guard, "upsampled": told})
        return replace(ready, request=ready.request.model_copy(update={"prompt": text}), receipt=receipt)

    def forward_dynamics(
        self,
        image: PictureSource,
        actions: ActionSource,
        *,
        domain: str | os.PathLike[str] | Robot,
        sound: bool = False,
        on_step: OnStep | None = None,
        **options: Unpack[ActOptions],
    ) -> Clip:
        """What a camera that sees `image` would see after each action: K + 1 frames, in chunks if need be.

        actions: Actions, their JSON file, or rows [K, D] in the robot's own units. sound: with what would be
        heard.
        """
        asked = {"image": image, "actions": actions, "domain": domain, "sound": sound, **options}
        (ready, actions_KD), clock = forward(asked, self.facts), _Clock(on_step)
        made = act.forward_dynamics(
            self.parts,
            ready.pixels,
            actions_KD,
            ready.body,
            prompt=ready.request.prompt,
            negative=ready.request.negative or "",
            sound=ready.request.sound,
            options=clock.options(ready.numbers),
        )
        clip = self._clip(made, ready.receipt, clock)
        return replace(clip, actions=Actions.of(ready.body, actions_KD))

    def inverse_dynamics(
        self,
        video: ClipSource,
        *,
        domain: str | os.PathLike[str] | Robot,
        on_step: OnStep | None = None,
        **options: Unpack[ActOptions],
    ) -> Actions:
        """Which actions [T - 1, D], in the robot's own units, lead from each frame of a clip to the next."""
        ready = acting(InverseDynamicsRequest, {"video": video, "domain": domain, **options}, self.facts)
        clock = _Clock(on_step)
        actions = act.inverse_dynamics(
            self.parts,
            ready.pixels,
            ready.body,
            prompt=ready.request.prompt,
            negative=ready.request.negative or "",
            options=clock.options(ready.numbers),
        )
        return replace(actions, receipt=ready.receipt.spent({}, clock.seconds()).to_dict())

    def policy(
        self,
        prompt: str,
        image: PictureSource,
        *,
        domain: str | os.PathLike[str] | Robot,
        state: Sequence[float] | np.ndarray[Any, Any] | None = None,
        decode: bool = True,
        on_step: OnStep | None = None,
        **options: Unpack[ChoiceOptions],
    ) -> Actions:
        """What a robot that sees `image` should do next; `.clip` is what that would look like.

        state: the robot's numbers [D] now, for models that were trained with them. `decode=False` leaves the
        clip out and is quicker. With `candidates` and a `judge`, the actions of
        each candidate are imagined by forward dynamics and the reasoner chooses; `.clip` is the chosen one's,
        and the receipt holds every candidate's seed and score.
        """
        asked = {"prompt": prompt, "image": image, "domain": domain, "state": state, "decode": decode}
        ready, clock = acting(PolicyRequest, {**asked, **options}, self.facts), _Clock(on_step)
        request, receipt = ready.request, ready.receipt
        case = self.parts, request.prompt, ready.pixels, ready.body
        how: dict[str, Any] = {"negative": request.negative or "", "options": clock.options(ready.numbers)}
        judge = asked_judge(self.parts, request.judge, request.wanted)
        if judge is None or request.candidates is None:
            actions = act.policy(*case, state=request.state, decode_clip=request.decode, **how)
        else:
            actions, choice = choose_policy(*case, judge=judge, count=request.candidates, **how)
            actions = actions if request.decode else replace(actions, clip=None)
            receipt = replace(receipt, choice=choice.to_dict())
        tile = actions.clip and actions.clip.receipt.get("tile")
        if actions.clip is not None:
            receipt, frames = self._screened(receipt, actions.clip.frames)
            actions = replace(actions, clip=replace(actions.clip, frames=frames))
        told = receipt.spent({}, clock.seconds(), tile).to_dict()
        return replace(actions, clip=actions.clip and replace(actions.clip, receipt=told), receipt=told)

    def _clip(self, made: Made, receipt: Receipt, clock: _Clock) -> Clip:
        receipt, frames = self._screened(receipt, made.frames)
        told = receipt.spent(made.tokens, clock.seconds(), made.tile).to_dict()
        return replace(made, frames=frames, receipt=told).clip()

    def _screened(self, receipt: Receipt, frames: Pixels) -> tuple[Receipt, Pixels]:
        """What the guard, if there is one, says of frames that were made. Raises Blocked."""
        if self.facts.guard is None:
            return receipt, frames
        verdict, frames = screen_frames(self.facts.guard, frames)
        return replace(receipt, guard={**receipt.guard, "output": str(verdict)}), frames


def _sampling(request: ReasonRequest) -> Sampling:
    return Sampling(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        seed=request.seed or 0,
        stop=tuple(request.stop),
        thinking_budget=request.thinking_budget,
        logprobs=request.logprobs,
    )


def screened(delta: Delta, guard: Guard) -> Delta:
    """A piece of an answer; the last, which holds the whole, has been seen by the guard. Raises Blocked."""
    if delta.answer is None:
        return delta
    calls = [json.dumps([call.name, call.arguments], ensure_ascii=False) for call in delta.answer.tool_calls]
    words = "\n".join([delta.answer.thinking, delta.answer.text, *calls])
    told = str(screen_words(guard, "output", words))
    said = {**delta.answer.receipt, "guard": {**delta.answer.receipt["guard"], "output": told}}
    return replace(delta, answer=replace(delta.answer, receipt=said))
