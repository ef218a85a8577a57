"""Tools: functions that an answer may ask to be called, in the words of Qwen's chat templates.

An answer calls one by `<tool_call>`, a JSON object of name and arguments, `</tool_call>`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from armillary.errors import BadRequest, nearest
from armillary.schema import call_grammar, grammar, json_schema

CALL, END_CALL = "<tool_call>", "</tool_call>"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FREE, FORCED = "auto", "required"
KEYS = {"name", "description", "parameters", "strict"}


@dataclass(frozen=True)
class ToolCall:
    """A function that an answer asks to be called, and with what."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Toolbox:
    """The tools of a conversation as its template shows them, and the grammar of an answer that must be one
    call; None leaves to the model whether it calls."""

    shown: tuple[dict[str, Any], ...]
    grammar: str | None = None


def toolbox(tools: Sequence[Any], choice: str = FREE) -> Toolbox:
    """Check tools, each {"type": "function", "function": {"name", "description", "parameters"}}, and a
    choice: "auto", "required", or the name of the one to call. Raises BadRequest."""
    shown = tuple(_shown(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    forms = {tool["function"]["name"]: tool["function"]["parameters"] for tool in shown}
    if len(forms) < len(shown):
        raise BadRequest("tools", [tool["function"]["name"] for tool in shown], "each needs its own name")
    if choice == FREE:
        return Toolbox(shown)
    if choice != FORCED and choice not in forms:
        close = " or ".join(nearest(choice, [FREE, FORCED, *forms]))
        raise BadRequest("tool_choice", choice, f"{FREE}, {FORCED}, or the name of a tool; nearest: {close}")
    wanted = forms if choice == FORCED else {choice: forms[choice]}
    return Toolbox(shown, call_grammar(f"{CALL}\n", {"anyOf": _calls(wanted)}, f"\n{END_CALL}"))


def _shown(tool: Any, field: str) -> dict[str, Any]:
    """One tool with nothing in it but what a template reads."""
    if not isinstance(tool, Mapping) or cast("Mapping[str, Any]", tool).get("type") != "function":
        raise BadRequest(f"{field}.type", tool, "a tool is of type function")
    function = cast("Mapping[str, Any]", tool).get("function")
    if not isinstance(function, Mapping):
        raise BadRequest(f"{field}.function", function, "an object of name, description and parameters")
    said = cast("Mapping[str, Any]", function)
    for key in said.keys() - KEYS:
        raise BadRequest(f"{field}.function.{key}", said[key], f"known here: {', '.join(sorted(KEYS))}")
    name, about = said.get("name"), said.get("description") or ""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in (FREE, FORCED, "none"):
        message = "a name is 1 to 64 of A-Z a-z 0-9 _ -, and not auto, none or required"
        raise BadRequest(f"{field}.function.name", name, message)
    if not isinstance(about, str):
        raise BadRequest(f"{field}.function.description", about, "text")
    takes = said.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        takes = json_schema(takes)
        grammar(takes)
    except BadRequest as error:
        raise BadRequest(f"{field}.function.parameters", error.value, error.message) from None
    return {"type": "function", "function": {"name": name, "description": about, "parameters": takes}}


def _calls(forms: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schema of a call of each."""
    return [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": takes},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, takes in forms.items()
    ]


def read_call(text: str) -> ToolCall | None:
    """What stands between the marks, if it is a call."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    name, arguments = cast("dict[str, Any]", said).get("name"), said.get("arguments", {})
    return ToolCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def past_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """The calls of an earlier turn, as a template reads them. Raises BadRequest."""
    if not isinstance(calls, list | tuple) or not calls:
        raise BadRequest(field, calls, "a list of calls")
    return [_past_call(call, f"{field}[{i}]") for i, call in enumerate(cast("Sequence[Any]", calls))]


def _past_call(call: Any, field: str) -> dict[str, Any]:
    function = cast("Mapping[str, Any]", call).get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        message = "an object of id, type and function; that one of name and arguments"
        raise BadRequest(f"{field}.function", function, message)
    said = cast("Mapping[str, Any]", function)
    name, arguments = said.get("name"), said.get("arguments")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadRequest(f"{field}.function.name", name, "a name is 1 to 64 of A-Z a-z 0-9 _ -")
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        raise BadRequest(f"{field}.function.arguments", said.get("arguments"), "a JSON object")
    told = {"name": name, "arguments": dict(cast("Mapping[str, Any]", arguments))}
    return {"id": cast("Mapping[str, Any]", call).get("id"), "type": "function", "function": told}
