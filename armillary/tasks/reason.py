"""The reasoner: a context that was read becomes an answer, piece by piece, thinking apart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from armillary.answers import Answer, Usage, find_marks
from armillary.codecs.text import END_THINK, PADS, THINK, Message, TextCodec
from armillary.decode import Finder, Sampling, Token, decode, spell
from armillary.errors import BadRequest
from armillary.shards import read_json
from armillary.tasks.messages import Conversation, converse
from armillary.tasks.parts import Parts


@dataclass(frozen=True)
class Delta:
    """A piece of an answer as it comes. The last one carries the whole answer."""

    text: str = ""
    thinking: str = ""
    answer: Answer | None = None


def reason(
    parts: Parts,
    messages: Sequence[Message],
    *,
    sampling: Sampling | None = None,
    flags: Mapping[str, Any] | None = None,
    on_delta: Callable[[Delta], None] | None = None,
) -> Answer:
    """Answer the last turn of a conversation; arguments as in `stream`. `on_delta` may raise Cancelled."""
    answer = None
    for delta in stream(parts, messages, sampling=sampling, flags=flags):
        if on_delta:
            on_delta(delta)
        answer = delta.answer
    if answer is None:
        raise AssertionError("the last delta carries the answer")
    return answer


def stream(
    parts: Parts,
    messages: Sequence[Message],
    *,
    sampling: Sampling | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Iterator[Delta]:
    """Answer the last turn of a conversation, one delta a token; joined, the deltas are the answer.

    Args:
        messages: dictionaries of role (system, user, assistant) and content: text, or parts
            {"type": "text", "text": ...}, {"type": "image", "image": picture} and
            {"type": "video", "video": clip}, the latter with `fps` or `num_frames` to look at if not the
            checkpoint's own; `image_url` and `video_url` take a data URI, or {"url": data URI}. A picture is
            whatever `media.read_picture` takes; a clip a path, bytes, Clip, ClipIn or uint8 frames
            [T, H, W, 3] at 24 a second.
        sampling: greedy if left out.
        flags: variables of the chat template, such as `enable_thinking`.

    Raises BadRequest naming the field for anything that cannot be used, before the first delta.
    """
    sampling = sampling or Sampling()
    talk = converse(parts, messages, flags=flags)
    _check_length(parts, len(talk.context), sampling.max_tokens)
    return _answer(parts, talk, sampling, dict(flags or {}))


def _check_length(parts: Parts, count: int, max_tokens: int) -> None:
    limit = parts.checkpoint.longest
    if limit and count + max_tokens > limit:
        left = f"the prompt takes {count} of this checkpoint's {limit} tokens"
        raise BadRequest("max_tokens", max_tokens, f"{left}; give at most {max(0, limit - count)}")


def stop_tokens(parts: Parts) -> set[int]:
    """The tokens that end an answer, by `generation_config.json` and the tokenizer."""
    file = parts.checkpoint.folder / "generation_config.json"
    named = read_json(file).get("eos_token_id") if file.exists() else None
    return {parts.text.eos, *(named if isinstance(named, list) else [] if named is None else [named])}


def _answer(parts: Parts, talk: Conversation, sampling: Sampling, flags: dict[str, Any]) -> Iterator[Delta]:
    split, count, text, thinking = ThinkSplitter(talk.opens_thinking), 0, "", ""

    def counted(tokens: Iterator[Token]) -> Iterator[Token]:
        nonlocal count
        for token in tokens:
            count += 1
            yield token

    drawn = decode(parts.network, talk.context, sampling=sampling, eos=stop_tokens(parts))
    for piece in spell(counted(drawn), parts.text, sampling.stop):
        delta = split.add(piece.text, last=piece.finish is not None)
        text, thinking = text + delta.text, thinking + delta.thinking
        if piece.finish is None:
            yield delta
            continue
        picture = talk.seen[-1].picture_HW3 if talk.seen else None
        marks = find_marks(text, picture.shape[:2] if picture is not None else None)
        answer = Answer(
            text=text,
            thinking=thinking,
            usage=Usage(len(talk.context), count),
            finish_reason=piece.finish,
            boxes=marks.boxes,
            points=marks.points,
            trajectories=marks.trajectories,
            events=marks.events,
            receipt=_receipt(parts, talk, sampling, flags),
            picture=picture,
            film=talk.seen[-1].film if talk.seen else None,
        )
        yield replace(delta, answer=answer)


def _receipt(parts: Parts, talk: Conversation, sampling: Sampling, flags: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": "reason",
        "prompt": _shown(parts.text, talk.context.ids_A.tolist()),
        "seen": [dict(s.receipt) for s in talk.seen],
        "sampling": asdict(sampling),
        "flags": flags,
    }


def _shown(text: TextCodec, ids: list[int]) -> str:
    """The prompt as the model read it, each run of placeholders once."""
    pads = {text.controls[name] for name in PADS.values() if name in text.controls}
    kept = [i for n, i in enumerate(ids) if not (i in pads and n and ids[n - 1] == i)]
    return text.decode(kept, skip_special=False)


class ThinkSplitter:
    """Separates thinking from the answer in text that comes in pieces; the marks themselves go to neither.

    Thinking starts where the prompt opened it, or where the text begins with `<think>`.
    """

    def __init__(self, opened: bool) -> None:
        self._state = "thinking" if opened else "start"
        self._finder = Finder([END_THINK])
        self._held = ""
        self._blank = True  # nothing but white space so far: it belongs to the marks

    def add(self, text: str, *, last: bool = False) -> Delta:
        """Split the next piece; `last` also gives what was held back."""
        if self._state == "start":
            self._held += text
            begun = self._held.lstrip()
            if THINK.startswith(begun) and begun != THINK and not last:
                return Delta()
            self._state = "thinking" if begun.startswith(THINK) else "answer"
            text = begun.removeprefix(THINK) if self._state == "thinking" else self._held
            self._blank = self._state == "thinking"
        if self._state == "answer":
            return Delta(text=self._trim(text))
        before, found = self._finder.add(text)
        thinking = self._trim(before)
        if found is None:
            return Delta(thinking=thinking + self._finder.close() if last else thinking)
        self._state, self._blank = "answer", True
        return Delta(text=self._trim(self._finder.close()), thinking=thinking)

    def _trim(self, text: str) -> str:
        if self._blank:
            text = text.lstrip()
            self._blank = not text
        return text
