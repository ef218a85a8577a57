"""What the doctor finds: this machine, a checkpoint without its weights, and the error of fewer bits."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from armillary import doctor
from armillary.cli import app
from armillary.locate import POCKET

run = CliRunner().invoke


def test_attention_here_agrees_with_the_plain_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.machine("cpu", "bfloat16")["attention"]
    assert found["sound"]
    assert 0 < found["error"] < doctor.LOOSE[torch.bfloat16]
    monkeypatch.setattr(doctor, "attend", lambda q, *_, **__: q)
    assert not doctor.machine("cpu")["attention"]["sound"]
    assert run(app, ["doctor", "--device", "cpu"]).exit_code == 1


def test_the_machine_is_described() -> None:
    result = run(app, ["doctor", "--device", "cpu"])
    assert result.exit_code == 0
    assert f"torch {torch.__version__.partition('+')[0]}" in " ".join(result.output.split())
    assert "GB free of" in result.output
    assert "agrees with the plain formula" in " ".join(result.output.split())


@pytest.fixture
def weightless(tmp_path: Path) -> Path:
    """Pocket's json files alone."""
    folder = tmp_path / "pocket"
    shutil.copytree(POCKET, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def test_a_model_is_described_without_its_weights(weightless: Path) -> None:
    told = doctor.describe(str(weightless))
    assert told["variant"].startswith("pocket-like")
    assert told["parts"] == {"vision tower": True, "video": True, "sound": True}
    assert set(told["heads"]) == {"vision", "sound", "action"}
    assert "tabletop" in told["robots"]
    assert told["defaults"]["video"]["guidance"] == {"value": 2.0, "from": "table 1, row small"}
    assert told["defaults"]["video"]["fps"]["from"] == "transformer/config.json: base_fps"
    shift = json.loads((POCKET / "scheduler" / "scheduler_config.json").read_text()).get("flow_shift", 1.0)
    assert told["defaults"]["image"]["shift"]["value"] == shift


def test_the_page_for_people_and_the_object_for_programs(weightless: Path) -> None:
    page = run(app, ["doctor", str(weightless), "--device", "cpu"])
    assert page.exit_code == 0
    for word in ("Cosmos3OmniPipeline", "row small", "video, unless asked otherwise"):
        assert word in page.output
    told = json.loads(run(app, ["doctor", str(weightless), "--device", "cpu", "--json"]).output)
    assert told["model"] == json.loads(json.dumps(doctor.describe(str(weightless))))


def test_the_check_orders_the_forms_by_their_bits() -> None:
    told = json.loads(run(app, ["doctor", "pocket", "--check", "--device", "cpu", "--json"]).output)["check"]
    for kind in ("logits", "velocities"):
        assert 0 < told["int8"][kind] < told["int4"][kind] < 1
        assert 0 < told["bfloat16"][kind] < told["int4"][kind]


def test_a_check_needs_a_model() -> None:
    assert run(app, ["doctor", "--check"]).exit_code == 2
