"""What a full disk, a kill or a hand left damaged is told in one sentence; training itself leaves none."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.alone import alone
from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest
from armillary.shards import write_json
from armillary.train import cache, files
from armillary.train.audio import pocket_audio_config
from armillary.train.generator import STATISTICS, keep_statistics, latent_statistics
from armillary.train.layout import build_tokenizer, write_tokenizer
from armillary.train.recipe import Recipe, TokenizerStage
from armillary.train.stages import Run, run, tokenizer_stage
from armillary.train.video import pocket_video_config

WORDS = TokenizerStage(kind="tokenizer", episodes=1)


def quiet(_: str) -> None:
    pass


@pytest.fixture
def here(tmp_path: Path) -> Run:
    return Run(Recipe(folder=tmp_path / "run", stages=(WORDS,)), quiet)


@pytest.fixture(scope="module")
def codecs() -> tuple[WanVAE, AudioVAE]:
    return WanVAE(pocket_video_config()), AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From now on the disk takes half of what it is given."""
    real = Path.write_bytes

    def write(path: Path, data: Any) -> int:
        real(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    return monkeypatch


def test_a_full_disk_is_told_by_the_files_name_and_leaves_the_old_file_alone(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pt"
    path.write_text("old")
    with pytest.raises(OSError, match=r"No space left on device: '.*state\.pt'"):
        files.save({"average": torch.zeros(100)}, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", range(0, 20000, 1000))
def test_a_file_cut_anywhere_is_damaged(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "state.pt"
    files.save({"average": torch.zeros(50, 100)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    for peek in (False, True):
        with pytest.raises(BadRequest, match=r"state=.*state\.pt': is damaged"):
            files.read(path, "state", peek=peek)


def test_a_tokenizer_that_a_full_disk_stopped_is_made_at_the_next_start(
    here: Run, full: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No space left"):
        tokenizer_stage(here, WORDS)
    full.undo()
    assert not list(here.folder.rglob("*.partial"))
    tokenizer_stage(here, WORDS)
    assert here.codec().encode("a disc")


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", '{"version": "1.0", "trun'), ("tokenizer.json", "{}"), ("tokenizer_config.json", "")],
)
def test_a_damaged_tokenizer_is_named(here: Run, name: str, content: str) -> None:
    folder = here.checkpoint / "text_tokenizer"
    write_tokenizer(build_tokenizer(["a disc"]), folder)
    (folder / name).write_text(content)
    with pytest.raises(BadRequest, match=r"tokenizer=.*text_tokenizer': is damaged; remove it"):
        tokenizer_stage(here, WORDS)


@pytest.mark.parametrize("average", [3, {"weight": torch.zeros(2)}, {1: 2}])
@pytest.mark.parametrize(
    ("stage", "take"),
    [("video", Run.video), ("audio", Run.audio), ("sight", lambda here: here.towers("sight"))],
)
def test_a_state_of_another_model_is_named_by_the_stage_that_takes_it(
    here: Run, stage: str, take: Callable[[Run], object], average: object
) -> None:
    path = here.folder / stage / "state.pt"
    files.save({"average": average}, path)
    with pytest.raises(BadRequest, match=r"state=.*state\.pt': is the state of another model"):
        take(here)


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadRequest, match=r"folder=.*: is a file, or lies in one; name a folder"):
        run(Recipe(folder=tmp_path / "taken" / below, stages=(WORDS,)), quiet)


def test_a_recipe_is_carried_out_by_one_process_at_a_time(tmp_path: Path) -> None:
    begun = tmp_path / "checkpoint.partial"
    begun.mkdir()
    with alone(tmp_path), pytest.raises(BadRequest, match="another process works in this folder"):
        run(Recipe(folder=tmp_path, start="pocket", stages=(WORDS,)), quiet)
    assert begun.exists()


def test_a_larger_count_fills_a_cache_up_and_keeps_what_is_whole(
    tmp_path: Path, codecs: tuple[WanVAE, AudioVAE], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CHUNK", 2)
    cache.fill(tmp_path, "still", 3, *codecs, tell=quiet)
    told = list[str]()
    cache.fill(tmp_path, "still", 5, *codecs, tell=told.append)
    assert told == ["still: 4 of 5 episodes encoded", "still: 5 of 5 episodes encoded"]
    assert cache.load(tmp_path, ("still",)).seeds == [0, 1, 2, 3, 4]
    cache.fill(tmp_path, "still", 3, *codecs, tell=told.append)
    assert len(told) == 2


@pytest.mark.parametrize("content", [b"", b"latents", None])
def test_a_damaged_chunk_is_named(
    tmp_path: Path, codecs: tuple[WanVAE, AudioVAE], content: bytes | None
) -> None:
    cache.fill(tmp_path, "still", 1, *codecs, tell=quiet)
    path = tmp_path / "still-0000000.pt"
    path.write_bytes(path.read_bytes()[:-500] if content is None else content)
    for use in (
        lambda: cache.load(tmp_path, ("still",)),
        lambda: cache.fill(tmp_path, "still", 1, *codecs, tell=quiet),
    ):
        with pytest.raises(BadRequest, match=r"cache=.*still-0000000\.pt': is damaged"):
            use()


def test_a_chunk_whose_parts_differ_in_length_or_are_of_an_older_form_is_named(
    tmp_path: Path, codecs: tuple[WanVAE, AudioVAE]
) -> None:
    cache.fill(tmp_path, "still", 2, *codecs, tell=quiet)
    path = tmp_path / "still-0000000.pt"
    content = files.read(path, "cache")
    files.save({**content, "seeds": [0]}, path)
    with pytest.raises(BadRequest, match=r"still-0000000\.pt': is damaged"):
        cache.load(tmp_path, ("still",))
    for older in ({"kinds": ["still"]}, {**content, "seeds": 3}, [1]):
        files.save(older, path)
        with pytest.raises(BadRequest, match=r"still-0000000\.pt is of an older form"):
            cache.load(tmp_path, ("still",))


def test_a_cache_without_a_kind_says_which_and_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no episodes of kind 'push': the stage 'cache' must come first"):
        latent_statistics(tmp_path / "absent")


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"mean": 3, "std": 4},
        {"mean": [0.0] * 8, "std": ["wide"] * 8},
        {"mean": [0.0] * 8, "std": [1.0] * 7},
        {"mean": [0.0] * 8, "std": [0.0] * 8},
        {"mean": [float("nan")] * 8, "std": [1.0] * 8},
        {"mean": [10**400] * 8, "std": [1.0] * 8},
    ],
)
def test_damaged_statistics_of_a_cache_are_named(tmp_path: Path, kept: dict[str, Any]) -> None:
    write_json(kept, tmp_path / STATISTICS)
    with pytest.raises(BadRequest, match=r"statistics\.json': must hold a mean and a std above zero"):
        latent_statistics(tmp_path)


def test_statistics_are_read_as_they_were_kept(tmp_path: Path) -> None:
    keep_statistics(tmp_path, [0.5] * 8, [2.0] * 8)
    assert latent_statistics(tmp_path) == ((0.5,) * 8, (2.0,) * 8)
