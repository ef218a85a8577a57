"""What is asked in words, and the texts that the AR tower reads instead."""

from collections.abc import Sequence
from dataclasses import dataclass

from armillary.prompts import with_metadata, with_sentences
from armillary.requests import NegativeStyle

FOLLOW = (
    "Follow the {hints} control video precisely: shape, contour, silhouette, position, and motion of every "
    "visible structure must align with the {hints} signal at every frame."
)


@dataclass(frozen=True)
class Wording:
    """A prompt, and how it is said.

    negative_style: what follows the negative: the denials of the sentences about duration and size, the
    sentences themselves, or nothing. system: None is the checkpoint's own sentence, "" is none. verbatim: the
    prompt goes as it is, nothing is added.
    """

    prompt: str
    negative: str = ""
    negative_style: NegativeStyle = "inverse"
    system: str | None = None
    verbatim: bool = False

    def texts(
        self, *, frames: int, fps: float, height: int, width: int, hints: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Prompt and negative as the AR tower reads them; hints: what controls the clip, such as "edge"."""
        prompt, negative = self.prompt, self.negative
        if not self.verbatim:
            prompt = with_metadata(prompt, frames=frames, fps=fps, height=height, width=width)
            prompt = f"{prompt} {FOLLOW.format(hints=', '.join(hints))}" if hints else prompt
        if self.negative_style != "plain":
            denied = self.negative_style == "inverse"
            negative = with_sentences(
                negative, frames=frames, fps=fps, height=height, width=width, denied=denied
            )
        return prompt, negative
