"""A short prompt becomes a structured caption whose media fields are those of what is made."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import armillary.tasks.upsample
from armillary.answers import Answer, Usage
from armillary.errors import BadRequest
from armillary.facts import Canvas
from armillary.loading import explain, load, validate
from armillary.media import Clip
from armillary.schema import parse
from armillary.sim import episode
from armillary.sim.language import structured
from armillary.tasks.upsample import LARGE, SMALL, manner, messages
from armillary.world import World
from tests.random_pocket import random_pocket

CANVAS = Canvas(9, 8.0, 64, 48)
QUICK: dict[str, Any] = {"steps": 1, "size": "16x16", "frames": 5}
SLIDE = episode("slide", 0)
PICTURE = np.zeros((16, 16, 3), np.uint8)
MEDIA = ("resolution", "aspect_ratio", "duration", "fps")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return load(random_pocket(tmp_path_factory.mktemp("model")), device="cpu")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The model says what pocket is taught to say of a sliding disc; what it was asked is kept."""
    found: dict[str, Any] = {"text": json.dumps(structured(SLIDE))}

    def reason(_parts: object, turns: Any, **options: Any) -> Answer:
        found.update(turns=turns, options=options)
        return Answer(found["text"], Usage(1, 7), "stop", parsed=parse(options["schema"], found["text"])[0])

    monkeypatch.setattr(armillary.tasks.upsample, "reason", reason)
    return found


def words_of(caption: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in caption.items() if key not in MEDIA}


def test_a_caption_has_the_model_s_words_and_the_request_s_media_fields(
    world: World, said: dict[str, Any]
) -> None:
    made = world.upsample("a disc slides", frames=6, fps=4, size="48x32")
    assert words_of(made) == words_of(structured(SLIDE))
    assert [made[key] for key in MEDIA] == [{"H": 32, "W": 48}, "4,3", "2s", 4.0]
    assert list(made) == list(structured(SLIDE))
    still = structured(episode("still", 0))
    said["text"] = json.dumps(still)
    assert list(world.upsample("a disc", frames=1)) == list(still)


def test_pocket_is_asked_as_it_was_taught(world: World, said: dict[str, Any]) -> None:
    world.upsample("a disc slides", image=PICTURE)
    (turn,) = said["turns"]
    picture, text = turn["content"]
    assert np.array_equal(picture["image"], PICTURE)
    assert text["text"] == "a disc slides\nDescribe this as JSON."
    assert said["options"]["sampling"].temperature == 0


def test_released_checkpoints_are_told_the_output_parameters() -> None:
    system, turn = messages("a {dog} runs", LARGE, CANVAS, PICTURE)
    assert system["content"] == "You are a helpful assistant."
    picture, text = turn["content"]
    assert picture["type"] == "image"
    assert "a {dog} runs" in text["text"]
    assert "begins with the picture" in text["text"]
    output = 'duration 1s, fps 8.0, resolution {"H": 48, "W": 64}, aspect_ratio 4,3'
    assert text["text"].endswith(f"Output parameters: {output}")
    still = messages("a dog", LARGE, replace(CANVAS, frames=1), None)[1]["content"][0]["text"]
    assert "duration" not in still
    assert "begins" not in still
    assert (manner(small=True), manner(small=False)) == (SMALL, LARGE)


@pytest.mark.parametrize("kind", ["still", "slide", "push", "wander"])
def test_the_forms_of_pocket_hold_all_that_it_is_taught(kind: Any) -> None:
    for seed in range(20):
        scene = episode(kind, seed)
        form = SMALL.clip if scene.moving else SMALL.picture
        form.model_validate(structured(scene))


@pytest.mark.parametrize("frames", [1, 9])
def test_what_pocket_writes_is_a_whole_caption(frames: int) -> None:
    made = load("pocket", device="cpu").upsample("a red disc slides right", frames=frames, size="64x48")
    (SMALL.clip if frames > 1 else SMALL.picture).model_validate(made)
    assert made["resolution"] == {"H": 48, "W": 64}


def test_a_caption_that_is_cut_short_is_refused(world: World, said: dict[str, Any]) -> None:
    said["text"] = said["text"][:-20]
    with pytest.raises(BadRequest, match=r"^prompt='a disc slides': .*no whole caption in 7 tokens"):
        world.upsample("a disc slides")


def test_generate_draws_from_the_upsampled_prompt_and_says_so(world: World, said: dict[str, Any]) -> None:
    short = world.generate("a disc slides", **QUICK)
    made = world.generate("a disc slides", upsample=True, **QUICK)
    used = made.receipt["used"]
    assert used["prompt"] == "a disc slides"
    caption = json.loads(used["upsampled"])
    assert caption == world.upsample("a disc slides", size="16x16", frames=5)
    assert np.array_equal(world.generate(caption, **QUICK).frames, made.frames)
    assert not np.array_equal(short.frames, made.frames)
    assert "upsampled" not in short.receipt["used"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": '{"subjects": []}'}, "prompt=.*structured caption already"),
        ({"prompt": ""}, "prompt=''"),
        ({"seed": 3}, "seed=3: .*greedily"),
        ({"frames": 0}, "frames=0"),
        ({"frames": 1, "fps": 8.0}, r"fps=8\.0.*not used for a picture"),
        ({"size": "60x64"}, "size='60x64'"),
        ({"image": "none.png"}, "image='none.png'"),
        ({"steps": 3}, "steps=3: there is no such option"),
    ],
)
def test_what_cannot_be_upsampled_is_named(world: World, options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        world.upsample(**({"prompt": "a disc"} | options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": {"subjects": []}}, "prompt=.*structured caption already"),
        (
            {"video": Clip(np.zeros((9, 16, 16, 3), np.uint8), 8.0), "frames": 9},
            "video=.*upsample",
        ),
    ],
)
def test_generate_refuses_to_upsample_what_it_cannot(
    world: World, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        world.generate(**({"prompt": "a disc", "upsample": True} | QUICK | options))


def test_a_prompt_is_checked_and_shown_without_weights(world: World, tmp_path: Path) -> None:
    folder = random_pocket(tmp_path)
    receipt = validate("upsample", folder, prompt="a disc", frames=6)
    assert (receipt.used["frames"], receipt.rounded) == (9, {"frames": {"asked": 6, "made": 9}})
    assert len(explain("upsample", folder, prompt="a disc").rows()) > 0
    with pytest.raises(BadRequest, match=r"upsample=True: .*not known yet"):
        explain("generate", folder, prompt="a disc", upsample=True)
    blind = replace(world.facts, sees=False)
    with pytest.raises(BadRequest, match="cannot look"):
        World(world.parts, blind).upsample("a disc", image=PICTURE)
