"""openai's client calls tools, asks in both forms, and sends back what came of a call."""

import json
from collections.abc import Iterator

import openai
import pytest

import armillary
from armillary.serve.settings import Settings
from tests.serve.conftest import Live, Start, serving
from tests.tool_pocket import LOOK, PUSH, tool_pocket

TURNS = [{"role": "user", "content": "push the blue triangle left"}]
FLAT = [{"type": "function", **tool["function"]} for tool in (PUSH, LOOK)]
CHAT = {"messages": TURNS, "tools": [PUSH, LOOK], "max_tokens": 200}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    world = armillary.load(tool_pocket(tmp_path_factory.mktemp("model")), device="cpu")
    with serving(world, Settings(tmp_path_factory.mktemp("server"))) as live:
        yield live


def model_of(live: Live) -> str:
    return live.openai().models.list().data[0].id


def test_a_chat_calls_a_tool_whole_and_streamed(live: Live) -> None:
    client, asked = live.openai(), {**CHAT, "model": model_of(live), "tool_choice": "required"}
    said = client.chat.completions.create(**asked).choices[0]
    assert (said.finish_reason, said.message.content) == ("tool_calls", None)
    (call,) = said.message.tool_calls
    assert call.function.name in ("push", "look")
    chunks = [c.choices[0] for c in client.chat.completions.create(**asked, stream=True)]
    (streamed,) = [call for c in chunks for call in c.delta.tool_calls or ()]
    assert streamed.index == 0
    assert streamed.function.model_dump() == call.function.model_dump()
    assert not any(c.delta.content for c in chunks)
    assert chunks[-1].finish_reason == "tool_calls"
    if call.function.name == "push":
        assert json.loads(call.function.arguments)["color"] in ("red", "blue")


def test_an_answer_is_sent_back_as_it_came_with_what_its_call_gave(live: Live) -> None:
    client, asked = live.openai(), {**CHAT, "model": model_of(live)}
    first = client.chat.completions.create(**asked, tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "it moved"}
    turns = [*TURNS, first, result]
    said = client.chat.completions.create(**{**asked, "messages": turns, "max_tokens": 4})
    read = said.model_extra["receipt"]["prompt"]
    assert "<tool_response>\nit moved\n</tool_response>" in read
    assert f'<tool_call>\n{{"name": "{first.tool_calls[0].function.name}", "arguments": ' in read
    result["tool_call_id"] = "another"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**asked, "messages": turns})
    assert refused.value.param == "messages[2].tool_call_id"


def test_no_tool_is_shown_where_none_may_be_called(live: Live) -> None:
    asked = {**CHAT, "model": model_of(live), "max_tokens": 2, "tool_choice": "none"}
    said = live.openai().chat.completions.create(**asked)
    assert "push" not in said.model_extra["receipt"]["prompt"].replace(TURNS[0]["content"], "")


def test_responses_call_a_tool_whole_and_streamed(live: Live) -> None:
    client, choice = live.openai(), {"type": "function", "name": "push"}
    asked = {"model": model_of(live), "input": TURNS, "tools": FLAT, "tool_choice": choice,
             "max_output_tokens": 200}  # fmt: skip
    whole = client.responses.create(**asked)
    (item,) = whole.output
    assert (item.type, item.status, whole.status) == ("function_call", "completed", "completed")
    events = list(client.responses.create(**asked, stream=True))
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert (done.arguments, done.name) == (item.arguments, item.name)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    (last,) = events[-1].response.output
    assert (last.name, last.arguments) == (item.name, item.arguments)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "it moved"}
    follows = {**asked, "tool_choice": "auto", "max_output_tokens": 4}
    said = client.responses.create(**{**follows, "input": [*TURNS, item, result]})
    assert "<tool_response>\nit moved\n</tool_response>" in said.model_extra["receipt"]["prompt"]


def test_pocket_says_why_it_takes_no_tools(start: Start) -> None:
    with start() as live, pytest.raises(openai.BadRequestError) as refused:
        live.openai().chat.completions.create(**CHAT, model="pocket")
    assert refused.value.param == "tools"
    assert "no place for tools" in str(refused.value)
