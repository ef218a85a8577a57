"""Forward dynamics, inverse dynamics, policy: what actions do, which were done, which to do.

Clips and actions go through the model in chunks of the robot's length: `chunk` actions, each from one frame
to the next, and `chunk` + 1 frames. Longer ones are chained, each chunk from the last frame before it.

Shape letters: T frames, H W height and width in pixels, Z latent channels, t h w latent frames, height and
width, K actions, D numbers of one action.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.prompts import VIEWPOINTS, action_caption
from armillary.robots import ROBOTS, Actions, Floats, Robot
from armillary.tasks.defaults import defaults
from armillary.tasks.denoise import (
    Contexts,
    SamplingOptions,
    count_tokens,
    draw,
    draw_many,
    read_prompts,
    require_use,
)
from armillary.tasks.frames import Placement, check_frames, decode, encode, finite, require_video
from armillary.tasks.generate import Made, smallest
from armillary.tasks.parts import Parts
from armillary.tasks.segments import TIME_FACTOR, Latents
from armillary.tasks.sounds import hear, join, require_audio, samples, silent


@dataclass(frozen=True)
class _Job:
    """A request about a robot: everything that its chunks share."""

    parts: Parts
    robot: Robot
    prompt: str
    negative: str
    options: SamplingOptions

    @property
    def factor(self) -> int:
        """Pixels a latent, on a side."""
        return require_video(self.parts).config.scale_factor_spatial

    def placement(self, frames_THW3: Pixels, field: str = "image") -> Placement:
        """Where on which canvas frames of this size stand. Raises BadRequest naming `field`."""
        _, height, width, _ = frames_THW3.shape
        row = defaults(self.parts.checkpoint, "video")
        longest = max(row.height, row.width)
        return Placement.choose(height, width, self.robot.tier, self.factor, longest=longest, field=field)

    def contexts(self, placement: Placement) -> Contexts:
        """The caption of one chunk. No system sentence: the model was trained without one here."""
        robot, options = self.robot, self.options
        caption = action_caption(
            self.prompt,
            view=robot.view,
            frames=robot.chunk + 1,
            fps=robot.fps,
            height=placement.height,
            width=placement.width,
        )
        return read_prompts(self.parts, caption, self.negative, guidance=options.guidance)

    def known(self, frames_THW3: Pixels, placement: Placement) -> Tensor:
        """Latents [Z, t, h, w] of the picture itself, without the rest of the canvas."""
        latents_ZThw = encode(require_video(self.parts), placement.place(frames_THW3, self.parts.device))
        content = placement.made(self.factor)
        rows, columns = content.content_height // self.factor, content.content_width // self.factor
        return latents_ZThw[:, :, :rows, :columns]

    def started(self, frame_1HW3: Pixels, placement: Placement) -> Tensor:
        """Latents of a whole chunk, zero after the first frame."""
        first_Z1hw = self.known(frame_1HW3, placement)
        later = first_Z1hw.new_zeros(len(first_Z1hw), self.robot.chunk // TIME_FACTOR, *first_Z1hw.shape[2:])
        return torch.cat([first_Z1hw, later], dim=1)

    def options_of(self, chunk: int, chunks: int) -> SamplingOptions:
        """Those of one chunk: each has its own noise; progress is counted over all."""
        first = self.options.chunk
        return replace(self.options, chunk=first + chunk, chunks=first + chunks)


def forward_dynamics(
    parts: Parts,
    image: Pixels,
    actions: Any,
    robot: Robot,
    *,
    prompt: str = "",
    negative: str = "",
    sound: bool = False,
    options: SamplingOptions,
) -> Made:
    """What a camera that sees `image` (uint8 [H, W, 3]) would see after each action [K, D]: K + 1 frames.

    Actions are in the robot's units, any number of them. sound: with what would be heard.
    Raises as `generate` does.
    """
    how: dict[str, Any] = {"prompt": prompt, "negative": negative, "sound": sound, "options": options}
    return roll_out(parts, image, [actions], robot, **how)[0]


def roll_out(
    parts: Parts,
    image: Pixels,
    actions: Sequence[Any],
    robot: Robot,
    *,
    prompt: str = "",
    negative: str = "",
    sound: bool = False,
    options: SamplingOptions,
) -> list[Made]:
    """Forward dynamics of several rows of actions from one picture, all [K, D], in one pack.

    The i-th is what `forward_dynamics` makes of it with the seed of `options` + i.
    """
    checked = [robot.check(rows) for rows in actions]
    count, width = checked[0].shape
    robot = robot.with_width(width)
    job = _job(parts, robot, prompt, negative, options)
    frame = check_frames(image, "image", still=True)
    placement = job.placement(frame)
    contexts = job.contexts(placement)
    starts = [job.started(frame, placement)] * len(checked)
    frames: list[list[Pixels]] = [[] for _ in checked]
    tiles: list[int | None] = []
    runs: list[list[Latents]] = []
    chunks = list(zip(*(_chunks(robot.to_model(rows_KD), robot.chunk) for rows_KD in checked), strict=True))
    for i, rows in enumerate(chunks):
        wanted = [
            Latents(
                start,
                robot.fps,
                clean_frames=(0,),
                actions_KD=torch.from_numpy(rows_KD).to(parts.device),
                clean_actions=range(robot.chunk),
                domain=robot.domain,
                sound_SL=silent(parts, robot.chunk + 1, robot.fps) if sound else None,
            )
            for start, rows_KD in zip(starts, rows, strict=True)
        ]
        runs.append(draw_many(parts, wanted, contexts, job.options_of(i, len(chunks))))
        decoded = [decode(require_video(parts), drawn.vision_ZThw) for drawn in runs[-1]]
        for so_far, (made_THW3, tile) in zip(frames, decoded, strict=True):
            so_far.append(made_THW3[1:] if i else made_THW3)
            tiles.append(tile)
        if i + 1 < len(chunks):
            placement = placement.made(job.factor)
            starts = [job.started(made_THW3[-1:], placement) for made_THW3, _ in decoded]
    tokens, tile = count_tokens(runs[0][0], contexts, parts), smallest(tiles)
    made = [
        Made(np.concatenate(some)[: count + 1], robot.fps, drawn, tokens, tile=tile)
        for some, drawn in zip(frames, zip(*runs, strict=True), strict=True)
    ]
    return [_with_sound(parts, one, robot.chunk) for one in made]


def _with_sound(parts: Parts, made: Made, chunk: int) -> Made:
    """The clip with the sound that was drawn beside it, if any was; chunks share one frame."""
    drawn = [x.sound_SL for x in made.latents if x.sound_SL is not None]
    if not drawn:
        return made
    audio, fps = require_audio(parts), made.fps
    heard = [hear(audio, sound_SL, samples(audio, chunk + 1, fps)) for sound_SL in drawn]
    starts = [samples(audio, i * chunk, fps) for i in range(len(drawn))]
    sound_CN = join(heard, starts, samples(audio, len(made.frames), fps))
    return replace(made, sound=sound_CN, sample_rate=audio.sample_rate)


def check_moving(frames: Pixels) -> Pixels:
    """The frames of a clip in which something can have been done: two or more. Raises BadRequest."""
    frames_THW3 = check_frames(frames, "video")
    if len(frames_THW3) < 2:
        raise BadRequest(
            "video.frames", len(frames_THW3), "needs at least 2 frames: an action leads from one to the next"
        )
    return frames_THW3


def inverse_dynamics(
    parts: Parts,
    frames: Pixels,
    robot: Robot,
    *,
    prompt: str = "",
    negative: str = "",
    options: SamplingOptions,
) -> Actions:
    """Which actions [T - 1, D] lead from each frame of a clip to the next.

    frames: uint8 [T, H, W, 3] at the robot's fps, T >= 2. Raises as `generate` does.
    """
    frames_THW3 = check_moving(frames)
    job = _job(parts, robot, prompt, negative, options)
    placement = job.placement(frames_THW3, "video")
    contexts, width = job.contexts(placement), _width(robot)
    starts = range(0, len(frames_THW3) - 1, robot.chunk)
    runs: list[Latents] = []
    for i, start in enumerate(starts):
        chunk_THW3 = _lengthen(frames_THW3[start : start + robot.chunk + 1], robot.chunk + 1)
        known_ZThw = job.known(chunk_THW3, placement)
        latents = Latents(
            known_ZThw,
            robot.fps,
            clean_frames=range(known_ZThw.shape[1]),
            actions_KD=torch.zeros(robot.chunk, width, device=parts.device),
            domain=robot.domain,
        )
        runs.append(draw(parts, latents, contexts, job.options_of(i, len(starts))))
    values_KD = np.concatenate([_drawn_actions(drawn) for drawn in runs])[: len(frames_THW3) - 1]
    return _actions(robot, values_KD, count_tokens(runs[0], contexts, parts))


def policy(
    parts: Parts,
    prompt: str,
    image: Pixels,
    robot: Robot,
    *,
    negative: str = "",
    state: Any = None,
    decode_clip: bool = True,
    options: SamplingOptions,
) -> Actions:
    """What to do next, `robot.chunk` actions, and in `.clip` what that would look like.

    image: uint8 [H, W, 3], what the camera sees. state: numbers [D] of the robot now, for models trained with
    one; it stands before the actions as a given row. decode_clip=False leaves the clip out and is quicker.
    Raises as `generate` does.
    """
    asked: dict[str, Any] = {"negative": negative, "state": state, "options": options}
    (proposal,) = proposals(parts, prompt, image, robot, count=1, **asked)
    return proposal.imagined(parts) if decode_clip else proposal.actions


@dataclass(frozen=True, eq=False)
class Proposal:
    """Actions that a policy drew, and the latents [Z, t, h, w] of what it expects to see."""

    actions: Actions
    vision_ZThw: Tensor

    def imagined(self, parts: Parts) -> Actions:
        """The actions with their clip."""
        frames_THW3, tile = decode(require_video(parts), self.vision_ZThw)
        told = {} if tile is None else {"tile": tile}
        return replace(self.actions, clip=Clip(frames_THW3, self.actions.fps, receipt=told))


def proposals(
    parts: Parts,
    prompt: str,
    image: Pixels,
    robot: Robot,
    *,
    negative: str = "",
    state: Any = None,
    options: SamplingOptions,
    count: int,
) -> list[Proposal]:
    """Several policy answers in one pack; the i-th is what the seed of `options` + i gives alone."""
    job, width = _job(parts, robot, prompt, negative, options), _width(robot)
    frame = check_frames(image, "image", still=True)
    placement = job.placement(frame)
    contexts = job.contexts(placement)
    rows_KD = np.zeros((robot.chunk, width), np.float32)
    if state is not None:
        state_1D = robot.check([state], field="state")
        rows_KD = np.concatenate([robot.to_model(state_1D), rows_KD])
    latents = Latents(
        job.started(frame, placement),
        robot.fps,
        clean_frames=(0,),
        actions_KD=torch.from_numpy(rows_KD).to(parts.device),
        clean_actions=() if state is None else (0,),
        domain=robot.domain,
        first_action=1 if state is None else 0,
    )
    many = draw_many(parts, [latents] * count, contexts, job.options_of(0, 1))
    tokens = count_tokens(latents, contexts, parts)
    return [
        Proposal(_actions(robot, _drawn_actions(drawn)[-robot.chunk :], tokens), drawn.vision_ZThw)
        for drawn in many
    ]


def _job(parts: Parts, robot: Robot, prompt: str, negative: str, options: SamplingOptions) -> _Job:
    """Check what the three tasks share. Raises BadRequest."""
    require_video(parts)
    require_use(negative, options.guidance)
    traits = parts.checkpoint.traits
    room = (traits.action_dim or 0) if traits.action_gen else 0
    checkpoint = parts.checkpoint
    check_body(robot, ports=checkpoint.config.domains, room=room, untaught=checkpoint.untaught)
    return _Job(parts, robot, prompt, negative, options)


def check_body(robot: Robot, *, ports: int, room: int, untaught: Collection[int]) -> None:
    """Refuse a robot that a checkpoint with so many action ports of so many columns cannot move; of some
    ports it may be known that they were never trained."""
    if not room:
        raise BadRequest("domain", robot.name, "this checkpoint has no action port: it knows no robots")
    robot.require_known()
    if not 0 <= robot.domain < ports:
        raise BadRequest("domain", robot.name, f"has port {robot.domain}; this checkpoint has {ports}")
    if robot.width == 0 or (robot.width or 0) > room:
        raise BadRequest(
            "domain", robot.name, f"has {robot.width} columns; this checkpoint holds 1 to {room}"
        )
    if robot.chunk < 1 or robot.chunk % TIME_FACTOR:
        raise BadRequest("chunk", robot.chunk, f"must be a multiple of {TIME_FACTOR}")
    if robot.view not in VIEWPOINTS:
        raise BadRequest("view", robot.view, f"known views are {', '.join(VIEWPOINTS)}")
    if robot.domain in untaught:
        names = {body.domain: f" ({body.name})" for body in ROBOTS.values()}
        known = ", ".join(f"{port}{names.get(port, '')}" for port in range(ports) if port not in untaught)
        message = f"has port {robot.domain}, which this checkpoint was never taught; it was taught {known}"
        raise BadRequest("domain", robot.name, message)


def _width(robot: Robot) -> int:
    if robot.width is None:
        told = f'a .toml file with `like = "{robot.name}"` and `width`'
        message = f"its number of columns depends on the data set: give {told}, or robot(name, width=...)"
        raise BadRequest("domain", robot.name, message)
    return robot.width


def _chunks(values_KD: Floats, size: int) -> Iterator[Floats]:
    """Rows in equal chunks; the last one repeats its last row until it is full."""
    for start in range(0, len(values_KD), size):
        yield _lengthen(values_KD[start : start + size], size)


def _lengthen(rows: Any, count: int) -> Any:
    """The rows, the last one repeated until there are `count`."""
    return np.concatenate([rows, np.repeat(rows[-1:], count - len(rows), axis=0)])


def _drawn_actions(drawn: Latents) -> Floats:
    assert drawn.actions_KD is not None
    return finite(drawn.actions_KD, "drawing the actions").cpu().numpy()


def _actions(robot: Robot, values_KD: Floats, tokens: Mapping[str, int]) -> Actions:
    return Actions.of(robot, robot.from_model(values_KD), {"tokens": dict(tokens)})
