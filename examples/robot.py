"""A robot that asks a server: openpi's client on the web socket, the simulator as the robot.

    armillary serve pocket --domain tabletop
    python examples/robot.py [ws://127.0.0.1:8000]

Without an address it starts a server of its own. The client is `pip install --no-deps openpi-client dm-tree`.
"""

import subprocess
import sys

from openpi_client.websocket_client_policy import WebsocketClientPolicy

from armillary.sim import episode, replay, success

COMMAND = "from armillary.cli import main; main()"


def drive(address: str) -> None:
    """Look, ask, move: one chunk of actions for each of two instructions."""
    robot = WebsocketClientPolicy(f"{address}/v1/policy?domain=tabletop")
    contract = robot.get_server_metadata()
    print(
        f"{contract['model']}: {contract['action_horizon']} x {contract['columns']} at {contract['fps']:g} Hz"
    )
    for seed in (0, 1):
        push = episode("push", seed, split="test")
        chunk = robot.infer({"observation/image": push.picture(), "prompt": push.instruction})
        outcome = replay(push.start, chunk["actions"])
        print(push.instruction, "->", "success" if success(push, outcome.positions) else "no success")


if len(sys.argv) > 1:
    drive(sys.argv[1])
else:
    serve = [sys.executable, "-c", COMMAND, "serve", "pocket", "--port", "0", "--folder", "out/server"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            drive(server.stdout.readline().strip().replace("http", "ws"))
        finally:
            server.terminate()
