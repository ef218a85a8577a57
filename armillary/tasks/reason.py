"""The reasoner: a context that was read becomes an answer, piece by piece, thinking apart."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from armillary.answers import Answer, TokenLogprob, Usage, find_marks
from armillary.codecs.text import END_THINK, PADS, Message, Spelling, TextCodec
from armillary.decode import Finder, Finish, Sampling, Token
from armillary.errors import BadRequest
from armillary.schema import Form, grammar, json_schema, parse
from armillary.settle import Receipt
from armillary.slots import FAILURES, REMEMBERED, SLOTS, Decoder, Failure
from armillary.tasks.deltas import CallSplitter, Delta, ThinkSplitter
from armillary.tasks.messages import Conversation, converse
from armillary.tasks.parts import Parts
from armillary.tools import Toolbox, ToolCall


class AddOptions(TypedDict, total=False):
    """How a conversation is answered: see `Reasoner.add`."""

    sampling: Sampling | None
    flags: Mapping[str, Any] | None
    n: int
    schema: Any
    tools: Toolbox | None
    receipt: Receipt | None


class Reasoner:
    """Conversations with one checkpoint, many at once: a `Decoder` that speaks in messages and words.

    It owns no thread: call `step` again and again. An answer does not depend on the others beside it.
    """

    def __init__(self, parts: Parts, *, slots: int = SLOTS, remembered: int = REMEMBERED) -> None:
        """`slots` answers are written at once, others wait; `remembered` as `Decoder` says."""
        self._parts = parts
        eos = stop_tokens(parts)
        self._decoder = Decoder(parts.network, eos=eos, slots=slots, remembered=remembered)
        self._writers: dict[int, _Writer] = {}  # by the decoder's tickets
        self._open: dict[int, list[int]] = {}  # the decoder's tickets of a conversation, by its own

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return self._decoder.busy

    def add(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling | None = None,
        flags: Mapping[str, Any] | None = None,
        n: int = 1,
        schema: Any = None,
        tools: Toolbox | None = None,
        receipt: Receipt | None = None,
    ) -> int:
        """Take in a conversation whose last turn is to be answered. Gives its ticket.

        Args:
            messages: dictionaries of role (system, user, assistant) and content: text, or parts
                {"type": "text", "text": ...}, {"type": "image", "image": picture} and
                {"type": "video", "video": clip}, the latter with `fps` or `num_frames` to look at if not the
                checkpoint's own; `image_url` and `video_url` take a data URI, or {"url": data URI}. A picture
                is whatever `media.read_picture` takes; a clip a path, bytes, Clip, ClipIn or uint8 frames
                [T, H, W, 3] at 24 a second.
            sampling: greedy if left out.
            flags: variables of the chat template, such as `enable_thinking`.
            n: how many answers to the conversation, which is read once; answer i has the seed `seed + i`.
            schema: the form of the answer, a pydantic model or a JSON schema; what follows thinking, if the
                template opens that, is held to it.
            tools: what the answer may call, or must.
            receipt: what the answers' receipts begin with.

        Raises BadRequest naming the field for anything that cannot be used.
        """
        started, sampling = time.perf_counter(), sampling or Sampling()
        talk = converse(self._parts, messages, tools=tools.shown if tools else (), flags=flags)
        check_length(self._parts, len(talk.context), sampling.max_tokens)
        form = tools and tools.grammar if schema is None else grammar(json_schema(schema))
        vocabulary = self._parts.network.config.vocabulary
        ends = torch.tensor(sorted(stop_tokens(self._parts)))
        asked = _Asked(
            self._parts.text, vocabulary, ends, talk, schema, form, tools, receipt, dict(flags or {}), started
        )
        writers = [
            _Writer(asked, replace(sampling, seed=(sampling.seed + choice) % 2**63), choice)
            for choice in range(n)
        ]
        return self._begin(talk, writers)

    def _begin(self, talk: Conversation, writers: Sequence["_Writer"]) -> int:
        """Hand the answers to one conversation to the decoder, all of them or none."""
        own, add = list[int](), partial(self._decoder.add, talk.context, cuts=talk.cuts)
        try:
            for writer in writers:
                own += [add(writer.sampling, allowed=writer.allowed)]
        except FAILURES:
            for ticket in own:
                self._decoder.cancel(ticket)
            raise
        for ticket, writer in zip(own, writers, strict=True):
            self._writers[ticket], writer.ticket = writer, own[0]
        self._open[own[0]] = own
        return own[0]

    def cancel(self, ticket: int) -> None:
        """Forget a conversation; its slots are free at once. One that has ended passes."""
        for own in self._open.pop(ticket, ()):
            self._decoder.cancel(own)
            self._writers.pop(own, None)

    def step(self) -> list[tuple[int, Delta | Failure]]:
        """A bounded bit of work: a piece of one conversation read, or one token of every answer written.

        Gives what is new with its ticket. A conversation ends with the last of its answers, or with an error.
        """
        told: list[tuple[int, Delta | Failure]] = []
        for own, token in self._decoder.step():
            writer = self._writers.get(own)
            if writer is None:
                continue  # an error in another answer to the same conversation has ended it
            if isinstance(token, Failure):
                self.cancel(writer.ticket)
                told.append((writer.ticket, token))
                continue
            try:
                delta = writer.add(token)
            except FAILURES as error:
                self.cancel(writer.ticket)
                told.append((writer.ticket, error))
                continue
            told.append((writer.ticket, delta))
            if delta.answer:
                self._end(own, writer.ticket)
        return told

    def _end(self, own: int, ticket: int) -> None:
        self._decoder.cancel(own)  # after a stop string it would go on
        del self._writers[own]
        self._open[ticket].remove(own)
        if not self._open[ticket]:
            del self._open[ticket]


def drain(reasoner: Reasoner) -> Iterator[Delta]:
    """All that a reasoner has to say, one delta a token. Raises its errors."""
    while reasoner.busy:
        for _, delta in reasoner.step():
            if isinstance(delta, Failure):
                raise delta
            yield delta


def stream(parts: Parts, messages: Sequence[Message], **options: Unpack[AddOptions]) -> Iterator[Delta]:
    """Answer the last turn of a conversation, one delta a token; joined, the deltas are the answer.

    Arguments are those of `Reasoner.add`. Raises BadRequest before the first delta.
    """
    many = options.get("n", 1) > 1
    reasoner = Reasoner(parts, remembered=sys.maxsize if many else 0)
    reasoner.add(messages, **options)
    return drain(reasoner)


def reason(parts: Parts, messages: Sequence[Message], **options: Unpack[AddOptions]) -> Answer:
    """The answer to the last turn of a conversation; arguments are those of `Reasoner.add`."""
    return gather(stream(parts, messages, **options))


def gather(deltas: Iterable[Delta]) -> Answer:
    """The answer that the deltas of one conversation make; the first of several, with the others."""
    answers = {delta.choice: delta.answer for delta in deltas if delta.answer}
    first, *others = (answers[choice] for choice in sorted(answers))
    return replace(first, others=tuple(others))


def check_length(parts: Parts, count: int, max_tokens: int) -> None:
    """Raises BadRequest where a context of `count` tokens and an answer do not fit the checkpoint."""
    limit = parts.checkpoint.longest
    if limit and count + max_tokens > limit:
        left = f"the prompt takes {count} of this checkpoint's {limit} tokens"
        raise BadRequest("max_tokens", max_tokens, f"{left}; give at most {max(0, limit - count)}")


def stop_tokens(parts: Parts) -> set[int]:
    """The tokens that end an answer, by `generation_config.json` and the tokenizer."""
    return {parts.text.eos, *parts.checkpoint.stops}


@dataclass(frozen=True)
class _Asked:
    """What all answers to one conversation share."""

    text: TextCodec
    vocabulary: int
    ends: Tensor  # the tokens that end an answer
    talk: Conversation
    schema: Any
    grammar: str | None  # that an answer is held to
    tools: Toolbox | None
    receipt: Receipt | None
    flags: dict[str, Any]
    started: float  # seconds, by time.perf_counter


class _Writer:
    """One answer on its way: tokens become text, thinking apart, and at the end the answer."""

    ticket = 0  # of the conversation

    def __init__(self, asked: _Asked, sampling: Sampling, choice: int) -> None:
        self._asked, self.sampling, self._choice = asked, sampling, choice
        self._spelling, self._stops = Spelling(asked.text), Finder(sampling.stop)
        self._split = ThinkSplitter(asked.talk.opens_thinking)
        self._calls_split = CallSplitter() if asked.tools else None
        self._form = Form(asked.text.schema_tokens, asked.grammar) if asked.grammar else None
        self._text, self._thinking, self._count = "", "", 0
        self._calls: tuple[ToolCall, ...] = ()
        self._thought = 0  # tokens of thinking
        self._closing: deque[int] = deque()  # tokens that close thinking when its budget is used up
        self._closed = False  # by them
        self._logprobs: list[TokenLogprob] = []
        self._read = 0.0  # when the first token came

    def allowed(self) -> Tensor | None:
        """Which tokens may come next: those of the schema, or the mark that ends thinking; None is all."""
        budget = self.sampling.thinking_budget
        if self._split.thinking and budget is not None and self._thought >= budget and not self._closed:
            self._closed = True
            self._closing.extend(self._asked.text.encode(END_THINK))
        allowed_V = torch.zeros(self._asked.vocabulary, dtype=torch.bool)
        if self._closing:
            allowed_V[self._closing[0]] = True
            return allowed_V
        if self._form is None:
            return None
        if self._split.thinking:  # anything, but the answer is still to come
            return allowed_V.logical_not_().index_fill_(0, self._asked.ends, False)
        bytes_V = torch.frombuffer(bytearray(self._form.allowed()), dtype=torch.uint8)[: len(allowed_V)]
        allowed_V[: len(bytes_V)] = bytes_V > 0
        return allowed_V

    def add(self, token: Token) -> Delta:
        self._read = self._read or time.perf_counter()
        self._count += 1
        thinking = self._split.thinking
        if self._closing:
            self._closing.popleft()
        elif thinking:
            self._thought += 1
        elif self._form:
            self._form.add(token.id)
        spelled = "" if token.finish == "stop" else self._spelling.add(token.id)
        split = self._split.add(spelled, last=token.finish is not None)
        if self._form and thinking and split.text:  # from the token that closed thinking
            self._form.add_text(split.text)
        text, finish = self._up_to_stop(split.text, token.finish)
        calls: tuple[ToolCall, ...] = ()
        if self._calls_split:
            text, calls = self._calls_split.add(text, last=finish is not None)
        last = _logprob(self._asked.text, token)
        self._text, self._thinking = self._text + text, self._thinking + split.thinking
        self._calls, self._logprobs = self._calls + calls, [*self._logprobs, *last]
        delta = replace(split, text=text, calls=calls, choice=self._choice, logprobs=last)
        return replace(delta, answer=self._answer(finish)) if finish else delta

    def _up_to_stop(self, text: str, finish: Finish | None) -> tuple[str, Finish | None]:
        """The answer's next text up to a stop string; what may begin one waits until it is known not to."""
        before, stop = self._stops.add(text)
        if stop is not None:
            return before, "stop"
        return before + self._stops.close() if finish else before, finish

    def _answer(self, finish: Finish) -> Answer:
        talk = self._asked.talk
        picture = talk.seen[-1].picture_HW3 if talk.seen else None
        marks = find_marks(self._text, picture.shape[:2] if picture is not None else None)
        parsed, missing = self._parse(finish)
        return Answer(
            text=self._text,
            thinking=self._thinking,
            usage=Usage(len(talk.context), self._count),
            finish_reason=finish,
            boxes=marks.boxes,
            points=marks.points,
            trajectories=marks.trajectories,
            events=marks.events,
            receipt=self._receipt() | missing,
            picture=picture,
            tool_calls=self._calls,
            parsed=parsed,
            logprobs=tuple(self._logprobs),
            film=talk.seen[-1].film if talk.seen else None,
        )

    def _parse(self, finish: Finish) -> tuple[Any, dict[str, str]]:
        """What the schema makes of the text, and for the receipt why it makes nothing of it."""
        if self._asked.schema is None:
            return None, {}
        parsed, reason = parse(self._asked.schema, self._text)
        cut = "cut by max_tokens before it was whole" if finish == "length" else reason
        return parsed, {"parsed": cut} if reason else {}

    def _receipt(self) -> dict[str, Any]:
        asked, now = self._asked, time.perf_counter()
        told: dict[str, Any] = {"sampling": asdict(self.sampling), "flags": asked.flags}
        if asked.receipt is not None:
            tokens = {"context": len(asked.talk.context), "answer": self._count}
            seconds = {"read": self._read - asked.started, "write": now - self._read}
            told = asked.receipt.spent(tokens, seconds).to_dict()
            if "seed" in told["used"]:
                told["used"] = {**told["used"], "seed": self.sampling.seed}
        if self.sampling.thinking_budget is not None:
            told["thinking"] = {"tokens": self._thought, "closed": self._closed}
        told["prompt"] = _shown(asked.text, asked.talk.context.ids_A.tolist())
        told["seen"] = [dict(s.receipt) for s in asked.talk.seen]
        return told


def _logprob(text: TextCodec, token: Token) -> tuple[TokenLogprob, ...]:
    told = [TokenLogprob(i, text.spelling(i, skip_special=False), chance) for i, chance in token.logprobs]
    return (replace(told[0], top=tuple(told[1:])),) if told else ()


def _shown(text: TextCodec, ids: list[int]) -> str:
    """The prompt as the model read it, each run of placeholders once."""
    pads = {text.controls[name] for name in PADS.values() if name in text.controls}
    kept = [i for n, i in enumerate(ids) if not (i in pads and n and ids[n - 1] == i)]
    return text.decode(kept, skip_special=False)
