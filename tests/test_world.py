"""A world on a tiny random checkpoint: found, described, asked; receipts, progress and refusals."""

import inspect
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import errors

import armillary
from armillary.errors import BadRequest, Cancelled
from armillary.loading import load, validate
from armillary.locate import locate
from armillary.media import Clip, read_receipt
from armillary.options import ActOptions, AnswerOptions, ChoiceOptions, GenerateOptions
from armillary.requests import (
    ForwardDynamicsRequest,
    GenerateRequest,
    InverseDynamicsRequest,
    PolicyRequest,
    ReasonRequest,
    Request,
)
from armillary.robots import Actions, robot
from armillary.step import Step
from armillary.tasks.ready import read_facts
from armillary.world import World
from tests.random_pocket import random_pocket

RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.integers(0, 256, (16, 16, 3), dtype=np.uint8)
CLIP = Clip(RANDOM.integers(0, 256, (9, 16, 16, 3), dtype=np.uint8), 8.0)
PUSHES = RANDOM.normal(0, 20, (11, 2)).astype(np.float32)
QUICK: Any = {"steps": 2, "seed": 3}
SMALL: Any = {"steps": 1, "size": "16x16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return load(folder, device="cpu")


# -- finding


def test_a_world_shows_itself_in_one_line(world: World, folder: Path) -> None:
    assert repr(world) == f"World({folder}, float32 on cpu)"


def test_facts_come_from_the_folders_own_files(world: World, folder: Path) -> None:
    facts = world.facts
    assert facts.model == str(folder)
    assert facts.sees
    assert facts.draws
    assert facts.sounds
    assert (facts.frames, facts.fps, facts.size) == (9, 8.0, (64, 64))
    assert (facts.time_factor, facts.space_factor, facts.sound_rate) == (4, 8, 16000)
    assert facts.video.shift == 4.5  # of the scheduler file
    assert "tabletop" in facts.robots
    assert "av" not in facts.robots  # 9 columns where this checkpoint holds 4


def test_the_digest_tells_checkpoints_apart(world: World, folder: Path, tmp_path: Path) -> None:
    copy = random_pocket(tmp_path / "copy", seed=1)
    assert read_facts("copy", copy).digest != world.facts.digest
    assert read_facts("again", folder).digest == world.facts.digest


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("nowhere", "^model='nowhere': neither pocket"),
        ("./a/b", "^model='./a/b': neither pocket"),
        ("a/b/c", "^model='a/b/c': neither pocket"),
        (Path("some/where"), "^model='some/where': neither pocket"),
    ],
)
def test_a_source_that_is_nothing_is_refused(source: str | Path, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        load(source)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"^model=.*no model_index\.json"):
        load(tmp_path)


def test_a_hub_name_downloads_only_the_parts_that_are_needed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    asked: dict[str, list[str]] = {}

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert locate("nvidia/Cosmos3-Nano") == ("nvidia/Cosmos3-Nano", folder)
    assert "transformer/*.safetensors" in asked["nvidia/Cosmos3-Nano"]
    assert "*.safetensors" not in asked["nvidia/Cosmos3-Nano"]
    validate("generate", "nvidia/Cosmos3-Nano", prompt="x")
    assert not [pattern for pattern in asked["nvidia/Cosmos3-Nano"] if "safetensors" in pattern]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.LocalEntryNotFoundError("offline"), "^model='a/b': the hub cannot be reached"),
        (OSError("no space left"), "^model='a/b': .*no space left"),
        (errors.HFValidationError("bad name"), "^model='a/b': .*bad name"),
    ],
)
def test_a_download_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, named: str
) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(BadRequest, match=named):
        load("a/b")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "gpu"}, "^device='gpu': not usable here"),
        ({"dtype": "float33"}, "^dtype='float33': nearest are float32"),
    ],
)
def test_a_device_or_dtype_that_is_none_is_refused(folder: Path, options: dict[str, str], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        load(folder, **options)


def test_on_a_cpu_numbers_are_float32_unless_asked(world: World) -> None:
    assert world.parts.dtype == torch.float32


# -- asking


def test_an_answer_carries_its_receipt(world: World) -> None:
    answer = world.reason("Where?", images=[PICTURE], videos=[CLIP], max_tokens=3)
    assert isinstance(answer, armillary.Answer)
    receipt = answer.receipt
    assert receipt["task"] == "reason"
    assert receipt["used"]["max_tokens"] == 3
    assert receipt["tokens"] == {"context": answer.usage.prompt_tokens, "answer": 3}
    assert [seen["kind"] for seen in receipt["seen"]] == ["image", "video"]
    assert receipt["prompt"].startswith("<|im_start|>user")
    assert set(receipt["seconds"]) == {"read", "write"}
    json.dumps(receipt)


def test_a_stream_joined_is_the_answer(world: World) -> None:
    options: Any = {"max_tokens": 6, "temperature": 1.5, "seed": 4}
    whole = world.reason("Where?", **options)
    deltas = list(world.reason("Where?", stream=True, **options))
    assert "".join(d.text for d in deltas) == whole.text
    assert deltas[-1].answer is not None
    assert deltas[-1].answer.receipt["used"] == whole.receipt["used"]


def test_messages_say_the_same_as_a_prompt(world: World) -> None:
    parts = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "Where?"}]
    told = world.reason(messages=[{"role": "user", "content": parts}], max_tokens=4)
    assert told.text == world.reason("Where?", images=[PICTURE], max_tokens=4).text


def test_a_wrong_picture_is_named_before_anything_is_read(world: World) -> None:
    with pytest.raises(BadRequest, match=r"^images\[1\]"):
        world.reason("Where?", images=[PICTURE, "missing.png"], stream=True)
    with pytest.raises(BadRequest, match=r"^videos\[0\]"):
        world.reason("Where?", videos=["missing.mp4"])


# -- generating


def test_a_clip_is_made_with_sound_and_a_receipt_that_its_file_keeps(world: World, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    clip = world.generate(
        "a red disc", frames=6, sound=True, on_step=lambda done: steps.append((done.step, done.of)), **QUICK
    )
    assert clip.frames.shape == (9, 64, 64, 3)
    assert clip.sound is not None
    assert clip.sound.shape == (2, 18000)
    assert (clip.fps, clip.sample_rate) == (8.0, 16000)
    assert steps == [(1, 2), (2, 2)]
    receipt = clip.receipt
    assert receipt["rounded"] == {"frames": {"asked": 6, "made": 9}}
    assert (receipt["model"], receipt["digest"]) == (world.facts.model, world.facts.digest)
    assert receipt["tokens"]["vision"] == 48
    assert set(receipt["seconds"]) == {"denoise", "decode"}
    clip.save(tmp_path / "a.mp4")
    assert read_receipt(tmp_path / "a.mp4") == json.loads(json.dumps(receipt))


def test_a_seed_decides(world: World) -> None:
    first, again, other = (world.generate("x", frames=1, **SMALL, seed=s).frames for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(first, world.generate("x", frames=1, **SMALL).frames)


OPTIONS: list[dict[str, Any]] = [
    {"prompt": "y"},
    {"steps": 3},
    {"shift": 1.0},
    {"guidance": 5.0},
    {"guidance": 5.0, "negative": "blue"},
    {"fps": 16.0},
    {"size": "16x24"},
    {"image": PICTURE},
    {"video": CLIP},
    {"sound": True},
]


def test_every_option_changes_the_clip(world: World) -> None:
    made = {
        str(sorted(options)): world.generate(**{"prompt": "x", **QUICK, "size": "16x16", **options})
        for options in [{}, *OPTIONS]
    }
    seen = {(clip.frames.tobytes(), clip.fps, clip.sound is None) for clip in made.values()}
    assert len(seen) == len(made)


def test_a_given_picture_is_the_first_frame_whatever_the_seed(world: World) -> None:
    first, other = (world.generate("x", image=PICTURE, **SMALL, seed=s).frames for s in (0, 1))
    assert np.array_equal(first[0], other[0])
    assert not np.array_equal(first[-1], other[-1])


def test_a_continuation_takes_the_end_and_the_rate_of_its_clip(world: World, tmp_path: Path) -> None:
    slow = Clip(np.repeat(CLIP.frames, 2, axis=0), 4.0)
    slow.save(tmp_path / "slow.mp4")
    receipt = validate("generate", world.facts.model, prompt="x", video=tmp_path / "slow.mp4")
    assert receipt.used["fps"] == 4.0
    ended, whole = (
        world.generate("x", video=video, **SMALL) for video in (Clip(slow.frames[-5:], 4.0), slow)
    )
    assert ended.fps == whole.fps == 4.0
    assert np.array_equal(ended.frames, whole.frames)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"video": Clip(CLIP.frames[:4], 8.0)}, "^video=.*has 4 frames; a continuation needs 5"),
        ({"video": CLIP, "fps": 24}, r"^video\.fps=8\.0: 24 frames a second are asked for"),
        ({"video": CLIP, "frames": 5}, "^frames=5: 5 are kept of the video; give 9"),
        ({"image": PICTURE, "video": CLIP}, "^video=.*does not go together with image"),
        ({"image": "missing.png"}, "^image='missing.png'"),
        ({"image": np.zeros((4, 4), np.float32)}, "^image="),
        ({"size": "60x64"}, "^size='60x64': sides are multiples of 8; nearest: 56x64 or 64x64"),
        ({"frames": 1, "sound": True}, "^sound="),
        ({"hight": 3}, "^hight=3: there is no such option"),
    ],
)
def test_a_bad_request_is_refused_alike_with_and_without_weights(
    world: World, folder: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named) as called:
        world.generate("x", **options)
    with pytest.raises(BadRequest) as checked:
        validate("generate", folder, prompt="x", **options)
    assert str(checked.value) == str(called.value)


def test_returning_false_cancels_at_that_step(world: World) -> None:
    seen: list[int] = []

    def stop(done: Step) -> bool:
        seen.append(done.step)
        return done.step < 2

    with pytest.raises(Cancelled):
        world.generate("x", frames=1, steps=5, on_step=stop)
    assert seen == [1, 2]


# -- acting


def test_forward_dynamics_shows_a_frame_after_each_action(world: World, tmp_path: Path) -> None:
    clip = world.forward_dynamics(PICTURE, PUSHES, domain="tabletop", **QUICK)
    assert clip.frames.shape == (12, 16, 16, 3)
    assert np.array_equal(clip.actions.values, PUSHES)
    assert clip.receipt["used"]["contract"] == robot("tabletop").digest
    actions = Actions(PUSHES, "tabletop", 8.0)
    (tmp_path / "a.json").write_text(actions.to_json())
    (tmp_path / "bare.json").write_text(json.dumps(PUSHES.tolist()))
    for source in (actions, tmp_path / "a.json", str(tmp_path / "bare.json")):
        same = world.forward_dynamics(PICTURE, source, domain="tabletop", **QUICK)
        assert np.array_equal(same.frames, clip.frames)


def test_inverse_dynamics_gives_an_action_between_frames(world: World, tmp_path: Path) -> None:
    actions = world.inverse_dynamics(CLIP, domain="tabletop", **QUICK)
    assert actions.values.shape == (8, 2)
    assert (actions.domain, actions.fps, actions.receipt["task"]) == ("tabletop", 8.0, "inverse_dynamics")
    bare = world.inverse_dynamics(CLIP.frames, domain=robot("tabletop"), **QUICK)
    assert np.array_equal(bare.values, actions.values)
    CLIP.save(tmp_path / "clip.mp4")
    assert len(world.inverse_dynamics(tmp_path / "clip.mp4", domain="tabletop", steps=1)) == 8


def test_a_policy_gives_actions_and_what_they_would_look_like(world: World) -> None:
    actions = world.policy("push it left", PICTURE, domain="tabletop", **QUICK)
    assert actions.values.shape == (8, 2)
    assert actions.clip is not None
    assert actions.clip.frames.shape == (9, 16, 16, 3)
    assert actions.clip.receipt == actions.receipt
    blind = world.policy("push it left", PICTURE, domain="tabletop", decode=False, **QUICK)
    assert blind.clip is None
    assert np.array_equal(blind.values, actions.values)
    other = world.policy("push it right", PICTURE, domain="tabletop", decode=False, **QUICK)
    assert not np.array_equal(other.values, actions.values)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda w: w.policy("x", PICTURE, domain="table"), "^domain='table': .*nearest: tabletop"),
        (lambda w: w.policy("x", PICTURE, domain="av"), "^domain='av'"),
        (lambda w: w.policy("", PICTURE, domain="tabletop"), "^prompt=''"),
        (lambda w: w.forward_dynamics(PICTURE, PUSHES[:, :1], domain="tabletop"), r"^actions.*2 columns"),
        (lambda w: w.forward_dynamics(PICTURE, PUSHES * np.nan, domain="tabletop"), "^actions.*finite"),
        (lambda w: w.forward_dynamics(PICTURE, "no.json", domain="tabletop"), "^actions='no.json'"),
        (
            lambda w: w.forward_dynamics(PICTURE, Actions(PUSHES, "tabletop", 8.0), domain="pusht"),
            "^domain='pusht': these actions are for 'tabletop'",
        ),
        (
            lambda w: w.forward_dynamics(PICTURE, Actions(PUSHES, "tabletop", 3.0), domain="tabletop"),
            r"^actions\.fps=3\.0: tabletop acts 8 times a second",
        ),
        (
            lambda w: w.inverse_dynamics(Clip(CLIP.frames, 24.0), domain="tabletop"),
            r"^video\.fps=24\.0: tabletop acts 8 times a second",
        ),
        (lambda w: w.inverse_dynamics(CLIP, domain="tabletop", negative="x"), "^negative='x'"),
    ],
)
def test_a_robots_bad_request_is_refused_by_name(world: World, call: Any, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        call(world)


# -- the surface


@pytest.mark.parametrize(
    ("method", "kind", "typed"),
    [
        (World.reason, ReasonRequest, AnswerOptions),
        (World.generate, GenerateRequest, GenerateOptions),
        (World.forward_dynamics, ForwardDynamicsRequest, ActOptions),
        (World.inverse_dynamics, InverseDynamicsRequest, ActOptions),
        (World.policy, PolicyRequest, ChoiceOptions),
    ],
)
def test_methods_take_exactly_the_fields_of_their_request(
    method: Any, kind: type[Request], typed: Any
) -> None:
    named = set(inspect.signature(method).parameters) - {"self", "options", "on_step", "stream"}
    fields = {field.alias or name for name, field in kind.model_fields.items()}
    assert named | set(typed.__annotations__) == fields


def test_an_unknown_task_is_refused(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"^task='generat': nearest are generate"):
        validate("generat", folder)
