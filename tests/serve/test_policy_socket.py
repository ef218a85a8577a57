"""Robots: openpi's own client against the server, and what other messages meet."""

from collections.abc import Generator

import msgpack
import numpy as np
import pytest
from openpi_client import msgpack_numpy
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.sync.client import connect

from armillary.robots import robot
from armillary.sim import episode
from armillary.world import World
from tests.serve.conftest import Live

pytestmark = pytest.mark.filterwarnings("ignore:connect")  # openpi's client holds it open itself


@pytest.fixture
def client(live: Live) -> Generator[WebsocketClientPolicy]:
    client = WebsocketClientPolicy(f"ws://127.0.0.1:{live.port}/v1/policy?domain=tabletop")
    yield client
    client._ws.close()


def test_the_metadata_come_first_and_are_the_robots_contract(
    live: Live, client: WebsocketClientPolicy
) -> None:
    told, body = client.get_server_metadata(), robot("tabletop")
    assert (told["domain"], told["action_horizon"], told["action_dim"]) == (
        "tabletop",
        body.chunk,
        body.width,
    )
    assert (told["fps"], told["columns"], told["digest"]) == (body.fps, list(body.columns), body.digest)
    with live.http() as http:
        assert http.get("/v1/policy/info", params={"domain": "tabletop"}).json() == told


def test_an_observation_is_answered_with_the_chunk_of_the_library(
    client: WebsocketClientPolicy, world: World
) -> None:
    push = episode("push", 0, split="test")
    seen = {"observation/image": push.picture(), "prompt": push.instruction, "seed": 3}
    chunk = client.infer(seen)
    alone = world.policy(push.instruction, push.picture(), domain="tabletop", decode=False, seed=3)
    assert (chunk["actions"] == alone.values).all()
    client.reset()
    assert (client.infer(seen)["actions"] == alone.values).all()


def test_openpis_broker_hands_out_one_action_after_the_other(
    client: WebsocketClientPolicy, world: World
) -> None:
    push = episode("push", 1, split="test")
    broker = ActionChunkBroker(client, action_horizon=2)
    seen = {"observation/image": push.picture(), "prompt": push.instruction}
    alone = world.policy(push.instruction, push.picture(), domain="tabletop", decode=False)
    assert [broker.infer(seen)["actions"].tolist() for _ in range(2)] == alone.values[:2].tolist()


def test_a_bad_observation_is_an_error_and_the_next_is_answered(client: WebsocketClientPolicy) -> None:
    picture = episode("push", 0, split="test").picture()
    good = {"observation/image": picture, "prompt": "push the red disc left", "steps": 1}
    for bad, word in (
        ({**good, "observation/imag": 1}, "observation/imag"),
        ({"prompt": "push"}, "observation/image"),
        ({**good, "observation/image": np.zeros((4, 4, 7), np.uint8)}, "observation/image"),
        ({**good, "domain": "nothing"}, "domain"),
        ({**good, "steps": 0}, "steps"),
    ):
        with pytest.raises(RuntimeError, match=word):
            client.infer(bad)
    assert client.infer(good)["actions"].shape == (8, 2)


def test_messages_that_are_no_observation_are_answered(live: Live) -> None:
    array = {b"__ndarray__": True, b"data": b"x" * 8, b"dtype": "|O", b"shape": (1,)}
    huge = {b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": (2**40,)}
    with connect(f"ws://127.0.0.1:{live.port}/?domain=tabletop") as socket:
        assert msgpack_numpy.unpackb(socket.recv())["domain"] == "tabletop"
        for message in (b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"image": array}),
                        msgpack.packb({"image": huge}), b"\x81" * 5000):  # fmt: skip
            socket.send(message)
            assert "message" in str(socket.recv())
        socket.send(msgpack.packb({"endpoint": "reset"}))
        assert msgpack.unpackb(socket.recv())["status"] == "reset successful"


def test_what_a_camera_of_many_pixels_sees_costs_what_a_small_one_does(
    client: WebsocketClientPolicy, world: World
) -> None:
    push = episode("push", 0, split="test")
    large = push.picture().repeat(15, 0).repeat(20, 1)  # 960 x 1280
    alone = world.policy(push.instruction, large, domain="tabletop", steps=1)
    assert alone.receipt["rounded"]["image"] == {"asked": "1280x960", "made": "64x48"}
    assert alone.clip is not None
    assert alone.clip.frames.shape == (9, 48, 64, 3)
    seen = {"observation/image": large, "prompt": push.instruction, "steps": 1}
    assert (client.infer(seen)["actions"] == alone.values).all()
