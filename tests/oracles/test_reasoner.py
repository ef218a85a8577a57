"""The reasoner against transformers: logits and greedy tokens of conversations, on fabricated checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from armillary.decode import Sampling
from armillary.media import Clip
from armillary.sequence import Sample, pack
from armillary.tasks.messages import Conversation, converse
from armillary.tasks.parts import Parts, load_parts
from tests.decoding import decode
from tests.oracles.fabricate import MAKE, VARIANTS, transformers_reasoner


def picture(height: int, width: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def show(*sizes: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"type": "image", "image": picture(h, w, h * w)} for h, w in sizes]


def clip(frames: int, fps: float, seed: int) -> dict[str, Any]:
    frames_THW3 = np.stack([picture(24, 32, seed + i) for i in range(frames)])
    return {"type": "video", "video": Clip(frames_THW3, fps)}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


CHATS: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "system", "content": "Be brief."}, user(say("Where is the red disc?"))],
    "picture": [user(*show((24, 40)), say("What is this?"))],
    "three pictures": [user(*show((24, 40), (64, 64), (16, 90)), say("Which is red?"))],
    "clip": [user(clip(9, 8.0, 5), say("What happens?"))],
    "two turns": [
        user(say("See this: "), *show((33, 47)), say("and this: "), clip(5, 3.0, 7), say("What changed?")),
        {"role": "assistant", "content": "The disc moved."},
        user(*show((20, 24)), clip(4, 2.0, 11), say("And now?")),
    ],
}


@pytest.fixture(scope="module", params=["nano", "edge"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Parts, Any]]:
    folder: Path = MAKE[request.param](tmp_path_factory.mktemp(request.param))
    parts = load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=["sight"])
    yield parts, transformers_reasoner(folder)
    transformers_reasoner.cache_clear()


def as_transformers(parts: Parts, talk: Conversation) -> dict[str, Tensor]:
    """The same ids and patches, in the arguments of transformers' models."""
    ids_1A = talk.context.ids_A[None]
    image, video = (ids_1A == parts.text.special(f"<|{kind}_pad|>") for kind in ("image", "video"))
    given = {"input_ids": ids_1A, "mm_token_type_ids": image.int() + 2 * video.int()}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        seen = [s.patches for s in talk.seen if s.receipt["kind"] == kind]
        if seen:
            given[pixels] = torch.cat([p.pixels_NP for p in seen])
            given[grid] = torch.tensor([p.grid for p in seen])
    return given


@torch.no_grad()
def logits(parts: Parts, messages: list[dict[str, Any]]) -> Tensor:
    """Ours of every token of a conversation, [A, V]."""
    hidden_AE = parts.network.read(pack([Sample(converse(parts, messages).context)])).hidden_AE
    assert hidden_AE is not None
    return parts.network.logits(hidden_AE)


@torch.no_grad()
def logits_of_transformers(parts: Parts, theirs: Any, messages: list[dict[str, Any]]) -> Tensor:
    """Theirs of the same tokens and pixels."""
    return theirs(**as_transformers(parts, converse(parts, messages))).logits[0]


@pytest.mark.parametrize("case", CHATS)
def test_logits_equal_those_of_transformers(both: tuple[Parts, Any], case: str) -> None:
    parts, theirs = both
    got_AV, want_AV = logits(parts, CHATS[case]), logits_of_transformers(parts, theirs, CHATS[case])
    assert (got_AV - want_AV).abs().max() / want_AV.abs().max() <= 1e-5


@pytest.mark.parametrize("kind", VARIANTS)
def test_logits_of_what_was_saved_equal_those_of_transformers(
    written: Callable[[str], tuple[Path, Path]], kind: str
) -> None:
    before, saved = written(kind)
    parts = load_parts(before, device=torch.device("cpu"), dtype=torch.float32, want=["sight"])
    theirs = transformers_reasoner(saved, sees=parts.checkpoint.sees)
    for case in ("text", "picture", "clip") if parts.checkpoint.sees else ("text",):
        got_AV, want_AV = logits(parts, CHATS[case]), logits_of_transformers(parts, theirs, CHATS[case])
        assert (got_AV - want_AV).abs().max() / want_AV.abs().max() <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("case", CHATS)
def test_greedy_tokens_equal_those_of_transformers(both: tuple[Parts, Any], case: str) -> None:
    parts, theirs = both
    talk = converse(parts, CHATS[case])
    theirs.generation_config.eos_token_id = None
    given = as_transformers(parts, talk)
    want = theirs.generate(
        **given,
        attention_mask=torch.ones_like(given["input_ids"]),
        max_new_tokens=64,
        do_sample=False,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
    )
    ours = decode(parts.network, talk.context, sampling=Sampling(max_tokens=64), eos=())
    assert [t.id for t in ours] == want[0, len(talk.context) :].tolist()


@torch.no_grad()
def test_another_picture_gives_other_logits(both: tuple[Parts, Any]) -> None:
    """The equalities above are not those of a model that sees nothing."""
    parts, _ = both
    pictures = [[{"type": "image", "image": picture(24, 40, seed)}, say("What?")] for seed in (1, 2)]
    talks = [converse(parts, [user(*content)]) for content in pictures]
    first, second = (parts.network.read(pack([Sample(t.context)])).hidden_AE for t in talks)
    assert first is not None
    assert second is not None
    assert torch.equal(talks[0].context.ids_A, talks[1].context.ids_A)
    assert (first[-1] - second[-1]).abs().max() > 1e-2
