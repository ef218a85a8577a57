"""A clip with sound from words; then what comes next, from its last frame and from its end."""

from pathlib import Path

import armillary

out = Path("out")
out.mkdir(exist_ok=True)
world = armillary.load("pocket")

first = world.generate("a green square slides up and hits the wall", sound=True, seed=1)
first.save(out / "first.mp4")

# From a picture: only its last frame is known, so the model must guess how things move.
guessed = world.generate("the green square slides down", image=first.frames[-1], seed=1)
guessed.save(out / "guessed.gif")

# From a clip: its last five frames are kept, so the motion goes on.
continued = world.generate("the green square slides down", video=first, seed=1)
continued.save(out / "continued.gif")

for name, clip in (("first.mp4", first), ("guessed.gif", guessed), ("continued.gif", continued)):
    used, seconds = clip.receipt["used"], sum(clip.receipt["seconds"].values())
    print(f"{out / name}: {len(clip.frames)} frames in {used['steps']} steps, {seconds:.1f} s")
