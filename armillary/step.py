"""What a caller's `on_step` is told after each denoising step.

Shape letters: T latent frames, H W latent rows and columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from armillary.media.source import Pixels


@dataclass(frozen=True)
class Step:
    """A denoising step that is done: number `step` of `of`, counted from 1 over all chunks of a long clip."""

    step: int
    of: int
    look: "Callable[[int], Pixels]" = field(repr=False, compare=False)

    def preview(self, sample: int = 0) -> "Pixels":
        """What is taking shape, uint8 RGB [T, H, W, 3]: one pixel a latent, computed when asked for.

        It shows the chunk that is being drawn, of the sample of that number; a linear map, no decoding.
        """
        return self.look(sample)


OnStep: TypeAlias = Callable[[Step], Any]  # False, or alike, cancels; None goes on
