"""Attention of each sample over its own keys, and the memory those keys live in.

Shape letters: N = query tokens of the pack, T = those of them after all weighted segments, M = key rows,
H = query heads, K = key heads, C = head size, S = samples.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from armillary.sequence import Apart


@dataclass(frozen=True)
class KV:
    """Keys and values of every sample, in one buffer. `reserve` leaves room behind each sample; `join`
    fills it."""

    k_MKC: Tensor
    v_MKC: Tensor
    lengths: tuple[int, ...]  # rows in use, a sample
    capacity: tuple[int, ...]  # rows laid out, a sample

    @classmethod
    def of(cls, k_NKC: Tensor, v_NKC: Tensor, lengths: tuple[int, ...]) -> "KV":
        return cls(k_NKC, v_NKC, lengths, lengths)

    @property
    def starts(self) -> list[int]:
        return list(accumulate(self.capacity[:-1], initial=0))

    def join(self, new: "KV") -> "KV":
        """Append `new` to each sample's rows: into reserved room, which later joins may overwrite, or in a
        new buffer."""
        lengths = tuple(a + b for a, b in zip(self.lengths, new.lengths, strict=True))
        if all(n <= c for n, c in zip(lengths, self.capacity, strict=True)):
            self._write(new, at=self.lengths)
            return replace(self, lengths=lengths)
        k = torch.cat(
            [x for pair in zip(self.split(self.k_MKC), new.split(new.k_MKC), strict=True) for x in pair]
        )
        v = torch.cat(
            [x for pair in zip(self.split(self.v_MKC), new.split(new.v_MKC), strict=True) for x in pair]
        )
        return KV.of(k, v, lengths)

    def reserve(self, room: tuple[int, ...]) -> "KV":
        """A copy with `room` free rows behind each sample."""
        capacity = tuple(a + b for a, b in zip(self.lengths, room, strict=True))
        k, v = (x.new_empty(sum(capacity), *x.shape[1:]) for x in (self.k_MKC, self.v_MKC))
        laid = KV(k, v, self.lengths, capacity)
        laid._write(self, at=(0,) * len(room))
        return laid

    def pick(self, samples: list[int]) -> "KV":
        """A copy of the chosen samples; one may be chosen often: several continuations of a context read
        once."""
        k, v = self.split(self.k_MKC), self.split(self.v_MKC)
        lengths = tuple(self.lengths[i] for i in samples)
        return KV.of(torch.cat([k[i] for i in samples]), torch.cat([v[i] for i in samples]), lengths)

    def split(self, x_MKC: Tensor) -> list[Tensor]:
        return [x_MKC[a : a + n] for a, n in zip(self.starts, self.lengths, strict=True)]

    def _write(self, new: "KV", at: tuple[int, ...]) -> None:
        parts = zip(self.starts, at, new.split(new.k_MKC), new.split(new.v_MKC), strict=True)
        for start, skip, k, v in parts:
            rows = slice(start + skip, start + skip + k.shape[0])
            self.k_MKC[rows], self.v_MKC[rows] = k, v


@dataclass(frozen=True)
class Shelf:
    """Keys and values of samples that come and go: each in a buffer of its own.

    Each attends in a call of its own, so its numbers do not depend on its neighbours. New rows behind those
    of the last sample are padding: they are not kept and attend to nothing.
    """

    kvs: tuple[KV, ...]  # one sample each

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(kv.lengths[0] for kv in self.kvs)

    def join(self, new: KV) -> "Shelf":
        rows = zip(self.kvs, new.split(new.k_MKC), new.split(new.v_MKC), strict=False)
        return Shelf(tuple(kv.join(KV.of(k, v, (len(k),))) for kv, k, v in rows))


def together(kv: KV | Shelf) -> KV:
    """Keys that lie in one buffer. Raises TypeError for a shelf."""
    if isinstance(kv, Shelf):
        raise TypeError("samples on a shelf have no common buffer")
    return kv


def attend(q_NHC: Tensor, lengths: tuple[int, ...], kv: KV | Shelf, *, causal: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(C)) v, a sample at a time; neighbours of equal lengths share one call. Returns
    [N, H, C].

    `causal`: the queries are the last rows of their sample's keys, and see no later one.
    """
    if isinstance(kv, Shelf):
        alone = zip(q_NHC.split(lengths), lengths, kv.kvs, strict=False)
        out = [attend(q, (n,), one, causal=causal) for q, n, one in alone]
        return torch.cat([*out, torch.zeros_like(q_NHC[sum(map(len, out)) :])])
    starts = zip(
        accumulate(lengths[:-1], initial=0), lengths, kv.starts, kv.lengths, kv.capacity, strict=True
    )
    out: list[Tensor] = []
    for (n, m, cap), run in groupby(starts, key=lambda s: (s[1], s[3], s[4])):
        members = list(run)
        count, q0, k0 = len(members), members[0][0], members[0][2]
        q_SHNC = q_NHC[q0 : q0 + count * n].unflatten(0, (count, n)).transpose(1, 2)
        k_SKMC, v_SKMC = (
            x[k0 : k0 + count * cap].unflatten(0, (count, cap))[:, :m].transpose(1, 2)
            for x in (kv.k_MKC, kv.v_MKC)
        )
        y_SHNC = _grouped(q_SHNC, k_SKMC, v_SKMC, causal and n > 1)
        out.append(y_SHNC.transpose(1, 2).flatten(0, 1))
    return out[0] if len(out) == 1 else torch.cat(out)


def attend_apart(q_NHC: Tensor, lengths: tuple[int, ...], kv: KV, apart: tuple[Apart, ...]) -> Tensor:
    """`attend` of DM tokens, where a sample may say that its first segments are seen one at a time.

    Segment i and the tokens after all of these segments attend to the context, to segment i and to those
    tokens; the answers for those tokens are summed with the segments' weights.
    """
    if not any(apart):
        return attend(q_NHC, lengths, kv)
    samples = zip(q_NHC.split(lengths), kv.split(kv.k_MKC), kv.split(kv.v_MKC), apart, strict=True)
    return torch.cat([_weighted(q, k, v, parts) for q, k, v, parts in samples])


def _weighted(q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, parts: Apart) -> Tensor:
    if not parts:
        return _alone(q_NHC, k_MKC, v_MKC)
    context, first = len(k_MKC) - len(q_NHC), sum(size for size, _ in parts)
    q_THC, rest = q_NHC[first:], (slice(None, context), slice(context + first, None))
    own: list[Tensor] = []
    total_THC, start = torch.zeros_like(q_THC), 0
    for size, weight in parts:
        rows = slice(context + start, context + start + size)
        k, v = (torch.cat([x[rest[0]], x[rows], x[rest[1]]]) for x in (k_MKC, v_MKC))
        y_NHC = _alone(torch.cat([q_NHC[start : start + size], q_THC]), k, v)
        own.append(y_NHC[:size])
        total_THC, start = total_THC + weight * y_NHC[size:], start + size
    return torch.cat([*own, total_THC])


def _alone(q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_NHC, k_MKC, v_MKC))
    return _grouped(q, k, v, False)[0].transpose(0, 1)


def _grouped(q_SHNC: Tensor, k_SKMC: Tensor, v_SKMC: Tensor, causal: bool) -> Tensor:
    n, m = q_SHNC.shape[2], k_SKMC.shape[2]
    mask = None
    if causal and n < m:
        mask = torch.ones(n, m, dtype=torch.bool, device=q_SHNC.device).tril(m - n)
    gqa = q_SHNC.shape[1] != k_SKMC.shape[1]
    return F.scaled_dot_product_attention(
        q_SHNC, k_SKMC, v_SKMC, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=gqa
    )
