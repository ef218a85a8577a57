"""An answer as it comes, in pieces: thinking, words and calls of tools told apart."""

from dataclasses import dataclass

from armillary.answers import Answer, TokenLogprob
from armillary.codecs.text import END_THINK, THINK
from armillary.decode import Finder
from armillary.tools import CALL, END_CALL, ToolCall, read_call


@dataclass(frozen=True)
class Delta:
    """A piece of an answer as it comes. The last one of each answer carries the whole of it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()  # of tools, each as it is complete
    answer: Answer | None = None
    choice: int = 0  # which of the answers, where several were asked for
    logprobs: tuple[TokenLogprob, ...] = ()  # of the token that brought it, if asked for


class ThinkSplitter:
    """Separates thinking from the answer in text that comes in pieces; the marks themselves go to neither.

    Thinking starts where the prompt opened it, or where the text begins with `<think>`.
    """

    def __init__(self, opened: bool) -> None:
        self._state = "thinking" if opened else "start"
        self._finder = Finder([END_THINK])
        self._held = ""
        self._blank = True  # nothing but white space so far: it belongs to the marks

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thinking."""
        return self._state == "thinking"

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


class CallSplitter:
    """Separates calls of tools from the words of an answer that comes in pieces.

    White space beside a call belongs to it; what looks like a call but is none stays words.
    """

    def __init__(self) -> None:
        self._finder, self._inside = Finder([CALL]), False
        self._body = ""  # of the call that has begun
        self._space = ""  # held back: a call may follow
        self._blank = False  # nothing but white space since the last call

    def add(self, text: str, *, last: bool = False) -> tuple[str, tuple[ToolCall, ...]]:
        """The words and the calls that the next piece completes; `last` also gives what was held back."""
        words, calls, found = "", list[ToolCall](), ""
        while found is not None:
            before, found = self._finder.add(text)
            if not self._inside:
                words += self._written(before)
            else:
                self._body += before
            if found == END_CALL:
                call = read_call(self._body)
                words += self._written(f"{CALL}{self._body}{END_CALL}") if call is None else ""
                calls += [] if call is None else [self._closed(call)]
            if found:
                self._inside, self._body, text = found == CALL, "", self._finder.close()
                self._finder = Finder([END_CALL if self._inside else CALL])
        return words + (self._rest() if last else ""), tuple(calls)

    def _written(self, text: str) -> str:
        """Words without the white space at their end, which waits."""
        text = self._space + text
        text = text.lstrip() if self._blank else text
        kept = text.rstrip()
        self._space, self._blank = text[len(kept) :], self._blank and not kept
        return kept

    def _closed(self, call: ToolCall) -> ToolCall:
        self._space, self._blank = "", True
        return call

    def _rest(self) -> str:
        begun = f"{CALL}{self._body}" if self._inside else ""
        return self._space + begun + self._finder.close()
