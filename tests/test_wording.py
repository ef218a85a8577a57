"""Texts that are read in place of a prompt: controls, verbatim prompts, three styles of negatives."""

from typing import Any

import pytest

from armillary.wording import Wording

CLIP: dict[str, Any] = {"frames": 189, "fps": 24.0, "height": 720, "width": 1280}
PICTURE: dict[str, Any] = {"frames": 1, "fps": 24.0, "height": 960, "width": 960}


def test_controls_are_named_after_the_prompt() -> None:
    prompt, _ = Wording("A disc.").texts(**CLIP, hints=("edge", "depth"))
    assert "This video is of 720x1280 resolution. Follow the edge, depth control video precisely: " in prompt
    assert prompt.endswith("must align with the edge, depth signal at every frame.")


def test_a_verbatim_prompt_goes_as_it_is() -> None:
    assert Wording("A disc.", verbatim=True).texts(**CLIP, hints=("edge",))[0] == "A disc."


@pytest.mark.parametrize(
    ("style", "want"),
    [
        ("inverse", "Blurred. This image is not of 960x960 resolution."),
        ("same", "Blurred. This image is of 960x960 resolution."),
        ("plain", "Blurred."),
    ],
)
def test_a_negative_has_three_styles(style: Any, want: str) -> None:
    assert Wording("A disc.", "Blurred.", style).texts(**PICTURE)[1] == want


def test_a_structured_negative_gets_sentences_too() -> None:
    _, negative = Wording("A disc.", '{"a": 1}', "same").texts(**PICTURE)
    assert negative == '{"a": 1}. This image is of 960x960 resolution.'
