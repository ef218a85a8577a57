"""The table-top behind the page: what is imagined is the library's, what is real is the simulator's."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from armillary.loading import explain
from armillary.sim import episode, replay, success
from armillary.sim.drawing import draw
from armillary.world import World
from tests.serve.conftest import Live, Start

PUSHES = [[36.0, 0.0]] * 2 + [[0.0, -20.0]] * 2


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def move(live: Live, **body: Any) -> dict[str, Any]:
    with live.http() as http:
        answer = http.post("/v1/table", json={"episode": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_start_tells_its_instruction_and_what_to_ask(live: Live) -> None:
    with live.http() as http:
        start = http.get("/v1/table/3").json()
    e = episode("push", 3, split="test")
    assert start["instruction"] == e.instruction
    assert e.instruction is not None
    thing, way = e.instruction.removeprefix("push ").rsplit(" ", 1)
    assert (start["judge"], start["wanted"]) == (f"Is {thing} pushed {way}?", "yes")
    np.testing.assert_array_equal(pixels(start["picture"]), e.picture())


def test_moves_are_imagined_by_the_model_and_made_in_the_simulator(live: Live, world: World) -> None:
    e = episode("push", 0, split="test")
    told = move(live, actions=PUSHES, seed=4)
    made = world.forward_dynamics(e.picture(), PUSHES, domain="tabletop", seed=4)
    run = replay(e.start, PUSHES)
    assert len(told["imagined"]) == len(told["real"]) == len(PUSHES)
    assert np.abs(np.stack([pixels(x) for x in told["imagined"]]).astype(int) - made.frames[1:]).max() <= 1
    real = draw(e.objects, run.positions[1:], pusher=None if run.pusher is None else run.pusher[1:])
    np.testing.assert_array_equal(np.stack([pixels(x) for x in told["real"]]), real)


def test_moves_go_on_from_those_before_and_from_what_was_imagined(live: Live) -> None:
    whole, first = move(live, actions=PUSHES), move(live, actions=PUSHES[:2])
    later = move(live, done=PUSHES[:2], actions=PUSHES[2:])
    assert first["real"] + later["real"] == whole["real"]
    dreamt = move(live, done=PUSHES[:2], actions=PUSHES[2:], picture=first["imagined"][-1])
    assert dreamt["real"] == later["real"]
    assert dreamt["imagined"] != later["imagined"]


def test_an_instruction_is_followed_and_judged(live: Live) -> None:
    e = episode("push", 0, split="test")
    judged = {"candidates": 2, "judge": "Which way does the red disc go?", "wanted": "right"}
    told = move(live, instruction=e.instruction, **judged)
    assert len(told["receipt"]["choice"]["candidates"]) == 2
    assert told["success"] == success(e, replay(e.start, told["actions"]).positions)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "actions"),
        ({"actions": PUSHES, "instruction": "push"}, "actions"),
        ({"actions": PUSHES, "candidates": 2}, "candidates"),
        ({"actions": [[400.0, 0.0]]}, "actions[0]"),
        ({"actions": [[1.0]]}, "actions[0]"),
        ({"done": [[0.0, 0.0, 0.0]], "actions": PUSHES}, "done[0]"),
        ({"actions": PUSHES, "picture": "data:image/png;base64,AAAA"}, "picture"),
        ({"episode": -1, "actions": PUSHES}, "episode"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(live: Live, body: dict[str, Any], named: str) -> None:
    with live.http() as http:
        for route in ("/v1/table", "/v1/explain/table"):
            answer = http.post(route, json={"episode": 0, **body})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == named


def test_a_request_is_explained_as_the_library_explains_it(live: Live) -> None:
    e = episode("push", 0, split="test")
    asked: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
        "videos": ({"prompt": "a disc", "num_frames": 5}, "generate", {"prompt": "a disc", "frames": 5}),
        "table": (
            {"episode": 0, "actions": PUSHES},
            "forward_dynamics",
            {"image": e.picture(), "actions": PUSHES, "domain": "tabletop"},
        ),
        "chat/completions": ({"messages": [{"role": "user", "content": "hm?"}]}, "reason", {"prompt": "hm?"}),
    }
    with live.http() as http:
        for route, (body, task, options) in asked.items():
            told = http.post(f"/v1/explain/{route}", json=body).json()
            rows = explain(task, **options).rows()
            assert [row["tokens"] for row in told["rows"]] == [row["tokens"] for row in rows]
            assert told["svg"].startswith("<svg")


def test_the_page_is_its_own_files_only_and_asks_for_a_key(start: Start) -> None:
    with start(keys=("secret",)) as live, live.http() as http:
        assert http.get("/").status_code == 401
        opened = {"Authorization": "Bearer secret"}
        page = http.get("/", headers=opened)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        for name in ("..%2Fapp.py", "app.py", "none.js"):
            assert http.get(f"/page/{name}", headers=opened).status_code == 404
