"""A request is checked field by field, then against one checkpoint; what was filled in is noted."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armillary import __version__
from armillary.errors import BadRequest
from armillary.facts import Facts, Usual
from armillary.requests import (
    ForwardDynamicsRequest,
    GenerateRequest,
    InverseDynamicsRequest,
    PolicyRequest,
    ReasonRequest,
    Request,
    ask,
)
from armillary.settle import settle_act, settle_generate, settle_reason

FACTS = Facts(
    model="small",
    digest="0123456789ab",
    sees=True,
    draws=True,
    sounds=True,
    frames=9,
    fps=8.0,
    size=(64, 64),
    time_factor=4,
    space_factor=8,
    image=Usual(50, 4.0, 3.0),
    video=Usual(35, 6.0, 10.0),
    action=Usual(30, 1.0, None),
    robots=("droid_lerobot", "tabletop", "umi"),
)


def generate(facts: Facts = FACTS, **options: Any) -> Any:
    return settle_generate(ask(GenerateRequest, {"prompt": "a disc", **options}), facts)


def reason(facts: Facts = FACTS, **options: Any) -> Any:
    return settle_reason(ask(ReasonRequest, {"prompt": "where?", **options}), facts)


def policy(facts: Facts = FACTS, **options: Any) -> Any:
    fields = {"prompt": "push", "image": "now.png", "domain": "tabletop", **options}
    return settle_act(ask(PolicyRequest, fields), facts)


def test_a_bare_prompt_takes_the_checkpoints_defaults_and_says_so() -> None:
    numbers, canvas, receipt = generate()
    assert (numbers.steps, numbers.guidance, numbers.shift, numbers.seed) == (35, 6.0, 10.0, 0)
    assert (canvas.frames, canvas.fps, canvas.width, canvas.height) == (9, 8.0, 64, 64)
    made, drawn = {"frames", "fps", "size", "sound"}, {"steps", "guidance", "shift", "grid", "seed"}
    assert set(receipt.defaulted) == made | drawn
    assert receipt.used["size"] == "64x64"
    assert (receipt.task, receipt.model, receipt.digest) == ("generate", "small", "0123456789ab")
    assert receipt.version == __version__


def test_one_frame_is_a_picture_with_a_pictures_defaults() -> None:
    numbers, canvas, receipt = generate(frames=1)
    assert (numbers.steps, numbers.guidance, numbers.shift) == (50, 4.0, 3.0)
    assert canvas.frames == 1
    assert not {"fps", "sound"} & receipt.used.keys()


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (2, 5), (5, 5), (6, 9), (100, 101), (5001, 5001)])
def test_frames_are_rounded_up_to_4n_plus_1_and_both_are_told(asked: int, made: int) -> None:
    _, canvas, receipt = generate(frames=asked, size="8x8")
    assert canvas.frames == made
    told = {} if asked == made else {"frames": {"asked": asked, "made": made}}
    assert receipt.rounded == told


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, [0]),
        ({"frames": 13}, [0, 4]),  # 9 at once, 5 of them again
        ({"frames": 21, "overlap": 1}, [0, 8, 16]),
        ({"frames": 9, "chunk": 5}, [0, 4]),
        ({"frames": 13, "chunk": 13}, [0]),
    ],
)
def test_longer_clips_are_made_in_chunks_that_overlap(options: dict[str, Any], starts: list[int]) -> None:
    _, canvas, receipt = generate(**options)
    assert list(canvas.starts) == starts
    assert canvas.chunk is not None
    assert starts[-1] + canvas.chunk >= canvas.frames
    assert {"chunk", "overlap"} <= receipt.used.keys() if len(starts) > 1 else True


def test_a_controlled_clip_is_as_long_as_its_controls_and_guided_by_the_first() -> None:
    asked = ask(GenerateRequest, {"prompt": "a", "controls": {"seg": "a.mp4"}})
    numbers, canvas, receipt = settle_generate(asked, replace(FACTS, frames=189), length=100)
    assert (canvas.frames, canvas.chunk, canvas.overlap) == (100, 93, 1)
    assert (numbers.guidance, numbers.control_guidance) == (3.0, 2.0)
    assert receipt.used["control_guidance"] == 2.0
    assert {"guidance", "control_guidance", "frames", "chunk"} <= set(receipt.defaulted)
    with pytest.raises(BadRequest, match=r"^frames=101: the controls have 100"):
        settle_generate(asked.model_copy(update={"frames": 101}), FACTS, length=100)


@pytest.mark.parametrize("size", ["832x480", "832X480", (832, 480), [832, 480]])
def test_a_size_is_width_then_height(size: Any) -> None:
    _, canvas, receipt = generate(size=size)
    assert (canvas.width, canvas.height) == (832, 480)
    assert receipt.used["size"] == "832x480"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": "960x540"}, r"^size='960x540': sides are multiples of 8; nearest: 960x536 or 960x544$"),
        ({"size": "3x3"}, "nearest: 8x8"),
        ({"size": "16384x16384", "frames": 1}, r"^size='16384x16384': larger .*; nearest: 2048x2048$"),
        ({"size": "big"}, r"^size='big': WxH"),
        ({"size": "64"}, "^size='64': WxH"),
        ({"size": (64, 0)}, "^size="),
        ({"frames": 0}, r"^frames=0: .*nearest: 1$"),
        ({"frames": 10**9}, r"^frames=1000000000: .*nearest: 5001$"),
        ({"frames": 9.0}, r"^frames=9\.0"),
        ({"frames": True}, "^frames=True"),
        ({"frames": 5001, "size": "1280x720"}, "^frames=5001: at 1280x720 at most 1085 frames fit$"),
        ({"steps": -1}, "^steps=-1: .*nearest: 1$"),
        ({"steps": 0}, "^steps=0: .*nearest: 1$"),
        ({"steps": 1.5}, r"^steps=1\.5"),
        ({"steps": "4"}, "^steps='4'"),
        ({"steps": 10**9}, "^steps=1000000000: .*nearest: 1000$"),
        ({"guidance": math.nan}, "^guidance=nan"),
        ({"guidance": math.inf}, "^guidance=inf"),
        ({"guidance": -1}, "^guidance=-1: .*nearest: 0$"),
        ({"shift": 0}, "^shift=0"),
        ({"shift": math.nan}, "^shift=nan"),
        ({"fps": 0.0}, r"^fps=0\.0: .*nearest: 1$"),
        ({"seed": -1}, "^seed=-1: .*nearest: 0$"),
        ({"seed": 2**63}, "^seed=9223372036854775808"),
        ({"sound": 1}, "^sound=1: true, false, or a sound"),
        ({"prompt": 5}, "^prompt=5: text"),
        ({"prompt": "half \ud800"}, "^prompt=.*lone surrogate"),
        ({"prompt": {"subjects": {1, 2}}}, "^prompt=.*plain JSON"),
        ({"guidence": 3.0}, r"^guidence=3\.0: there is no such option here; nearest: guidance"),
        ({"frames": 1, "sound": True}, r"^sound=True: not used for a picture \(frames=1\); give frames=5"),
        ({"frames": 1, "image": "a.png"}, r"^image='a\.png': not used for a picture"),
        ({"frames": 1, "video": "a.mp4"}, r"^video='a\.mp4': not used for a picture"),
        ({"frames": 1, "fps": 8}, "^fps=8"),
        ({"image": "a.png", "video": "a.mp4"}, r"^video='a\.mp4': does not go together with image"),
        ({"guidance": 1, "negative": "blur"}, "^negative='blur': guidance 1 ignores it"),
        ({"guidance": 1, "negative_style": "same"}, "^negative_style='same': guidance 1 ignores it"),
        ({"guidance": 1, "interval": (0, 500)}, "^interval=.*guidance 1 ignores it"),
        ({"interval": (500, 100)}, "^interval=.*first time must be below"),
        ({"interval": (0, 1001)}, "^interval=.*two times"),
        ({"grid": "karras", "shift": 3.0}, r"^shift=3\.0: the karras grid has none"),
        ({"grid": "even"}, "^grid='even': native, stock or karras"),
        ({"noise": "theirs"}, "^noise='theirs': own or diffusers"),
        ({"keep": "first"}, "^keep='first': says nothing without video"),
        ({"clean_latents": [0]}, "^clean_latents=.*says nothing without video"),
        ({"video": "a.mp4", "clean_latents": [0, 3]}, "^clean_latents=.*must be some of 0 to 2"),
        ({"video": "a.mp4", "clean_latents": [0, 1, 2]}, "^clean_latents=.*but not all"),
        ({"video": "a.mp4", "clean_latents": []}, "^clean_latents="),
        ({"video": "a.mp4", "frames": 5}, "^frames=5: 5 are kept of the video; give 9 or more"),
        ({"edit": "a.png", "image": "b.png"}, "^image='b.png': does not go together with edit"),
        ({"edit": "a.png", "sound": True}, "^sound=True: does not go together with edit"),
        ({"edit": "a.png", "frames": 9}, "^frames=9: an edited picture is one"),
        ({"controls": {"edge": "a.mp4"}, "sound": True}, "^sound=True: does not go together with controls"),
        ({"controls": {}}, "^controls="),
        ({"controls": {"pose": "a.mp4"}}, "^controls=.*edge, blur, depth, seg or wsm"),
        ({"controls": {"edge": {"clip": "a.mp4", "strength": "huge"}}}, "^controls=.*very_low"),
        (
            {"controls": {"depth": {"clip": "a.mp4", "strength": "low"}}},
            r"^controls\.depth\.strength='low': only edge",
        ),
        (
            {"controls": {"depth": {"clip": "a.mp4", "ready": True}}},
            r"^controls\.depth\.ready=True: always is",
        ),
        (
            {"controls": {"edge": {"clip": "a.mp4", "weight": 2}}},
            r"^controls\.edge\.weight=2.*one control alone",
        ),
        (
            {"controls": {hint: {"clip": "a.mp4", "weight": 0} for hint in ("edge", "blur")}},
            "^controls=.*one of the weights must be above 0",
        ),
        ({"control_guidance": 2.0}, r"^control_guidance=2\.0: says nothing without controls"),
        (
            {"controls": {"edge": "a.mp4"}, "control_guidance": 1, "control_interval": (0, 500)},
            "^control_interval=.*control_guidance 1 ignores it",
        ),
        ({"chunk": 6}, r"^chunk=6: must be 4n \+ 1; nearest: 5 or 9"),
        ({"chunk": 13}, "^chunk=13: only 9 frames are made"),
        ({"overlap": 1}, "^overlap=1: all 9 frames are drawn at once"),
        ({"frames": 21, "overlap": 2}, r"^overlap=2: must be 4n \+ 1; nearest: 1 or 5"),
        ({"frames": 21, "overlap": 9}, "^overlap=9: 9 frames are drawn at once; give 5 or fewer"),
        ({"frames": 1, "chunk": 5}, "^chunk=5: not used for a picture"),
        ({"n": 0}, "^n=0: .*nearest: 1"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        generate(**options)


def test_a_needed_field_is_named() -> None:
    with pytest.raises(BadRequest, match=r"^domain=None: is needed: the name of a robot"):
        ask(InverseDynamicsRequest, {"video": "a.mp4"})


def test_a_caption_given_as_a_dictionary_is_read_as_json() -> None:
    caption = {"temporal_caption": "a disc rolls – right", "fps": 8}
    assert json.loads(ask(GenerateRequest, {"prompt": caption}).prompt) == caption


@pytest.mark.parametrize(
    ("lacks", "options", "named"),
    [
        ({"draws": False}, {}, "^model='small': .*only reasons"),
        ({"sounds": False}, {"sound": True}, "^sound=True: small makes no sound"),
        ({"fixed_steps": True}, {"steps": 35}, "^steps=35: small was trained for its own 35 steps"),
        ({"fixed_steps": True}, {"guidance": 6.0}, "^guidance="),
        ({"fixed_steps": True}, {"shift": 5.0}, "^shift="),
        ({"fixed_steps": True}, {"grid": "stock"}, "^grid="),
        ({"fixed_steps": True}, {"noise": "diffusers"}, "^noise="),
        ({"fixed_steps": True}, {"edit": "a.png"}, "^edit='a.png': small was trained to few steps without"),
        ({"fixed_steps": True}, {"controls": {"edge": "a.mp4"}}, "^controls=.*few steps without"),
    ],
)
def test_what_a_checkpoint_lacks_is_refused(
    lacks: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        generate(replace(FACTS, **lacks), **options)


def test_a_question_is_a_prompt_or_a_conversation() -> None:
    receipt = reason(images=[Path("a.png")], temperature=0.7)
    assert receipt.used == {
        "max_tokens": 512,
        "temperature": 0.7,
        "prompt": "where?",
        "images": ["a.png"],
        "seed": 0,
    }
    assert receipt.defaulted == ("max_tokens", "seed")
    assert "seed" not in reason().used


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": None}, "either a prompt or messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "either a prompt or messages"),
        ({"messages": []}, "^messages="),
        ({"prompt": ""}, "^prompt=''"),
        ({"seed": 1}, "^seed=1: greedy ignores it"),
        ({"top_p": 0.5}, r"^top_p=0\.5: greedy ignores it"),
        ({"stop": [""]}, "^stop="),
        ({"temperature": math.nan}, "^temperature=nan"),
        ({"max_tokens": 0}, "^max_tokens=0: .*nearest: 1$"),
    ],
)
def test_a_question_that_cannot_be_used_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        reason(**options)


def test_pictures_belong_to_a_prompt_or_into_the_messages() -> None:
    with pytest.raises(BadRequest, match=r"^images=.*put pictures and clips into them"):
        reason(prompt=None, messages=[{"role": "user", "content": "x"}], images=["a.png"])


def test_a_blind_checkpoint_refuses_pictures() -> None:
    with pytest.raises(BadRequest, match=r"^videos=.*no vision tower"):
        reason(replace(FACTS, sees=False), videos=["a.mp4"])


def test_a_robots_request_takes_the_action_defaults() -> None:
    numbers, receipt = policy(seed=3)
    assert (numbers.steps, numbers.guidance, numbers.shift, numbers.seed) == (30, 1.0, None, 3)
    assert receipt.task == "policy"
    assert receipt.defaulted == ("steps", "guidance", "shift", "grid")


@pytest.mark.parametrize(
    ("facts", "options", "named"),
    [
        (FACTS, {"domain": "table-top"}, "^domain='table-top': .*nearest: tabletop"),
        (replace(FACTS, robots=()), {}, "^model='small': .*knows no robots"),
        (replace(FACTS, draws=False), {}, "^model='small'"),
        (FACTS, {"prompt": ""}, "^prompt=''"),
        (FACTS, {"frames": 9}, "^frames=9: there is no such option"),
        (FACTS, {"decode": 1}, "^decode=1"),
        (FACTS, {"candidates": 8}, "^candidates=8: needs judge"),
        (FACTS, {"wanted": "left"}, "^wanted='left': needs judge"),
        (FACTS, {"judge": "Is it left?"}, "^judge='Is it left.': has nothing to choose from"),
        (FACTS, {"judge": "Is it left?", "candidates": 1}, "^candidates=1: .*nearest: 2$"),
        (replace(FACTS, sees=False), {"judge": "Is it?", "candidates": 2}, "^judge=.*cannot look"),
    ],
)
def test_a_robots_request_that_cannot_be_served_is_refused(
    facts: Facts, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        policy(facts, **options)


def test_a_judge_wants_a_yes_unless_told_otherwise() -> None:
    asked = {"judge": "Which way does it go?", "candidates": 4}
    assert policy(**asked)[1].used["wanted"] == "yes"
    assert "wanted" in policy(**asked)[1].defaulted
    assert policy(**asked, wanted="left")[1].used["wanted"] == "left"
    assert "wanted" not in policy()[1].used


def test_a_receipt_is_plain_json_whatever_was_given() -> None:
    class Array:
        shape = (9, 64, 64, 3)

    fields = {"image": b"12345", "actions": Array(), "domain": "umi"}
    _, receipt = settle_act(ask(ForwardDynamicsRequest, fields), FACTS)
    done = receipt.spent({"context": 7}, {"denoise": 0.12345})
    told = json.loads(json.dumps(done.to_dict()))
    assert told["used"]["image"] == "<5 bytes>"
    assert told["used"]["actions"] == "<Array [9, 64, 64, 3]>"
    assert told["tokens"] == {"context": 7}
    assert told["seconds"] == {"denoise": 0.123}
    assert told["task"] == "forward_dynamics"


@pytest.mark.parametrize(
    "kind",
    [ReasonRequest, GenerateRequest, ForwardDynamicsRequest, InverseDynamicsRequest, PolicyRequest],
)
def test_every_field_says_what_is_legal(kind: type[Request]) -> None:
    assert all(field.description for field in kind.model_fields.values())


def test_checking_leaves_the_request_as_it_was() -> None:
    options = {"prompt": {"a": [1]}, "size": [64, 64], "frames": 6}
    before = json.dumps(options)
    settle_generate(ask(GenerateRequest, options), FACTS)
    assert json.dumps(options) == before


def test_a_robots_name_in_part_finds_it_and_all_are_told() -> None:
    with pytest.raises(BadRequest, match=r"nearest: droid_lerobot or .*; all: droid_lerobot, tabletop, umi$"):
        policy(domain="droid")


def test_the_largest_picture_that_is_told_is_legal() -> None:
    assert generate(size="2048x2048", frames=1)[1].width == 2048
    assert generate(size="16384x256", frames=1)[1].width == 16384
