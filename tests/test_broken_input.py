"""Input that nobody should send: each piece of it is named in one BadRequest, and nothing is half done."""

import errno
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from armillary import terminal
from armillary.codecs.sight import PictureRules, picture_size
from armillary.errors import BadRequest, Cancelled
from armillary.loading import load, validate
from armillary.media import Clip, read_clip, read_picture
from armillary.requests import GenerateRequest, ReasonRequest, ask
from armillary.shards import Entry, read_json
from armillary.sim import TabletopEnv, episode, replay, write_jsonl, write_lerobot
from armillary.tasks.frames import check_frames, cover
from armillary.tasks.ready import question, read_facts
from armillary.weights import check
from tests.random_pocket import random_pocket
from tests.test_requests import FACTS

PICTURE = np.zeros((8, 8, 3), np.uint8)
FRAMES = np.zeros((2, 8, 8, 3), np.uint8)
CONFIGS = ("transformer/config.json", "vae/config.json", "scheduler/scheduler_config.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


# -- media


@pytest.mark.parametrize("source", [5, True, None, [1], object(), "a\0.png", "\ud800.png"])
def test_what_is_no_path_and_no_pixels_is_named(source: Any) -> None:
    with pytest.raises(BadRequest) as error:
        read_picture(source, field="image")
    assert error.value.field == "image"
    with pytest.raises(BadRequest) as error:
        read_clip(source, field="video")
    assert error.value.field == "video"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("frames", {"frames": [1]}),
        ("fps", {"fps": "8"}),
        ("fps", {"fps": None}),
        ("sound", {"sound": [1.0], "sample_rate": 16000}),
        ("sample_rate", {"sound": np.zeros((2, 9), np.float32), "sample_rate": "x"}),
        ("sample_rate", {"sound": np.zeros((2, 9), np.float32), "sample_rate": 16000.5}),
    ],
)
def test_a_clip_refuses_other_types(field: str, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"frames": FRAMES, "fps": 8.0, **wrong}
    with pytest.raises(BadRequest) as error:
        Clip(**given)
    assert error.value.field == field


# -- requests


@pytest.mark.parametrize("value", [PICTURE, "a.png", 5, b"abc", {"a": 1}])
@pytest.mark.parametrize("field", ["images", "videos", "messages"])
def test_one_thing_in_place_of_a_list_is_named(field: str, value: Any) -> None:
    prompt = {} if field == "messages" else {"prompt": "What?"}
    with pytest.raises(BadRequest) as error:
        question({**prompt, field: value}, FACTS)
    assert (error.value.field, "a list of" in error.value.message) == (field, True)


@pytest.mark.parametrize("content", ["\ud800", [{"type": "text", "text": "\ud800"}]])
def test_half_a_character_in_a_conversation_is_named(content: Any) -> None:
    with pytest.raises(BadRequest, match="half of a character"):
        ask(ReasonRequest, {"messages": [{"role": "user", "content": content}]})


def test_a_conversation_that_holds_itself_is_named() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadRequest, match="too deeply"):
        ask(ReasonRequest, {"messages": [{"role": "user", "content": endless}]})


def test_numbers_of_numpy_count_as_numbers() -> None:
    made = ask(GenerateRequest, {"prompt": "x", "seed": np.int64(7), "guidance": np.float32(2)})
    assert (made.seed, type(made.seed), made.guidance) == (7, int, 2.0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": (64,)}, "size=[64]: WxH"),
        ({"seed": 2**63}, f"nearest: {2**63 - 1}"),
        ({"prompt": {"a": float("nan")}}, "plain JSON"),
    ],
)
def test_the_sentence_says_what_is_legal(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest) as error:
        ask(GenerateRequest, {"prompt": "x", **options})
    assert told in str(error.value)


# -- checkpoints


@pytest.mark.parametrize("source", [5, None, ["pocket"], "x" * 5000, "a\0b"])
def test_a_model_that_is_no_name_is_named(source: Any) -> None:
    with pytest.raises(BadRequest) as error:
        load(source)
    assert error.value.field == "model"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b'{"a": "\xff"}', b"[" * 100_000])
def test_a_damaged_json_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as error:
        read_json(path)
    assert error.value.value == str(path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("transformer/config.json", '{"action_gen": true}'),
        ("transformer/config.json", '{"rope_scaling": 5}'),
        ("scheduler/scheduler_config.json", '{"fixed_step_sampler_config": 5}'),
    ],
)
def test_a_config_of_wrong_types_is_one_sentence(folder: Path, file: str, content: str) -> None:
    path = folder / file
    whole = path.read_text()
    path.write_text(content)
    try:
        with pytest.raises(BadRequest) as error:
            validate("generate", folder, prompt="x")
        assert error.value.field == "model"
        with pytest.raises(BadRequest):
            load(folder, device="cpu")
    finally:
        path.write_text(whole)
    assert read_facts("whole", folder).draws


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("preprocessor_config.json", "patch_size", -1),
        ("preprocessor_config.json", "patch_size", 8),
        ("preprocessor_config.json", "merge_size", 3),
        ("preprocessor_config.json", "max_pixels", -5),
        ("preprocessor_config.json", "image_mean", ["a", 0, 0]),
        ("preprocessor_config.json", "image_std", [0, 0, 0]),
        ("video_preprocessor_config.json", "patch_size", "a"),
        ("video_preprocessor_config.json", "fps", 0),
        ("video_preprocessor_config.json", "min_frames", -1),
        ("scheduler/scheduler_config.json", "flow_shift", -3),
        ("scheduler/scheduler_config.json", "flow_shift", "x"),
        ("transformer/config.json", "base_fps", 0),
        ("transformer/config.json", "latent_patch_size", 0),
        ("transformer/config.json", "rope_theta", 0),
        ("transformer/config.json", "num_attention_heads", 0),
        ("transformer/config.json", "unified_3d_mrope_temporal_modality_margin", "a"),
        ("transformer/config.json", "action_dim", math.inf),
        ("transformer/config.json", "sound_dim", math.inf),
        ("vae/config.json", "scale_factor_temporal", 0),
        ("vae/config.json", "scale_factor_temporal", None),
        ("vae/config.json", "scale_factor_spatial", math.inf),
        ("vae/config.json", "latents_std", [0] * 8),
        ("vae/config.json", "latents_mean", [math.nan] * 8),
        ("sound_tokenizer/config.json", "sampling_rate", 0),
        ("generation_config.json", "eos_token_id", "x"),
        ("generation_config.json", "eos_token_id", 768),
        ("config.json", "text_config", {"max_position_embeddings": "a"}),
    ],
)
def test_a_number_that_no_checkpoint_has_is_named(folder: Path, file: str, name: str, value: Any) -> None:
    path = folder / file
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), name: value}))
    try:
        for look in (lambda: validate("generate", folder, prompt="x"), lambda: load(folder, device="cpu")):
            with pytest.raises(BadRequest) as error:
                look()
            assert name in error.value.field
    finally:
        path.write_text(whole)


def test_a_config_without_pixel_limits_looks_at_as_many_tokens_whatever_its_patches() -> None:
    small, published = (PictureRules.from_dict({"patch_size": side}) for side in (4, 16))
    assert (published.min_pixels, published.max_pixels) == (65536, 16777216)
    assert picture_size(64, 64, small) == (64, 64)


def test_whole_numbers_in_place_of_weights_are_named() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2, bias=False)
    found = {"weight": Entry(Path("none"), "weight", torch.int32, (2, 2))}
    with pytest.raises(BadRequest, match=r"weight torch\.int32 for torch\.float32"):
        check(module, found, Path("here"))


@pytest.mark.parametrize(
    "file", ["vae/config.json", "sound_tokenizer/config.json", "preprocessor_config.json"]
)
def test_a_part_that_is_listed_but_gone_is_named(folder: Path, file: str) -> None:
    path = folder / file
    whole = path.read_text()
    path.unlink()
    try:
        for look in (lambda: read_facts("x", folder), lambda: load(folder, device="cpu")):
            with pytest.raises(BadRequest, match="this file is missing") as error:
                look()
            assert error.value.value == str(path)
    finally:
        path.write_text(whole)


def test_a_part_that_is_not_listed_may_be_missing(folder: Path) -> None:
    index, config = folder / "model_index.json", folder / "sound_tokenizer" / "config.json"
    kept = index.read_text(), config.read_text()
    index.write_text(json.dumps({**json.loads(kept[0]), "sound_tokenizer": [None, None]}))
    config.unlink()
    try:
        assert not read_facts("x", folder).sounds
    finally:
        index.write_text(kept[0])
        config.write_text(kept[1])


# -- what would take for ever


def test_a_prompt_longer_than_the_reasoner_reads_is_refused(folder: Path) -> None:
    world = load(folder, device="cpu")
    long, quick = "disc " * 5000, {"steps": 1, "size": "16x16"}
    with pytest.raises(BadRequest, match=r"^prompt=.* tokens; make it shorter"):
        world.generate(long, **cast("Any", quick))
    with pytest.raises(BadRequest, match=r"^negative=.* tokens; make it shorter"):
        world.generate("x", negative=long, guidance=3.0, **cast("Any", quick))
    with pytest.raises(BadRequest, match=r"^prompt=.* tokens; make it shorter"):
        world.policy(long, np.zeros((16, 16, 3), np.uint8), domain="tabletop", steps=1)


@pytest.mark.parametrize("falsy", [False, 0, np.False_])
def test_whatever_is_false_cancels(folder: Path, falsy: Any) -> None:
    world = load(folder, device="cpu")
    with pytest.raises(Cancelled):
        world.generate("x", frames=1, size="16x16", steps=1, on_step=lambda _done: falsy)


@pytest.mark.parametrize("shape", [(1, 100_000, 3), (100_000, 1, 3)])
def test_a_line_of_pixels_is_refused(folder: Path, shape: tuple[int, ...]) -> None:
    line = np.zeros(shape, np.uint8)
    for field, wrong in (("image", line), ("video", np.stack([line] * 5))):
        with pytest.raises(BadRequest, match="at most 200 times as long as wide") as error:
            validate("generate", folder, prompt="x", **{field: wrong})
        assert error.value.field == field
    with pytest.raises(BadRequest, match="at most 200 times"):
        cover(check_frames(line, "image", still=True), 16, 16, torch.device("cpu"))


# -- actions


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[[1" + b"0" * 400 + b", 1]]", "must be numbers"),
        (b"[[1e39, 1]]", "must be a finite number"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is no text"),
        (b"secret words", "not valid JSON"),
        (b'{"secret": 1}', "needs `values`"),
        (b'{"values": [[1, 1]], "fps": [], "domain": "tabletop"}', "fps must be a number"),
    ],
)
def test_a_file_that_holds_no_actions_is_named_and_not_shown(
    folder: Path, tmp_path: Path, content: bytes, told: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as error:
        validate("forward_dynamics", folder, image=PICTURE, actions=path, domain="tabletop")
    assert told in str(error.value)
    assert "secret" not in str(error.value)
    assert error.value.field.startswith("actions[") or error.value.value == str(path)


@pytest.mark.parametrize("wrong", [np.ones((8, 2), np.complex64), [[1j, 1]]])
def test_complex_actions_are_refused(folder: Path, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="must be numbers in rows"):
        validate("forward_dynamics", folder, image=PICTURE, actions=wrong, domain="tabletop")


# -- the table-top world


@pytest.mark.parametrize("action", [5, None, "ab", [1], [1, 2, 3], [[1], [2]], [math.nan, 0], [math.inf, 0]])
def test_what_is_no_velocity_never_reaches_the_table(action: Any) -> None:
    table = TabletopEnv()
    with pytest.raises(gymnasium.error.ResetNeeded):
        table.step(action)
    table.reset(seed=0)
    with pytest.raises(BadRequest):
        table.step(action)
    assert np.isfinite(table.step(np.zeros(2, np.float32))[4]["pusher"]).all()
    with pytest.raises(BadRequest, match=r"actions\[0\]"):
        replay(episode("push", 0).start, [action])


@pytest.mark.parametrize("options", [{"episodes": 1}, {"episode": 1.5}, {"episode": "x"}])
def test_reset_options_that_would_be_ignored_or_cut_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="options"):
        TabletopEnv().reset(options=options)


@pytest.mark.parametrize("write", [write_jsonl, write_lerobot])
def test_a_data_set_of_nothing_leaves_no_folder(write: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        write(tmp_path / "none", [])
    assert not list(tmp_path.iterdir())


# -- the terminal


def test_letters_that_a_terminal_cannot_show_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    terminal.say("é日\udcff")
    assert shown.getvalue() == rb"\xe9\u65e5\udcff" + b"\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_stream_is_no_failure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, name, None)
    terminal.say("x")
    terminal.note("x")
    with terminal.progress("x") as tell:
        tell(1, 2)


def test_work_goes_on_where_its_log_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    terminal.log("x")


def test_a_device_or_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(BadRequest) as error:
        terminal.check_folder(tmp_path / "pipe.json")
    assert cast("str", error.value.value).endswith("pipe.json")


def test_actions_never_replace_the_picture_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="json"):
        terminal.check_json(tmp_path / "now.png")
    terminal.check_json(tmp_path / "actions.json")
