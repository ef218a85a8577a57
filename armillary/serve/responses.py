"""`/v1/responses`: the reasoner's answers in OpenAI's newer form."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from armillary.answers import Answer
from armillary.errors import BadRequest
from armillary.serve.bodies import JSON, documented, read_body
from armillary.serve.chat import answer_options, collect, formed, limited, marks, read_messages, streamed
from armillary.serve.schemas import ResponsesRequest
from armillary.serve.service import Service, event, new_id
from armillary.tasks.reason import Delta

TEXTS = ("input_text", "output_text")


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
    return [*first, *(_message(m, f"input[{i}]") for i, m in enumerate(body.input))]


def _message(said: Mapping[str, Any], field: str) -> dict[str, Any]:
    for name in said.keys() - {"type", "role", "content", "id", "status"}:
        raise BadRequest(f"{field}.{name}", "...", "there is no such option here")
    if said.get("type", "message") != "message":
        raise BadRequest(f"{field}.type", said["type"], "only messages are known")
    content = said.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        content = [_part(part, f"{field}.content[{i}]") for i, part in enumerate(parts)]
    elif not isinstance(content, str):
        raise BadRequest(f"{field}.content", content, "text, or a list of parts")
    return {"role": said.get("role"), "content": content}


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
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": cut,
        "instructions": body.instructions,
        "model": service.model,
        "output": [] if answer is None else [_item(answer)],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "temperature": body.temperature,
        "top_p": body.top_p,
        "usage": None if answer is None else _usage(answer),
        "receipt": None if answer is None else dict(answer.receipt),
    }


def _item(answer: Answer) -> dict[str, Any]:
    part = {"type": "output_text", "text": answer.text, "annotations": [], **marks(answer)}
    status = "completed" if answer.finish_reason == "stop" else "incomplete"
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _usage(answer: Answer) -> dict[str, Any]:
    read, wrote = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + wrote,
    }


async def _events(
    service: Service, body: ResponsesRequest, deltas: AsyncGenerator[Delta]
) -> AsyncGenerator[str]:
    """The events of a stream, numbered, in the order that OpenAI's clients expect."""
    name, item, number = new_id("resp"), new_id("msg"), -1
    place = {"item_id": item, "output_index": 0, "content_index": 0}

    def said(kind: str, **more: Any) -> str:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **more}, kind)

    begun = {"id": item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    empty = {"type": "output_text", "text": "", "annotations": []}
    yield said("response.created", response=_response(service, body, name, None))
    yield said("response.output_item.added", output_index=0, item=begun)
    yield said("response.content_part.added", **place, part=empty)
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.text:
                yield said("response.output_text.delta", **place, delta=delta.text, logprobs=[])
            if (answer := delta.answer) is None:
                continue
            whole = _item(answer) | {"id": item}
            response = _response(service, body, name, answer) | {"output": [whole]}
            yield said("response.output_text.done", **place, text=answer.text, logprobs=[])
            yield said("response.content_part.done", **place, part=whole["content"][0])
            yield said("response.output_item.done", output_index=0, item=whole)
            yield said(f"response.{response['status']}", response=response)
