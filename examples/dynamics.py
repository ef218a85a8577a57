"""What actions do, and which actions were done: both imagined, both held against the simulator."""

from pathlib import Path

import numpy as np

import armillary
from armillary.sim import episode

out = Path("out")
out.mkdir(exist_ok=True)
world = armillary.load("pocket")
real = episode("push", 2, split="test")
assert real.actions is not None

# Forward: one picture and the actions are known, the model draws what the camera would see.
seen = world.forward_dynamics(real.picture(), real.actions, domain="tabletop")
seen.save(out / "forward.mp4")
imagined = np.abs(seen.frames.astype(float) - real.frames).mean()
copied = np.abs(real.frames[:1].astype(float) - real.frames).mean()
print(f"{out / 'forward.mp4'}: {imagined:.2f} levels from what happened; a still picture is {copied:.2f}")

# Inverse: the clip is known, the model tells the actions, in pixels a second.
found = world.inverse_dynamics(real.frames, domain="tabletop")
(out / "inverse.json").write_text(found.to_json())
missed, still = np.abs(found.values - real.actions).mean(), np.abs(real.actions).mean()
print(f"{out / 'inverse.json'}: {missed:.1f} px/s from what was done; standing still is {still:.1f}")
