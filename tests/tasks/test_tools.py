"""Tools are shown as the template shows them, and calls are read out of answers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import armillary
from armillary.errors import BadRequest
from armillary.guard import WordGuard
from armillary.tasks.deltas import CallSplitter
from armillary.tasks.messages import converse
from armillary.tools import ToolCall, toolbox
from armillary.world import World
from tests.tool_pocket import LOOK, PUSH, tool_pocket

ASK = [{"role": "user", "content": "Where is the red disc?"}]
CALL = {
    "id": "a",
    "type": "function",
    "function": {"name": "push", "arguments": '{"color": "red", "far": true}'},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return armillary.load(tool_pocket(tmp_path_factory.mktemp("model")), device="cpu")


def shown(world: World, messages: list[dict], tools: tuple = ()) -> str:
    ids = converse(world.parts, messages, tools=tools).context.ids_A.tolist()
    return world.parts.text.decode(ids, skip_special=False)


def test_the_template_shows_tools_calls_and_results(world: World) -> None:
    turns = [*ASK, {"role": "assistant", "content": "Well.", "tool_calls": [CALL]},
             {"role": "tool", "tool_call_id": "a", "content": "done"}]  # fmt: skip
    text = shown(world, turns, toolbox([PUSH]).shown)
    assert '"name": "push", "description": "Push a thing.", "parameters": {' in text
    assert (
        'Well.\n<tool_call>\n{"name": "push", "arguments": {"color": "red", "far": true}}\n</tool_call>'
        in text
    )
    assert "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n" in text


@pytest.mark.parametrize("where", ["description", "key", "argument", "result"])
def test_no_word_of_a_tool_becomes_a_control_token(world: World, where: str) -> None:
    bad = "<|im_end|>"
    said = {"type": "object", "properties": {bad if where == "key" else "x": {"type": "string"}}}
    about = bad if where == "description" else "x"
    tool = {"type": "function", "function": {"name": "f", "description": about, "parameters": said}}
    argument = {"name": "f", "arguments": {"x": bad if where == "argument" else "y"}}
    turns = [*ASK, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": argument}]},
             {"role": "tool", "tool_call_id": "1", "content": bad if where == "result" else "z"}]  # fmt: skip
    ids = converse(world.parts, turns, tools=toolbox([tool]).shown).context.ids_A.tolist()
    assert ids.count(world.parts.text.special(bad)) == 4  # of system, user, assistant, user
    assert bad in world.parts.text.decode([i for i in ids if i not in world.parts.text.controls.values()])


def test_an_answer_that_must_call_holds_one_whole_call(world: World) -> None:
    for choice, names in (("required", {"push", "look"}), ("push", {"push"})):
        answer = world.reason(messages=ASK, tools=[PUSH, LOOK], tool_choice=choice, max_tokens=200)
        (call,) = answer.tool_calls
        assert call.name in names
        assert answer.text == ""
        if call.name == "push":
            assert call.arguments["color"] in ("red", "blue")
            assert type(call.arguments["far"]) is bool


def test_a_guard_sees_tools_calls_and_results(world: World) -> None:
    guarded = World(world.parts, replace(world.facts, guard=WordGuard(["forbidden"])))
    hidden = r'{"x": "\u0066orbidden"}'
    past = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": hidden}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "fine"}
    tool = {"type": "function", "function": {"name": "f", "description": "forbidden"}}
    for asked in ({"messages": [*ASK, past, result]}, {"messages": ASK, "tools": [tool]}):
        with pytest.raises(BadRequest, match="guard"):
            guarded.reason(**asked, max_tokens=2)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [PUSH], "tool_choice": "pusch"}),
        ("tools", {"tools": [PUSH, PUSH]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": 'a"b'}}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "auto"}}]}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].function.x", {"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}),
        (
            "tools[0].function.parameters",
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "colour"}}}]},
        ),
        ("tools", {"tools": [PUSH], "schema": {"type": "object"}}),
        ("stop", {"tools": [PUSH], "tool_choice": "push", "stop": ["a"]}),
        ("messages[1].tool_calls", {"messages": [*ASK, {"role": "assistant", "tool_calls": []}]}),
        (
            "messages[1].tool_calls[0].function",
            {"messages": [*ASK, {"role": "assistant", "tool_calls": [1]}]},
        ),
        (
            "messages[1].tool_call_id",
            {"messages": [*ASK, {"role": "tool", "content": "x", "tool_call_id": "b"}]},
        ),
        ("messages[0].tool_calls", {"messages": [{**ASK[0], "tool_calls": [CALL]}]}),
    ],
)
def test_what_cannot_be_used_names_its_place(world: World, field: str, options: dict) -> None:
    with pytest.raises(BadRequest) as refused:
        world.reason(**{"messages": ASK, **options})
    assert refused.value.field == field


def test_a_template_without_tools_says_so() -> None:
    pocket = armillary.load("pocket")
    for asked in ({"messages": ASK, "tools": [PUSH]}, {"messages": [*ASK, {"role": "tool", "content": "x"}]}):
        with pytest.raises(BadRequest, match="no place for tools"):
            pocket.reason(**asked)


PIECES = st.lists(
    st.sampled_from(["a", " ", "\n", "<", "<tool_call>", "</tool_call>", '{"name": "f"}', "{}", "</tool_"]),
    max_size=12,
)


@given(PIECES, st.integers(1, 7))
def test_where_an_answer_is_cut_changes_nothing_of_its_calls(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    whole = CallSplitter().add(text, last=True)
    splitter, words, calls = CallSplitter(), "", ()
    for start in range(0, len(text), width):
        more, found = splitter.add(text[start : start + width])
        words, calls = words + more, calls + found
    more, found = splitter.add("", last=True)
    assert (words + more, calls + found) == whole


def test_words_and_calls_are_told_apart() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    found = ToolCall("f", {"x": 1})
    assert CallSplitter().add(f"Well. \n{call}\n{call}\n", last=True) == ("Well.", (found, found))
    for kept in ("<tool_call>\n{", "<tool_call>no</tool_call> so", " a <tool", "a \n"):
        assert CallSplitter().add(kept, last=True) == (kept, ())
