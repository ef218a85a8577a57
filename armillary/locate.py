"""Where a checkpoint lies, and what it is computed on: names that people give, made plain."""

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from armillary import arguments
from armillary.errors import BadRequest
from armillary.weights import is_reasoner

POCKET = Path(__file__).parent / "pocket" / "checkpoint"
PARTS = ("transformer", "vision_encoder", "vae", "sound_tokenizer", "text_tokenizer", "scheduler")
JSON_FILES = ["*.json", "*.jinja", *(f"{part}/*.json" for part in PARTS), "text_tokenizer/*"]
TEXT_FILES = [*JSON_FILES, "model.safetensors", "model-*.safetensors", "*.txt"]  # and a reasoner alone
ALL_FILES = [*TEXT_FILES, *(f"{part}/*.safetensors" for part in PARTS)]
TRIES, PAUSE = 4, 1.0  # of a download that breaks off; seconds before the second, doubled each time
NOT_YET = (408, 429)  # too slow, too many: of the answers 400 to 499 those that may change
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


FOLDERS = {"sight": "vision_encoder", "video": "vae", "audio": "sound_tokenizer"}


def locate(source: str | os.PathLike[str], *, files: Sequence[str] = ALL_FILES) -> tuple[str, Path]:
    """The name of a checkpoint and its folder; from the hub only `files` (patterns). Raises BadRequest."""
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
        raise BadRequest("model", source, "must be pocket, a folder, or a hub name, as text or a path")
    name, folder = os.fspath(source), POCKET if source == "pocket" else Path(source)
    if os.path.exists(folder):  # noqa: PTH110 - False for names no disk can hold
        if (folder / "model_index.json").is_file() or is_reasoner(folder):
            return name, folder
        raise BadRequest("model", name, "this folder is no checkpoint: it has no model_index.json")
    if source == "pocket":
        raise BadRequest(
            "model", name, "not in this installation; `armillary train recipes/pocket.toml` makes it"
        )
    owner, _, repository = name.partition("/")
    if isinstance(source, str) and owner.strip(".~") and repository and "/" not in repository:
        return name, _download(name, files)
    raise BadRequest("model", name, "neither pocket, nor a folder, nor a hub name like nvidia/Cosmos3-Nano")


def check_want(parts: Collection[str]) -> None:
    """Raises BadRequest for what is no part that comes beside the towers."""
    if isinstance(parts, str) or not isinstance(parts, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadRequest("want", arguments.kind(parts), f"must be a list of {', '.join(FOLDERS)}")
    for part in parts:
        arguments.one_of(part, "want", tuple(FOLDERS))


def files_for(parts: Collection[str]) -> list[str]:
    """What is needed of a repository for the towers and some further parts: sight, video, audio."""
    return [*TEXT_FILES, "transformer/*.safetensors", *(f"{FOLDERS[part]}/*.safetensors" for part in parts)]


def _download(name: str, files: Sequence[str]) -> Path:
    from huggingface_hub import errors

    try:
        return _fetch(name, files)
    except errors.GatedRepoError:
        reason = "its owner asks you to accept terms first: do so on its page, then run `hf auth login`"
    except errors.RepositoryNotFoundError:
        reason = "the hub has no such repository, or hides it: check the name, or run `hf auth login`"
    except errors.LocalEntryNotFoundError:
        reason = "the hub cannot be reached and no download is kept here; pocket needs no network"
    except (errors.HFValidationError, OSError) as error:
        reason = f"it cannot be downloaded: {error}"
    except Exception as error:
        if not _may_pass(error):
            raise
        reason = f"the connection to the hub broke off {TRIES} times ({error}); what came is kept, try again"
    raise BadRequest("model", name, reason)


def _fetch(name: str, files: Sequence[str]) -> Path:
    """The files, asked for again while what goes wrong may pass; what was fetched before is kept."""
    from huggingface_hub import snapshot_download

    for again in range(TRIES - 1):
        try:
            return Path(snapshot_download(name, allow_patterns=list(files)))
        except Exception as error:
            if not _may_pass(error):
                raise
        time.sleep(PAUSE * 2**again)
    return Path(snapshot_download(name, allow_patterns=list(files)))


def _may_pass(error: Exception) -> bool:
    """Whether asking again may help: a broken connection or a busy hub, no refusal and no missing file."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status >= 500 or status in NOT_YET
    kinds = {kind.__name__ for kind in type(error).__mro__}  # of whichever HTTP library the hub's client uses
    return bool(kinds & {"TransportError", "ConnectionError", "TimeoutError"})


def find_device(name: str) -> torch.device:
    """ "auto" is the GPU if there is one. Raises BadRequest for a device that is not usable here."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
        raise BadRequest("device", arguments.kind(name), "must be auto, cpu or cuda, as text")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadRequest("device", name, f"not usable here ({str(error).splitlines()[0]}); try cpu") from None
    return device


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 on a GPU and float32 on a CPU. Raises BadRequest for other names than DTYPES'."""
    arguments.one_of(name, "dtype", ("auto", *DTYPES))
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]
