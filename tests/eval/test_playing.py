"""The policy in closed loop: every start is judged by the world itself, and the film shows both rollouts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import armillary.cli.tools
from armillary.cli import app
from armillary.eval import playing
from armillary.eval.playing import MOVES, Sight, alone, at_random, film, judged, play
from armillary.loading import load
from armillary.media import read_clip
from armillary.robots import Actions
from armillary.sim import episode
from armillary.world import World


@pytest.fixture(scope="module")
def world(untrained: Path) -> World:
    return load(untrained, device="cpu")


def expert(seen: Sight) -> Actions:
    """What the scripted expert does from the start of whichever test episode this is."""
    for number in range(4):
        e = episode("push", number, split="test")
        if e.instruction == seen.instruction and (e.picture() == seen.picture).all():
            assert e.actions is not None
            return Actions(e.actions, "tabletop", 8.0)
    raise AssertionError("the expert reaches every start in one chunk")


def still(_seen: Sight) -> Actions:
    return Actions(np.zeros((8, 2), np.float32), "tabletop", 8.0)


def test_the_expert_succeeds_and_standing_still_does_not() -> None:
    good, bad = [*play(expert, range(4))], [*play(still, range(4))]
    assert all(game.success and game.moves <= 8 for game in good)
    assert not any(game.success for game in bad)
    assert all(game.moves == MOVES and len(game.real) == MOVES + 1 for game in bad)
    assert [game.instruction for game in good] == [
        episode("push", i, split="test").instruction for i in range(4)
    ]


def test_decisions_have_seeds_of_their_own() -> None:
    seeds: list[int] = []

    def player(seen: Sight) -> Actions:
        seeds.append(seen.seed)
        return still(seen)

    assert len([*play(player, range(3))]) == 3
    assert len(seeds) == 6
    assert min(np.diff(seeds)) >= 64


def test_the_film_shows_what_was_imagined_beside_what_was(world: World) -> None:
    (game,) = play(alone(world, show=True), [0])
    assert game.imagined.shape == game.real.shape
    shown = film([game])
    assert len(shown.frames) == len(game.real) + 8
    assert (shown.frames[0][-100:, :264] != shown.frames[5][-100:, :264]).any()


def test_a_random_choice_takes_one_of_the_candidates_that_are_judged(world: World) -> None:
    e = episode("push", 0, split="test")
    seen = Sight(e.picture(), e.instruction or "", ("Which way does the red disc go?", "right"), 7)
    best, blind = judged(world, 3)(seen), at_random(world, 3)(seen)
    seeds = [c["seed"] for c in best.receipt["choice"]["candidates"]]
    assert seeds == [7, 8, 9]
    assert blind.receipt["used"]["seed"] in seeds
    assert blind.clip is None


def test_the_command_writes_a_film_and_prints_success(untrained: Path, tmp_path: Path) -> None:
    film_path = tmp_path / "played.mp4"
    options = ["--policy", str(untrained), "--episodes", "1", "--candidates", "2", "-o", str(film_path)]
    done = CliRunner().invoke(app, ["simulate", *options])
    assert done.exit_code == 0, done.output
    for name in ("the best of 2, judged: success", "one candidate: success", "a random one of 2: success"):
        assert name in done.stdout
    assert len(read_clip(film_path).frames) > 8


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """`simulate --policy` without a model: all players do nothing."""
    monkeypatch.setattr(armillary.cli.tools, "load_world", lambda *_, **__: None)
    monkeypatch.setattr(playing, "alone", lambda *_, **__: still)


@pytest.mark.usefixtures("stands_still")
def test_each_game_is_told_and_no_film_is_made_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["simulate", "--policy", "any", "--episodes", "2"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "one candidate: success 0.00 (0.00 to 0.66, n = 2)\n"
    told = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in told] == ["0", "1"]
    assert all(line.endswith("failed after 16 moves") for line in told)
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("stands_still")
def test_a_film_shows_the_first_games_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = CliRunner().invoke(app, ["simulate", "--help"]).stdout
    assert f"the first {playing.FILMED} games" in " ".join(told.split())
    monkeypatch.setattr(playing, "FILMED", 1)
    path = tmp_path / "played.mp4"
    done = CliRunner().invoke(app, ["simulate", "--policy", "any", "--episodes", "2", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert len(read_clip(path).frames) == MOVES + 1 + 8


@pytest.mark.usefixtures("stands_still")
def test_results_are_told_even_if_the_film_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_games: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(playing, "film", full)
    path = tmp_path / "played.mp4"
    done = CliRunner().invoke(app, ["simulate", "--policy", "any", "--episodes", "1", "-o", str(path)])
    assert done.exit_code == 1
    assert "one candidate: success 0.00" in done.stdout
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["-o", "/proc/x.mp4"], "output='/proc/x.mp4'"),
        (["-o", f"{'x' * 300}.mp4"], "output='xxx"),
        (["-o", "/dev/null/x.mp4"], "output='/dev/null/x.mp4'"),
        (["--seed", "99999999999999999999999999"], "seed=99999999999999999999999999:"),
        (["--episodes", "99999999999999999999999999"], "episodes=99999999999999999999999999:"),
    ],
)
def test_what_cannot_be_played_or_filmed_is_refused_first(
    options: list[str], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armillary.cli.tools, "load_world", lambda *_, **__: pytest.fail("loaded"))
    done = CliRunner().invoke(app, ["simulate", "--policy", "pocket", *options])
    assert done.exit_code == 2, done.output
    assert f"armillary: {field}" in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--kind", "push"], "output=None: name a folder to make"),
        (["--episodes", "3", "-o", "data"], "episodes=3: counts with --policy only"),
        (["--candidates", "3", "-o", "data"], "candidates=3: counts with --policy only"),
        (["--policy", "pocket", "--kind", "push", "-o", "a.mp4"], "leave it out with --policy"),
        (["--policy", "pocket", "--count", "3", "-o", "a.mp4"], "count=3: makes data sets"),
        (["--policy", "pocket", "-o", "folder"], "clips end in .mp4 or .gif"),
    ],
)
def test_options_of_the_other_half_are_refused(options: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *options])
    assert done.exit_code == 2
    assert named in done.stderr
