"""The suites of what is made from words: pictures and clips.

Everything made is read by the detectors. Beside each figure stand the same clips held against another
clip's caption or recording, and the ceiling: the true recording, once through the autoencoder.

Shape letters: T frames, H W height and width, Z latent channels, t h w latent frames, height and width.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from armillary.eval.batches import decode_clips, draw_many, encode_clips, round_trip, wanted_clip
from armillary.eval.bench import Bench, Outcome, Row, contact_sheet, next_one, telling
from armillary.eval.detectors import Scene, look, watch
from armillary.eval.scores import Figure, Score, share
from armillary.media.source import Pixels
from armillary.sim.experts import DIRECTIONS, Direction
from armillary.sim.language import cell, success
from armillary.sim.physics import FPS, Floats, Object, Point
from armillary.sim.scenes import Episode
from armillary.tasks.frames import require_video
from armillary.tasks.segments import Latents

_MOVED = 2.0  # px after which a motion has a direction


def blank(bench: Bench, frames: int) -> torch.Tensor:
    """Latents [Z, t, h, w] of a clip of which nothing is given."""
    config = require_video(bench.parts).config
    side = 64 // config.scale_factor_spatial
    return torch.zeros(config.z_dim, (frames - 1) // 4 + 1, side, side, device=bench.device)


def started(bench: Bench, firsts: Sequence[Pixels], frames: int) -> list[torch.Tensor]:
    """Latents of clips that begin with the given pictures uint8 [H, W, 3] and are zero after them."""
    known = encode_clips(require_video(bench.parts), [picture[None] for picture in firsts], bench.device)
    return [torch.cat([z, torch.zeros_like(z).expand(-1, (frames - 1) // 4, -1, -1)], 1) for z in known]


# Pictures


def image(bench: Bench) -> Outcome:
    """Stills from their captions: each object in its place, with its shape, and nothing else."""
    figures, sheets = list[Figure](), list[Row]()
    for split in ("test", "heldout_pairs"):
        episodes = bench.episodes("still", split=split)
        wanted = [wanted_clip(e.caption, Latents(blank(bench, 1), FPS)) for e in episodes]
        drawn = draw_many(bench.parts, "image", wanted)
        video = require_video(bench.parts)
        made = decode_clips(video, [x.vision_ZThw for x in drawn])
        ceiling = round_trip(video, [e.frames for e in episodes], bench.device)
        scenes, best = ([look(x[0]) for x in clips] for clips in (made, ceiling))
        figures += _picture_figures(episodes, scenes, best, unseen=split == "heldout_pairs")
        right = [all_right(e, s) for e, s in zip(episodes, scenes, strict=True)]
        for i in telling(right, 6):
            mark = "right" if right[i] else "wrong"
            sheets.append(
                (f"{mark}: {episodes[i].caption} (true, made)", np.concatenate([episodes[i].frames, made[i]]))
            )
    return Outcome(figures, {"image": contact_sheet(sheets, scale=2)})


def _picture_figures(
    episodes: Sequence[Episode], scenes: Sequence[Scene], best: Sequence[Scene], *, unseen: bool
) -> list[Figure]:
    others, suffix = next_one(episodes), ", unseen pairs" if unseen else ""

    def placed(cases: Sequence[Episode], seen: Sequence[Scene], shape: bool) -> Score:
        return share([r for e, s in zip(cases, seen, strict=True) for r in in_place(e, s, shape=shape)])

    def whole(cases: Sequence[Episode], seen: Sequence[Scene]) -> Score:
        return share([all_right(e, s) for e, s in zip(cases, seen, strict=True)])

    found = list[Figure]()
    for name, shape, bar in (("colour", False, None if unseen else 0.97), ("colour and shape", True, None)):
        beside = {"another caption": placed(others, scenes, shape), "ceiling": placed(episodes, best, shape)}
        found.append(
            Figure(
                f"{name} at the asked place{suffix}", placed(episodes, scenes, shape), "share", beside, bar
            )
        )
    beside = {"another caption": whole(others, scenes), "ceiling": whole(episodes, best)}
    bar = 0.60 if unseen else 0.85
    return [*found, Figure(f"everything right{suffix}", whole(episodes, scenes), "share", beside, bar)]


def in_place(e: Episode, scene: Scene, *, shape: bool) -> list[bool]:
    """For each object that was asked for: is one of its colour, and with `shape` of its shape, in its
    cell?"""
    seen = [(o.colour, o.shape if shape else "", cell(o.place)) for o in scene.objects]
    return [
        (thing.colour, thing.shape if shape else "", cell(place)) in seen
        for thing, place in zip(e.objects, e.positions[0].tolist(), strict=True)
    ]


def all_right(e: Episode, scene: Scene) -> bool:
    """Is every object there as asked, nothing more, and no pusher?"""
    return (
        len(scene.objects) == len(e.objects) and all(in_place(e, scene, shape=True)) and scene.pusher is None
    )


# Clips


def video(bench: Bench) -> Outcome:
    """Slides from words alone, and pushes from a first frame that allows several words."""
    (slides, sheet), (pushes, more) = _from_words(bench), _from_picture(bench)
    return Outcome(
        [*slides, *pushes], {"text-to-video": contact_sheet(sheet), "image-to-video": contact_sheet(more)}
    )


def _from_words(bench: Bench) -> tuple[list[Figure], list[Row]]:
    episodes, codec = bench.episodes("slide"), require_video(bench.parts)
    wanted = [wanted_clip(e.caption, Latents(blank(bench, 9), FPS)) for e in episodes]
    made = decode_clips(codec, [x.vision_ZThw for x in draw_many(bench.parts, "video", wanted)])
    true = round_trip(codec, [e.frames for e in episodes], bench.device)
    scenes, best = ([watch(frames) for frames in clips] for clips in (made, true))
    others = next_one(episodes)

    def turned(cases: Sequence[Episode], seen: Sequence[list[Scene]]) -> list[bool]:
        return [
            slide_direction(e, s) == way(e.velocities[0][slider(e)]) for e, s in zip(cases, seen, strict=True)
        ]

    def kept(cases: Sequence[Episode], seen: Sequence[list[Scene]]) -> Score:
        return share([same_throughout(e.objects, s) for e, s in zip(cases, seen, strict=True)])

    right = turned(episodes, scenes)
    figures = [
        Figure(
            "text to video: direction",
            share(right),
            beside={
                "another caption": share(turned(others, scenes)),
                "ceiling": share(turned(episodes, best)),
            },
            bar=0.85,
        ),
        Figure(
            "text to video: same objects in every frame",
            kept(episodes, scenes),
            beside={"another caption": kept(others, scenes), "ceiling": kept(episodes, best)},
            bar=0.90,
        ),
    ]
    rows = [
        (f"{'right' if right[i] else 'wrong'}: {episodes[i].caption}", made[i]) for i in telling(right, 6)
    ]
    return figures, rows


def slider(e: Episode) -> int:
    """The object that slides in the first frame."""
    return int(np.hypot(*e.velocities[0].T).argmax())


def way(move: Sequence[float] | Floats) -> Direction:
    """The one of four directions that a motion [x, y] has most of."""
    return max(DIRECTIONS, key=lambda d: DIRECTIONS[d][0] * move[0] + DIRECTIONS[d][1] * move[1])


def slide_direction(e: Episode, scenes: Sequence[Scene]) -> Direction | None:
    """Where the slider of `e` is first seen to go; None where it is not seen or stays."""
    places = [s.place for scene in scenes if (s := scene.of_colour(e.objects[slider(e)].colour))]
    moves: list[Point] = [(x - places[0][0], y - places[0][1]) for x, y in places]
    return next((way(move) for move in moves if math.hypot(*move) >= _MOVED), None)


def same_throughout(objects: Sequence[Object], scenes: Sequence[Scene]) -> bool:
    """Does every frame show these objects, colour and shape, and no other?"""
    wanted = sorted((o.colour, o.shape) for o in objects)
    return all(sorted((o.colour, o.shape) for o in scene.objects) == wanted for scene in scenes)


def _from_picture(bench: Bench) -> tuple[list[Figure], list[Row]]:
    episodes, codec = bench.episodes("push", bench.n // 2 * 2), require_video(bench.parts)
    starts = started(bench, [e.picture() for e in episodes], 9)
    seeds = [e.seed // 2 for e in episodes]  # twins share the noise too: only their words differ
    wanted = [wanted_clip(e.caption, Latents(z, FPS, (0,))) for e, z in zip(episodes, starts, strict=True)]
    silent = [wanted_clip("", w.latents) for w in wanted]
    made, blind = (
        decode_clips(codec, [x.vision_ZThw for x in draw_many(bench.parts, "video", w, seeds=seeds)])
        for w in (wanted, silent)
    )
    true = round_trip(codec, [e.frames for e in episodes], bench.device)
    right, untold, best = (
        [pushed_as_asked(e, x) for e, x in zip(episodes, clips, strict=True)] for clips in (made, blind, true)
    )
    swapped = [pushed_as_asked(e, made[i ^ 1]) for i, e in enumerate(episodes)]
    figures = [
        Figure(
            "image to video: direction",
            share(right),
            beside={
                "the twin's caption": share(swapped),
                "no caption": share(untold),
                "ceiling": share(best),
            },
            bar=0.90,
        ),
        Figure(
            "image to video: both words of one start",
            share(both(right)),
            beside={"no caption": share(both(untold)), "ceiling": share(both(best))},
            bar=0.80,
        ),
    ]
    rows = [
        (f"{'right' if right[i] else 'wrong'}: {episodes[i].caption}", made[i]) for i in telling(right, 6)
    ]
    return figures, rows


def both(right: Sequence[bool]) -> list[bool]:
    """Of twins, one after the other: are both right?"""
    return [a and b for a, b in zip(right[::2], right[1::2], strict=True)]


def pushed_as_asked(e: Episode, frames_THW3: Pixels) -> bool:
    """Does the object that the instruction names go the asked way from first to last frame?"""
    first, last = (look(frames_THW3[i]) for i in (0, -1))
    places = [[scene.of_colour(o.colour) for o in e.objects] for scene in (first, last)]
    index = e.goal.index if e.goal else 0
    if places[0][index] is None or places[1][index] is None:
        return False
    return success(e, [[s.place if s else (0.0, 0.0) for s in row] for row in places])
