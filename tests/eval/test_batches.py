"""Many at once give what the tasks give one by one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from armillary.decode import Sampling
from armillary.eval.acting import drawn_actions, forward_many, wanted_act
from armillary.eval.batches import Asked, answer_many, decode_clips, decode_sounds, draw_many, wanted_clip
from armillary.eval.bench import Bench, contact_sheet, telling
from armillary.eval.making import blank, started
from armillary.facts import Canvas
from armillary.robots import robot
from armillary.sim import episode
from armillary.tasks import act
from armillary.tasks.defaults import DrawTask, defaults
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.frames import require_video
from armillary.tasks.generate import Given, generate, require_audio
from armillary.tasks.parts import Parts, load_parts
from armillary.tasks.reason import reason
from armillary.tasks.segments import Latents
from armillary.wording import Wording


@pytest.fixture(scope="module")
def bench(untrained: Path) -> Bench:
    parts: Parts = load_parts(untrained, device=torch.device("cpu"), dtype=torch.float32)
    return Bench(parts, 4)


def usual(bench: Bench, task: DrawTask, seed: int) -> SamplingOptions:
    """What a task uses unless asked otherwise."""
    row = defaults(bench.parts.checkpoint, task)
    return SamplingOptions(row.steps, row.guidance, row.shift, seed)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal but for what a batch's other order of sums may do to a rounded pixel."""
    return bool((np.abs(a.astype(int) - b.astype(int)) <= 1).all())


def test_pictures_from_words(bench: Bench) -> None:
    captions = ["a red disc at the top", "a blue square at the left and a green disc at the right"]
    drawn = draw_many(bench.parts, "image", [wanted_clip(c, Latents(blank(bench, 1), 8.0)) for c in captions])
    made = decode_clips(require_video(bench.parts), [x.vision_ZThw for x in drawn])
    for seed, caption in enumerate(captions):
        options = usual(bench, "image", seed)
        (alone,) = generate(bench.parts, Wording(caption), canvas=Canvas(1, 8.0, 64, 64), options=options)
        assert close(made[seed], alone.frames)


def test_clips_with_sound_from_a_picture(bench: Bench) -> None:
    e, audio = episode("slide", 3), require_audio(bench.parts)
    (first,) = started(bench, [e.picture()], 9)
    wanted = wanted_clip(e.caption, Latents(first, 8.0, (0,), sound_SL=torch.zeros(16, 18)))
    (drawn,) = draw_many(bench.parts, "video", [wanted], seeds=[5])
    (alone,) = generate(
        bench.parts,
        Wording(e.caption),
        canvas=Canvas(9, 8.0, 64, 64),
        given=Given(image=e.picture()),
        sound=True,
        options=usual(bench, "video", 5),
    )
    assert close(decode_clips(require_video(bench.parts), [drawn.vision_ZThw])[0], alone.frames)
    assert drawn.sound_SL is not None
    assert alone.sound is not None
    (heard,) = decode_sounds(audio, [drawn.sound_SL], alone.sound.shape[1])
    assert np.abs(heard - alone.sound).max() < 1e-4


def test_forward_dynamics(bench: Bench) -> None:
    e = episode("wander", 0)
    assert e.actions is not None
    (made,) = forward_many(bench, [e.picture()], [e.actions])
    alone = act.forward_dynamics(
        bench.parts, e.picture(), e.actions, robot("tabletop"), options=usual(bench, "policy", 0)
    )
    assert close(made, alone.frames)


def test_policy(bench: Bench) -> None:
    e, body = episode("push", 0), robot("tabletop")
    (first,) = started(bench, [e.picture()], 9)
    latents = Latents(first, 8.0, (0,), actions_KD=torch.zeros(8, 2), domain=body.domain)
    wanted = wanted_act("push the red disc left", latents)
    (found,) = drawn_actions(draw_many(bench.parts, "policy", [wanted]))
    alone = act.policy(
        bench.parts,
        "push the red disc left",
        e.picture(),
        body,
        decode_clip=False,
        options=usual(bench, "policy", 0),
    )
    assert np.abs(found - alone.values).max() < 1e-2


def test_answers(bench: Bench) -> None:
    slide, still = episode("slide", 1), episode("still", 2)
    asked = [Asked(e, q) for e in (slide, still) for q in (*e.questions()[:2], e.questions()[-1])]
    answers = answer_many(bench.parts, asked, limit=4)
    for a, answer in zip(asked, answers, strict=True):
        assert answer == reason(bench.parts, a.messages(), sampling=Sampling(max_tokens=4)).text.strip()


def test_sheets_show_right_and_wrong_cases() -> None:
    assert telling([True, True, True, False, False], 4) == [0, 1, 3, 4]
    assert telling([True, True, True], 2) == [0, 1]
    assert telling([False, True, False, False], 3) == [1, 0, 2]
    sheet = contact_sheet(
        [("a", np.zeros((3, 64, 64, 3), np.uint8)), ("b", np.zeros((1, 64, 64, 3), np.uint8))]
    )
    assert sheet.size == (4 + 3 * 132, 2 * (128 + 22))
