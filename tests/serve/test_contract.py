"""The real clients work against the server: openai's as it is installed, and lines written for vLLM-Omni."""

import base64
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from PIL import Image

import armillary.slots
from armillary.media.pictures import read_picture
from armillary.sim import episode
from armillary.slots import Decoder
from armillary.world import World
from tests.serve.conftest import Live

QUESTION = "Where is the red disc?"


def data_uri(picture_HW3: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(picture_HW3).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return episode("push", 0, split="test").picture()


def test_chat_answers_what_the_library_answers(live: Live, world: World, picture: np.ndarray) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": data_uri(picture)}},
        {"type": "text", "text": QUESTION},
    ]
    said = live.openai().chat.completions.create(
        model="pocket", messages=[{"role": "user", "content": content}], max_tokens=64
    )
    alone = world.reason(QUESTION, images=[picture])
    assert said.choices[0].message.content == alone.text
    assert said.choices[0].finish_reason == alone.finish_reason
    assert said.usage.prompt_tokens == alone.usage.prompt_tokens
    assert said.usage.completion_tokens == alone.usage.completion_tokens


def test_a_stream_joins_to_the_whole_answer_with_usage(live: Live, picture: np.ndarray) -> None:
    client = live.openai()
    shown = {"type": "image_url", "image_url": {"url": data_uri(picture)}}
    content = [shown, {"type": "text", "text": "Describe this."}]
    asked = {"model": "pocket", "messages": [{"role": "user", "content": content}]}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert len(chunks) > 4
    joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert joined == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


SCHEMA = {"type": "object", "properties": {"where": {"enum": ["left", "right"]}}, "required": ["where"],
          "additionalProperties": False}  # fmt: skip


def test_an_answer_follows_a_json_schema(live: Live) -> None:
    client, form = live.openai(), {"name": "place", "schema": SCHEMA, "strict": True}
    messages = [{"role": "user", "content": QUESTION}]
    said = client.chat.completions.create(
        model="pocket", messages=messages, response_format={"type": "json_schema", "json_schema": form}
    )
    assert json.loads(said.choices[0].message.content)["where"] in ("left", "right")
    same = client.responses.create(
        model="pocket", input=QUESTION, text={"format": {"type": "json_schema", **form}}
    )
    assert same.output_text == said.choices[0].message.content


def test_a_client_that_leaves_a_stream_stops_its_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    step = Decoder.step

    def counting(self: Decoder) -> object:
        told = step(self)
        written.append(len(told))
        time.sleep(0.01)
        return told

    monkeypatch.setattr(Decoder, "step", counting)
    long = {"type": "object", "properties": {"a": {"type": "string", "minLength": 400}}, "required": ["a"]}
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "max_tokens": 400,
        "response_format": {"type": "json_schema", "json_schema": {"name": "long", "schema": long}},
    }
    with live.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as said:
        lines = said.iter_lines()
        for _ in range(6):
            next(lines)
        before = sum(written)
    time.sleep(0.5)  # fifty tokens' time
    after = sum(written)
    time.sleep(0.5)
    assert sum(written) == after
    assert 0 < before <= after < before + 25


def test_the_chances_of_tokens_are_told(live: Live, world: World) -> None:
    asked = {"model": "pocket", "messages": [{"role": "user", "content": QUESTION}], "logprobs": True}
    said = live.openai().chat.completions.create(**asked, top_logprobs=2).choices[0].logprobs.content
    alone = world.reason(QUESTION, logprobs=2).logprobs
    assert [t.logprob for t in said] == [t.logprob for t in alone]
    assert [len(t.top_logprobs) for t in said] == [2] * len(said)
    chunks = live.openai().chat.completions.create(**asked, stream=True)
    told = [c.choices[0].logprobs for c in chunks]
    assert [t.logprob for some in told if some for t in some.content] == [t.logprob for t in said]


def test_several_answers_are_those_of_seeds_that_count_up(live: Live) -> None:
    asked = {"model": "pocket", "messages": [{"role": "user", "content": QUESTION}], "temperature": 2.0}
    three = live.openai().chat.completions.create(**asked, n=3, seed=5)
    alone = [live.openai().chat.completions.create(**asked, seed=5 + i) for i in range(3)]
    assert [c.message.content for c in three.choices] == [a.choices[0].message.content for a in alone]
    assert three.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)


def test_what_waits_beside_others_is_answered_as_alone(live: Live, world: World, picture: np.ndarray) -> None:
    """Eight clients at once, each with its own seed and task, against the library one after the other."""
    client = live.openai()

    def chat(seed: int) -> object:
        messages = [{"role": "user", "content": f"{QUESTION} {seed}"}]
        made = client.chat.completions.create(model="pocket", messages=messages, temperature=1.0, seed=seed)
        return made.choices[0].message.content

    def draw(seed: int) -> object:
        made = client.images.generate(prompt="a disc", extra_body={"seed": seed, "num_inference_steps": 2})
        return read_picture(base64.b64decode(made.data[0].b64_json)).tolist()

    with ThreadPoolExecutor(8) as clients:
        said = [clients.submit((chat, draw)[seed % 2], seed) for seed in range(16)]
        told = [s.result() for s in said]
    for seed in range(0, 16, 2):
        assert told[seed] == world.reason(f"{QUESTION} {seed}", temperature=1.0, seed=seed).text
        drawn = world.generate("a disc", frames=1, steps=2, seed=seed + 1)
        assert told[seed + 1] == drawn.frames[0].tolist()


def test_responses_answer_what_chat_answers(live: Live, picture: np.ndarray) -> None:
    client, shown = live.openai(), data_uri(picture)
    content = [{"type": "input_image", "image_url": shown}, {"type": "input_text", "text": "Describe this."}]
    asked = {"model": "pocket", "input": [{"role": "user", "content": content}]}
    whole = client.responses.create(**asked)
    chat = [{"type": "image_url", "image_url": {"url": shown}}, {"type": "text", "text": "Describe this."}]
    same = client.chat.completions.create(model="pocket", messages=[{"role": "user", "content": chat}])
    assert whole.status == "completed"
    assert whole.output_text == same.choices[0].message.content
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    cut = client.responses.create(**asked, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_picture_is_made_in_a_chat_that_asks_for_one(live: Live, world: World) -> None:
    made = live.openai().chat.completions.create(
        model="pocket",
        messages=[{"role": "user", "content": "a green square"}],
        modalities=["image"],
        seed=7,
        extra_body={"num_inference_steps": 2},
    )
    url = made.choices[0].message.content[0]["image_url"]["url"]
    pixels = read_picture(base64.b64decode(url.removeprefix("data:image/png;base64,")))
    assert (pixels == world.generate("a green square", frames=1, steps=2, seed=7).frames[0]).all()


def test_a_picture_is_changed_as_words_say(live: Live, world: World, picture: np.ndarray) -> None:
    content = base64.b64decode(data_uri(picture).partition(",")[2])
    made = live.openai().images.edit(
        image=("a.png", content), prompt="a blue disc", extra_body={"seed": 3, "num_inference_steps": 2}
    )
    alone = world.generate("a blue disc", frames=1, edit=picture, seed=3, steps=2)
    assert (read_picture(base64.b64decode(made.data[0].b64_json)) == alone.frames[0]).all()


def test_uploads_are_named_in_later_requests(live: Live, picture: np.ndarray) -> None:
    client = live.openai()
    content = base64.b64decode(data_uri(picture).partition(",")[2])
    kept = client.files.create(file=("a.png", content), purpose="vision")
    assert client.files.content(kept.id).content == content
    assert kept.id in [f.id for f in client.files.list()]
    part = {"type": "image_url", "image_url": {"url": kept.id}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
    assert client.chat.completions.create(model="pocket", messages=messages).choices[0].message.content
    assert client.files.delete(kept.id).deleted
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="pocket", messages=messages)


def test_actions_are_those_of_the_library(live: Live, world: World) -> None:
    push = episode("push", 0, split="test")
    asked = {"task": "policy", "domain": "tabletop", "prompt": push.instruction, "clip": False, "seed": 2}
    with live.http() as http:
        made = http.post("/v1/actions", json={**asked, "image": data_uri(push.picture())}).json()
        form = [(name, (None, str(value))) for name, value in asked.items()]
        png = base64.b64decode(data_uri(push.picture()).partition(",")[2])
        same = http.post("/v1/actions", files=[*form, ("image", ("a.png", png))]).json()
    alone = world.policy(push.instruction, push.picture(), domain="tabletop", decode=False, seed=2)
    assert made["action"]["data"] == same["action"]["data"] == alone.values.tolist()
    assert made["action"]["digest"] == alone.digest
    assert made["clip"] is None


def test_metrics_count_what_was_asked(live: Live) -> None:
    with live.http() as http:
        http.get("/health")
        told = http.get("/metrics").text
    assert 'armillary_requests_total{method="GET",route="/health",status="200"}' in told
    assert "armillary_tokens_total" in told


def test_an_image_is_the_one_the_library_makes(live: Live, world: World) -> None:
    made = live.openai().images.generate(
        model="pocket", prompt="a green square", size="64x64", n=2, extra_body={"seed": 7}
    )
    for image, seed in zip(made.data, (7, 8), strict=True):
        pixels = read_picture(base64.b64decode(image.b64_json))
        assert (pixels == world.generate("a green square", frames=1, seed=seed).frames[0]).all()


def test_a_form_is_taken_like_json(live: Live) -> None:
    asked = {"prompt": "a green square", "seed": 7, "num_inference_steps": 2, "response_format": "file"}
    with live.http() as http:
        form = http.post("/v1/images/generations", files=[(k, (None, str(v))) for k, v in asked.items()])
        json = http.post("/v1/images/generations", json=asked)
    assert form.headers["content-type"] == "image/png"
    assert (read_picture(form.content) == read_picture(json.content)).all()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/images/generations", {"prompt": "a", "sed": 1}, "sed"),
        ("/v1/images/generations", {"prompt": "a", "num_inference_steps": 0}, "num_inference_steps"),
        ("/v1/images/generations", {}, "prompt"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
    ],
)
def test_a_fault_of_the_client_names_its_place(live: Live, path: str, body: dict, param: str) -> None:
    with live.http() as http:
        refused = http.post(path, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_a_broken_picture_names_its_part(live: Live) -> None:
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    with pytest.raises(openai.BadRequestError) as refused:
        live.openai().chat.completions.create(model="pocket", messages=[{"role": "user", "content": content}])
    assert refused.value.param == "messages[0].content[1].image_url"


def test_another_model_is_refused(live: Live) -> None:
    with pytest.raises(openai.NotFoundError):
        live.openai().images.generate(model="gpt-image-1", prompt="a disc")


def test_health(live: Live) -> None:
    assert httpx2.get(f"{live.url}/health").json() == {"status": "healthy"}
    assert [m.id for m in live.openai().models.list()] == ["pocket"]


def test_json_that_says_it_is_a_form_is_told_its_header(live: Live) -> None:
    with live.http() as http:
        sent = http.post(
            "/v1/chat/completions",
            content=b'{"messages": []}',
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
    assert sent.status_code == 415
    assert "application/json" in sent.json()["error"]["message"]


def test_a_request_that_lacks_memory_fails_alone(
    live: Live, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions are answered together; what the longer one needs is not there."""
    whole = armillary.slots._write_row

    def short(network: Any, sequences: Any, rows: int) -> Any:
        if any(len(s.context) > 100 for s in sequences):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return whole(network, sequences, rows)

    monkeypatch.setattr(armillary.slots, "_write_row", short)
    client = live.openai()
    long, brief = (
        {"model": "pocket", "messages": [{"role": "user", "content": text}]}
        for text in (QUESTION * 40, QUESTION)
    )
    with ThreadPoolExecutor(8) as clients:
        fails = [clients.submit(client.chat.completions.create, **long) for _ in range(2)]
        said = [clients.submit(client.chat.completions.create, **brief) for _ in range(4)]
    for fail in fails:
        assert isinstance(error := fail.exception(), openai.InternalServerError)
        assert error.code == "out_of_memory"
    assert {s.result().choices[0].message.content for s in said} == {world.reason(QUESTION).text}
    monkeypatch.undo()
    assert client.chat.completions.create(**long).choices[0].message.content
