"""What every published checkpoint uses unless asked otherwise: a snapshot, and where each number is from."""

from pathlib import Path
from typing import Any

import pytest

from armillary import validate
from armillary.locate import POCKET
from armillary.shards import write_json
from armillary.tasks.defaults import VERSION, Defaults, defaults, origins
from armillary.weights import Checkpoint

KARRAS = {"flow_shift": 1.0, "use_karras_sigmas": True}
FOUR = {
    "fixed_step_sampler_config": {"sample_type": "sde", "t_list": [1.0, 0.9375, 0.8333333333333334, 0.625]}
}
NANO: dict[str, Any] = {"hidden_size": 4096, "base_fps": 24}
SUPER: dict[str, Any] = {"hidden_size": 5120, "num_hidden_layers": 64, "base_fps": 24}
EDGE: dict[str, Any] = {"hidden_size": 2048, "hidden_act": "relu2", "base_fps": 24}
FULL_IMAGE, FULL_VIDEO = (50, 4.0, 3.0, 1, 24, 960, 960), (35, 6.0, 10.0, 189, 24, 720, 1280)
EDGE_IMAGE, EDGE_VIDEO = (50, 4.0, 3.0, 1, 24, 640, 640), (35, 6.0, 3.0, 121, 24, 480, 832)
FULL_ACTION, EDGE_ACTION = (30, 1.0, 10.0, 17, 10, 480, 832), (30, 1.0, 3.0, 17, 10, 480, 832)
STUDENT_IMAGE, STUDENT_ACTION = (4, 1.0, None, 1, 24, 1024, 1024), (4, 1.0, None, 17, 10, 480, 832)
DROID = (4, 3.0, 5.0, 33, 15, 540, 640)

# name: (transformer, scheduler, is a policy; steps, guidance, shift, frames, fps, height, width of each task)
Row = tuple[float | None, ...]
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], bool, Row, Row, Row]] = {
    "Nano": (NANO, KARRAS, False, FULL_IMAGE, FULL_VIDEO, FULL_ACTION),
    "Super": (SUPER, KARRAS, False, FULL_IMAGE, FULL_VIDEO, FULL_ACTION),
    "Edge": (EDGE, {"flow_shift": 3.0}, False, EDGE_IMAGE, EDGE_VIDEO, EDGE_ACTION),
    "Super-Text2Image": (SUPER, KARRAS, False, FULL_IMAGE, FULL_VIDEO, FULL_ACTION),
    "Super-Image2Video": (
        SUPER | {"base_fps": 16},
        KARRAS,
        False,
        FULL_IMAGE,
        (35, 6.0, 10.0, 189, 16, 720, 1280),
        FULL_ACTION,
    ),
    "Super-Text2Image-4Step": (
        SUPER,
        FOUR,
        False,
        STUDENT_IMAGE,
        (4, 1.0, None, 189, 24, 480, 832),
        STUDENT_ACTION,
    ),
    "Super-Image2Video-4Step": (
        SUPER | {"base_fps": 16},
        FOUR,
        False,
        STUDENT_IMAGE,
        (4, 1.0, None, 189, 16, 480, 832),
        STUDENT_ACTION,
    ),
    "Nano-Policy-DROID": (NANO, KARRAS, True, FULL_IMAGE, FULL_VIDEO, DROID),
    "Edge-Policy-DROID": (EDGE, {"flow_shift": 3.0}, True, EDGE_IMAGE, EDGE_VIDEO, DROID),
}


@pytest.fixture(params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Checkpoint, tuple[Row, Row, Row]]:
    transformer, scheduler, is_policy, *rows = PUBLISHED[request.param]
    write_json(transformer, tmp_path / "transformer" / "config.json")
    write_json(scheduler, tmp_path / "scheduler" / "scheduler_config.json")
    if is_policy:
        write_json({}, tmp_path / "checkpoint.json")
    image, video, action = rows
    return Checkpoint(tmp_path), (image, video, action)


def test_the_table_is_what_was_published(published: tuple[Checkpoint, tuple[Row, Row, Row]]) -> None:
    checkpoint, (image, video, action) = published
    assert VERSION == 1  # raise it with any number below
    assert tuple(vars(defaults(checkpoint, "image")).values()) == image
    assert tuple(vars(defaults(checkpoint, "video")).values()) == video
    for task in ("forward_dynamics", "inverse_dynamics", "policy"):
        assert tuple(vars(defaults(checkpoint, task)).values()) == action


def test_every_default_says_where_it_is_from(published: tuple[Checkpoint, tuple[Row, Row, Row]]) -> None:
    checkpoint, _ = published
    for task in ("image", "video", "policy"):
        told = origins(checkpoint, task)
        assert told.keys() == vars(defaults(checkpoint, task)).keys()
        for file in {origin.partition(": ")[0] for origin in told.values() if ".json" in origin}:
            assert (checkpoint.folder / file).is_file()
    assert origins(checkpoint, "video")["fps"] == "transformer/config.json: base_fps"


def test_pocket() -> None:
    pocket = Checkpoint(POCKET)
    assert defaults(pocket, "image") == Defaults(10, 2.0, None, 1, 8.0, 64, 64)
    assert defaults(pocket, "video") == Defaults(10, 2.0, None, 9, 8.0, 64, 64)
    assert defaults(pocket, "policy") == Defaults(4, 1.0, None, 9, 8.0, 64, 64)
    assert origins(pocket, "video")["shift"] == "scheduler/scheduler_config.json: flow_shift"


def test_receipts_name_the_table() -> None:
    receipt = validate("generate", prompt="a disc", steps=3).to_dict()
    assert receipt["table"] == VERSION
    assert "guidance" in receipt["defaulted"]
    assert "steps" not in receipt["defaulted"]
