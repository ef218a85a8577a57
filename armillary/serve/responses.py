"""`/v1/responses`: the reasoner's answers in OpenAI's newer form."""

import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from armillary.answers import Answer
from armillary.errors import BadRequest
from armillary.serve.bodies import JSON, documented, read_body
from armillary.serve.chat import (
    answer_options,
    called,
    collect,
    formed,
    limited,
    marks,
    read_messages,
    shown_call,
    streamed,
)
from armillary.serve.schemas import ResponsesFunction, ResponsesRequest
from armillary.serve.service import Service, event, new_id
from armillary.tasks.deltas import Delta
from armillary.tools import ToolCall

TEXTS = ("input_text", "output_text")
ITEMS = {
    "message": {"role", "content"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
}


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=documented(ResponsesRequest, JSON))
    async def responses(request: Request) -> Response:
        """Answer a text, or the last message of a conversation."""
        body = await read_body(request, ResponsesRequest)
        service.check_model(body.model)
        messages = await read_messages(service, _messages(body), field="input")
        options = answer_options(body) | limited(service, body.max_output_tokens, "max_output_tokens")
        if body.text and (form := body.text.format):
            options |= formed(form.type, form.schema_, "text.format.schema")
        options |= called([_tool(tool) for tool in body.tools or ()], body.tool_choice)
        deltas = service.talk(request, messages, options)
        if body.stream:
            return await streamed(deltas, partial(_events, service, body))
        (answer,) = await collect(request, service, deltas)
        return JSONResponse(_response(service, body, new_id("resp"), answer))

    return router


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The conversation in the form of chat completions."""
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        return [*first, {"role": "user", "content": body.input}]
    return [*first, *_joined(_message(m, f"input[{i}]") for i, m in enumerate(body.input))]


def _message(said: Mapping[str, Any], field: str) -> dict[str, Any]:
    kind = said.get("type", "message")
    if not isinstance(kind, str) or kind not in ITEMS:
        raise BadRequest(f"{field}.type", kind, f"items are {', '.join(ITEMS)}")
    for name in said.keys() - ITEMS[kind] - {"type", "id", "status"}:
        raise BadRequest(f"{field}.{name}", "...", "there is no such option here")
    if kind == "function_call":
        function = {"name": said.get("name"), "arguments": said.get("arguments")}
        call = {"id": said.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": said.get("output"), "tool_call_id": said.get("call_id")}
    content = said.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        content = [_part(part, f"{field}.content[{i}]") for i, part in enumerate(parts)]
    elif not isinstance(content, str):
        raise BadRequest(f"{field}.content", content, "text, or a list of parts")
    return {"role": said.get("role"), "content": content}


def _joined(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that were made in one turn, here an item each, as the one message they are in a chat."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if "tool_calls" in message and found and found[-1]["role"] == "assistant":
            before = found.pop()
            calls = [*before.get("tool_calls", []), *message["tool_calls"]]
            message = {**before, "tool_calls": calls}
        found.append(message)
    return found


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form of chat completions, where its function has an object of its own."""
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": tool.get("type"), "function": function}


def _part(part: Any, field: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind != "input_image":
        raise BadRequest(f"{field}.type", kind, "parts are input_text, input_image and output_text")
    if (part.get("image_url") is None) == (part.get("file_id") is None):
        raise BadRequest(field, "...", "give image_url or file_id")
    return {"type": "image_url", "image_url": part.get("image_url") or part.get("file_id")}


def _response(service: Service, body: ResponsesRequest, name: str, answer: Answer | None) -> dict[str, Any]:
    """OpenAI's response object, begun or complete."""
    whole = answer is not None and answer.finish_reason == "stop"
    status = "in_progress" if answer is None else "completed" if whole else "incomplete"
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    choice = body.tool_choice
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": cut,
        "instructions": body.instructions,
        "model": service.model,
        "output": [] if answer is None else _items(answer),
        "parallel_tool_calls": bool(body.tools),
        "tool_choice": choice.model_dump() if isinstance(choice, ResponsesFunction) else choice or "auto",
        "tools": body.tools or [],
        "temperature": body.temperature,
        "top_p": body.top_p,
        "usage": None if answer is None else _usage(answer),
        "receipt": None if answer is None else dict(answer.receipt),
    }


def _items(answer: Answer) -> list[dict[str, Any]]:
    """What an answer says, then what it calls; words that it has none of are left out beside a call."""
    said = [] if answer.tool_calls and not answer.text else [_words(answer)]
    return [*said, *map(_call, answer.tool_calls)]


def _words(answer: Answer) -> dict[str, Any]:
    part = {"type": "output_text", "text": answer.text, "annotations": [], **marks(answer)}
    status = "completed" if answer.finish_reason == "stop" else "incomplete"
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _call(call: ToolCall) -> dict[str, Any]:
    shown = shown_call(call)
    head = {"id": new_id("fc"), "type": "function_call", "status": "completed", "call_id": shown["id"]}
    return {**head, **shown["function"]}


def _usage(answer: Answer) -> dict[str, Any]:
    read, wrote = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + wrote,
    }


class _Said:
    """The events of a stream, numbered, in the order that OpenAI's clients expect: items as they come."""

    def __init__(self) -> None:
        self._number = -1
        self.items = list[dict[str, Any]]()  # of the answer, as far as they have come
        self._words: dict[str, Any] | None = None  # where the words of the answer lie, once there are some

    def event(self, kind: str, **more: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **more}, kind)

    def add(self, delta: Delta) -> Iterator[str]:
        """The events of one delta, the closing of its words among them if it is the last."""
        if delta.text or (delta.answer and not delta.answer.tool_calls):
            yield from self._open()
        if delta.text and self._words:
            yield self.event("response.output_text.delta", **self._words, delta=delta.text, logprobs=[])
        for call in delta.calls:
            yield from self._call(_call(call))
        if delta.answer and self._words:
            yield from self._close(delta.answer)

    def _begin(self, item: dict[str, Any]) -> str:
        self.items.append(item)
        return self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)

    def _open(self) -> Iterator[str]:
        if self._words:
            return
        item = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress"}
        self._words = {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}
        yield self._begin({**item, "content": []})
        empty = {"type": "output_text", "text": "", "annotations": []}
        yield self.event("response.content_part.added", **self._words, part=empty)

    def _close(self, answer: Answer) -> Iterator[str]:
        place = cast("dict[str, Any]", self._words)
        index = place["output_index"]
        whole = _words(answer) | {"id": place["item_id"]}
        self.items[index] = whole
        yield self.event("response.output_text.done", **place, text=answer.text, logprobs=[])
        yield self.event("response.content_part.done", **place, part=whole["content"][0])
        yield self.event("response.output_item.done", output_index=index, item=whole)

    def _call(self, item: dict[str, Any]) -> Iterator[str]:
        place = {"item_id": item["id"], "output_index": len(self.items)}
        yield self._begin({**item, "arguments": "", "status": "in_progress"})
        self.items[-1], told = item, item["arguments"]
        yield self.event("response.function_call_arguments.delta", **place, delta=told)
        yield self.event("response.function_call_arguments.done", **place, arguments=told, name=item["name"])
        yield self.event("response.output_item.done", output_index=place["output_index"], item=item)


async def _events(
    service: Service, body: ResponsesRequest, deltas: AsyncGenerator[Delta]
) -> AsyncGenerator[str]:
    name, said = new_id("resp"), _Said()
    yield said.event("response.created", response=_response(service, body, name, None))
    async with aclosing(deltas):
        async for delta in deltas:
            for one in said.add(delta):
                yield one
            if delta.answer is not None:
                response = _response(service, body, name, delta.answer) | {"output": said.items}
                yield said.event(f"response.{response['status']}", response=response)
