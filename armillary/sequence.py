"""The packed sequence: what the model reads (contexts) and what it draws (segments).

A *context* is the causal AR side of one sample; *segments* are its modalities on the DM side, already in
token space;
a *sample* is both; a *pack* lays samples end to end. DM tokens attend to everything of their sample and
carry explicit
positions, so a segment needs no place in the sequence and there are no index tensors.

Shape letters: A = AR tokens, D = DM tokens, N = tokens of one segment, M = noisy tokens of it, F = numbers
in a token,
E = width, S = samples, V = visual tokens, 3 = the mRoPE axes (time, height, width).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor

Kind = Literal["vision", "sound", "action"]
Apart = tuple[tuple[int, float], ...]  # tokens of segments that do not see one another, and their weights


@dataclass(frozen=True)
class Visual:
    """What the vision tower saw: features that take the place of placeholder tokens, and its deepstack
    layers."""

    rows_V: Tensor  # int64, the places of the placeholder tokens in the context
    features_VE: Tensor
    deepstack: tuple[Tensor, ...] = ()  # each [V, E]; layer k is added after block k


@dataclass(frozen=True)
class Context:
    """The AR side of one sample: causal, clean, blind to the DM side and to time."""

    ids_A: Tensor  # int64
    positions_3A: Tensor  # float32
    end: int  # the first free temporal position: DM tokens start at end + margin
    visual: Visual | None = None

    def __len__(self) -> int:
        return self.ids_A.shape[0]


@dataclass(frozen=True)
class Segment:
    """One modality on the DM side. Clean tokens are constants that condition; noisy ones are drawn."""

    kind: Kind
    tokens_NF: Tensor
    noisy_N: Tensor  # bool, True where the model must predict
    positions_3N: Tensor  # float32, relative to the start of the DM side
    valid_NF: Tensor | None = None  # bool, False where the numbers are padding and stay zero
    domain: int = 0  # the robot body whose action port is used
    rows_M: Tensor = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType] - derived from noisy_N

    def __post_init__(self) -> None:
        if self.rows_M is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "rows_M", self.noisy_N.nonzero()[:, 0])

    def __len__(self) -> int:
        return self.tokens_NF.shape[0]

    @property
    def noisy_size(self) -> int:
        """How many numbers of this segment the sampler moves."""
        return self.rows_M.shape[0] * self.tokens_NF.shape[1]

    def with_noisy(self, values_MF: Tensor) -> Self:
        """The same segment with other numbers in its noisy tokens."""
        return replace(
            self, tokens_NF=self.tokens_NF.to(values_MF.dtype).index_copy(0, self.rows_M, values_MF)
        )

    def mask(self, values_MF: Tensor) -> Tensor:
        """Zero what is padding in values of the noisy tokens."""
        return values_MF if self.valid_NF is None else values_MF * self.valid_NF[self.rows_M]


@dataclass(frozen=True)
class Sample:
    """A context and what is drawn after it.

    weights: with them the leading segments, one each, do not see one another: every other token attends to
    each of them apart, and the answers are added up by weight. They sum to 1.
    """

    context: Context
    segments: tuple[Segment, ...] = ()
    weights: tuple[float, ...] = ()

    def __len__(self) -> int:
        return sum(len(s) for s in self.segments)

    @property
    def sizes(self) -> list[int]:
        """The noisy numbers of each segment: how `state` splits."""
        return [s.noisy_size for s in self.segments]

    def state(self) -> Tensor:
        """The sampler's state: the noisy numbers of every segment as one flat fp32 vector."""
        return torch.cat([s.tokens_NF[s.rows_M].float().flatten() for s in self.segments])

    def with_state(self, state: Tensor) -> "Sample":
        """The inverse of `state`."""
        parts = state.split(self.sizes)
        segments = (
            s.with_noisy(x.view(-1, s.tokens_NF.shape[1])) for s, x in zip(self.segments, parts, strict=True)
        )
        return replace(self, segments=tuple(segments))


@dataclass(frozen=True)
class Pack:
    """Samples laid end to end: every AR token of the pack, then every DM token."""

    samples: tuple[Sample, ...]

    @cached_property
    def lengths_A(self) -> tuple[int, ...]:
        return tuple(len(s.context) for s in self.samples)

    @cached_property
    def lengths_D(self) -> tuple[int, ...]:
        return tuple(len(s) for s in self.samples)

    @cached_property
    def ids_A(self) -> Tensor:
        return torch.cat([s.context.ids_A for s in self.samples])

    @cached_property
    def positions_3A(self) -> Tensor:
        return torch.cat([s.context.positions_3A for s in self.samples], dim=1)

    @property
    def segments(self) -> list[Segment]:
        return [segment for s in self.samples for segment in s.segments]

    @cached_property
    def apart(self) -> tuple[Apart, ...]:
        """Of each sample: how many tokens its weighted segments have, each with its weight."""
        return tuple(
            tuple((len(g), w) for g, w in zip(s.segments, s.weights, strict=False)) for s in self.samples
        )

    def positions_3D(self, margin: int) -> Tensor:
        """Positions of every DM token: all segments of a sample start together, `margin` after its
        context."""
        placed = [_later(g.positions_3N, s.context.end + margin) for s in self.samples for g in s.segments]
        return torch.cat(placed, dim=1)

    def visual(self) -> Visual | None:
        """What the vision tower saw in the whole pack, its rows counted from the start of the pack."""
        starts = [sum(self.lengths_A[:i]) for i in range(len(self.samples))]
        seen = [(a, s.context.visual) for a, s in zip(starts, self.samples, strict=True) if s.context.visual]
        if not seen:
            return None
        depth = max(len(v.deepstack) for _, v in seen)
        rows = torch.cat([v.rows_V + start for start, v in seen])
        deep = tuple(torch.cat([v.deepstack[k] for _, v in seen]) for k in range(depth))
        return Visual(rows, torch.cat([v.features_VE for _, v in seen]), deep)


def pack(samples: Sequence[Sample]) -> Pack:
    return Pack(tuple(samples))


def text_context(ids_A: Tensor) -> Context:
    """A context of text alone: token n stands at n on every axis."""
    count = ids_A.shape[0]
    positions = torch.arange(count, dtype=torch.float32, device=ids_A.device)
    return Context(ids_A, positions.expand(3, -1), count)


def grid_positions(
    grid: tuple[int, int, int], *, per_step: tuple[float, float] | None = None, first: int = 0
) -> Tensor:
    """Relative mRoPE positions [3, T*H*W] of a (time, height, width) grid, time slowest.

    `per_step` = (a, b) spaces time by 1/a*b (steps a second, position units a second), computed in the
    order that the
    published model was trained with, to the last bit; None means one unit a step. `first` is the number of
    the first step.
    """
    t, h, w = (torch.arange(n, dtype=torch.float32) for n in grid)
    t = t + first if per_step is None else (t + first) / per_step[0] * per_step[1]
    return torch.stack([axis.flatten() for axis in torch.meshgrid(t, h, w, indexing="ij")])


def _later(positions_3N: Tensor, start: int) -> Tensor:
    return torch.cat([positions_3N[:1] + start, positions_3N[1:]])
