"""A checkpoint by its hub name: only what is needed comes, and what may pass is tried again."""

import fnmatch
import shutil
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

from armillary import load
from armillary.errors import BadRequest
from armillary.locate import POCKET, TRIES

NAME = "somebody/pocket"


class Hub:
    """Pocket behind a hub name: gives what is asked for, after the troubles it was given."""

    def __init__(self, folder: Path, troubles: list[Exception]) -> None:
        self.folder, self.troubles, self.calls = folder, troubles, 0

    def snapshot_download(self, name: str, *, allow_patterns: list[str]) -> str:
        assert name == NAME
        self.calls += 1
        if self.troubles:
            raise self.troubles.pop(0)
        for file in (f for f in POCKET.rglob("*") if f.is_file()):
            place = file.relative_to(POCKET)
            if any(fnmatch.fnmatch(place.as_posix(), pattern) for pattern in allow_patterns):
                (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.folder / place)
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "snapshot", [])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr("armillary.locate.PAUSE", 0.0)
    return made


def answer(status: int) -> Exception:
    response: Any = httpx2.Response(status, request=httpx2.Request("GET", "https://hub"))
    kind = {401: errors.GatedRepoError, 404: errors.RepositoryNotFoundError}.get(
        status, errors.HfHubHTTPError
    )
    return kind("no", response=response)


def test_the_folder_and_the_name_are_the_same(hub: Hub) -> None:
    asked: Any = {"prompt": "a red disc", "frames": 1, "steps": 1}
    named, local = load(NAME, device="cpu"), load("pocket", device="cpu")
    assert (named.generate(**asked).frames == local.generate(**asked).frames).all()
    assert named.facts.digest == local.facts.digest
    assert hub.calls == 1


def test_a_reasoner_never_touches_the_autoencoders(hub: Hub) -> None:
    world = load(NAME, device="cpu", want=("sight",))
    assert not [*hub.folder.glob("vae/*.safetensors"), *hub.folder.glob("sound_tokenizer/*.safetensors")]
    assert world.parts.video is None
    assert (
        world.reason("What is this?", max_tokens=3).text
        == load("pocket", device="cpu").reason("What is this?", max_tokens=3).text
    )
    with pytest.raises(BadRequest, match="video autoencoder"):
        world.generate("a disc")


@pytest.mark.parametrize(
    "trouble",
    [
        answer(503),
        answer(429),
        httpx2.ConnectError("no route"),
        httpx2.ReadTimeout("slow"),
        ConnectionResetError(),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(hub: Hub, trouble: Exception) -> None:
    hub.troubles = [trouble] * (TRIES - 1)
    assert load(NAME, device="cpu", memory="stream", want=()).facts.model == NAME
    assert hub.calls == TRIES
    hub.troubles = [trouble] * TRIES
    with pytest.raises(BadRequest, match=r"^model='somebody/pocket'"):
        load(NAME, device="cpu")


@pytest.mark.parametrize(
    ("status", "named"), [(401, "accept terms"), (404, "no such repository"), (403, "no")]
)
def test_what_will_not_pass_is_not_tried_again(hub: Hub, status: int, named: str) -> None:
    hub.troubles = [answer(status)] * TRIES
    with pytest.raises(BadRequest, match=named):
        load(NAME, device="cpu")
    assert hub.calls == 1
