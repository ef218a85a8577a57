"""The policy in closed loop: look, decide, move eight times, look again."""

import gymnasium
import numpy as np

import armillary

table = gymnasium.make("armillary.sim.gym:armillary/Tabletop-v0")  # the part before the colon registers it
world = armillary.load("pocket")
reached = 0

for start in range(4):
    seen, info = table.reset(options={"episode": start})
    over, moves = False, 0
    while not over and moves < 16:
        actions = world.policy(info["instruction"], seen["image"], domain="tabletop", decode=False)
        for action in actions.values:
            seen, _, done, stopped, info = table.step(np.clip(action, -40, 40))
            over, moves = done or stopped, moves + 1
            if over:
                break
    reached += info["success"]
    print(f"{info['instruction']:32} {'success' if info['success'] else 'failed':8} after {moves} moves")

print(f"{reached} of 4 reached")
