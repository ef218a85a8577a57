"""What keeps pocket's figures where they are: each suspect is varied, and the figure measured again.

    .venv/bin/python benchmarks/limits.py [MODEL] [-n 128]

Cases come from the training's own stream, beyond every seed that a recipe caches unless they are called
cached, so that nothing is learnt here about the cases of `armillary eval`. Shares and F1 run from 0 to 1; two
figures of n cases differ by luck by up to about 1.4 / sqrt(n).
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from armillary.eval.acting import (
    CHUNKS,
    Measured,
    Truth,
    body,
    chain_many,
    chosen,
    doubts,
    drawn_actions,
    forward_many,
    imagined,
    played_frames,
    plays,
    policies,
)
from armillary.eval.asking import same_json
from armillary.eval.batches import (
    Asked,
    answer_many,
    decode_clips,
    decode_sounds,
    draw_many,
    encode_clips,
    round_trip,
    wanted_clip,
)
from armillary.eval.bench import Bench
from armillary.eval.detectors import Scene, heard, look, onsets, score_onsets, watch
from armillary.eval.making import blank, same_throughout, slide_direction, slider, started, way
from armillary.eval.scores import f1, psnr
from armillary.locate import locate
from armillary.media.source import Pixels
from armillary.sim.language import BORDERS
from armillary.sim.physics import FPS, Floats
from armillary.sim.scenes import Episode, Kind, episode
from armillary.tasks.defaults import Defaults, defaults
from armillary.tasks.frames import require_video
from armillary.tasks.parts import load_parts
from armillary.tasks.segments import Latents
from armillary.tasks.sounds import require_audio

BEYOND = 10_000_000  # no recipe caches so many


def fresh(kind: Kind, n: int) -> list[Episode]:
    return [episode(kind, BEYOND + i) for i in range(n)]


def known_by_heart(bench: Bench) -> Iterator[str]:
    """Forward dynamics of episodes that it was trained on, and of new ones: is it overfitted?"""
    for kind in ("push", "wander"):
        for name, episodes in (
            ("cached", [episode(kind, i) for i in range(bench.n)]),
            ("new", fresh(kind, bench.n)),
        ):
            yield f"{kind}, {name} episodes: {forward(bench, episodes)}"


def forward(bench: Bench, episodes: Sequence[Episode], row: Defaults | None = None) -> str:
    actions = [e.actions for e in episodes if e.actions is not None]
    made = forward_many(bench, [e.picture() for e in episodes], actions, row)
    near = np.mean([psnr(e.frames, x) for e, x in zip(episodes, made, strict=True)])
    return f"{near:.2f} dB, {told(Measured.of([Truth.of(e) for e in episodes], made))}"


def told(found: Measured) -> str:
    return (
        f"pusher found {found.pusher_found.value:.3f}, pushed object found "
        f"{found.object_found.value:.3f} and {found.object_error.value:.2f} px off"
    )


def more_steps(bench: Bench) -> Iterator[str]:
    """Forward dynamics and the policy in more denoising steps, and in fewer: is it the sampler?"""
    row, pushes, half = defaults(bench.parts.checkpoint, "policy"), fresh("push", bench.n), bench.n // 2
    mixed = [*pushes[:half], *fresh("wander", half)]
    long = [episode("wander", BEYOND + i, frames=CHUNKS * body().chunk + 1) for i in range(bench.n)]
    for steps in (1, 2, 4, 8):
        other = replace(row, steps=steps)
        found = Measured.of([Truth.of(e) for e in long], chain_many(bench, long, other))
        drawn = drawn_actions(policies(bench, pushes, [e.instruction or "" for e in pushes], row=other))
        yield f"{steps} steps: {forward(bench, mixed, other)}"
        yield f"    {CHUNKS} chunks chained: {told(found)}"
        yield f"    policy: success {np.mean(plays(pushes, drawn)):.3f}"


def text_to_video(bench: Bench) -> Iterator[str]:
    """Slides from words: other samplers; and with the true first frame given, is it layout or motion?"""
    row, episodes = defaults(bench.parts.checkpoint, "video"), fresh("slide", bench.n)
    empty, given = [blank(bench, 9)] * bench.n, started(bench, [e.picture() for e in episodes], 9)

    def drawn(latents: Sequence[torch.Tensor], clean: tuple[int, ...], row: Defaults) -> str:
        wanted = [
            wanted_clip(e.caption, Latents(z, FPS, clean)) for e, z in zip(episodes, latents, strict=True)
        ]
        made = draw_many(bench.parts, "video", wanted, row=row)
        clips = decode_clips(require_video(bench.parts), [x.vision_ZThw for x in made])
        return drawn_right(episodes, [watch(x) for x in clips])

    for steps, guidance in product((10, 25), (1.0, 2.0, 4.0)):
        other = replace(row, steps=steps, guidance=guidance)
        yield f"{steps} steps, guidance {guidance:g}: {drawn(empty, (), other)}"
    yield f"first frame given: {drawn(given, (0,), row)}"
    true = round_trip(require_video(bench.parts), [e.frames for e in episodes], bench.device)
    yield f"ceiling: {drawn_right(episodes, [watch(x) for x in true])}"


def drawn_right(episodes: Sequence[Episode], clips: Sequence[Sequence[Scene]]) -> str:
    pairs = list(zip(episodes, clips, strict=True))
    turned = [slide_direction(e, list(s)) == way(e.velocities[0][slider(e)]) for e, s in pairs]
    every = [same_throughout(e.objects, s) for e, s in pairs]
    frames = np.mean([[same_throughout(e.objects, [scene]) for scene in s] for e, s in pairs], axis=0)
    by_frame = " ".join(f"{x:.2f}" for x in frames)
    return (
        f"direction {np.mean(turned):.3f}, same objects {np.mean(every):.3f}; right in each frame {by_frame}"
    )


def sounds(bench: Bench) -> Iterator[str]:
    """Sounds of slides: are they wrong or late? With more true frames given, and with its own drawn clip?"""
    episodes, audio = fresh("slide", bench.n), require_audio(bench.parts)
    truths = [e.sound for e in episodes if e.sound is not None]
    unknown = torch.zeros(
        int(bench.parts.checkpoint.config.features["sound"]), audio.latent_length(truths[0].shape[1])
    )

    def drawn(clips: Sequence[torch.Tensor], clean: tuple[int, ...]) -> tuple[list[Latents], str]:
        wanted = [
            wanted_clip(e.caption, Latents(z, FPS, clean, sound_SL=unknown))
            for e, z in zip(episodes, clips, strict=True)
        ]
        made = draw_many(bench.parts, "video", wanted)
        sounds = decode_sounds(
            audio, [x.sound_SL for x in made if x.sound_SL is not None], truths[0].shape[1]
        )
        told = ", ".join(f"± {k} frames {onset_f1(episodes, sounds, k / FPS):.3f}" for k in (1, 2, 4))
        return made, f"F1 {told}"

    whole = encode_clips(require_video(bench.parts), [e.frames for e in episodes], bench.device)
    made, told = drawn(whole, (0,))
    yield f"1 frame given: {told}"
    for clean in ((0, 1), (0, 1, 2)):
        yield f"{4 * len(clean) - 3} frames given: {drawn(whole, clean)[1]}"
    own = [x.vision_ZThw for x in made]
    yield f"the clip given that it drew from 1 frame: {drawn(own, (0, 1, 2))[1]}"
    yield speeds(episodes, decode_clips(require_video(bench.parts), own))


def speeds(episodes: Sequence[Episode], clips: Sequence[Pixels], after: int = 2) -> str:
    """How fast the slider of each clip is, by its place some frames on, if it has hit nothing by then."""
    pairs = list[tuple[float, float]]()
    for e, clip in zip(episodes, clips, strict=True):
        seen = look(clip[after]).of_colour(e.objects[slider(e)].colour)
        if seen and not any(v.time <= after / FPS for v in e.events):
            start, end = e.positions[[0, after], slider(e)]
            true, made = (float(np.hypot(*(x - start))) / after for x in (end, seen.place))
            pairs.append((true, made))
    true_N, made_N = np.array(pairs).T
    off, r = np.sqrt(np.mean((made_N - true_N) ** 2)), np.corrcoef(true_N, made_N)[0, 1]
    return f"speed of what slides: {off:.2f} px a frame off, of {true_N.mean():.2f}; r {r:.2f}"


def onset_f1(episodes: Sequence[Episode], sounds: Sequence[Floats], tolerance: float) -> float:
    pairs = zip(episodes, sounds, strict=True)
    return f1([score_onsets(onsets(x), heard(e.events, e.objects), tolerance)[:3] for e, x in pairs]).value


def captions(bench: Bench) -> Iterator[str]:
    """Captions of pictures: which word is wrong? Of those that name the right number of objects."""
    asked = [Asked(e, q) for e in fresh("still", bench.n) for q in e.questions() if q.kind == "caption"]
    answers = answer_many(bench.parts, asked, limit=48)
    pattern = re.compile(r"an? (\w+) (\w+) at the ([a-z ]+?)(?=,| and |$)")
    pairs = [
        (pattern.findall(a), pattern.findall(x.question.answer)) for a, x in zip(answers, asked, strict=True)
    ]
    alike = [
        (a, b) for made, true in pairs if len(made) == len(true) for a, b in zip(made, true, strict=True)
    ]
    yield f"right number of objects {np.mean([len(a) == len(b) for a, b in pairs]):.3f}"
    for place, name in enumerate(("colour", "shape", "place")):
        yield f"{name} right {np.mean([a[place] == b[place] for a, b in alike]):.3f}"


def clip_captions(bench: Bench) -> Iterator[str]:
    """Captions of clips: of which, and is it who was pushed or which way?"""
    pattern = re.compile(r"the (\w+ \w+) ((?:up|down|left|right)(?: and (?:left|right))?)")
    kinds: tuple[Kind, ...] = ("slide", "wander")
    pairs = list[tuple[str, str]]()
    for kind in kinds:
        asked = [Asked(e, q) for e in fresh(kind, bench.n) for q in e.questions() if q.kind == "caption"]
        answers = answer_many(bench.parts, asked, limit=48)
        pairs = [(a, x.question.answer) for a, x in zip(answers, asked, strict=True)]
        yield f"{kind}: right {np.mean([a == b for a, b in pairs]):.3f}"
    pushes = [(dict(pattern.findall(a)), dict(pattern.findall(b))) for a, b in pairs]
    ways = [a[name] == b[name] for a, b in pushes for name in a.keys() & b.keys()]
    yield f"wander: all who are pushed right {np.mean([a.keys() == b.keys() for a, b in pushes]):.3f}"
    yield f"wander: way right of each who is rightly named as pushed {np.mean(ways):.3f}"


def structured_captions(bench: Bench) -> Iterator[str]:
    """Structured captions of clips: which part is wrong?"""
    clips = [*fresh("slide", bench.n // 2), *fresh("wander", bench.n // 2)]
    asked = [Asked(e, q) for e in clips for q in e.questions() if q.kind == "structured caption"]
    answers = answer_many(bench.parts, asked, limit=256)
    made = [json.loads(a) if same_json(a, a) else {} for a in answers]
    right: list[dict[str, object]] = [json.loads(x.question.answer) for x in asked]
    yield f"valid {np.mean([bool(a) for a in made]):.3f}"
    for key in ("subjects", "actions", "temporal_caption", "audio_description"):
        parts = [(json.dumps(a.get(key)), json.dumps(b[key])) for a, b in zip(made, right, strict=True)]
        yield f"{key} right {np.mean([same_json(a, b) for a, b in parts]):.3f}"
    near = [any(abs(v - b) < 2 for p in e.positions[0] for v in p for b in BORDERS) for e in clips]
    places = [a.get("subjects") == b["subjects"] for a, b in zip(made, right, strict=True)]
    for name, here in (("all objects lie clear", False), ("one lies within 2 px", True)):
        some = [ok for ok, close in zip(places, near, strict=True) if close == here]
        yield f"subjects right where {name} of the borders between places: {np.mean(some):.3f}"


def candidates(bench: Bench) -> Iterator[str]:
    """Candidates: is it what they imagine, or how that is judged? At starts where the policy is unsure."""
    some = doubts(bench, fresh("push", 3 * bench.n))
    true = [played_frames(d.episode, actions_KD) for d in some for actions_KD in d.actions]
    yield f"{len(some)} starts, one at random succeeds {np.mean([np.mean(d.right) for d in some]):.3f}"
    for name, clips in (("imagined", imagined(bench, some)), ("true", true)):
        yield f"judged by the {name} outcome {np.mean(chosen(bench, some, clips)):.3f}"


SUSPECTS: dict[str, Callable[[Bench], Iterator[str]]] = {
    "memory": known_by_heart,
    "steps": more_steps,
    "clips": text_to_video,
    "sounds": sounds,
    "captions": captions,
    "clip captions": clip_captions,
    "structured captions": structured_captions,
    "candidates": candidates,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("model", nargs="?", default="pocket")
    options.add_argument("-n", type=int, default=128, help="cases a figure")
    options.add_argument("--only", choices=SUSPECTS, action="append", help="may be repeated")
    given = options.parse_args()
    parts = load_parts(locate(given.model)[1], device=torch.device("cpu"), dtype=torch.float32)
    for name in given.only or SUSPECTS:
        print((SUSPECTS[name].__doc__ or name).partition("\n")[0])
        for line in SUSPECTS[name](Bench(parts, given.n)):
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
