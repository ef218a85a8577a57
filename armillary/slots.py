"""Many contexts at once: a fixed number of slots, each read piece by piece, then continued token by token.

What a sequence says does not depend on what is decoded beside it, to the last bit:

- Contexts are read one at a time, in pieces that only depend on the context.
- A step has always the same number of rows, the free ones padding. Matrix products of other shapes add up in
  another order (one fp32 row through a matrix-vector product differs from the same row among others), but in
  one shape every row is computed alike.
- Each sequence attends to its own keys in a call of its own, and draws with a generator of its own.

So a step that fails, for lack of memory or whatever it is, is made again for each of its sequences alone, and
gives the same: only those fail that fail alone.

Shape letters: A = tokens of a context, R = rows of a step, V = vocabulary, K = key heads, M = key rows, 3 =
the mRoPE axes.
"""

import gc
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from armillary.attention import KV, Shelf, together
from armillary.decode import Finish, Sampler, Sampling, Token, logprobs_of
from armillary.errors import BadRequest, lacks_memory
from armillary.model import Network, Pass, Past
from armillary.sequence import Context, Sample, Visual, pack

SLOTS = 16  # sequences in work at once
CHUNK = 512  # context tokens read at a time: so long others wait for a token
ROOM = 256  # rows laid behind a context at a time for the tokens to come
REMEMBERED = 16384  # tokens of contexts kept for others that begin alike
ROWS, ROWS_CUDA = 8, 16  # of a step: on a CPU more cost time, on an accelerator sixteen cost what one does

Keys = list[KV]  # one a block, of one sequence: what only the DM tower sees is not kept, no drawing follows
FAILURES = (FloatingPointError, BadRequest, MemoryError, RuntimeError)  # torch lacks memory as the last
Failure = FloatingPointError | BadRequest | MemoryError | RuntimeError
Told = list[tuple[int, Token | Failure]]  # with their tickets
Allowed = Callable[[], Tensor | None]  # bool [V], the tokens that may come next; None is all


@dataclass(frozen=True)
class Piece:
    """Context tokens read together: what the blocks remember of them, and the scores of what comes next."""

    keys: Keys
    logits_V: Tensor

    def __len__(self) -> int:
        return self.keys[0].lengths[0]


class Pieces:
    """Pieces of contexts that were read, for others that begin alike; the longest unused go first.

    A piece is found by everything its numbers come from, since the start of the context: ids, positions and
    what the vision tower saw.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._kept: OrderedDict[bytes, Piece] = OrderedDict()

    def get(self, key: bytes) -> Piece | None:
        piece = self._kept.get(key)
        if piece is not None:
            self._kept.move_to_end(key)
        return piece

    def put(self, key: bytes, keys: Keys, rows: int, logits_V: Tensor) -> None:
        """Keep a copy of the last rows, unless they alone are over the limit."""
        if rows > self._limit:
            return
        last = slice(keys[0].lengths[0] - rows, keys[0].lengths[0])
        copied = [KV.of(kv.k_MKC[last].clone(), kv.v_MKC[last].clone(), (rows,)) for kv in keys]
        self._kept[key] = Piece(copied, logits_V.clone())
        self._used += rows
        while self._used > self._limit:
            self._used -= len(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        self._kept.clear()
        self._used = 0


@dataclass(eq=False)
class _Sequence:
    """What one slot works on: a context being read, then tokens being added."""

    context: Context
    sampler: Sampler
    ends: deque[int]  # where the pieces end that are still to be read
    allowed: Allowed | None
    keys: Keys = field(default_factory=list[KV])
    digest: bytes = b""  # of what was read
    start: int = 0  # of the next piece
    token: int = 0  # the last one written
    written: int = 0


class Decoder:
    """Continues many contexts at once, by one token each a step; contexts are read between such steps.

    It owns no thread: whoever has the network calls `step` again and again, also from within another task's
    progress callback. One piece of one context is the most that running sequences wait for.
    """

    def __init__(
        self,
        network: Network,
        *,
        eos: Collection[int] = (),
        slots: int = SLOTS,
        remembered: int = REMEMBERED,
    ) -> None:
        """`eos`: the tokens that end a sequence. `remembered`: context tokens kept for contexts that begin
        alike, which then read only what is new; 0 keeps none."""
        self._network, self._eos, self._slots = network, frozenset(eos), slots
        self._pieces = Pieces(remembered)
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._reading: OrderedDict[int, _Sequence] = OrderedDict()
        self._writing: OrderedDict[int, _Sequence] = OrderedDict()
        self._tickets = count()
        self._has_read = False  # in the last step

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._waiting or self._reading or self._writing)

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return self._slots - len(self._reading) - len(self._writing)

    def add(
        self,
        context: Context,
        sampling: Sampling,
        *,
        cuts: Collection[int] = (),
        allowed: Allowed | None = None,
    ) -> int:
        """Take in a context; it gets a slot in its turn. Gives the ticket by which `step` names its tokens.

        Args:
            cuts: rows where what others may share ends, such as the end of a picture.
            allowed: asked before each token which ones may come; BadRequest from it ends the sequence.
        """
        if not len(context):
            raise BadRequest("prompt", "", "nothing to read: give at least one token")
        sampler = Sampler(sampling, context.ids_A, self._network.config.vocabulary)
        ticket, ends = next(self._tickets), deque(piece_ends(len(context), cuts))
        self._waiting[ticket] = _Sequence(context, sampler, ends, allowed)
        return ticket

    def cancel(self, ticket: int) -> None:
        """Forget a sequence, whatever it is at: its slot is free at once. A ticket that has ended passes."""
        for sequences in (self._waiting, self._reading, self._writing):
            sequences.pop(ticket, None)

    @torch.no_grad()
    def step(self) -> Told:
        """Read one piece of one context, or write one token of every sequence that is read; in turns.

        Gives each new token with its ticket. A token with `finish` is the last of its ticket; so is an error,
        which ends that sequence alone.
        """
        while self._waiting and self.free > 0:
            ticket, sequence = self._waiting.popitem(last=False)
            self._reading[ticket] = sequence
        self._has_read = bool(self._reading) and not (self._has_read and self._writing)
        return self._read() if self._has_read else self._write()

    def _read(self) -> Told:
        """One piece of the context whose turn it is; its first token, if that was the last one."""
        ticket, sequence = self._reading.popitem(last=False)
        try:
            logits_V = _read_piece(self._network, sequence, self._pieces).float().cpu()
        except FAILURES as error:
            failed = _light(error)
            del sequence
            self._make_room()
            return [(ticket, failed)]
        if sequence.ends:
            self._reading[ticket] = sequence  # behind the others
            return []
        self._writing[ticket] = sequence
        return self._choose([ticket], logits_V[None])

    def _write(self) -> Told:
        """One token of each sequence, as many together as a step has rows."""
        told: Told = []
        tickets = list(self._writing)
        cuda = any(s.context.ids_A.is_cuda for s in self._writing.values())
        rows = ROWS_CUDA if cuda else ROWS
        for start in range(0, len(tickets), rows):
            told += self._write_some(tickets[start : start + rows], rows)
        return told

    def _write_some(self, tickets: Sequence[int], rows: int) -> Told:
        """One token of each; if that fails, of each alone, those that take least memory first."""
        try:
            logits_SV = _write_row(self._network, [self._writing[t] for t in tickets], rows).float().cpu()
        except FAILURES as error:
            failed = _light(error)
        else:
            return self._choose(tickets, logits_SV)
        if len(tickets) == 1:
            del self._writing[tickets[0]]
            self._make_room()
            return [(tickets[0], failed)]
        self._make_room()
        narrow_first = sorted(tickets, key=lambda t: self._writing[t].keys[0].lengths[0])
        return [told for ticket in narrow_first for told in self._write_some([ticket], rows)]

    def _make_room(self) -> None:
        """Give back what nobody needs: another may fit then."""
        self._pieces.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _choose(self, tickets: Sequence[int], logits_SV: Tensor) -> Told:
        """The next token of each; what ends leaves its slot."""
        told: Told = []
        for ticket, logits_V in zip(tickets, logits_SV, strict=True):
            try:
                token = self._token(self._writing[ticket], logits_V)
            except FAILURES as error:
                token = error
            if isinstance(token, Failure) or token.finish:
                del self._writing[ticket]
            told.append((ticket, token))
        return told

    def _token(self, sequence: _Sequence, logits_V: Tensor) -> Token:
        allowed_V = sequence.allowed() if sequence.allowed else None
        sequence.token = sequence.sampler.choose(logits_V, allowed_V)
        sequence.written += 1
        how = sequence.sampler.sampling
        finish: Finish | None = "length" if sequence.written == how.max_tokens else None
        told = () if how.logprobs is None else logprobs_of(logits_V, sequence.token, how.logprobs)
        return Token(sequence.token, "stop" if sequence.token in self._eos else finish, told)


def _light(error: Failure) -> Failure:
    """An error that came from a lack of memory, without the frames that hold what was computed."""
    return error.with_traceback(None) if lacks_memory(error) else error


def piece_ends(length: int, cuts: Collection[int] = ()) -> list[int]:
    """Where the pieces of a context end: at each cut, after each `CHUNK` since the last end, and at its end.

    What comes later changes nothing before it, so contexts that begin alike begin with the same pieces.
    """
    ends, start = list[int](), 0
    for end in sorted({cut for cut in cuts if 0 < cut < length} | {length}):
        ends += [*range(start + CHUNK, end, CHUNK), end]
        start = end
    return ends


def _read_piece(network: Network, sequence: _Sequence, pieces: Pieces) -> Tensor:
    """Read on: what is remembered, then at most one piece that is not; scores [V] of what comes next."""
    while True:
        part = _cut(sequence.context, sequence.start, sequence.ends.popleft())
        sequence.start += len(part)
        sequence.digest = _digest(sequence.digest, part)
        known = pieces.get(sequence.digest)
        if known is None:
            logits_V = _read(network, sequence, part)
            pieces.put(sequence.digest, sequence.keys, len(part), logits_V)
            return logits_V
        if sequence.keys:
            laid = _with_room(sequence.keys, len(part))
            sequence.keys = [kv.join(new) for kv, new in zip(laid, known.keys, strict=True)]
        else:
            sequence.keys = _lay(known.keys, sequence)
        if not sequence.ends:
            return known.logits_V


def _read(network: Network, sequence: _Sequence, part: Context) -> Tensor:
    """A piece through the AR tower, after what was read before it."""
    before = [Past(kv, kv) for kv in _with_room(sequence.keys, len(part))]
    done = network.read(pack([Sample(part)]), before or None)
    keys = [together(past.own) for past in done.memory]
    sequence.keys = keys if before else _lay(keys, sequence)
    return network.logits(_hidden(done)[-1:])[0]


def _write_row(network: Network, sequences: Sequence[_Sequence], rows: int) -> Tensor:
    """Append to each sequence its last token, in a pass of `rows` rows; scores [S, V] of the next ones."""
    device, padding = sequences[0].context.ids_A.device, rows - len(sequences)
    ids_R = torch.tensor([s.token for s in sequences] + [0] * padding, device=device)
    places = [s.context.end + s.written - 1 for s in sequences] + [0] * padding
    positions_3R = torch.tensor([places], dtype=torch.float32, device=device).expand(3, -1)
    ends = [*range(1, len(sequences) + 1), *([rows] if padding else [])]
    spans = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    samples = [Sample(Context(ids_R[span], positions_3R[:, span], 0)) for span in spans]
    for sequence in sequences:
        sequence.keys = _with_room(sequence.keys, 1)
    shelves = [Shelf(kvs) for kvs in zip(*(s.keys for s in sequences), strict=True)]
    done = network.read(pack(samples), [Past(shelf, shelf) for shelf in shelves])
    for sequence in sequences:  # the new rows lie in the sequence's own buffers
        sequence.keys = [replace(kv, lengths=(kv.lengths[0] + 1,)) for kv in sequence.keys]
    return network.logits(_hidden(done))[: len(sequences)]


def _hidden(done: Pass) -> Tensor:
    if done.hidden_AE is None:
        raise AssertionError("reading always gives hidden states")
    return done.hidden_AE


def _lay(keys: Keys, sequence: _Sequence) -> Keys:
    """A copy of the first rows of a context, with room for the rest of it and some tokens."""
    room = len(sequence.context) - keys[0].lengths[0] + ROOM
    return [kv.reserve((room,)) for kv in keys]


def _with_room(keys: Keys, rows: int) -> Keys:
    """The same with free rows behind; growing by half keeps copies rare."""
    if not keys or keys[0].lengths[0] + rows <= keys[0].capacity[0]:
        return keys
    return [kv.reserve((max(ROOM, rows, kv.lengths[0] // 2),)) for kv in keys]


def _cut(context: Context, start: int, end: int) -> Context:
    """Tokens start..end of a context, with what was seen among them."""
    visual = context.visual
    if visual is not None:
        kept_V = (visual.rows_V >= start) & (visual.rows_V < end)
        deepstack = tuple(x[kept_V] for x in visual.deepstack)
        visual = (
            Visual(visual.rows_V[kept_V] - start, visual.features_VE[kept_V], deepstack)
            if kept_V.any()
            else None
        )
    return replace(
        context,
        ids_A=context.ids_A[start:end],
        positions_3A=context.positions_3A[:, start:end],
        visual=visual,
    )


def _digest(before: bytes, part: Context) -> bytes:
    """Of a piece and all before it."""
    seen = part.visual
    shown = [] if seen is None else [seen.rows_V, seen.features_VE, *seen.deepstack]
    total = hashlib.sha256(before)
    for x in (part.ids_A, part.positions_3A, *shown):
        total.update(f"{x.dtype}{list(x.shape)}".encode())
        total.update(x.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return total.digest()
