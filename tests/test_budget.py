"""What plan promises of a request, without weights, against what is loaded, drawn and alive."""

import json
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import armillary
from armillary.cli import app
from armillary.codecs.wan_sizes import decoding_bytes
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.errors import BadRequest
from armillary.loading import load, plan, validate
from armillary.locate import POCKET
from armillary.memory import MODES
from armillary.tasks.parts import weigh
from armillary.weights import Checkpoint
from tests.random_pocket import random_pocket

PICTURE = np.zeros((16, 16, 3), np.uint8)
SMALL: dict[str, Any] = {"size": "16x16", "steps": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that were made under it and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                self._count(made.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._seen:
            self._seen[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._seen.pop(key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (6, 10)])
def test_decoding_a_latent_frame_takes_what_is_promised(dtype: torch.dtype, height: int, width: int) -> None:
    config = WanVAEConfig((0.0,) * 48, (1.0,) * 48, base_dim=8, decoder_base_dim=16)
    network = WanVAE(config).to(dtype).eval().requires_grad_(False)
    frames = network.decode_stream(torch.zeros(1, 48, 4, height, width))
    with Alive() as alive, torch.no_grad():
        for _ in frames:
            pass
    assert decoding_bytes(config, height, width, dtype.itemsize) == pytest.approx(alive.most, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_weigh_what_is_loaded(folder: Path, dtype: str) -> None:
    parts = load(folder, device="cpu", dtype=dtype, memory="resident").parts
    assert parts.sight is not None
    networks = (parts.network, parts.sight.tower, parts.video and parts.video.encoder, parts.audio)
    decoder = parts.video and parts.video.decoder
    held = sum(p.nbytes for part in (*networks, decoder) if part for p in part.parameters())
    assert weigh(Checkpoint(folder), parts.dtype).total == held


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("generate", {"prompt": "a disc", "frames": 5, "sound": True, "guidance": 3.0, **SMALL}),
        ("generate", {"prompt": "a disc", "frames": 1, "guidance": 1.0, **SMALL}),
        ("reason", {"prompt": "what?", "max_tokens": 3}),
    ],
)
def test_tokens_are_those_of_the_receipt(folder: Path, task: str, options: dict[str, Any]) -> None:
    made = getattr(load(folder, device="cpu"), task)(**options)
    assert plan(task, folder, **options).tokens == pytest.approx(made.receipt["tokens"])


def test_validating_counts_what_is_read_and_drawn(folder: Path) -> None:
    for task, options in (
        ("generate", {"prompt": "a disc", "frames": 5, "sound": True, "guidance": 3.0, **SMALL}),
        ("reason", {"prompt": "what?", "max_tokens": 3}),
        ("upsample", {"prompt": "a disc"}),
    ):
        counted = dict(plan(task, folder, **options).tokens)
        counted.pop("answer", None)
        assert validate(task, folder, **options).tokens == counted
    assert plan("upsample", folder, prompt="a disc").tokens["answer"] == 1024
    assert validate("generate", folder, prompt="a disc", upsample=True).tokens == {}


def test_a_question_that_leaves_no_room_for_its_answer_is_refused_without_weights(folder: Path) -> None:
    world = load(folder, device="cpu")
    refusals: list[str] = []
    for call in (world.reason, partial(validate, "reason", folder), partial(plan, "reason", folder)):
        with pytest.raises(BadRequest, match="max_tokens=") as refused:
            call(prompt="disc " * 4075, max_tokens=3)
        refusals.append(str(refused.value))
    assert len(set(refusals)) == 1


def test_stages_follow_the_request(folder: Path) -> None:
    def names(task: str, **options: Any) -> list[str]:
        return [stage.name for stage in plan(task, folder, **options).stages["stream"]]

    assert names("generate", prompt="a disc") == ["load", "read", "draw", "decode"]
    asked: dict[str, Any] = {"prompt": "a disc", "sound": True, "image": PICTURE}
    assert names("generate", **asked) == ["load", "encode", "read", "draw", "decode", "sound"]
    acting: dict[str, Any] = {"prompt": "push", "image": PICTURE, "domain": "tabletop"}
    assert names("policy", decode=False, **acting) == ["load", "encode", "read", "draw"]
    assert names("reason", prompt="what?", images=[PICTURE]) == ["load", "look", "read", "answer"]


def test_each_mode_takes_less_than_the_one_before(folder: Path) -> None:
    found = plan("generate", folder, prompt="a disc", memory="tower")
    peaks = [found.peak(mode) for mode in MODES]
    assert peaks == sorted(peaks, reverse=True)
    assert found.peak() == peaks[1]
    assert found.memory.mode == "tower"


def test_more_frames_take_more(folder: Path) -> None:
    few, many = (plan("generate", folder, prompt="a disc", frames=n) for n in (5, 9))
    assert many.flops["draw"] > 1.4 * few.flops["draw"]
    for one, other in zip(few.stages["stream"][1:], many.stages["stream"][1:], strict=True):
        assert one.weights == other.weights
        assert (one.kept, one.working) <= (other.kept, other.working)


def test_weights_that_can_stay_in_their_files_are_not_counted_as_own(folder: Path) -> None:
    stored, cast = (
        plan("generate", folder, prompt="x", device="cpu", dtype=d) for d in ("float32", "bfloat16")
    )
    draw = {
        name: next(s for s in p.stages["resident"] if s.name == "draw")
        for name, p in (("s", stored), ("c", cast))
    }
    assert (draw["s"].weights, draw["s"].mapped) == (0, 2 * draw["c"].weights - _time(folder))
    assert "in files" in stored.table()
    assert "in files" not in cast.table()


def _time(folder: Path) -> int:
    """The time embedding is in fp32 in both."""
    network = load(folder, device="cpu").parts.network
    return sum(p.nbytes for p in network.time.parameters())


def test_low_bits_take_less(folder: Path) -> None:
    plain, low = (plan("generate", folder, prompt="x", weights=w, device="cpu") for w in (None, "int8"))
    assert low.stages["tower"][2].weights < plain.stages["tower"][2].mapped / 2


def test_a_plan_is_quick() -> None:
    plan("generate", POCKET, prompt="a disc")
    times: list[float] = []
    for _ in range(3):
        started = time.process_time()
        plan("generate", POCKET, prompt="a disc", sound=True)
        times.append(time.process_time() - started)
    assert min(times) < 0.2


def test_a_request_is_checked_first(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"^size='10x10'"):
        plan("generate", folder, prompt="x", size="10x10")
    with pytest.raises(BadRequest, match=r"^task='paint'"):
        plan("paint", folder)
    wrong: Any = "tow"
    with pytest.raises(BadRequest, match=r"^memory='tow'"):
        plan("generate", folder, prompt="x", memory=wrong)


def lines(*arguments: str) -> Iterator[str]:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 0, done.output
    yield from done.stdout.splitlines()


def test_the_command_prints_a_table_or_json(folder: Path) -> None:
    table = list(lines("generate", "a disc", "--model", str(folder), "--memory", "stream"))
    assert table[0].split() == list(MODES)
    assert table[-1].startswith("memory stream: asked for")
    (told,) = lines("reason", "what?", "--model", str(folder), "--json")
    assert set(json.loads(told)["peaks"]) == set(MODES)


def test_plan_is_a_public_name() -> None:
    assert armillary.plan is plan
