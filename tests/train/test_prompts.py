"""What training reads is what serving sends: the same ids, for questions and for the generator's prompts."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import armillary
from armillary.codecs.sight import POCKET_CLIPS, POCKET_PICTURES
from armillary.facts import Canvas
from armillary.media import Clip
from armillary.robots import robot
from armillary.sim.recording import Kind
from armillary.sim.scenes import Episode, episode
from armillary.tasks import act, generate
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts, load_parts
from armillary.train import generator
from armillary.train.cache import Cache
from armillary.train.generator import FORWARD, IMAGE, POLICY, VIDEOS, Mode, prompt_of
from armillary.train.reasoner import Speller, closing, opening, show
from armillary.wording import Wording

POCKET = Path(armillary.__file__).parent / "pocket" / "checkpoint"


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Pocket, with the rules for pictures and clips that a new one is trained with."""
    parts = load_parts(POCKET, device=torch.device("cpu"), dtype=torch.float32, want=("sight",))
    assert parts.sight is not None
    return replace(parts, sight=replace(parts.sight, pictures=POCKET_PICTURES, clips=POCKET_CLIPS))


@pytest.mark.parametrize("clip", [False, True])
def test_a_lesson_reads_like_a_conversation(parts: Parts, clip: bool) -> None:
    e = episode("slide", 3, split="test")
    question = e.questions()[0]
    spell = Speller(parts.text)
    ids, runs, rows = opening(show(e, clip=clip), spell)
    asked, answer = closing(question, spell)
    seen = (
        {"type": "video", "video": Clip(e.frames, e.fps)} if clip else {"type": "image", "image": e.picture()}
    )
    messages = [
        {"role": "user", "content": [seen, {"type": "text", "text": question.text}]},
        {"role": "assistant", "content": question.answer},
    ]
    served = converse(parts, messages, add_generation_prompt=False).context
    trained = ids + asked
    assert served.ids_A.tolist()[: len(trained)] == trained
    assert served.visual is not None
    assert served.visual.rows_V.tolist() == rows
    assert parts.text.decode(asked[-answer:]) == question.answer
    assert runs[-1] == 1


def cached(e: Episode) -> Cache:
    nothing = torch.empty(0)
    return Cache(
        [e.kind], [e.seed], [e.caption], [e.instruction], nothing, nothing, nothing, nothing, nothing
    )


class Stop(Exception):
    """Raised in place of drawing, with the contexts that would have been read."""


def stop(_parts: Parts, _latents: object, contexts: Any, _options: object) -> None:
    raise Stop(contexts)


@pytest.mark.parametrize("mode", [IMAGE, VIDEOS[0], FORWARD, POLICY], ids=lambda m: m.name)
def test_the_generator_is_trained_on_the_prompts_that_are_sent(
    parts: Parts, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = episode("push", 4, split="test")
    cache = cached(e)
    monkeypatch.setattr(generator, "DROPPED", 0.0)
    monkeypatch.setattr(generator, "AS_JSON", 0.0)
    rng = random.Random(2)  # does not name the task of a forward step
    whole = load_parts(POCKET, device=parts.device, dtype=parts.dtype)
    monkeypatch.setattr(generate, "draw_many", stop)
    monkeypatch.setattr(act, "draw_many", stop)
    body, options = robot("tabletop"), SamplingOptions(1)
    canvas = Canvas(1 if mode is IMAGE else 9, 8.0, 64, 64)
    send = {
        FORWARD: lambda: act.forward_dynamics(whole, e.picture(), e.actions, body, options=options),
        POLICY: lambda: act.policy(whole, str(e.instruction), e.picture(), body, options=options),
    }.get(mode, lambda: generate.generate(whole, Wording(e.caption), canvas=canvas, options=options))
    with pytest.raises(Stop) as sent:
        send()
    trained = generator.prompt_context(parts.text, prompt_of(mode, cache, 0, rng))
    assert trained.ids_A.tolist() == sent.value.args[0].positive.ids_A.tolist()


@pytest.mark.parametrize(("kind", "mode"), [("still", IMAGE), ("slide", VIDEOS[0])])
def test_some_captions_are_trained_as_the_structured_caption_that_upsampling_sends(
    kind: Kind, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = episode(kind, 5)
    monkeypatch.setattr(generator, "DROPPED", 0.0)
    monkeypatch.setattr(generator, "AS_JSON", 1.0)
    prompt = json.loads(prompt_of(mode, cached(e), 0, random.Random(0)))
    assert prompt["subjects"] == e.structured["subjects"]
    assert prompt["resolution"] == {"H": 64, "W": 64}
    assert ("fps" in prompt) == (kind == "slide")


def test_a_smudge_spoils_the_first_latent_frame_alone() -> None:
    tokens_NF = torch.zeros(48, 32)
    smudged_NF = generator.smudge(tokens_NF, 0.2, torch.Generator().manual_seed(0))
    assert 0.17 < float(smudged_NF[:16].std()) < 0.23
    assert not smudged_NF[16:].any()
