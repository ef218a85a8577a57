import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from armillary.errors import BadRequest
from armillary.sim import register
from armillary.sim.environment import TabletopEnv
from armillary.sim.experts import expert

ROOT = Path(__file__).parents[2]


def test_it_is_registered_once_and_passes_the_checker():
    register()
    register()
    env = gymnasium.make("armillary/Tabletop-v0", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*symmetric and normalized space.*")  # ours are px/s
        check_env(env.unwrapped)
    env.close()


def test_equal_seeds_and_actions_give_equal_episodes():
    runs = []
    for _ in range(2):
        env = TabletopEnv()
        observation, info = env.reset(seed=5)
        seen = [observation["image"]] + [
            env.step(np.array([30, -20], np.float32))[0]["image"] for _ in range(4)
        ]
        runs.append((info["instruction"], np.stack(seen)))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("number", range(6))
def test_the_expert_is_rewarded_for_reaching_the_goal(number: int):
    env = TabletopEnv(split="train")
    _, info = env.reset(options={"episode": number})
    goal, objects = env.episode.goal, env.episode.objects
    assert goal is not None
    control = expert(objects[goal.index], goal)
    total, done = 0.0, False
    for _ in range(12):
        action = control([tuple(p) for p in info["positions"].tolist()], tuple(info["pusher"].tolist()))
        _, reward, done, truncated, info = env.step(np.array(action, np.float32))
        total += reward
        assert not truncated
        if done:
            break
    assert done
    assert info["success"]
    assert 1.4 < total < 2.1


def test_doing_nothing_earns_nothing():
    env = TabletopEnv()
    env.reset(seed=0)
    _, reward, done, _, info = env.step(np.zeros(2, np.float32))
    assert reward == pytest.approx(0)
    assert not done
    assert not info["success"]


def test_unknown_render_modes_are_refused():
    with pytest.raises(BadRequest, match="render_mode"):
        TabletopEnv(render_mode="human")


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("", "armillary.sim.gym:armillary/Tabletop-v0"),
        ("import armillary.sim; armillary.sim.register()", "armillary/Tabletop-v0"),
    ],
)
def test_gymnasium_makes_it_in_a_fresh_process(before: str, name: str):
    script = f"import gymnasium\n{before}\nprint(gymnasium.make({name!r}).reset(seed=0)[1]['instruction'])"
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert told.startswith("push the ")
