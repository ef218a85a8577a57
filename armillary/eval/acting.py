"""The suites of action: what actions do, which were done, and which to do.

Forward dynamics is held against standing still and against another clip's actions; the policy plays in the
simulator itself and is held against itself without words, against chance, and against driving straight at
the nearest object.

Shape letters: T frames, H W height and width, Z latent channels, t h w latent frames, height and width, K
actions, D numbers of an action.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from armillary.eval.batches import Wanted, decode_clips, draw_many, encode_clips, round_trip
from armillary.eval.bench import Bench, Outcome, Row, contact_sheet, telling
from armillary.eval.detectors import find_pusher, look
from armillary.eval.making import both, started
from armillary.eval.scores import Figure, Score, mean, psnr, r_squared, share
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.prompts import action_caption
from armillary.robots import Robot, robot
from armillary.sim.experts import random_policy, straight
from armillary.sim.language import outcome_question, success
from armillary.sim.physics import FPS, SIZE, Floats, Point, replay, simulate
from armillary.sim.scenes import Episode
from armillary.tasks.defaults import Defaults
from armillary.tasks.frames import require_video
from armillary.tasks.judge import Judge, judge_clips
from armillary.tasks.segments import Latents

CHUNKS = 4
CANDIDATES = 8
SEARCHED = 3  # times as many starts as other figures have are searched for those where the policy is unsure
SURE = 0.95  # share of its candidates that succeed where the policy is sure of itself
_APART = 1_000_000  # between the seeds of two candidates
_PUSHED = 5.0  # px after which an object counts as pushed
_NEAR = 3.0  # px from its true end within which the contact sheet calls a pushed object right


def body() -> Robot:
    """The pusher of the table-top."""
    return robot("tabletop")


def wanted_act(task: str, latents: Latents) -> Wanted:
    """A chunk of the pusher, asked for as `tasks.act` asks; guidance steers away from no words at all."""
    pusher = body()
    caption = action_caption(
        task, view=pusher.view, frames=pusher.chunk + 1, fps=pusher.fps, height=SIZE, width=SIZE
    )
    return Wanted(caption, "", latents)


def forward_many(
    bench: Bench, firsts: Sequence[Pixels], actions: Sequence[Floats], row: Defaults | None = None
) -> list[Pixels]:
    """What each chunk of actions [K, D] in px/s would do after its first picture: frames [K + 1, H, W, 3]."""
    pusher = body()
    wanted = [
        wanted_act(
            "",
            Latents(
                z,
                pusher.fps,
                (0,),
                actions_KD=torch.from_numpy(pusher.to_model(rows_KD)).to(bench.device),
                clean_actions=range(pusher.chunk),
                domain=pusher.domain,
            ),
        )
        for z, rows_KD in zip(started(bench, firsts, pusher.chunk + 1), actions, strict=True)
    ]
    drawn = draw_many(bench.parts, "forward_dynamics", wanted, row=row)
    return decode_clips(require_video(bench.parts), [x.vision_ZThw for x in drawn])


@dataclass(frozen=True)
class Truth:
    """What really happened, as far as it is measured."""

    frames: Pixels
    pusher: Floats  # [T, 2] px
    colour: str | None  # of the object that is pushed farthest, if any is
    place: Point  # where that object ends

    @classmethod
    def of(cls, e: Episode) -> "Truth":
        assert e.pusher is not None  # only clips with a pusher are asked
        far = np.hypot(*(e.positions[-1] - e.positions[0]).T)
        index = int(far.argmax())
        x, y = e.positions[-1, index].tolist()
        return cls(e.frames, e.pusher, e.objects[index].colour if far[index] > _PUSHED else None, (x, y))

    def pusher_errors(self, frames_THW3: Pixels) -> list[float]:
        """How far the pusher is from its place in each frame after the first, px; NaN where it is not
        found."""
        places = zip(frames_THW3[1:], self.pusher[1:].tolist(), strict=True)
        return [math.dist(p, place) if (p := find_pusher(frame)) else math.nan for frame, place in places]

    def object_error(self, frames_THW3: Pixels) -> float:
        """How far the pushed object is from where it ends, px; infinite if not found, NaN if none was
        pushed."""
        if self.colour is None:
            return math.nan
        seen = look(frames_THW3[-1]).of_colour(self.colour)
        return math.dist(seen.place, self.place) if seen else math.inf


@dataclass(frozen=True)
class Measured:
    """Made clips against true ones."""

    pusher_found: Score
    pusher_error: Score
    object_found: Score
    object_error: Score

    @classmethod
    def of(cls, truths: Sequence[Truth], clips: Sequence[Pixels]) -> "Measured":
        pairs = list(zip(truths, clips, strict=True))
        pusher = [truth.pusher_errors(frames) for truth, frames in pairs]
        thing = [error for truth, frames in pairs if not math.isnan(error := truth.object_error(frames))]
        return cls(
            mean([float(np.isfinite(errors).mean()) for errors in pusher]),
            mean([float(np.nanmean(errors)) for errors in pusher if np.isfinite(errors).any()]),
            share([math.isfinite(error) for error in thing]),
            mean([error for error in thing if math.isfinite(error)]),
        )


def measured_figures(name: str, measured: dict[str, Measured], bars: tuple[float, float]) -> list[Figure]:
    """Four lines; `measured` holds the model's clips under "made", and what they are compared with."""

    def figure(
        what: str, read: Callable[[Measured], Score], bar: float | None, *, error: bool = False
    ) -> Figure:
        scores = {key: read(m) for key, m in measured.items()}
        own = scores.pop("made")
        return Figure(f"{name}: {what}", own, "px" if error else "share", scores, bar, error)

    return [
        figure("pusher found", lambda m: m.pusher_found, bars[0]),
        figure("pusher's error", lambda m: m.pusher_error, None, error=True),
        figure("pushed object found", lambda m: m.object_found, None),
        figure("pushed object's error at the end", lambda m: m.object_error, bars[1], error=True),
    ]


def dynamics(bench: Bench) -> Outcome:
    """Forward over one chunk and over four, and inverse."""
    half = bench.n // 2
    episodes = [*bench.episodes("push", half), *bench.episodes("wander", bench.n - half)]
    forward, sheet = _forward(bench, episodes)
    figures = [*forward, *_chained(bench), *_inverse(bench, episodes)]
    return Outcome(figures, {"forward-dynamics": contact_sheet(sheet)})


def actions_of(episodes: Sequence[Episode]) -> list[Floats]:
    """The true actions [K, D] of each clip in px/s."""
    return [e.actions for e in episodes if e.actions is not None]


def _forward(bench: Bench, episodes: Sequence[Episode]) -> tuple[list[Figure], list[Row]]:
    firsts, actions = [e.picture() for e in episodes], actions_of(episodes)
    truths = [Truth.of(e) for e in episodes]
    clips = {
        "made": forward_many(bench, firsts, actions),
        "first frame": [np.repeat(e.frames[:1], len(e.frames), axis=0) for e in episodes],
        "another clip's actions": forward_many(bench, firsts, [*actions[1:], *actions[:1]]),
        "ceiling": round_trip(require_video(bench.parts), [t.frames for t in truths], bench.device),
    }
    level = {
        key: [psnr(t.frames[1:], x[1:]) for t, x in zip(truths, some, strict=True)]
        for key, some in clips.items()
    }

    def over(key: str, than: str) -> Score:
        return mean([a - b for a, b in zip(level[key], level[than], strict=True)])

    copy, wrong = "first frame", "another clip's actions"
    levels = {key: mean(values) for key, values in level.items()}
    beside = {wrong: over(wrong, copy), "ceiling": over("ceiling", copy)}
    figures = [
        Figure("forward: PSNR", levels.pop("made"), "dB", levels),
        Figure("forward: above the first frame", over("made", copy), "dB", beside, 8.0),
        Figure("forward: above another clip's actions", over("made", wrong), "dB", bar=7.5),
        *measured_figures("forward", {k: Measured.of(truths, x) for k, x in clips.items()}, (0.99, 1.5)),
    ]
    errors = [t.object_error(x) for t, x in zip(truths, clips["made"], strict=True)]
    pushed = [i for i, error in enumerate(errors) if not math.isnan(error)]
    rows = list[Row]()
    for i in (pushed[k] for k in telling([errors[i] < _NEAR for i in pushed], 4)):
        rows.append((f"true: {episodes[i].caption}", truths[i].frames))
        rows.append((f"made, {'right' if errors[i] < _NEAR else 'wrong'}", clips["made"][i]))
        rows.append((wrong, clips[wrong][i]))
    return figures, rows


def chain_many(bench: Bench, episodes: Sequence[Episode], row: Defaults | None = None) -> list[Pixels]:
    """What the actions of each would do, a chunk after the other: each goes on from the last frame that the
    one before made."""
    size, actions = body().chunk, actions_of(episodes)
    lasts = [e.picture() for e in episodes]
    parts = [[picture[None]] for picture in lasts]
    for start in range(0, len(actions[0]), size):
        made = forward_many(bench, lasts, [rows_KD[start : start + size] for rows_KD in actions], row)
        lasts = [frames[-1] for frames in made]
        parts = [[*some, frames[1:]] for some, frames in zip(parts, made, strict=True)]
    return [np.concatenate(some) for some in parts]


def _chained(bench: Bench) -> list[Figure]:
    episodes = bench.episodes("wander", frames=CHUNKS * body().chunk + 1)
    truths, clips = [Truth.of(e) for e in episodes], chain_many(bench, episodes)
    still = [np.repeat(x[:1], len(x), axis=0) for x in clips]
    measured = {"made": Measured.of(truths, clips), "first frame": Measured.of(truths, still)}
    ends = round_trip(require_video(bench.parts), [t.frames[-1:] for t in truths], bench.device)
    finals = [Truth(t.frames, t.pusher[-2:], t.colour, t.place) for t in truths]
    measured["ceiling"] = Measured.of(finals, [np.concatenate([x, x]) for x in ends])
    return measured_figures(f"forward, {CHUNKS} chunks", measured, (0.95, 4.0))


def _inverse(bench: Bench, episodes: Sequence[Episode]) -> list[Figure]:
    pusher, truths = body(), actions_of(episodes)
    known = encode_clips(require_video(bench.parts), [e.frames for e in episodes], bench.device)
    unknown = torch.zeros(pusher.chunk, pusher.width or 2, device=bench.device)
    wanted = [
        wanted_act("", Latents(z, pusher.fps, range(z.shape[1]), actions_KD=unknown, domain=pusher.domain))
        for z in known
    ]
    found = drawn_actions(draw_many(bench.parts, "inverse_dynamics", wanted))
    centre_D = np.concatenate(truths).mean(0)

    def explained(guesses: Sequence[Floats]) -> Score:
        rows = [
            (float(((a - b) ** 2).sum()), float(((b - centre_D) ** 2).sum()))
            for a, b in zip(guesses, truths, strict=True)
        ]
        return r_squared(rows)

    average = [np.broadcast_to(centre_D, a.shape) for a in truths]
    beside = {"mean action": explained(average), "another clip's video": explained([*found[1:], *found[:1]])}
    return [Figure("inverse: R²", explained(found), "R2", beside, 0.95)]


def drawn_actions(drawn: Sequence[Latents]) -> list[Floats]:
    """The actions [K, D] that were drawn, in px/s."""
    return [body().from_model(x.actions_KD.cpu().numpy()) for x in drawn if x.actions_KD is not None]


# The policy


def policy(bench: Bench) -> Outcome:
    """One chunk of actions for an instruction, played in the simulator, on starts that come in twins."""
    episodes = bench.episodes("push", bench.n // 2 * 2)
    drawn = policies(bench, episodes, [e.instruction or "" for e in episodes])
    made, untold = drawn_actions(drawn), drawn_actions(policies(bench, episodes, [None] * len(episodes)))
    rng = random.Random("random policy")
    frames = len(episodes[0].positions)
    right, silent, twin = plays(episodes, made), plays(episodes, untold), plays(episodes, _swapped(made))
    chance = [success(e, simulate(e.start, frames, random_policy(rng)).positions) for e in episodes]
    ahead = [success(e, simulate(e.start, frames, straight()).positions) for e in episodes]
    expert = [success(e, e.positions) for e in episodes]
    gain = [float(a) - float(b) for a, b in zip(right, silent, strict=True)]
    beside = {
        "no words": share(silent),
        "the twin's words": share(twin),
        "random": share(chance),
        "straight ahead": share(ahead),
        "ceiling: the expert": share(expert),
    }
    pairs = {
        "no words": share(both(silent)),
        "random": share(both(chance)),
        "ceiling: the expert": share(both(expert)),
    }
    figures = [
        Figure("success", share(right), beside=beside, bar=0.90),
        Figure("success, above no words", mean(gain), bar=0.45),
        Figure("both instructions of one start", share(both(right)), beside=pairs, bar=0.80),
    ]
    figures += _judged(bench)
    rows = list[Row]()
    for i in telling(right, 4):
        e = episodes[i]
        clip = decode_clips(require_video(bench.parts), [drawn[i].vision_ZThw])[0]
        rows.append((f"imagined: {e.instruction}", clip))
        rows.append((f"played, {'success' if right[i] else 'failure'}", played_frames(e, made[i])))
    return Outcome(figures, {"policy": contact_sheet(rows)})


@dataclass(frozen=True)
class Doubt:
    """A start at which not every candidate of the policy succeeds."""

    episode: Episode
    actions: list[Floats]  # of each candidate
    right: list[bool]


def doubts(bench: Bench, episodes: Sequence[Episode]) -> list[Doubt]:
    """Those of the starts at which the policy is not sure of itself."""
    tasks = [e.instruction or "" for e in episodes]
    answers = [drawn_actions(policies(bench, episodes, tasks, nth)) for nth in range(CANDIDATES)]
    played = [plays(episodes, actions) for actions in answers]
    found = [Doubt(e, [a[i] for a in answers], [p[i] for p in played]) for i, e in enumerate(episodes)]
    return [d for d in found if sum(d.right) < SURE * len(d.right)]


def imagined(bench: Bench, some: Sequence[Doubt]) -> list[Pixels]:
    """What forward dynamics says that every candidate of every start would do."""
    firsts = [d.episode.picture() for d in some for _ in d.actions]
    return forward_many(bench, firsts, [actions_KD for d in some for actions_KD in d.actions])


def chosen(bench: Bench, some: Sequence[Doubt], clips: Sequence[Pixels]) -> list[bool]:
    """Does the candidate succeed whose clip the reasoner likes best, at each start? `clips` as `imagined` has
    them."""
    left, found = iter(clips), list[bool]()
    for d in some:
        assert d.episode.goal is not None  # every push has one
        judge = Judge(*outcome_question(d.episode.objects, d.episode.goal))
        scores = judge_clips(bench.parts, [Clip(next(left), FPS) for _ in d.right], judge)
        found.append(d.right[scores.index(max(scores))])
    return found


def _judged(bench: Bench) -> list[Figure]:
    """Imagine, judge, choose: at the first n starts at which the policy is not sure of itself."""
    some = doubts(bench, bench.episodes("push", SEARCHED * (bench.n // 2 * 2)))[: bench.n]
    best = chosen(bench, some, imagined(bench, some))
    average = [sum(d.right) / len(d.right) for d in some]
    beside = {
        "one candidate": share([d.right[0] for d in some]),
        "a random one of them": mean(average),
        "ceiling: the best of them": share([any(d.right) for d in some]),
    }
    name = f"{CANDIDATES} candidates judged, where one is unsure"
    gain = [float(x) - y for x, y in zip(best, average, strict=True)]
    return [
        Figure(f"{name}: success", share(best), beside=beside),
        Figure(f"{name}: above one at random", mean(gain), bar=0.05),
    ]


def policies(
    bench: Bench,
    episodes: Sequence[Episode],
    tasks: Sequence[str | None],
    nth: int = 0,
    row: Defaults | None = None,
) -> list[Latents]:
    """Actions and the clips they imagine, from the `nth` noise. A task of None is no prompt at all, as
    dropped prompts are in training."""
    pusher = body()
    unknown = torch.zeros(pusher.chunk, pusher.width or 2, device=bench.device)
    starts = started(bench, [e.picture() for e in episodes], pusher.chunk + 1)
    wanted = list[Wanted]()
    for task, z in zip(tasks, starts, strict=True):
        latents = Latents(z, pusher.fps, (0,), actions_KD=unknown, domain=pusher.domain)
        wanted.append(Wanted("", "", latents) if task is None else wanted_act(task, latents))
    seeds = [e.seed // 2 + nth * _APART for e in episodes]
    return draw_many(bench.parts, "policy", wanted, seeds=seeds, row=row)


def _swapped(rows: Sequence[Floats]) -> list[Floats]:
    """What each episode's twin does."""
    return [rows[i ^ 1] for i in range(len(rows))]


def plays(episodes: Sequence[Episode], actions: Sequence[Floats]) -> list[bool]:
    """Does each chunk of actions do what its episode asks?"""
    return [
        success(e, replay(e.start, rows_KD).positions) for e, rows_KD in zip(episodes, actions, strict=True)
    ]


def played_frames(e: Episode, actions_KD: Floats) -> Pixels:
    run = replay(e.start, actions_KD)
    return Episode(
        e.kind, e.seed, e.start, run.positions, run.velocities, run.pusher, run.actions, run.events, e.goal
    ).frames
