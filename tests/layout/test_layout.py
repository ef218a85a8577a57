"""What `explain` shows is what the network is given, and the picture says so."""

import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import armillary
import armillary.cli
import armillary.loading
from armillary.errors import BadRequest
from armillary.layout import Layout
from armillary.layout.picture import COLOURS, picture
from armillary.media import read_picture
from armillary.media.canvas import Words, words_width
from armillary.model import Network
from armillary.sequence import Pack
from tests.random_pocket import random_pocket

ROOT = Path(__file__).parents[2]
PICTURE = np.full((64, 64, 3), 90, np.uint8)
CLIP = np.full((9, 64, 64, 3), 90, np.uint8)
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("generate", {"prompt": "a disc", "sound": True, "image": PICTURE}),
    ("generate", {"prompt": "a disc", "frames": 1, "guidance": 1.0}),
    ("generate", {"prompt": "a disc", "video": CLIP, "frames": 13, "fps": 8}),
    ("forward_dynamics", {"image": PICTURE, "actions": [[1, 2]] * 11, "domain": "tabletop"}),
    ("inverse_dynamics", {"video": CLIP, "domain": "tabletop"}),
    ("policy", {"prompt": "push", "image": PICTURE, "domain": "tabletop"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("checkpoint") / "random")


class Stopped(Exception):
    pass


def given(folder: Path, task: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Layout:
    """The layout of what a loaded network is really given at its first step."""
    world, packs = armillary.load(folder), list[Pack]()

    def draw(self: Network, pack: Pack, *_: Any) -> None:
        packs.append(pack)
        raise Stopped

    monkeypatch.setattr(Network, "draw", draw)
    with pytest.raises(Stopped):
        getattr(world, task)(**options)
    margin = world.parts.network.config.margin
    return Layout.of(packs[0], task=task, model=str(folder), margin=margin)


@pytest.mark.parametrize(("task", "options"), REQUESTS)
def test_it_is_what_the_loaded_network_is_given(
    folder: Path, task: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = armillary.explain(task, folder, **options)
    real = given(folder, task, options, monkeypatch)
    assert shown.rows() == real.rows()
    assert shown.samples == real.samples
    for ours, theirs in zip(shown.runs, real.runs, strict=True):
        assert np.array_equal(ours.positions_3N, theirs.positions_3N)


def test_a_question_shows_what_is_seen_between_the_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = armillary.explain("reason", folder, prompt="Where?", images=[PICTURE], videos=[CLIP])
    world, packs, real = armillary.load(folder), list[Pack](), Network.read

    def read(self: Network, pack: Pack, *others: Any) -> Any:
        packs.append(pack)
        return real(self, pack, *others)

    monkeypatch.setattr(Network, "read", read)
    world.reason("Where?", images=[PICTURE], videos=[CLIP], max_tokens=1)  # it is read in pieces
    positions_3A = np.concatenate([pack.positions_3A.numpy() for pack in packs], axis=1)
    assert np.array_equal(np.concatenate([run.positions_3N for run in shown.runs], axis=1), positions_3A)
    seen = sum(len(visual.rows_V) for pack in packs if (visual := pack.visual()))
    assert seen == sum(len(run) for run in shown.runs if run.kind == "seen")
    assert {run.kind for run in shown.runs} == {"text", "seen"}


def test_no_weights_are_read(tmp_path: Path, folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".safetensors":
            copy = tmp_path / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    assert not list(tmp_path.rglob("*.safetensors"))
    assert len(armillary.explain("generate", tmp_path, prompt="a disc", sound=True)) > 0


@pytest.mark.parametrize(
    ("task", "options", "named"),
    [
        ("generat", {}, "nearest are generate"),
        ("generate", {}, "^prompt=None: is needed"),
        ("generate", {"prompt": "x", "steps": 0}, "^steps=0"),
        ("generate", {"prompt": "x", "guidance": float("nan")}, "^guidance=nan"),
        ("policy", {"prompt": "x", "image": PICTURE}, "^domain=None: is needed"),
        ("policy", {"prompt": "x", "image": PICTURE, "domain": "top"}, "nearest: tabletop"),
        ("reason", {"images": [PICTURE]}, "^prompt=None"),
    ],
)
def test_what_the_call_refuses_is_refused(
    folder: Path, task: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        armillary.explain(task, folder, **options)


def test_a_published_size_takes_under_a_fifth_of_a_second(folder: Path) -> None:
    """As many tokens as 189 frames of 480p. Processor time, so that a busy machine makes no difference."""
    options: dict[str, Any] = {
        "prompt": "x",
        "frames": 189,
        "chunk": 189,
        "fps": 24,
        "size": "416x240",
        "guidance": 1.0,
    }
    code = f"""
import time, armillary, armillary.loading
armillary.explain("generate", {str(folder)!r}, prompt="x")
started = time.process_time()
layout = armillary.explain("generate", {str(folder)!r}, **{options!r})
print(len(layout), time.process_time() - started)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    count, seconds = done.stdout.split()
    assert int(count) > 18720
    assert float(seconds) < 0.2


def test_the_table_names_each_run_once(folder: Path) -> None:
    layout = armillary.explain("policy", folder, prompt="push", image=PICTURE, domain="tabletop")
    head, *lines = layout.table().splitlines()
    assert head.split() == ["sample", "kind", "tokens", "state", "time", "height", "width"]
    assert [line.split()[1:4] for line in lines[:-2]] == [
        [run.kind, str(len(run)), run.state] for run in layout.runs
    ]
    assert lines[-1] == f"{len(layout)} tokens in 1 sample, 40 of them noisy"


def test_both_samples_of_guidance_are_there(folder: Path) -> None:
    layout = armillary.explain("generate", folder, prompt="a red disc", guidance=2.0)
    assert layout.samples == ("request", "negative")
    assert [run.sample for run in layout.runs] == [0, 1, 0, 1]


def test_the_mask_in_the_picture_is_causal_to_the_left_and_full_below(folder: Path) -> None:
    """Read off the pixels: which colour has each place of the square of who sees whom."""
    layout = armillary.explain("generate", folder, prompt="a red disc", frames=1, guidance=1.0)
    context, drawn = len(layout.runs[0]), len(layout.runs[1])
    image = np.asarray(picture(layout).image(scale=1))
    rows, columns = np.nonzero((image == (0x22, 0x26, 0x2E)).all(axis=2))
    frame = [n for n in range(len(image)) if (rows == n).sum() >= 400]
    top, left = frame[0], np.sort(columns[rows == frame[0]])[0]
    cell = 400 / (context + drawn)

    def colour(row: int, column: int) -> np.ndarray:
        return image[round(top + (row + 0.5) * cell), round(left + (column + 0.5) * cell)]

    text = np.array(tuple(bytes.fromhex(COLOURS["text"][1:])))
    for row in range(context):
        for column in range(context + drawn):
            seen = (colour(row, column) == text).all()
            assert seen == (column <= row), (row, column)
    for row in range(context, context + drawn):
        assert (colour(row, context // 2) == text).all()
        assert not (colour(row, context + drawn // 2) == (0xF1, 0xF3, 0xF6)).all()


def test_every_column_of_samples_bears_its_name(folder: Path) -> None:
    """Also where the column is narrower than the name: no name runs into another."""
    layout = armillary.explain("generate", folder, prompt="a red disc", guidance=3.0)
    shapes = [s for s in picture(layout).shapes if isinstance(s, Words) and s.text in layout.samples]
    assert sorted(s.text for s in shapes) == ["negative", "negative", "request", "request"]
    spans = [
        (s.at[1], s.at[0] - words_width(s.text, 12) / 2, s.at[0] + words_width(s.text, 12) / 2)
        for s in shapes
    ]
    for row in {y for y, _, _ in spans}:
        beside = sorted((left, right) for y, left, right in spans if y == row)
        assert all(right < left for (_, right), (left, _) in pairwise(beside))


def test_svg_and_png_are_written_whole_and_show_the_same_words(folder: Path, tmp_path: Path) -> None:
    layout = armillary.explain("generate", folder, prompt="a <disc> & more", sound=True)
    layout.draw(tmp_path / "a.svg")
    layout.draw(tmp_path / "a.png")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"the AR tower reads", "the DM tower draws", "sound 18"} <= set(words)
    width, height = (int(root.attrib[side]) for side in ("width", "height"))
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (2 * width, 2 * height)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]
    with pytest.raises(BadRequest, match=r"nearest: .svg"):
        layout.draw(tmp_path / "a.svgz")


def test_thousands_of_tokens_stay_a_small_picture(folder: Path) -> None:
    layout = armillary.explain("generate", folder, prompt="x", frames=189, fps=24, size="128x128")
    assert len(picture(layout).svg()) < 150_000


def test_the_picture_in_the_readme_is_the_one_drawn_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    found = re.search(r"armillary explain (.*)", makefile)
    assert found is not None
    monkeypatch.chdir(ROOT)
    words = shlex.split(found[1])
    assert words.pop() == "docs/pictures/sequence.svg"
    monkeypatch.setattr(sys, "argv", ["armillary", "explain", *words, str(tmp_path / "now.svg")])
    with pytest.raises(SystemExit) as ended:
        armillary.cli.main()
    assert not ended.value.code
    assert (ROOT / "docs/pictures/sequence.svg").read_text() == (tmp_path / "now.svg").read_text(), (
        "`make docs`"
    )


def test_the_command_prints_a_table_or_draws_a_picture(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["armillary", *words, "--model", str(folder)])
        with pytest.raises(SystemExit) as ended:
            armillary.cli.main()
        return int(ended.value.code or 0)

    command = ("explain", "generate", "a disc", "--frames", "9", "--sound")
    assert run(*command) == 0
    assert capsys.readouterr().out.startswith("sample    kind    tokens  state")
    assert run(*command, "-o", "a.png") == 0
    assert capsys.readouterr().out == "a.png\n"
    assert read_picture("a.png").shape[2] == 3
    assert run("explain", "reason", "Where?", "--json", "-o", "a.svg") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], {row["kind"] for row in told["rows"]}) == ("a.svg", {"text"})
    assert run(*command, "-o", "a.mp4") == 2
    assert "drawn as .svg or .png" in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["a.png", "a.svg"]
