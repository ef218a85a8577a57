"""Two towers, one attention: the architecture and nothing else.

Each block holds two complete sets of weights. The AR tower reads a context causally; the DM tower draws its
segments with
full attention over the context and each other. AR tokens never see DM tokens, so a context is read once for
all steps.

Shape letters: A = AR tokens, D = DM tokens, N = either, M = noisy tokens of a segment, E = width, H/K =
query/key heads,
C = head size, F = numbers in a token, S = samples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary.attention import KV, Shelf, attend, attend_apart, together
from armillary.sequence import Apart, Kind, Pack, Segment

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Config:
    """The numbers of the architecture; the defaults are Cosmos3-Nano's."""

    width: int = 4096
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    mlp: int = 12288
    vocabulary: int = 151936
    features: dict[Kind, int] = field(
        default_factory=lambda: {"vision": 192}
    )  # numbers in a token of each modality
    domains: int = 32
    gated: bool = True  # silu-gated MLP, else squared relu
    text_norm: bool = True  # the AR tower normalises its queries and keys
    shown_norm: bool = False  # the DM tower sees AR keys through a norm of their own (Edge)
    eps: float = 1e-6
    rope_theta: float = 5e6
    rope_axes: tuple[int, int, int] = (24, 20, 20)  # frequencies given to time, height, width
    margin: int = 15000  # temporal positions between context and segments
    time_scale: float = 1e-3


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the statistics in fp32 (Zhang and Sennrich 2019).

    Qwen casts before it multiplies by the weight, Nemotron (squared-relu models) after: equal in fp32, not
    in bf16.
    """

    def __init__(self, size: int, c: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.cast_first = c.eps, c.gated

    def forward(self, x: Tensor) -> Tensor:
        if self.cast_first and x.dtype != torch.float32:
            return F.rms_norm(x, self.weight.shape, None, self.eps) * self.weight
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Tower(nn.Module):
    """The weights one token stream owns in one layer."""

    def __init__(self, c: Config, *, qk_norm: bool, shown_norm: bool = False) -> None:
        super().__init__()
        inner, kv_inner = c.heads * c.head_size, c.kv_heads * c.head_size
        self.norm_in, self.norm_mlp = RMSNorm(c.width, c), RMSNorm(c.width, c)
        self.q = nn.Linear(c.width, inner, bias=False)
        self.k = nn.Linear(c.width, kv_inner, bias=False)
        self.v = nn.Linear(c.width, kv_inner, bias=False)
        self.o = nn.Linear(inner, c.width, bias=False)
        self.norm_q = RMSNorm(c.head_size, c) if qk_norm else None
        self.norm_k = RMSNorm(c.head_size, c) if qk_norm else None
        self.norm_shown = RMSNorm(c.head_size, c) if shown_norm else None
        self.gate = nn.Linear(c.width, c.mlp, bias=False) if c.gated else None
        self.up = nn.Linear(c.width, c.mlp, bias=False)
        self.down = nn.Linear(c.mlp, c.width, bias=False)
        self.head_size = c.head_size

    def forward(self, x_NE: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values, and the keys as the other tower sees them."""
        x_NE, heads = self.norm_in(x_NE), (-1, self.head_size)
        q_NHC, k_NKC, v_NKC = (layer(x_NE).unflatten(-1, heads) for layer in (self.q, self.k, self.v))
        own_NKC = rotate(self.norm_k(k_NKC) if self.norm_k else k_NKC, rope)
        shown_NKC = rotate(self.norm_shown(k_NKC), rope) if self.norm_shown else own_NKC
        return rotate(self.norm_q(q_NHC) if self.norm_q else q_NHC, rope), own_NKC, v_NKC, shown_NKC

    def finish(self, x_NE: Tensor, attended_NHC: Tensor) -> Tensor:
        """Output projection and MLP, each with its residual."""
        x_NE = x_NE + self.o(attended_NHC.flatten(-2))
        y_NE = self.norm_mlp(x_NE)
        inner = F.silu(self.gate(y_NE)) * self.up(y_NE) if self.gate else F.relu(self.up(y_NE)).square()
        return x_NE + self.down(inner)


@dataclass(frozen=True)
class Stream:
    """The tokens of one side of a pack on their way through the blocks."""

    x_NE: Tensor
    rope: Rope
    lengths: tuple[int, ...]
    apart: tuple[Apart, ...] = ()  # of the DM side: see `attend_apart`


@dataclass(frozen=True)
class Past:
    """What one block remembers of the contexts: keys and values for the AR tower, and as the DM tower sees
    them."""

    own: KV | Shelf
    shown: KV | Shelf

    def join(self, new: "Past") -> "Past":
        own = self.own.join(together(new.own))
        return Past(own, own if self.shown is self.own else self.shown.join(together(new.shown)))

    def reserve(self, room: tuple[int, ...]) -> "Past":
        own = together(self.own).reserve(room)
        return Past(own, own if self.shown is self.own else together(self.shown).reserve(room))

    def pick(self, samples: list[int]) -> "Past":
        own = together(self.own).pick(samples)
        return Past(own, own if self.shown is self.own else together(self.shown).pick(samples))


Memory = list[Past]  # one a block


class Block(nn.Module):
    """One layer of both towers. Leave out a stream and the same code reads, draws or learns."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.ar = Tower(c, qk_norm=c.text_norm, shown_norm=c.shown_norm)
        self.dm = Tower(c, qk_norm=True)

    def forward(
        self, ar: Stream | None, dm: Stream | None, past: Past | None
    ) -> tuple[Stream | None, Stream | None, Past | None]:
        if ar is not None:  # AR tokens see the past and themselves, causally
            q, k, v, shown = self.ar(ar.x_NE, ar.rope)
            own = KV.of(k, v, ar.lengths)
            new = Past(own, own if shown is k else KV.of(shown, v, ar.lengths))
            past = past.join(new) if past else new
            ar = replace(ar, x_NE=self.ar.finish(ar.x_NE, attend(q, ar.lengths, past.own, causal=True)))
        if dm is not None:  # DM tokens see the whole context and each other, fully
            q, k, v, _ = self.dm(dm.x_NE, dm.rope)
            own = KV.of(k, v, dm.lengths)
            seen = together(past.shown).join(own) if past else own
            dm = replace(dm, x_NE=self.dm.finish(dm.x_NE, attend_apart(q, dm.lengths, seen, dm.apart)))
        return ar, dm, past


class Table(nn.Embedding):
    """An embedding that starts uniform: drawing normal numbers on the meta device costs seconds at first."""

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -1.0, 1.0)


class DomainLinear(nn.Module):
    """A linear layer with its own weight [in, out] and bias for each robot body."""

    def __init__(self, n_in: int, n_out: int, domains: int) -> None:
        super().__init__()
        self.shape = (n_in, n_out)
        self.weight, self.bias = Table(domains, n_in * n_out), Table(domains, n_out)

    def forward(self, x_NF: Tensor, domain: int) -> Tensor:
        return x_NF @ self.weight.weight[domain].view(self.shape) + self.bias.weight[domain]


class Port(nn.Module):
    """Where a DM modality enters and leaves the width."""

    def __init__(self, kind: Kind, features: int, c: Config) -> None:
        super().__init__()
        self.enter: nn.Linear | DomainLinear
        self.leave: nn.Linear | DomainLinear
        if kind == "action":
            self.enter = DomainLinear(features, c.width, c.domains)
            self.leave = DomainLinear(c.width, features, c.domains)
        else:
            self.enter, self.leave = nn.Linear(features, c.width), nn.Linear(c.width, features)
        self.mark = None if kind == "vision" else nn.Parameter(torch.zeros(c.width))

    def embed(self, segments: Sequence[Segment], dtype: torch.dtype) -> list[Tensor]:
        """Each segment's tokens in the width, [N, E]."""
        parts = self._apply_to(self.enter, segments, [s.tokens_NF.to(dtype) for s in segments])
        return parts if self.mark is None else [x + self.mark for x in parts]

    def predict(self, segments: Sequence[Segment], rows_ME: list[Tensor]) -> list[Tensor]:
        """Each segment's velocity where it is noisy, fp32 [M, F]; zero on padding."""
        parts = self._apply_to(self.leave, segments, rows_ME)
        return [s.mask(v.float()) for s, v in zip(segments, parts, strict=True)]

    def _apply_to(
        self, layer: "nn.Linear | DomainLinear", segments: Sequence[Segment], parts: list[Tensor]
    ) -> list[Tensor]:
        if isinstance(layer, DomainLinear):
            if len({s.domain for s in segments}) > 1:
                return [layer(x, s.domain) for s, x in zip(segments, parts, strict=True)]
            together = layer(torch.cat(parts), segments[0].domain)
        else:
            together = layer(torch.cat(parts))
        return list(together.split([len(x) for x in parts]))


class TimeEmbedding(nn.Module):
    """Sinusoids of 256 (cosine first) and a two-layer MLP, in fp32 whatever the rest is (spec of Ho et al.
    2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, width), nn.Linear(width, width)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Go where the network goes, but not to its dtype."""

        def moved(tensor: Tensor) -> Tensor:
            there = fn(tensor)
            return there if there.dtype == tensor.dtype else tensor.to(there.device)

        return super()._apply(moved, recurse)

    def forward(self, tau_S: Tensor) -> Tensor:
        steps = torch.arange(128, dtype=torch.float32, device=tau_S.device)
        angles = tau_S.float()[:, None] * torch.exp(steps * (-torch.log(torch.tensor(10000.0)).item() / 128))
        return self.second(F.silu(self.first(torch.cat([angles.cos(), angles.sin()], dim=-1))))


@dataclass(frozen=True)
class Pass:
    """What one pass gives: AR hidden states, flat velocities a sample, and what the blocks remember of the
    contexts."""

    hidden_AE: Tensor | None
    velocities: list[Tensor]
    memory: Memory


class Network(nn.Module):
    """The whole model. `read` a pack's contexts once, `draw` its segments at each step; `forward` does both
    to learn."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.embed = Table(c.vocabulary, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm_ar, self.norm_dm = RMSNorm(c.width, c), RMSNorm(c.width, c)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)
        self.ports = nn.ModuleDict({kind: Port(kind, n, c) for kind, n in c.features.items()})
        self.time = TimeEmbedding(c.width)

    def keep_reader(self) -> None:
        """Drop the tower, heads and time embedding that draw. `read` and `logits` work as before."""
        for block in self.blocks:
            del block.dm
        del self.norm_dm, self.time
        self.ports.clear()

    def read(self, pack: Pack, memory: Memory | None = None) -> Pass:
        """Run the AR tower over the contexts, after what `memory` holds of them."""
        return self._run(pack, memory, read=True, time_S=None)

    def draw(self, pack: Pack, time_S: Tensor, memory: Memory) -> list[Tensor]:
        """Velocities at time_S (0..1000, one a sample): per sample one flat fp32 vector, laid out as
        `Sample.state`."""
        return self._run(pack, memory, read=False, time_S=time_S).velocities

    def forward(self, pack: Pack, time_S: Tensor, memory: Memory | None = None) -> Pass:
        """One joint pass of both towers."""
        return self._run(pack, memory, read=True, time_S=time_S)

    def logits(self, hidden_AE: Tensor) -> Tensor:
        return self.head(hidden_AE)

    def _run(self, pack: Pack, memory: Memory | None, *, read: bool, time_S: Tensor | None) -> Pass:
        ar = Stream(self._embed_context(pack), self.rope(pack.positions_3A), pack.lengths_A) if read else None
        dm = None
        if time_S is not None:
            rope = self.rope(pack.positions_3D(self.config.margin))
            dm = Stream(self._embed_segments(pack, time_S), rope, pack.lengths_D, pack.apart)
        visual, kept = pack.visual() if read else None, []
        for i, block in enumerate(self.blocks):
            ar, dm, past = block(ar, dm, memory[i] if memory else None)
            kept.append(past)
            if ar is not None and visual is not None and i < len(visual.deepstack):
                ar = replace(
                    ar, x_NE=ar.x_NE.index_add(0, visual.rows_V, visual.deepstack[i].to(ar.x_NE.dtype))
                )
        hidden_AE = self.norm_ar(ar.x_NE) if ar is not None else None
        return Pass(hidden_AE, self._velocities(pack, dm.x_NE) if dm is not None else [], kept)

    def _embed_context(self, pack: Pack) -> Tensor:
        x_AE, visual = self.embed(pack.ids_A), pack.visual()
        return (
            x_AE if visual is None else x_AE.index_copy(0, visual.rows_V, visual.features_VE.to(x_AE.dtype))
        )

    def _embed_segments(self, pack: Pack, time_S: Tensor) -> Tensor:
        segments, dtype = pack.segments, self.head.weight.dtype
        parts: list[Tensor] = [torch.empty(0)] * len(segments)
        for kind, port in self._ports():
            places = [i for i, s in enumerate(segments) if s.kind == kind]
            if places:
                embedded = port.embed([segments[i] for i in places], dtype)
                for i, x_NE in zip(places, embedded, strict=True):
                    parts[i] = x_NE
        noisy_D = torch.cat([s.noisy_N for s in segments])
        time_SE = self.time(time_S * self.config.time_scale).to(dtype)
        owner_D = torch.repeat_interleave(
            torch.arange(len(pack.samples), device=time_S.device),
            torch.tensor(pack.lengths_D, device=time_S.device),
            output_size=sum(pack.lengths_D),
        )
        return torch.cat(parts) + noisy_D[:, None] * time_SE[owner_D]

    def _velocities(self, pack: Pack, x_DE: Tensor) -> list[Tensor]:
        segments = pack.segments
        rows = [
            x[s.rows_M]
            for s, x in zip(segments, self.norm_dm(x_DE).split([len(s) for s in segments]), strict=True)
        ]
        flat: list[Tensor] = [x_DE.new_empty(0, dtype=torch.float32)] * len(segments)
        for kind, port in self._ports():
            places = [i for i, s in enumerate(segments) if s.kind == kind and s.noisy_size]
            if places:
                predicted = port.predict([segments[i] for i in places], [rows[i] for i in places])
                for i, v_MF in zip(places, predicted, strict=True):
                    flat[i] = v_MF.flatten()
        counts = [len(s.segments) for s in pack.samples]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [torch.cat(flat[end - n : end]) for n, end in zip(counts, ends, strict=True)]

    def _ports(self) -> Iterator[tuple[str, Port]]:
        return ((kind, port) for kind, port in self.ports.items() if isinstance(port, Port))

    def rope(self, positions_3N: Tensor) -> Rope:
        """Interleaved mRoPE: cosines and sines [N, C], angles in fp32; height and width take every third
        frequency."""
        c = self.config
        half = torch.arange(0, c.head_size, 2, dtype=torch.float32, device=positions_3N.device) / c.head_size
        angles_3NC = positions_3N.float()[..., None] * (1.0 / c.rope_theta**half)
        angles_NC = angles_3NC[0].clone()
        for axis in (1, 2):
            channels = slice(axis, 3 * c.rope_axes[axis], 3)
            angles_NC[:, channels] = angles_3NC[axis][:, channels]
        angles_NC = torch.cat([angles_NC, angles_NC], dim=-1)
        dtype = self.head.weight.dtype
        return angles_NC.cos().to(dtype), angles_NC.sin().to(dtype)


def rotate(x_NHC: Tensor, rope: Rope) -> Tensor:
    """Half-split rotation (Su et al. 2021): (a, b) -> (a cos - b sin, b cos + a sin)."""
    a, b = x_NHC.chunk(2, dim=-1)
    return x_NHC * rope[0][:, None] + torch.cat([-b, a], dim=-1) * rope[1][:, None]
