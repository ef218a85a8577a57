"""What a checkpoint uses unless asked otherwise: one table of families and tasks, with a version.

Source: the released framework's defaults for each mode; for pocket (small) guidance was chosen among 1, 2
and 3 by the image and video figures of `armillary eval`, and the steps of actions among 4, 6, 8 and 10 by
those of dynamics and policy, on 48 or 64 training seeds.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal

from armillary.tasks.denoise import few_steps
from armillary.weights import Checkpoint

DrawTask = Literal["image", "edit", "video", "forward_dynamics", "inverse_dynamics", "policy"]
VERSION = 1  # of this table, noted in receipts; it goes up with every number that changes
SCHEDULER = "scheduler/scheduler_config.json"
SMALL = 1024  # no released checkpoint is narrower


@dataclass(frozen=True)
class Defaults:
    """Numbers of a run. shift None: the checkpoint's scheduler file says it, or its grid has none.

    frames, fps, height, width: what is made. Tasks about a robot take theirs from it and its picture instead.
    """

    steps: int
    guidance: float
    shift: float | None
    frames: int
    fps: float
    height: int
    width: int


_IMAGE = {
    "full": Defaults(50, 4.0, 3.0, 1, 24.0, 960, 960),
    "edge": Defaults(50, 4.0, 3.0, 1, 24.0, 640, 640),
    "distilled": Defaults(4, 1.0, None, 1, 24.0, 1024, 1024),
    "small": Defaults(10, 2.0, None, 1, 8.0, 64, 64),
}
_EDIT = {  # height and width: the longer side
    "full": Defaults(35, 6.0, 5.0, 1, 24.0, 512, 512),
    "edge": Defaults(35, 6.0, 5.0, 1, 24.0, 512, 512),
    "distilled": Defaults(4, 1.0, None, 1, 24.0, 512, 512),
    "small": Defaults(10, 2.0, None, 1, 8.0, 64, 64),
}
_VIDEO = {
    "full": Defaults(35, 6.0, 10.0, 189, 24.0, 720, 1280),
    "edge": Defaults(35, 6.0, 3.0, 121, 24.0, 480, 832),
    "distilled": Defaults(4, 1.0, None, 189, 24.0, 480, 832),
    "small": Defaults(10, 2.0, None, 9, 8.0, 64, 64),
}
_ACTION = {
    "full": Defaults(30, 1.0, 10.0, 17, 10.0, 480, 832),
    "edge": Defaults(30, 1.0, 3.0, 17, 10.0, 480, 832),
    "distilled": Defaults(4, 1.0, None, 17, 10.0, 480, 832),
    "small": Defaults(4, 1.0, None, 9, 8.0, 64, 64),
    "policy": Defaults(4, 3.0, 5.0, 33, 15.0, 540, 640),  # trained for one robot, whose state it is shown
}


def defaults(checkpoint: Checkpoint, task: DrawTask) -> Defaults:
    """The defaults of a task; reads the checkpoint's json files only."""
    rows = {"image": _IMAGE, "edit": _EDIT, "video": _VIDEO}.get(task, _ACTION)
    row = rows[family(checkpoint, task)]
    if task == "video":
        row = replace(row, fps=float(checkpoint.traits.base_fps))  # the image-to-video models count in 16ths
    sigmas = few_steps(checkpoint)
    return replace(row, steps=len(sigmas)) if sigmas else row


def origins(checkpoint: Checkpoint, task: DrawTask) -> dict[str, str]:
    """Where each default of a task comes from: a json file of the checkpoint, or a row of this table."""
    row = f"table {VERSION}, row {family(checkpoint, task)}"
    found = dict.fromkeys((field.name for field in fields(Defaults)), row)
    if few_steps(checkpoint):
        found |= {"steps": f"{SCHEDULER}: fixed_step_sampler_config", "shift": f"{SCHEDULER}: its own steps"}
    elif defaults(checkpoint, task).shift is None:
        found["shift"] = f"{SCHEDULER}: flow_shift"
    return found | {"fps": "transformer/config.json: base_fps"} if task == "video" else found


def family(checkpoint: Checkpoint, task: DrawTask) -> str:
    """The row of the table that holds for a checkpoint."""
    if checkpoint.starts_from_state and task in ("forward_dynamics", "inverse_dynamics", "policy"):
        return "policy"
    if few_steps(checkpoint):
        return "distilled"
    if is_small(checkpoint):
        return "small"
    return "edge" if checkpoint.is_edge else "full"


def is_small(checkpoint: Checkpoint) -> bool:
    """Narrower than any released one: pocket and its like, which know the table-top world alone."""
    return checkpoint.config.width < SMALL
