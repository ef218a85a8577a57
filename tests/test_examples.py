"""The examples run on pocket as they are shipped, and what they say is so."""

import json
import os
import re
import resource
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

import armillary
from armillary import cli
from armillary.eval.asking import near_in_time
from armillary.media import read_clip, read_receipt
from armillary.sim import episode, replay, success

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SHORT = sorted(file for file in EXAMPLES.glob("*.py") if file.name != "demo.py")


@pytest.mark.filterwarnings("ignore:connect")  # openpi's client holds its connection open itself
@pytest.mark.parametrize("example", SHORT, ids=lambda file: file.name)
def test_an_example_runs_and_makes_the_files_it_names(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for those that start a server
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    told = capsys.readouterr().out
    assert told
    assert all((tmp_path / file).stat().st_size for file in re.findall(r"out/[\w.-]+", told))


class Demo(NamedTuple):
    """The folder in which the demo ran, what it said, and the processor time it took, in seconds."""

    folder: Path
    told: str
    seconds: float

    @property
    def out(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo as a program of its own, in a pipe."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = tmp_path_factory.mktemp("demo")
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "demo.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=place,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Demo(folder, done.stdout, spent)


def test_the_demo_takes_less_than_a_minute(demo: Demo) -> None:
    assert demo.seconds < 60  # of the processor, so that a busy machine makes no difference


def test_the_demo_says_where_every_file_is(demo: Demo) -> None:
    made = {f"out/{file.name}" for file in demo.out.iterdir()}
    assert made == set(re.findall(r"^   (out/[\w.-]+)", demo.told, re.MULTILINE))


def test_the_demo_in_a_pipe_prints_plain_lines(demo: Demo) -> None:
    assert "\x1b" not in demo.told
    assert "\r" not in demo.told


def test_the_clip_of_the_demo_is_playable_and_sounds(demo: Demo) -> None:
    clip = read_clip(demo.out / "clip.mp4", sound=True)
    assert clip.frames.shape == (9, 64, 64, 3)
    assert clip.sound is not None
    assert abs(clip.sound).max() > 0
    for picture in demo.out.glob("*.png"):
        Image.open(picture).verify()


def test_the_clips_of_the_demo_carry_their_receipts(demo: Demo) -> None:
    receipts = {file.name: read_receipt(file) or {} for file in demo.out.glob("*.mp4")}
    tasks = {name: receipt.get("task") for name, receipt in receipts.items()}
    assert tasks == {
        "clip.mp4": "generate",
        "simulated.mp4": "simulate",
        "push-1.mp4": "policy",
        "push-2.mp4": "policy",
    }
    made = receipts["simulated.mp4"]
    real = read_clip(demo.out / "simulated.mp4").frames
    again = episode(made["kind"], made["seed"], split=made["split"]).frames
    assert abs(real.astype(int) - again).mean() < 3


def test_the_demo_tells_the_outcome_that_the_simulator_gives(demo: Demo) -> None:
    for number in (1, 2):
        push = episode("push", number - 1, split="test")
        actions = armillary.Actions.from_json((demo.out / f"push-{number}.json").read_text())
        reached = success(push, replay(push.start, actions.values).positions)
        assert f"{push.instruction}: {'success' if reached else 'no success'}\n" in demo.told


def test_the_demo_keeps_every_answer_with_the_truth_where_it_is_known(demo: Demo) -> None:
    rows: list[dict[str, str]] = json.loads((demo.out / "answers.json").read_text())
    known = {q.text: q.answer for q in episode("slide", 0, split="test").questions()}
    assert [row for row in rows if "truth" in row]
    for row in rows:
        assert row["question"] in demo.told
        if "truth" in row:
            assert row["truth"] == known[row["question"]]
            near = "right within a frame" if near_in_time(row["answer"], row["truth"]) else "wrong"
            verdict = f"({'right' if row['answer'] == row['truth'] else near})"
            assert f"the truth is {row['truth']}  {verdict}" in demo.told


def test_the_demo_judges_times_as_the_evaluation_does() -> None:
    verdict = runpy.run_path(str(EXAMPLES / "demo.py"))["verdict"]
    assert "right within a frame" in verdict("0.8 seconds", "0.6 seconds")
    assert "[green]right[/]" in verdict("0.6 seconds", "0.6 seconds")
    assert "wrong" in verdict("0.9 seconds", "0.6 seconds")


def test_the_commands_that_the_demo_names_work(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo.folder)
    lines = [line for line in demo.told.splitlines() if "/armillary " in line]
    assert len(lines) == 3
    for line in lines:
        monkeypatch.setattr(sys, "argv", ["armillary", *shlex.split(line)[1:]])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, line
    assert capsys.readouterr().out
