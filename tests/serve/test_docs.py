"""The pages about the server are true: their lines run against one, and the list of routes is today's."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Live

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:connect")  # openpi's client holds its connection open itself
def test_the_lines_of_the_page_run(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/serving.md").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{live.port}")
    names: dict[str, Any] = {}
    for language, block in BLOCK.findall(text):
        if language == "python":
            exec(compile(block, "docs/serving.md", "exec"), names)
            continue
        for line in block.splitlines():
            words = [*shlex.split(line), "--fail-with-body"]
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    names["client"].close()
    names["robot"]._ws.close()
    assert (tmp_path / "clip.mp4").stat().st_size > 1000
    assert names["chunk"]["actions"].shape == (8, 2)


def test_the_page_of_routes_is_todays(live: Live) -> None:
    script: dict[str, Any] = {"__name__": "api"}
    exec(compile((ROOT / "docs/api.py").read_text(), "docs/api.py", "exec"), script)
    assert (ROOT / "docs/api.md").read_text() == script["page"](live.app.openapi()), "run `make docs`"


def test_every_promise_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    there = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert len(named) > 15
    assert not {name for name in named if f"def {name}(" not in there}
