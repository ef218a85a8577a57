"""Many requests: bad lines are refused at once, a break loses nothing, failures are listed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import armillary.cli
from armillary.alone import alone
from armillary.batch import UNFINISHED, read_jobs
from armillary.media import read_clip, read_picture, read_receipt
from armillary.world import World
from tests.random_pocket import random_pocket

ROOT = Path(__file__).parents[1]
QUICK = {"task": "generate", "prompt": "a disc", "frames": 5, "steps": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_pocket(tmp_path_factory.mktemp("checkpoint") / "random"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*lines: dict[str, Any] | str) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path("jobs.jsonl").write_text("\n".join(texts))


def run(model: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    words = ["armillary", "batch", "jobs.jsonl", "-o", "out", "--model", model, *more]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        armillary.cli.main()
    return int(ended.value.code or 0)


def test_each_line_becomes_a_file_of_its_kind(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = {"task": "generate", "prompt": "a disc", "frames": 1, "steps": 1, "id": "disc"}
    question = {"task": "reason", "prompt": "Where?", "max_tokens": 2, "id": "where"}
    write(picture, {**QUICK, "seed": 3}, "", question)
    assert run(model, monkeypatch) == 0
    assert read_picture("out/disc.png").shape == (64, 64, 3)
    assert len(read_clip("out/00002.mp4").frames) == 5
    assert (read_receipt("out/00002.mp4") or {})["used"]["seed"] == 3
    assert json.loads(Path("out/where.json").read_text())["receipt"]["task"] == "reason"
    assert sorted(path.name for path in Path("out").iterdir()) == [
        *("00002.mp4", "disc.png", "jobs.json", "lock", "where.json")
    ]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2: json="),
        ("[]", "line 2: json='[]': must be an object"),
        ({"prompt": "x"}, "line 2: task=None: is needed"),
        ({"task": "draw"}, "line 2: task='draw': nearest are"),
        ({**QUICK, "steps": 0}, "line 2: steps=0: .*nearest: 1"),
        ({**QUICK, "stepz": 1}, "line 2: stepz=1: there is no such option"),
        ({**QUICK, "id": "../x"}, "line 2: id='../x': names a file"),
        ({**QUICK, "id": "00001"}, "line 2: id='00001': is that of line 1 too"),
        ({**QUICK, "id": "Jobs"}, "line 2: id='Jobs': names the list"),
        ({**QUICK, "guard": "x"}, "line 2: guard='x': there is no such option"),
        ({**QUICK, "source": "x"}, "line 2: source='x': there is no such option"),
        ({**QUICK, "n": 2}, "line 2: n=2: write a line for each"),
        ({**QUICK, "image": "none.png"}, "line 2: image='none.png': cannot be opened"),
    ],
)
def test_a_bad_line_is_refused_by_its_number_before_anything_is_computed(
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: dict[str, Any] | str,
    named: str,
) -> None:
    monkeypatch.setattr("armillary.loading.load_parts", None)
    write(QUICK, line)
    assert run(model, monkeypatch) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in named.split(".*"))
    assert not Path("out").exists()


def test_failures_are_listed_and_tried_again(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = World.generate

    def broken(self: World, prompt: Any, **options: Any) -> Any:
        if options["seed"] == 1:
            raise FloatingPointError("decoding the video gave numbers that are not finite")
        return real(self, prompt, **options)

    monkeypatch.setattr(World, "generate", broken)
    write(*({**QUICK, "seed": seed} for seed in range(3)))
    assert run(model, monkeypatch) == 1
    told = [json.loads(line) for line in Path("out/failures.jsonl").read_text().splitlines()]
    assert [(row["id"], row["line"]) for row in told] == [("00002", 2)]
    assert "decoding the video" in told[0]["error"]
    assert not Path("out/00002.mp4").exists()
    before = Path("out/00001.mp4").stat().st_mtime_ns
    monkeypatch.setattr(World, "generate", real)
    assert run(model, monkeypatch) == 0
    assert Path("out/00002.mp4").exists()
    assert not Path("out/failures.jsonl").exists()
    assert Path("out/00001.mp4").stat().st_mtime_ns == before  # not made again
    assert capsys.readouterr().out == "out\n2 of 3 were done before, 1 were made now\nout\n"
    assert run(model, monkeypatch) == 0
    assert capsys.readouterr().out == "3 of 3 were done before, 0 were made now\nout\n"


def test_a_name_stands_for_one_request(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(QUICK)
    assert run(model, monkeypatch) == 0
    write({**QUICK, "seed": 5})
    assert run(model, monkeypatch) == 2
    assert "line 1: id='00001': is another request in 'out'" in capsys.readouterr().err


def test_other_weights_are_another_request(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(QUICK)
    assert run(model, monkeypatch) == 0
    assert run(model, monkeypatch, "--weights", "int8") == 2
    assert "or of another model" in capsys.readouterr().err


def test_one_process_at_a_time_works_in_a_folder(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(QUICK)
    Path("out").mkdir()
    half = Path("out") / f".{'0' * 16}.mp4"
    half.write_bytes(b"what the other process is writing")
    with alone(Path("out")):
        assert run(model, monkeypatch) == 2
    assert "another process works in this folder" in capsys.readouterr().err
    assert half.exists()
    assert run(model, monkeypatch) == 0


def test_a_damaged_list_of_jobs_is_named(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(QUICK)
    Path("out").mkdir()
    for text in ("{", "[]"):
        Path("out/jobs.json").write_text(text)
        assert run(model, monkeypatch) == 2
        assert "jobs.json': is damaged" in capsys.readouterr().err


def test_lines_end_where_json_lines_do_and_an_edited_picture_is_one(tmp_path: Path) -> None:
    strange = json.dumps({**QUICK, "prompt": "a\u2028b\x85c"}, ensure_ascii=False)
    edited = json.dumps({"task": "generate", "prompt": "red", "edit": "a.png"})
    Path("jobs.jsonl").write_text(f"\ufeff{strange}\r\n{edited}\n", encoding="utf-8", newline="")
    jobs = read_jobs(Path("jobs.jsonl"), lambda *_: None)
    assert [job.options["prompt"] for job in jobs] == ["a\u2028b\x85c", "red"]
    assert [job.file for job in jobs] == ["00001.mp4", "00002.png"]


def test_killed_at_any_moment_it_goes_on_and_leaves_only_whole_files(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 12
    write(*({**QUICK, "seed": seed} for seed in range(count)))
    code = "import sys; sys.argv[0] = 'armillary'; from armillary.cli import main; main()"
    words = [sys.executable, "-c", code, "batch", "jobs.jsonl", "-o", "out", "--model", model]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while not list(folder.glob("out/[!.]*.mp4")) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = sorted(folder.glob("out/[!.]*.mp4"))
    assert made
    for path in made:
        assert len(read_clip(path).frames) == 5
    times = {path: path.stat().st_mtime_ns for path in made}
    (folder / "out" / f".{'0' * 16}.mp4").write_bytes(b"half")  # as a write leaves it that was broken off
    assert run(model, monkeypatch) == 0
    assert len(list(folder.glob("out/[!.]*.mp4"))) == count
    assert {path: path.stat().st_mtime_ns for path in made} == times
    assert not [path for path in (folder / "out").iterdir() if UNFINISHED.fullmatch(path.name)]
