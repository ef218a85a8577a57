"""The suites of sound, and of the autoencoders that everything made passes through.

Shape letters: T frames, H W height and width, C audio channels, N samples.
"""

from collections.abc import Sequence

import numpy as np
import torch

from armillary.eval.batches import decode_sounds, draw_many, round_trip, round_trip_sounds, wanted_clip
from armillary.eval.bench import Bench, Outcome, Row, contact_sheet, next_one, telling
from armillary.eval.detectors import heard, look, onsets, score_onsets
from armillary.eval.making import started
from armillary.eval.scores import Figure, Score, f1, mean, pooled, psnr, quotient, share
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.sim.audio import SAMPLE_RATE
from armillary.sim.physics import FPS, Floats
from armillary.sim.recording import Kind
from armillary.sim.scenes import Episode
from armillary.tasks.frames import require_video
from armillary.tasks.segments import Latents
from armillary.tasks.sounds import require_audio

_FRAME = 1.0 / FPS  # seconds
_SHARP = 0.03  # seconds from its collision within which the autoencoder must keep an onset

Marks = list[tuple[int, int, int, int]]  # per clip, as `score_onsets` gives them


def sound(bench: Bench) -> Outcome:
    """Slides from their first frame, with sound: does it sound when, and as, it hits?"""
    episodes, audio = bench.episodes("slide"), require_audio(bench.parts)
    truths = sounds_of(episodes)
    made = _made_sounds(bench, episodes, truths[0].shape[1])
    best = round_trip_sounds(audio, truths, bench.device)
    own, ceiling = (_marks(episodes, sounds, _FRAME) for sounds in (made, best))
    other = _marks(next_one(episodes), made, _FRAME)
    pairs = [(*a[:3], *b[:3]) for a, b in zip(own, other, strict=True)]
    quiet = [not onsets(x) for e, x in zip(episodes, made, strict=True) if not e.events]
    nothing = f1([(0, 0, right + missed) for right, _, missed, _ in own])
    beside = {
        "another clip's collisions": _onset_f1(other),
        "silence": nothing,
        "ceiling": _onset_f1(ceiling),
    }
    pitches = {"another clip's collisions": _pitch(other), "ceiling": _pitch(ceiling)}
    figures = [
        Figure("onsets, ± 1 frame", _onset_f1(own), "F1", beside, 0.80),
        Figure("onsets, above another clip's", pooled(pairs, _gain), "F1", bar=0.45),
        Figure("pitch class of onsets", _pitch(own), beside=pitches, bar=0.85),
        Figure(
            "silent where nothing hits", share(quiet), beside={"always a sound": share([False] * len(quiet))}
        ),
    ]
    return Outcome(figures, {"sound": contact_sheet(_waves(episodes, made, own), scale=1)})


def sounds_of(episodes: Sequence[Episode]) -> list[Floats]:
    """The true sound [C, N] of each clip."""
    return [e.sound for e in episodes if e.sound is not None]


def _made_sounds(bench: Bench, episodes: Sequence[Episode], samples: int) -> list[Floats]:
    audio, channels = require_audio(bench.parts), int(bench.parts.checkpoint.config.features["sound"])
    unknown = torch.zeros(channels, audio.latent_length(samples), device=bench.device)
    starts = zip(episodes, started(bench, [e.picture() for e in episodes], 9), strict=True)
    wanted = [wanted_clip(e.caption, Latents(z, FPS, (0,), sound_SL=unknown)) for e, z in starts]
    drawn = draw_many(bench.parts, "video", wanted)
    return decode_sounds(audio, [x.sound_SL for x in drawn if x.sound_SL is not None], samples)


def _marks(cases: Sequence[Episode], sounds: Sequence[Floats], tolerance: float) -> Marks:
    pairs = zip(cases, sounds, strict=True)
    return [score_onsets(onsets(x), heard(e.events, e.objects), tolerance) for e, x in pairs]


def _onset_f1(marks: Marks) -> Score:
    return f1([m[:3] for m in marks])


def _gain(mean_6: np.ndarray) -> float:
    """F1 of the first three counts less F1 of the last three."""
    own, other = (2 * m[0] / max(2 * m[0] + m[1] + m[2], 1e-9) for m in (mean_6[:3], mean_6[3:]))
    return float(own - other)


def _pitch(marks: Marks) -> Score:
    """Of the onsets rightly found, the share with exactly the right pitches."""
    return quotient([(m[3], m[0]) for m in marks])


def _waves(episodes: Sequence[Episode], made: Sequence[Floats], marks: Marks) -> list[Row]:
    right = [not wrong and not missed for _, wrong, missed, _ in marks]
    rows = list[Row]()
    for i in telling(right, 4):
        e, clips = episodes[i], (episodes[i].sound, made[i])
        pictures = [np.asarray(Clip(e.frames, e.fps, x, SAMPLE_RATE).waveform().reduce(2)) for x in clips]
        rows.append((f"{'right' if right[i] else 'wrong'}: {e.caption} (true, made)", np.stack(pictures)))
    return rows


# The autoencoders


def codecs(bench: Bench) -> Outcome:
    """What is lost by going through the autoencoders and back, without any drawing."""
    third = bench.n // 3
    kinds: list[tuple[Kind, int]] = [("wander", third), ("push", third), ("slide", bench.n - 2 * third)]
    episodes = [e for kind, count in kinds for e in bench.episodes(kind, count)]
    back = round_trip(require_video(bench.parts), [e.frames for e in episodes], bench.device)
    truths, audio = sounds_of(episodes), require_audio(bench.parts)
    kept = _marks(episodes, round_trip_sounds(audio, truths, bench.device), _SHARP)
    exact = _marks(episodes, truths, _SHARP)
    copied = [np.repeat(e.frames[:1], len(e.frames), axis=0) for e in episodes]
    pairs = [(e.frames, x) for e, x in zip(episodes, back, strict=True)]
    figures = [
        Figure(
            "video: PSNR on clips",
            mean([psnr(a, b) for a, b in pairs]),
            "dB",
            {"first frame": mean([psnr(e.frames, x) for e, x in zip(episodes, copied, strict=True)])},
            29.0,
        ),
        Figure(
            "video: shape read after it",
            _shapes(episodes, back),
            beside={"before it": _shapes(episodes)},
            bar=0.98,
        ),
        Figure("sound: onsets kept", _recall(kept), beside={"before it": _recall(exact)}, bar=0.97),
        Figure("sound: onsets kept or added", _onset_f1(kept), "F1", {"before it": _onset_f1(exact)}),
        Figure("sound: pitch class kept", _pitch(kept), beside={"before it": _pitch(exact)}),
    ]
    rows = [
        row
        for e, x in zip(episodes[::third], back[::third], strict=True)
        for row in (("true", e.frames), ("after", x))
    ]
    return Outcome(figures, {"codecs": contact_sheet(rows)})


def _shapes(episodes: Sequence[Episode], clips: Sequence[Pixels] | None = None) -> Score:
    """Of the objects of last frames: the share whose colour and shape are read."""
    lasts = [e.picture(-1) for e in episodes] if clips is None else [x[-1] for x in clips]
    scenes = [{o.kind for o in look(frame).objects} for frame in lasts]
    return share([thing in scene for e, scene in zip(episodes, scenes, strict=True) for thing in e.objects])


def _recall(marks: Marks) -> Score:
    """The share of true onsets that are found."""
    return quotient([(right, right + missed) for right, _, missed, _ in marks])
