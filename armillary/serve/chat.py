"""`/v1/chat/completions`: the reasoner's answers, whole or as a stream; pictures where they are asked for."""

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from armillary.answers import Answer, TokenLogprob, Usage
from armillary.errors import BadRequest, Cancelled, nearest
from armillary.serve.bodies import JSON, documented, read_body, renamed
from armillary.serve.images import draw_pictures, encoded
from armillary.serve.schemas import Answering, Body, ChatFunction, ChatRequest, Drawing, FunctionName
from armillary.serve.service import Service, event, given, new_id, one_of
from armillary.tasks.deltas import Delta
from armillary.tools import ToolCall

PARTS = {"text": "text", "image_url": "image", "video_url": "video"}
ROLES = {"developer": "system"}


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=documented(ChatRequest, JSON))
    async def chat_completions(request: Request) -> Response:
        """Answer the last turn of a conversation about words, pictures and clips."""
        body = await read_body(request, ChatRequest)
        service.check_model(body.model)
        if "image" in (body.modalities or ()):
            return await _picture(service, request, body)
        _refuse_drawing(body)
        deltas = service.talk(request, *await conversation(service, body))
        if body.stream:
            return await streamed(deltas, partial(_chunks, service, body))
        return JSONResponse(_completion(service, await collect(request, service, deltas)))

    return router


# -------------------------------------------------------------------------------------------- what is asked


def answer_options(body: Answering) -> dict[str, Any]:
    """The library's options of an answer; a greedy one is the same whatever seed and top_p 1 say."""
    names = ("temperature", "top_k", "top_p", "presence_penalty", "repetition_penalty", "seed")
    names = (*names, "thinking_budget")
    options = given({name: getattr(body, name) for name in names})
    if not options.get("temperature"):
        options.pop("seed", None)
        if options.get("top_p") == 1:
            del options["top_p"]
    return options


async def conversation(service: Service, body: ChatRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The conversation and the options of its answers."""
    messages = await read_messages(service, [m.model_dump(exclude={"name"}) for m in body.messages])
    asked = one_of(max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens)
    options = answer_options(body) | limited(service, asked, "max_tokens") | given({"n": body.n})
    named = body.tool_choice.function if isinstance(body.tool_choice, ChatFunction) else body.tool_choice
    options |= called(body.tools, named)
    if body.response_format is not None:
        told = body.response_format.json_schema
        options |= formed(body.response_format.type, told and told.schema_, "response_format.json_schema")
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs is not None:
        raise BadRequest("top_logprobs", body.top_logprobs, "needs logprobs: true")
    if body.stop:
        options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    return messages, options


def formed(kind: str, schema: dict[str, Any] | None, field: str) -> dict[str, Any]:
    """The library's schema of an answer that is to be free text, any JSON object, or JSON by a schema."""
    if (kind == "json_schema") is (schema is None):
        raise BadRequest(field, schema, "goes with the type json_schema, and only with it")
    return {} if kind == "text" else {"schema": schema or {"type": "object"}}


def called(tools: list[dict[str, Any]] | None, choice: FunctionName | str | None) -> dict[str, Any]:
    """The library's options of tools; where none may be called, none are shown."""
    if choice == "none":
        return {}
    if not tools and choice is not None:
        raise BadRequest("tool_choice", choice, "there are no tools to choose from")
    return given({"tools": tools, "tool_choice": choice.name if isinstance(choice, Body) else choice})


def limited(service: Service, asked: int | None, name: str) -> dict[str, Any]:
    """`max_tokens` for the library, if asked for and within what this server writes at most."""
    most = service.settings.max_tokens
    if asked is not None and asked > most:
        raise BadRequest(name, asked, f"this server writes at most {most} tokens; nearest: {most}")
    return given({"max_tokens": asked})


async def read_messages(
    service: Service, messages: Sequence[Mapping[str, Any]], field: str = "messages"
) -> list[dict[str, Any]]:
    """Messages as the library takes them, their pictures and clips read."""
    found: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        content, role = message["content"], message["role"]
        if isinstance(content, list):
            parts = enumerate(cast("list[Any]", content))
            content = [await _part(service, p, f"{field}[{i}].content[{j}]") for j, p in parts]
        about = given({name: message.get(name) for name in ("tool_calls", "tool_call_id")})
        found.append({"role": ROLES.get(role, role), "content": content, **about})
    return found


async def _part(service: Service, part: Mapping[str, Any], field: str) -> dict[str, Any]:
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in PARTS:
        close = " or ".join(nearest(kind, PARTS))
        raise BadRequest(f"{field}.type", kind, f"parts are {', '.join(PARTS)}; say {close}")
    extra = {"fps", "num_frames"} if kind == "video_url" else set[str]()
    for key in part.keys() - {"type", kind} - extra:
        raise BadRequest(f"{field}.{key}", part[key], "there is no such option here")
    if kind == "text":
        return {"type": "text", "text": part.get("text")}
    said = part.get(kind)
    if isinstance(said, Mapping) and said.get("detail") in ("auto", "low", "high", "original"):
        said = {key: value for key, value in said.items() if key != "detail"}
    read = service.picture if kind == "image_url" else service.content
    options = {key: part[key] for key in extra & part.keys()}
    return {"type": PARTS[kind], PARTS[kind]: await read(said, f"{field}.{kind}"), **options}


def _refuse_drawing(body: ChatRequest) -> None:
    for name in Drawing.model_fields.keys() - {"seed"}:
        if getattr(body, name) is not None:
            message = 'is of pictures; ask for one with modalities: ["image"], or leave it out'
            raise BadRequest(name, getattr(body, name), message)


# --------------------------------------------------------------------------------------------- what is said


async def collect(request: Request, service: Service, deltas: AsyncGenerator[Delta]) -> list[Answer]:
    """The whole answers; a client that leaves stops them."""
    answers: dict[int, Answer] = {}

    async def gather() -> None:
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.answer is not None:
                    answers[delta.choice] = delta.answer

    await service.unless_gone(request, gather())
    if not answers:
        raise Cancelled
    return [answers[choice] for choice in sorted(answers)]


async def streamed(
    deltas: AsyncGenerator[Delta], events: Callable[[AsyncGenerator[Delta]], AsyncGenerator[str]]
) -> StreamingResponse:
    """Server-sent events, once the first token is there: until then, an error has its own status."""
    first = await anext(deltas, None)
    if first is None:
        raise Cancelled

    async def again() -> AsyncGenerator[Delta]:
        async with aclosing(deltas):
            yield first
            async for delta in deltas:
                yield delta

    return StreamingResponse(events(again()), media_type="text/event-stream")


async def _chunks(service: Service, body: ChatRequest, deltas: AsyncGenerator[Delta]) -> AsyncGenerator[str]:
    head = {**_head(service), "object": "chat.completion.chunk"}
    told, usages, calls = set[int](), list[Usage](), Counter[int]()
    async with aclosing(deltas):
        async for delta in deltas:
            said: dict[str, Any] = {} if delta.choice in told else {"role": "assistant", "content": ""}
            told.add(delta.choice)
            said |= {"content": delta.text} if delta.text else {}
            said |= {"reasoning_content": delta.thinking} if delta.thinking else {}
            if delta.calls:
                numbers = range(calls[delta.choice], calls[delta.choice] + len(delta.calls))
                shown = zip(numbers, delta.calls, strict=True)
                said["tool_calls"] = [{"index": number, **shown_call(call)} for number, call in shown]
                calls[delta.choice] += len(delta.calls)
            choice: dict[str, Any] = {"index": delta.choice, "delta": said}
            choice |= {"finish_reason": None, "logprobs": chances(delta.logprobs)}
            if delta.answer is not None:
                usages.append(delta.answer.usage)
                said |= marks(delta.answer)
                choice["finish_reason"] = _finish(delta.answer)
            yield event({**head, "choices": [choice]})
    if body.stream_options and body.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": usage(usages)})
    yield event("[DONE]")


def _completion(service: Service, answers: list[Answer]) -> dict[str, Any]:
    choices = [
        {
            "index": i,
            "message": _message(a),
            "finish_reason": _finish(a),
            "logprobs": chances(a.logprobs),
        }
        for i, a in enumerate(answers)
    ]
    receipt = {"receipt": dict(answers[0].receipt)}
    return {**_head(service), "choices": choices, "usage": usage([a.usage for a in answers]), **receipt}


def _head(service: Service) -> dict[str, Any]:
    made = int(time.time())
    return {"id": new_id("chatcmpl"), "object": "chat.completion", "created": made, "model": service.model}


def _message(answer: Answer) -> dict[str, Any]:
    more: dict[str, Any] = {"reasoning_content": answer.thinking} if answer.thinking else {}
    if answer.tool_calls:
        more["tool_calls"] = [shown_call(call) for call in answer.tool_calls]
    words = answer.text or (None if answer.tool_calls else "")
    return {"role": "assistant", "content": words, "refusal": None, **more, **marks(answer)}


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's form: arguments as JSON in a string."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": new_id("call"), "type": "function", "function": function}


def _finish(answer: Answer) -> str:
    called = answer.tool_calls and answer.finish_reason == "stop"
    return "tool_calls" if called else answer.finish_reason


def marks(answer: Answer) -> dict[str, Any]:
    """Boxes, points and trajectories in pixels, events in seconds, where the answer holds any."""
    kinds = ("boxes", "points", "trajectories", "events")
    found: dict[str, tuple[Any, ...]] = {name: getattr(answer, name) for name in kinds}
    return {name: [asdict(mark) for mark in kind] for name, kind in found.items() if kind}


def chances(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Log-probabilities in OpenAI's form."""
    if not tokens:
        return None
    told = [{**_chance(token), "top_logprobs": [_chance(top) for top in token.top]} for token in tokens]
    return {"content": told, "refusal": None}


def _chance(token: TokenLogprob) -> dict[str, Any]:
    # JSON has no infinity: -9999 is what OpenAI's own API says for "never".
    logprob = max(token.logprob, -9999.0)
    return {"token": token.text, "bytes": list(token.spelling), "logprob": logprob}


def usage(usages: Sequence[Usage]) -> dict[str, int]:
    """Tokens read, once for all answers to one prompt, and tokens written."""
    read, wrote = usages[0].prompt_tokens, sum(u.completion_tokens for u in usages)
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


# ------------------------------------------------------------------------------------------------- pictures


async def _picture(service: Service, request: Request, body: ChatRequest) -> Response:
    """A picture for the words of the last user turn, in vLLM-Omni's form."""
    for name in (
        "stream",
        "response_format",
        "tools",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
    ):
        if getattr(body, name):
            raise BadRequest(name, getattr(body, name), "is of answers in words; leave it out for a picture")
    messages = await read_messages(service, [m.model_dump(exclude={"name"}) for m in body.messages])
    prompt = _last_words(messages)
    with renamed({"prompt": "messages"}):
        (clip,) = await draw_pictures(service, request, body, prompt, count=1)
    data = await encoded(clip, "png", 100)
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    tokens = {"prompt_tokens": clip.receipt["tokens"]["context"], "completion_tokens": 1}
    used = {**tokens, "total_tokens": sum(tokens.values())}
    return JSONResponse({**_head(service), "choices": [choice], "usage": used, "receipt": clip.receipt})


def _last_words(messages: Sequence[Mapping[str, Any]]) -> str:
    content: Any = messages[-1]["content"]
    if messages[-1]["role"] != "user":
        raise BadRequest("messages", messages[-1]["role"], "a picture is made for the last turn, a user's")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for i, part in enumerate(parts):
        if part["type"] != "text":
            field = f"messages[{len(messages) - 1}].content[{i}]"
            raise BadRequest(field, part["type"], "is not used: a picture is made from words alone")
    return "\n".join(part["text"] or "" for part in parts)
