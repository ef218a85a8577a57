"""The documents are true: every command and snippet runs, every link and file exists."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from armillary.cli import app, main
from armillary.eval.suites import SUITES
from armillary.train.recipe import Recipe, read_recipe

ROOT = Path(__file__).parents[1]
WRITTEN = sorted(
    page for page in (ROOT / "docs").glob("*.md") if page.name not in ("commands.md", "api.md")
)  # those are made from the code
PAGES = [ROOT / "README.md", *WRITTEN]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
CODE = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```$"  # fenced
    r"|^\|.*\| `(?P<cell>[^`]*\bworld\.[^`]+)` \|$",  # the last column of a table
    re.MULTILINE | re.DOTALL,
)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code(page: Path) -> Iterator[tuple[int, str, str]]:
    """(line, language, text) of each piece of code, from top to bottom."""
    text = page.read_text()
    for found in CODE.finditer(text):
        kind = "cell" if found["cell"] else "block"
        line = text[: found.start(kind)].count("\n")
        yield line, "python" if found["cell"] else found["language"], found[kind]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, where the repository's recipes can be named as in a clone."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "serving.md"], ids=name)  # tests/serve has it
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for line, language, text in code(page):
        if language == "python":
            exec(compile("\n" * line + text, str(page), "exec"), names)
        elif language == "sh":
            for command in text.replace("\\\n", "").splitlines():
                run(shlex.split(command, comments=True), monkeypatch)
        elif language == "toml":
            Recipe.model_validate(tomllib.loads(text))
        else:
            assert language == "", f"{page}:{line} how should {language} be run?"


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command. Trainings are only read; `make` targets and examples have tests of their own."""
    match words:
        case []:
            pass
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python", script]:
            assert (ROOT / script).parent == ROOT / "examples"
            assert (ROOT / script).is_file()
        case ["armillary", "train", recipe, *settings]:
            assert settings[::2] == ["--set"] * (len(settings) // 2)
            read_recipe(Path(recipe), settings[1::2])
        case ["armillary", *_]:
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code, shlex.join(words)
        case _:
            pytest.fail(f"how should this be run? {shlex.join(words)}")


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:armillary|docs|examples|recipes|tests)/[\w/.]*)`", page.read_text()))
    assert not {file for file in named if not (ROOT / file).exists()}


def test_the_tree_of_the_readme_exists() -> None:
    tree = next(text for _, language, text in code(ROOT / "README.md") if not language)
    top, missing = ROOT, []
    for line in tree.splitlines():
        entry = line.split()[0]
        top = top if line.startswith(" ") else ROOT
        if not (top / entry).exists():
            missing.append(entry)
        top = ROOT / entry if not line.startswith(" ") else top
    assert not missing


def test_every_part_of_the_package_has_its_sentence() -> None:
    page = (ROOT / "docs/structures.md").read_text()
    listed = "\n".join(line for line in page.splitlines() if line.startswith(("- `", "  ")))
    files = [file.relative_to(ROOT / "armillary") for file in (ROOT / "armillary").rglob("*.py")]
    parts = {f"{file.parts[0]}/" if len(file.parts) > 1 else file.name for file in files}
    assert {part for part in parts - {"__init__.py"} if f"`{part}`" not in listed} == set()


def test_the_readme_is_one_sentence_a_picture_and_two_commands_first() -> None:
    text = (ROOT / "README.md").read_text()
    places = [text.index(part) for part in ("Cosmos 3 in one", "sequence.svg", "make demo", "make test")]
    assert places == sorted(places)


def test_the_first_make_says_that_it_installs_and_for_how_long() -> None:
    make = ["make", "--dry-run", "--always-make", "demo"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 0 <= told.find("installing into .venv (about 1.5 GB, a few minutes)") < told.find("pip install")


def test_the_changelog_names_every_command() -> None:
    commands: Any = get_command(app)
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in commands.commands if f"`{name}`" not in text] == []


def test_the_page_on_training_tries_every_stage_of_the_recipe_small() -> None:
    found = re.search(
        r"^armillary train .*?folder=runs/small.*?^```$", page_on_training(), re.DOTALL | re.MULTILINE
    )
    assert found
    small = set(re.findall(r"--set (\w+)\.", found[0]))
    assert small == {stage.kind for stage in read_recipe(ROOT / "recipes/pocket.toml").stages}


def test_the_page_on_training_names_every_suite() -> None:
    assert [suite for suite in SUITES if f"`{suite}`" not in page_on_training()] == []


def page_on_training() -> str:
    return (ROOT / "docs/training.md").read_text()
