"""The command line passes no option over, and tells what cannot be written before weights are read."""

from pathlib import Path

import numpy as np
import pytest

import armillary.loading
from armillary.media import write_png
from tests.conftest import Run
from tests.random_pocket import random_pocket

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_pocket(tmp_path_factory.mktemp("checkpoint") / "random"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("policy", "a", "--image", "now.png", "--domain", "tabletop", "--clip", "a.mp4"), "clip='a.mp4'"),
        (("generate", "a", "--weights", "int3"), "weights='int3'"),
        (("generate", "a", "--adapter", "x"), "adapter='x'"),
        (("generate", "gore", "--guard", "words.txt"), "blocked: holds 'gore'"),
    ],
)
def test_explaining_ignores_no_option(
    folder: str, run: Run, capsys: Captured, arguments: tuple[str, ...], told: str
) -> None:
    write_png("now.png", np.zeros((16, 16, 3), np.uint8))
    Path("words.txt").write_text("gore")
    assert run("explain", *arguments, "--model", folder) == 2
    assert told in capsys.readouterr().err


def test_a_folder_that_may_not_be_written_is_named_before_weights_are_read(
    folder: str, run: Run, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armillary.loading, "load_parts", None)
    monkeypatch.setattr("os.access", lambda path, _mode: str(path) != "locked")
    Path("locked").mkdir()
    assert run("generate", "a", "-o", "locked/a.mp4", "--model", folder) == 2
    assert "nothing may be written in 'locked'" in capsys.readouterr().err
