"""Text to token ids and back, by the checkpoint's own tokenizer and chat template.

Ids of a conversation are built from parts: control tokens come from the template alone. Words of a person
that look like a control token are spelled out as ordinary text, so they can neither end a turn nor claim a
picture's place; any other text becomes the ids that `apply_chat_template` of transformers gives.
"""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from armillary import schema
from armillary.errors import BadRequest, nearest
from armillary.tools import CALL, END_CALL

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Message = Mapping[str, Any]

THINK, END_THINK = "<think>", "</think>"
WORDS = (THINK, END_THINK, CALL, END_CALL)
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}


@dataclass(frozen=True)
class Slice:
    """What stands in a conversation for a picture, or for one temporal slice of a clip."""

    tokens: int  # how many placeholder tokens it takes
    before: str = ""  # text in front of it


@dataclass(frozen=True)
class TextCodec:
    """A byte-level BPE tokenizer and a chat template."""

    tokenizer: Tokenizer
    template: jinja2.Template
    flags: frozenset[str]  # variables of the template that a request may set
    shows_tools: bool  # whether the template has a place for them
    names: Mapping[str, str]  # eos_token, pad_token ...: what the template may ask for
    controls: Mapping[str, int]  # tokens that only the template may place
    added: Mapping[int, bytes]  # every token that is not spelled in the byte alphabet

    @classmethod
    def load(cls, folder: Path) -> "TextCodec":
        """Read `text_tokenizer/`; the chat template may lie one folder up. Raises BadRequest if absent."""
        described = _read_json(folder / "tokenizer.json")
        if "ByteLevel" not in json.dumps(described.get("decoder")):
            raise BadRequest(
                "model", str(folder / "tokenizer.json"), "only byte-level BPE tokenizers are known"
            )
        for token in described["added_tokens"]:
            # Marks of thinking and calls are words that models write, not control; some flag them so.
            token["special"] = token["special"] and token["content"] not in WORDS
        tokenizer = Tokenizer.from_str(json.dumps(described))
        tokenizer.encode_special_tokens = True  # in plain text, a control token is no token
        settings = _read_json(folder / "tokenizer_config.json")
        names = {
            k: _content(v) for k, v in settings.items() if k.endswith("_token") and isinstance(v, str | dict)
        }
        template, variables = _compile(_find_template(folder, settings), folder)
        return cls(
            tokenizer,
            template,
            frozenset(variables - {"messages", "tools", "add_generation_prompt", *names}),
            "tools" in variables,
            names,
            {t["content"]: t["id"] for t in described["added_tokens"] if t["special"]},
            {t["id"]: t["content"].encode() for t in described["added_tokens"]},
        )

    @property
    def eos(self) -> int:
        """The token that ends a turn."""
        return self.special(self.names["eos_token"])

    @cached_property
    def schema_tokens(self) -> "LLTokenizer":
        """The vocabulary as the grammar engine of schemas sees it."""
        return schema.tokenizer(self.tokenizer.to_str(), self.eos)

    @cached_property
    def widest(self) -> int:
        """Bytes that one token spells at most."""
        tokens = range(self.tokenizer.get_vocab_size())
        return max(len(self.spelling(token, skip_special=False)) for token in tokens)

    def check_size(self, text: int, limit: int | None, field: str) -> None:
        """Refuse text of so many bytes if so many tokens cannot spell it: quicker than to count them."""
        if limit and text > limit * self.widest:
            message = f"{text} bytes of text are more than this checkpoint's {limit} tokens"
            raise BadRequest(field, "...", f"{message}; make it shorter")

    def special(self, name: str) -> int:
        """The id of a control token such as `<|vision_start|>`. Raises BadRequest if there is none."""
        if name not in self.controls:
            known = ", ".join(nearest(name, self.controls))
            raise BadRequest(
                "token", name, f"this checkpoint's tokenizer has no such control token; near: {known}"
            )
        return self.controls[name]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Nothing in it becomes a control token."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD. `skip_special` leaves control tokens out."""
        return b"".join(self.spelling(i, skip_special) for i in ids).decode(errors="replace")

    def spelling(self, token: int, skip_special: bool = True) -> bytes:
        """The bytes one token stands for: often no whole character."""
        if token in self.added:
            content = self.added[token]
            return b"" if skip_special and content.decode() in self.controls else content
        piece = self.tokenizer.id_to_token(token)
        return (
            b"" if piece is None else bytes(_BYTES[c] for c in piece)
        )  # rows past the vocabulary spell nothing

    def render(
        self,
        messages: Sequence[Message],
        *,
        media: Sequence[Sequence[Slice]] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **flags: Any,
    ) -> list[int]:
        """Ids of a conversation through the chat template.

        Args:
            messages: role and content; content is text or parts {"type": "text", "text": ...},
                {"type": "image"}, {"type": "video"}.
            media: for every picture and clip of the messages, in order, the slices that stand for it. Each
                slice becomes its text, vision start, its placeholders, vision end.
            tools: functions that the answer may call, in the form of `tools.Toolbox`.
            flags: variables of the template, such as `enable_thinking`.

        Raises BadRequest if the template refuses the messages or leaves a picture or clip out.
        """
        if unknown := [name for name in flags if name not in self.flags]:
            known = ", ".join(sorted(self.flags)) or "none"
            raise BadRequest(
                unknown[0], flags[unknown[0]], f"the chat template asks for no such flag; it has: {known}"
            )
        if tools and not self.shows_tools:
            message = "this checkpoint's chat template has no place for tools: it was not taught to call any"
            raise BadRequest("tools", [t["function"]["name"] for t in tools], message)
        mark = _unused_mark(json.dumps([*messages, *tools], ensure_ascii=False))
        try:
            text = self.template.render(
                messages=_protect(list(messages), tuple(self.controls), mark),
                tools=_protect(list(tools), tuple(self.controls), mark) or None,
                add_generation_prompt=add_generation_prompt,
                **{**self.names, **flags},
            )
        except jinja2.TemplateError as error:
            raise BadRequest("messages", list(messages), f"the chat template refuses them: {error}") from None
        return self._encode_rendered(_place(text, media), mark)

    def _encode_rendered(self, text: str, mark: str) -> list[int]:
        names = tuple(self.controls)
        pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        ids: list[int] = []
        for piece in re.split(f"({pattern})", text):
            if piece in self.controls:
                ids.append(self.controls[piece])
            elif piece:
                plain = re.sub(f"{mark}(\\d+);", lambda found: names[int(found[1])], piece)
                ids += self.encode(plain)
        return ids


class Spelling:
    """Tokens one by one into text: a character appears with its last byte, and never changes after."""

    def __init__(self, text: TextCodec) -> None:
        self._text = text
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The characters that this token completes."""
        return self._utf8.decode(self._text.spelling(token))


def _byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes bytes (Radford et al. 2019)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTES = _byte_alphabet()


def _place(text: str, media: Sequence[Sequence[Slice]]) -> str:
    """Put each picture's and clip's slices where the template left one placeholder for it."""
    pads = "|".join(map(re.escape, PADS.values()))
    wrapped = f"(?:{re.escape(VISION_START)})?({pads})(?:{re.escape(VISION_END)})?"
    shown, waiting = len(re.findall(wrapped, text)), iter(media)
    if shown != len(media):
        message = f"the chat template shows {shown} of them; give pictures and clips in user turns"
        raise BadRequest("messages", f"{len(media)} pictures and clips", message)

    def lay(found: re.Match[str]) -> str:
        slices = next(waiting)
        return "".join(f"{s.before}{VISION_START}{found[1] * s.tokens}{VISION_END}" for s in slices)

    return re.sub(wrapped, lay, text)


def _unused_mark(text: str) -> str:
    """A private-use string that `text` lacks. Its first character comes once, so no overlap can forge it."""
    mark = "\ue000\ue001"
    while mark in text:
        mark += "\ue001"
    return mark


def _protect(value: Any, names: Sequence[str], mark: str) -> Any:
    """Replace what looks like a control token, in every string of a message, by a mark and its number."""
    if isinstance(value, Mapping):
        return {_protect(k, names, mark): _protect(v, names, mark) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_protect(v, names, mark) for v in value]
    if isinstance(value, str):
        for number, name in enumerate(names):
            value = value.replace(name, f"{mark}{number};")
    return value


def _find_template(folder: Path, settings: Mapping[str, Any]) -> str:
    for place in (folder, folder.parent):
        if (file := place / "chat_template.jinja").exists():
            return file.read_text()
        if (file := place / "chat_template.json").exists():
            return _read_json(file)["chat_template"]
        written = settings.get("chat_template")
        if isinstance(written, list):  # several, by name
            written = {t["name"]: t["template"] for t in written}.get("default")
        if written:
            return written
    raise BadRequest("model", str(folder), "has no chat template (chat_template.jinja)")


def _compile(source: str, folder: Path) -> tuple[jinja2.Template, set[str]]:
    """The template and the variables it asks for. It may be hostile: it runs in a sandbox, on plain data."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment.filters["tojson"] = tojson
    try:
        variables = find_undeclared_variables(environment.parse(source))
        template = environment.from_string(source, globals={"raise_exception": refuse})
    except jinja2.TemplateError as error:
        raise BadRequest("model", str(folder), f"its chat template does not compile: {error}") from None
    return template, variables - template.globals.keys()


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BadRequest("model", str(path), "this file of the checkpoint is missing") from None
