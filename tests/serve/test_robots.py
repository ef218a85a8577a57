"""A robot of one's own file is served like one of the table: on every route that moves a body."""

import base64
import time
from dataclasses import replace

import pytest

from armillary.errors import BadRequest
from armillary.robots import robot
from armillary.sim import episode
from armillary.world import World
from tests.serve.conftest import Start
from tests.serve.test_contract import data_uri

ARM = replace(robot("tabletop"), name="arm", chunk=4, fps=4.0)


def test_a_robot_of_a_file_is_served_like_one_of_the_table(start: Start, world: World) -> None:
    push = episode("push", 0, split="test")
    shown, options = data_uri(push.picture()), {"steps": 1, "seed": 3}
    alone = world.policy(push.instruction, push.picture(), domain=ARM, **options)
    asked = {"task": "policy", "prompt": push.instruction, "image": shown, **options}
    with start(domain=ARM) as live, live.http() as http:
        info = http.get("/v1/policy/info").json()
        assert (info["domain"], info["action_horizon"], info["digest"]) == ("arm", 4, ARM.digest)
        assert http.post("/v1/actions", json=asked).json()["action"]["data"] == alone.values.tolist()
        extra = {"action_mode": "policy", "domain_name": "arm", "raw_action_dim": 2, "action_chunk_size": 4}
        said = {"prompt": push.instruction, "seed": 3, "num_inference_steps": 1, "input_reference": shown}
        job = http.post("/v1/videos", json={**said, "extra_params": extra}).json()
        while job["status"] in ("queued", "in_progress"):
            time.sleep(0.02)
            job = http.get(f"/v1/videos/{job['id']}").json()
        assert job["action"]["data"] == alone.values.tolist()
        wrong = http.post("/v1/videos", json={**said, "extra_params": {**extra, "action_chunk_size": 8}})
        assert wrong.json()["error"]["param"] == "action_chunk_size"
        laid = http.post("/v1/explain/actions", json=asked).json()
        assert base64.b64encode(laid["svg"].encode())
        assert "tabletop" in info["robots"]


@pytest.mark.parametrize("body", ["nothing", replace(ARM, domain=99)])
def test_a_robot_that_the_model_cannot_move_is_refused_at_the_start(start: Start, body: object) -> None:
    with pytest.raises(BadRequest, match="domain"), start(domain=body):
        pass
