"""The real clients work against the server: openai's as it is installed, and lines written for vLLM-Omni."""

import base64
import io

import httpx2
import numpy as np
import openai
import pytest
from PIL import Image

from armillary.media.decode import read_picture
from armillary.sim import episode
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
