"""What `plan` says a request takes against what it takes, for each memory mode; ends with 1 beyond a tenth.

    make bench-memory

On a checkpoint of 1.6 GB with random weights and its copy in int8, written for this and removed, read as
float32. Each mode and task has a process of its own, in which large pieces of memory go back to the system
when they are freed (MALLOC_MMAP_THRESHOLD_): else glibc keeps up to a few hundred megabytes of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from random_checkpoint import NANO_SOUND, NANO_VIDEO, write_random
from watch import Watch, own_bytes

import armillary
from armillary.codecs.qwen_vit import QwenViTConfig
from armillary.memory import MODES, Mode
from armillary.model import Config

CONFIG = Config(
    width=2048,
    layers=6,
    heads=16,
    kv_heads=8,
    mlp=6144,
    vocabulary=32000,
    features={"vision": 192, "sound": 64, "action": 64},
)
SIGHT = QwenViTConfig(
    depth=4,
    hidden_size=512,
    intermediate_size=1024,
    num_heads=8,
    out_hidden_size=2048,
    num_position_embeddings=256,
    deepstack_visual_indexes=(1,),
    patch_size=16,
)
VIDEO = replace(NANO_VIDEO, base_dim=64, decoder_base_dim=96)
SOUND = replace(NANO_SOUND, dec_dim=16)
TOLERANCE = 0.1
PICTURE = np.zeros((128, 128, 3), np.uint8)
ASKED: dict[str, dict[str, Any]] = {
    "reason": {"prompt": "where is the red disc?", "max_tokens": 4},
    "generate": {
        "prompt": "a red disc slides right",
        "image": PICTURE,
        "frames": 5,
        "size": "256x256",
        "steps": 2,
        "guidance": 3.0,
    },
}


def run(folder: str, task: str, mode: Mode) -> dict[str, int]:
    """Bytes of each stage beyond what a process has that has loaded another checkpoint."""
    armillary.load("pocket", device="cpu").reason("what?", max_tokens=1)
    before = own_bytes()
    with Watch("load") as watch:
        world = armillary.load(folder, device="cpu", dtype="float32", memory=mode)
        watch.look()
        watch.stage = "between"
        network, video = world.parts.network, world.parts.video
        assert video is not None
        first: Any = network.blocks[0]
        for module, stage in (
            (video.encoder, "encode"),
            (first.ar, "read"),
            (network.head, "answer"),
            (first.dm, "draw"),
            (video.decoder, "decode"),
        ):
            watch.begins_with(module, stage)
        getattr(world, task)(**ASKED[task])
    return {stage: peak - before for stage, peak in watch.peaks.items()}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.run:
        print(json.dumps(run(*given.run)))
        return
    with tempfile.TemporaryDirectory(prefix="armillary-memory-") as folder:
        plain, rounded = Path(folder) / "bf16", Path(folder) / "int8"
        write_random(plain, CONFIG, SIGHT, VIDEO, SOUND)
        armillary.convert(plain, rounded, weights="int8")
        found = [compare(each, task, mode) for each in (plain, rounded) for task in ASKED for mode in MODES]
    sys.exit(int(max(found) > TOLERANCE))


def compare(folder: Path, task: str, mode: Mode) -> float:
    """Print a line for each stage. Returns the largest relative difference."""
    planned = armillary.plan(task, folder, device="cpu", dtype="float32", **ASKED[task])
    command = [sys.executable, __file__, "--run", str(folder), task, mode]
    settings = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=settings)
    found, most = json.loads(done.stdout.splitlines()[-1]), 0.0
    for stage in planned.stages[mode]:
        measured = found[stage.name]
        off = stage.own / measured - 1
        most = max(most, abs(off))
        told = f"planned {stage.own / 1e6:7.1f} MB, measured {measured / 1e6:7.1f} MB, {off:+.1%}"
        print(f"{folder.name} {task:8} {mode:8} {stage.name:6} {told}", flush=True)
    return most


if __name__ == "__main__":
    main()
