"""Answers in a form that was asked for: a JSON schema becomes a grammar over the checkpoint's own tokens.

The grammar engine is llguidance; what it does not know is refused, never passed over.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PydanticUserError, ValidationError

from armillary.errors import BadRequest

if TYPE_CHECKING:
    from llguidance import LLTokenizer

LONGEST = 2**17  # characters of a schema: the engine takes seconds for more
# White space of ordinary JSON writers. Bounded: a model could go on with blanks for ever.
_STYLE: Any = {"whitespace_pattern": r"( |\n[ \t]{0,32})?"}
_VALUES = ("const", "enum", "default", "examples")  # keywords that hold no schemas
_ELSEWHERE = ("$ref", "anyOf", "oneOf", "patternProperties")


def json_schema(asked: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic model, or the one that was given. Raises BadRequest for anything else."""
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        return _plain(_described(asked))
    if not isinstance(asked, Mapping):
        raise BadRequest("schema", str(asked), "a pydantic model, or a JSON schema as a dictionary")
    return _plain(dict(asked))


def _described(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema()
    except (PydanticUserError, NameError, AttributeError) as error:  # no JSON form, or not all defined
        reason = str(error).splitlines()[0]
        raise BadRequest("schema", model.__name__, f"this model has no JSON schema: {reason}") from None


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as it would come from a file, of a size and depth that the engine reads."""
    try:
        text = json.dumps(schema, allow_nan=False)
        if len(text) > LONGEST:
            raise BadRequest("schema", text, f"is {len(text)} characters long; at most {LONGEST}")
        return json.loads(text)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest("schema", "…", "is nested too deeply, or holds itself") from None
    except (TypeError, ValueError) as error:
        raise BadRequest("schema", str(schema), f"a JSON schema is plain JSON ({error})") from None


def _closed(node: Any) -> Any:
    """Its objects hold only what is named, unless `additionalProperties` says otherwise.

    What fits this fits the schema too, and no model goes on for ever with a property of its own.
    """
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: value if key in _VALUES else _closed(value) for key, value in node.items()}
    if inner.get("type") != "object" or not isinstance(named := inner.get("properties"), dict):
        return inner
    wanted = inner.get("required", [])
    whole = isinstance(wanted, list) and all(isinstance(name, str) and name in named for name in wanted)
    return {"additionalProperties": False, **inner} if whole else inner


def _scattered(node: Any) -> bool:
    """Does it name the properties of one object in several places? Then none of them names them all."""
    if isinstance(node, list):
        return any(_scattered(item) for item in node)
    if not isinstance(node, dict):
        return False
    here = "allOf" in node or ("properties" in node and not node.keys().isdisjoint(_ELSEWHERE))
    return here or any(_scattered(value) for value in node.values())


def _engine(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema as the engine is given it."""
    try:
        return dict(schema) if _scattered(dict(schema)) else _closed(dict(schema))
    except RecursionError:
        raise BadRequest("schema", "…", "is nested too deeply, or holds itself") from None


def grammar(schema: Mapping[str, Any]) -> str:
    """A schema for the engine. Raises BadRequest naming the keyword that is wrong or that it cannot hold."""
    from llguidance import LLMatcher

    try:
        made = LLMatcher.grammar_from_json_schema(_engine(schema), overrides=_STYLE)
    except ValueError as error:  # a number or text that no other program reads
        raise BadRequest("schema", dict(schema), f"cannot be held to: {error}") from None
    return _checked(made, schema)


def call_grammar(before: str, schema: Mapping[str, Any], after: str) -> str:
    """The same with words that stand before and after it."""
    from llguidance import LLMatcher

    form = json.dumps({"x-guidance": _STYLE, **_engine(schema)})
    rules = f"start: {json.dumps(before)} form {json.dumps(after)}\nform: %json {form}"
    return _checked(LLMatcher.grammar_from_lark(rules), schema)


def _checked(made: str, schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    wrong, messages = LLMatcher.validate_grammar_with_warnings(made)
    if wrong:
        raise BadRequest("schema", dict(schema), f"cannot be held to: {messages[0]}")
    return made


def tokenizer(described: str, eos: int) -> "LLTokenizer":
    """The engine's view of a `tokenizers` JSON: a second of work for a large vocabulary, to be kept."""
    from llguidance import LLTokenizer

    return LLTokenizer(described, eos_token=eos)


class Form:
    """One answer held to a grammar, token by token. It ends with the tokenizer's end token alone."""

    def __init__(self, tokens: "LLTokenizer", made: str) -> None:
        from llguidance import LLMatcher

        self._tokens, self._matcher = tokens, LLMatcher(tokens, made)

    def allowed(self) -> bytes:
        """One byte for each token of the tokenizer, not zero if it may come next.

        Raises BadRequest if the engine gives up on a grammar that is too large, or that nothing satisfies.
        """
        bias = self._matcher.compute_logit_bias()
        if self._matcher.is_error():  # then the end alone would be allowed, in the middle of a text
            told = self._matcher.get_error().partition("\n")[0]
            reason = "nothing satisfies it" if told == "NoExtensionBias" else told
            raise BadRequest("schema", "…", f"cannot be followed: {reason}")
        return bias

    def add(self, token: int) -> None:
        """Go on by a token that was allowed."""
        self._matcher.consume_token(token)

    def add_text(self, text: str) -> None:
        """Go on by text that nobody checked; if it does not fit, `allowed` will say so."""
        self._matcher.consume_tokens(self._tokens.tokenize_str(text))


def parse(asked: Any, text: str) -> tuple[Any, str]:
    """What an answer says, and why it says nothing: (value, "") or (None, reason).

    The value is an object of the pydantic model, or plain JSON.
    """
    try:
        if isinstance(asked, type) and issubclass(asked, BaseModel):
            return asked.model_validate_json(text), ""
        return json.loads(text), ""
    except ValidationError as error:
        return None, str(error.errors()[0]["msg"])
    except Exception as error:  # noqa: BLE001 (JSON too deep to read; the model's own validators)
        return None, str(error) or type(error).__name__
