"""The command line: what is printed where, what is written, and with which exit code it ends."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

import armillary.eval
import armillary.loading
from armillary import cli
from armillary.answers import Answer, Box, Usage
from armillary.errors import BadRequest
from armillary.eval.scores import Figure, Score
from armillary.media import Clip, read_clip, read_picture, read_receipt, write_png
from armillary.requests import GenerateRequest, ReasonRequest, UpsampleRequest
from armillary.robots import Actions
from armillary.settle import Receipt
from armillary.step import Step
from armillary.tasks.deltas import Delta
from tests.conftest import Run
from tests.random_pocket import random_pocket

PUSHES = np.ones((8, 2), np.float32)
PIXEL = np.zeros((1, 1, 1, 3), np.uint8)
RECEIPT = {"task": "generate", "used": {"seed": 0}, "defaulted": ["seed"], "rounded": {}}
ROUNDED = {**RECEIPT, "rounded": {"frames": {"asked": 6, "made": 9}}}


class FakeWorld:
    """Answers at once, and remembers what it was asked."""

    notes = ("it has no sound head",)

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.fails: BaseException | None = None

    def _work(self, task: str, options: dict[str, Any]) -> None:
        self.asked.append((task, options))
        for step in range(1, 4):
            options["on_step"](Step(step, 3, lambda _: PIXEL))
        if self.fails:
            raise self.fails

    def generate(self, **options: Any) -> Clip:
        self._work("generate", options)
        frames = options.get("frames") or 9
        return Clip(np.zeros((frames, 16, 16, 3), np.uint8), 8.0, receipt=ROUNDED)

    def forward_dynamics(self, **options: Any) -> Clip:
        self._work("forward_dynamics", options)
        return Clip(np.zeros((9, 16, 16, 3), np.uint8), 8.0, receipt=RECEIPT)

    def inverse_dynamics(self, **options: Any) -> Actions:
        self._work("inverse_dynamics", options)
        return Actions(PUSHES, "tabletop", 8.0, receipt=RECEIPT)

    def policy(self, **options: Any) -> Actions:
        self._work("policy", options)
        clip = Clip(np.zeros((9, 16, 16, 3), np.uint8), 8.0) if options["decode"] else None
        return Actions(PUSHES, "tabletop", 8.0, clip=clip, receipt=RECEIPT)

    def reason(self, *, stream: bool, **options: Any) -> Iterator[Delta]:
        assert stream
        self.asked.append(("reason", options))
        if self.fails:
            raise self.fails
        yield Delta("at the ")
        boxes = (Box(1, 2, 3, 4, "disc"),)
        yield Delta("left", answer=Answer("at the left", Usage(5, 2), "stop", boxes=boxes, receipt=RECEIPT))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    fake = FakeWorld()
    monkeypatch.setattr(armillary.loading, "load", lambda *_, **__: fake)
    checked = Receipt("generate", "fake", "0", used={})  # the files that validation reads are not there
    monkeypatch.setattr(armillary.loading, "check", lambda *_, **__: checked)
    return fake


Captured = pytest.CaptureFixture[str]


def test_a_clip_is_written_and_only_its_path_is_printed(world: FakeWorld, run: Run, capsys: Captured) -> None:
    assert run("generate", "a disc", "-o", "out.mp4", "--frames", "6", "--size", "16x16", "--seed", "4") == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("out.mp4\n", "")
    assert len(read_clip("out.mp4").frames) == 6
    assert read_receipt("out.mp4") == ROUNDED
    _, asked = world.asked[0]
    given = {name: value for name, value in asked.items() if value is not None and name != "on_step"}
    assert given == {"prompt": "a disc", "frames": 6, "size": "16x16", "seed": 4}


def test_a_picture_is_one_frame_in_a_png(world: FakeWorld, run: Run) -> None:
    assert run("generate", "a disc", "-o", "out.png", "--frames", "1") == 0
    assert read_picture("out.png").shape == (16, 16, 3)


def test_json_gives_path_and_receipt(world: FakeWorld, run: Run, capsys: Captured) -> None:
    assert run("generate", "a disc", "-o", "out.gif", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": "out.gif", "receipt": ROUNDED}


def test_a_terminal_sees_progress_and_what_was_rounded(
    world: FakeWorld, run: Run, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert run("generate", "a disc", "-o", "out.mp4") == 0
    told = capsys.readouterr()
    assert told.out == "out.mp4\n"
    assert "3/3" in told.err
    assert "asked 6, made 9" in told.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "output=None: name a file"),
        (["--frames", "1"], "output=None: name a file to write, such as -o out.png"),
        (["-o", "out.avi"], "output='out.avi': clips end in .mp4 or .gif;"),
        (["-o", "out.jpg", "--sound"], "output='out.jpg': clips with sound end in .mp4;"),
        (["-o", "out.jpg", "--frames", "1"], "output='out.jpg': a picture ends in .png or .mp4 or .gif;"),
        (["-o", "out.png"], "output='out.png': a PNG holds one picture"),
        (["-o", "out.gif", "--sound"], "output='out.gif': .gif files have no sound"),
        (["-o", "nowhere/out.mp4"], "output='nowhere/out.mp4': there is no folder 'nowhere'"),
    ],
)
def test_where_to_write_is_checked_before_anything_is_computed(
    world: FakeWorld, run: Run, capsys: Captured, arguments: list[str], named: str
) -> None:
    assert run("generate", "a disc", *arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"armillary: {named}")
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert world.asked == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadRequest("size", "7x7", "sides are\nmultiples of 8"), 2, "size='7x7': sides are multiples of 8"),
        (KeyboardInterrupt(), 130, "stopped; nothing is left half written"),
        (FloatingPointError("step 2 of 3: the state of vision is not finite"), 1, "step 2 of 3"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
    ],
)
def test_what_ends_early_writes_nothing(
    world: FakeWorld, run: Run, capsys: Captured, error: BaseException, code: int, said: str
) -> None:
    world.fails = error
    assert run("generate", "a disc", "-o", "out.mp4") == code
    told = capsys.readouterr()
    assert told.err.startswith(f"armillary: {said}")
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert list(Path().iterdir()) == []


def test_an_option_that_does_not_exist_is_a_bad_request(run: Run, capsys: Captured) -> None:
    assert run("generate", "a disc", "--frame", "9") == 2
    assert "--frame" in capsys.readouterr().err


def test_an_answer_streams_as_text(world: FakeWorld, run: Run, capsys: Captured) -> None:
    assert run("reason", "Where?", "--image", "a.png", "--image", "b.png", "--stop", "x") == 0
    assert capsys.readouterr().out == "at the left\n"
    _, asked = world.asked[0]
    assert asked["images"] == [Path("a.png"), Path("b.png")]
    assert asked["stop"] == ["x"]


@pytest.mark.parametrize("written", [False, True])
def test_an_answer_as_json_has_its_boxes(world: FakeWorld, run: Run, capsys: Captured, written: bool) -> None:
    assert run("reason", "Where?", *(("-o", "answer.json") if written else ("--json",))) == 0
    told = json.loads(Path("answer.json").read_text() if written else capsys.readouterr().out)
    assert told["text"] == "at the left"
    assert told["boxes"] == [{"x1": 1, "y1": 2, "x2": 3, "y2": 4, "label": "disc"}]
    assert told["receipt"] == RECEIPT


def test_actions_go_to_a_file_or_to_standard_output(world: FakeWorld, run: Run, capsys: Captured) -> None:
    assert run("inverse-dynamics", "--video", "a.mp4", "--domain", "tabletop") == 0
    printed = capsys.readouterr().out
    assert run("inverse-dynamics", "--video", "a.mp4", "--domain", "tabletop", "-o", "a.json") == 0
    assert capsys.readouterr().out == "a.json\n"
    assert Path("a.json").read_text() == printed
    assert np.array_equal(Actions.from_json(printed).values, PUSHES)
    assert [path.name for path in Path().iterdir()] == ["a.json"]


def test_a_policy_imagines_only_where_a_clip_is_asked_for(world: FakeWorld, run: Run) -> None:
    command = ("policy", "push it", "--image", "a.png", "--domain", "tabletop", "-o", "a.json")
    assert run(*command) == 0
    assert run(*command, "--clip", "imagined.mp4") == 0
    assert [options["decode"] for _, options in world.asked] == [False, True]
    assert len(read_clip("imagined.mp4").frames) == 9


def test_forward_dynamics_reads_actions_and_writes_a_clip(world: FakeWorld, run: Run) -> None:
    command = ("forward-dynamics", "--image", "a.png", "--actions", "a.json", "--domain", "tabletop")
    assert run(*command, "--prompt", "push", "-o", "out.mp4") == 0
    _, asked = world.asked[0]
    assert (asked["actions"], asked["prompt"]) == (Path("a.json"), "push")
    assert Path("out.mp4").exists()


# -- with a real checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_pocket(tmp_path_factory.mktemp("model")))


def test_a_checkpoint_makes_a_file_and_answers_about_it(folder: str, run: Run, capsys: Captured) -> None:
    quick = ("--model", folder, "--steps", "1", "--size", "16x16")
    assert run("generate", "a disc", *quick, "--sound", "-o", "out.mp4") == 0
    assert run("reason", "Where?", "--model", folder, "--video", "out.mp4", "--max-tokens", "3") == 0
    assert capsys.readouterr().out.startswith("out.mp4\n")


def test_validating_reads_no_weights(
    folder: str, run: Run, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armillary.loading, "load_parts", None)
    assert run("validate", "generate", "a disc", "--frames", "10", "--model", folder) == 0
    told = capsys.readouterr().out.splitlines()
    assert "frames: 13  (asked 10)" in told
    assert "fps: 8.0  (default)" in told
    assert told[-1].rpartition(", ")[2] == "48 vision"  # of the first run
    write_png("a.png", np.zeros((16, 16, 3), np.uint8))
    command = ("validate", "policy", "push", "--image", "a.png", "--domain", "tabletop", "--model", folder)
    assert run(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out)["task"] == "policy"
    assert run("validate", "generate", "a disc", "--steps", "0", "--model", folder) == 2
    assert "steps=0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["generate", "a", "--sound", "-o", "a.gif"], "output='a.gif': .gif files have no sound"),
        (["generate", "a", "--fps", "60", "-o", "a.gif"], "output='a.gif': a GIF shows at most 50"),
        (["generate", "a", "-n", "2", "--frames", "1", "-o", "full.png"], "output='full-2.png': is a folder"),
        (["generate", "a", "--control", "edge=a", "--control", "edge=b", "-o", "a.mp4"], "given twice"),
        (["generate", "a", "--sound", "--sound-file", "a.wav", "-o", "a.mp4"], "is drawn or given"),
        (["generate", "a", "-o", "a.mp4", "--memory", "x"], "memory='x'"),
        (["generate", "a", "-o", "a.mp4", "--dtype", "x"], "dtype='x'"),
        (["generate", "a", "-o", "a.mp4", "--adapter", "x"], "adapter='x': there is no such file"),
        (["generate", "a", "--frames", "1", "--sound", "-o", "a.png"], "sound=True: not used for a picture"),
        (["generate", "a", "--image", "none.png", "-o", "a.mp4"], "image='none.png'"),
        (["reason", "a", "--image", "none.png"], "'none.png'"),
        (["policy", "a", "--image", "now.png", "--domain", "tabletop", "--clip", "a.avi"], "clips end in"),
        (["policy", "a", "--image", "now.png", "--domain", "tabletop", "-o", "a.txt"], "name a .json file"),
        (["policy", "a", "--image", "now.png", "--domain", "top"], "nearest: tabletop or"),
    ],
)
def test_command_and_validation_refuse_the_same_before_weights_are_read(
    folder: str,
    run: Run,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(armillary.loading, "load_parts", None)
    write_png("now.png", np.zeros((16, 16, 3), np.uint8))
    Path("full-2.png").mkdir()
    said: list[str] = []
    for before in ((), ("validate",)):
        assert run(*before, *arguments, "--model", folder) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert told in said[0]


def test_a_model_that_is_nowhere_is_named(run: Run, capsys: Captured) -> None:
    assert run("reason", "Where?", "--model", "nowhere") == 2
    assert capsys.readouterr().err.startswith("armillary: model='nowhere'")


def test_a_data_set_is_made(run: Run, capsys: Captured) -> None:
    assert run("simulate", "-o", "set", "--kind", "still", "--count", "2") == 0
    assert capsys.readouterr().out == "set\n"
    assert len(Path("set/data.jsonl").read_text().splitlines()) == 2
    for folder, reason in (
        ("set", "exists already"),
        ("set/data.jsonl/more", "'set/data.jsonl' is no folder"),
    ):
        assert run("simulate", "-o", folder) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"armillary: folder='{folder}': {reason}")
        assert told.count("\n") == 1
    assert run("simulate", "-o", "other", "--format", "csv") == 2
    assert "format='csv'" in capsys.readouterr().err
    assert not Path("other").exists()


def test_a_recipe_that_is_missing_is_named(run: Run, capsys: Captured) -> None:
    assert run("train", "no.toml") == 2
    assert "recipe='no.toml'" in capsys.readouterr().err


def test_a_training_tells_its_stages_in_a_log_too_and_prints_the_checkpoint(
    run: Run, capsys: Captured
) -> None:
    Path("small.toml").write_text('stages = [{kind = "tokenizer", episodes = 8}]\n', encoding="utf-8")
    assert run("train", "small.toml", "--set", "folder=made") == 0
    told = capsys.readouterr()
    assert told.err == "stage 1 of 1: tokenizer\n"
    assert Path(told.out.strip(), "text_tokenizer", "tokenizer.json").exists()


def test_an_unknown_suite_is_named(run: Run, capsys: Captured) -> None:
    assert run("eval", "pocket", "--suite", "videos") == 2
    assert "suite='videos'" in capsys.readouterr().err


def test_figures_are_told_rounded_with_what_stands_beside_them(
    run: Run, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Score(0.25, 0.25, 0.25, 24)
    figure = Figure("colour", Score(0.876712, 0.8, 0.95, 24), "share", {"chance": chance}, bar=0.9)
    result = {"suites": {"reasoner": {"figures": [figure.to_dict()]}}}
    monkeypatch.setattr(armillary.eval, "evaluate", lambda *_, on_result, **__: on_result(result))
    assert run("eval", "pocket") == 0
    expected = "reasoner: colour: 0.877 (0.800 to 0.950, n = 24); chance 0.250; bar 0.9 missed\n"
    assert capsys.readouterr().out == expected


def test_two_numbers_of_cases_are_refused(run: Run, capsys: Captured) -> None:
    assert run("eval", "pocket", "--quick", "--n", "5") == 2
    assert "n=5: quick means 24 cases" in capsys.readouterr().err


# -- help


def test_the_version_is_told(run: Run, capsys: Captured) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"{armillary.__version__}\n"


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(cli.app).commands)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_a_help_page_with_an_example(name: str, run: Run, capsys: Captured) -> None:
    assert run(name, "--help") == 0
    page = capsys.readouterr().out
    assert name in ("validate", "explain", "plan") or f"  armillary {name}" in page


def test_the_page_of_commands_is_what_help_prints_now() -> None:
    docs = Path(__file__).parents[1] / "docs"
    page = runpy.run_path(str(docs / "commands.py"))["page"]
    assert (docs / "commands.md").read_text() == page(), "run `make docs`"


def test_options_are_those_of_the_request() -> None:
    own = {"model", "device", "dtype", "memory", "weights", "adapter", "guard"}
    own |= {"context", "output", "as_json", "sound_file"}
    names = {name: {p.name for p in command.params} - own for name, command in commands().items()}
    assert names["generate"] - {"help"} == set(GenerateRequest.model_fields)
    assert names["upsample"] - {"help"} == set(UpsampleRequest.model_fields)
    plural = {"image": "images", "video": "videos"}
    fields = {field.alias or name for name, field in ReasonRequest.model_fields.items()}
    reason = {plural.get(name, name) for name in names["reason"] - {"help"}}
    assert reason == fields - {"messages", "tools", "tool_choice"}  # what only a program can answer


def test_convert_writes_with_adapters_by_weight(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        armillary.loading, "convert", lambda *args, **options: asked.update(options, args=args)
    )
    merge = ("--merge", "a.safetensors=0.5", "--merge", "b")
    assert run("convert", "pocket", "made", "--dtype", "float16", *merge) == 0
    rest = {"adapters": [("a.safetensors", 0.5), ("b", 1.0)], "weights": None}
    assert asked == {"args": ("pocket", Path("made")), "dtype": "float16"} | rest
    assert capsys.readouterr().out == "made\n"
    assert run("convert", "pocket", "made", "--merge", "a=strong") == 2
    assert "a weight is a number" in capsys.readouterr().err
