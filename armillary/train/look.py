"""Samples drawn while the generator learns: one picture file a look, the same prompts and seeds each time."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from armillary.facts import Canvas
from armillary.media.draw import font
from armillary.tasks.defaults import defaults
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.generate import generate
from armillary.tasks.parts import Parts
from armillary.train.layout import Pocket
from armillary.wording import Wording

SIZE, FPS, LINE = 64, 8.0, 14
PICTURES = ("a red disc at the left", "a blue disc at the top and a green square at the bottom right")
CLIPS = ("a red disc slides left and hits the wall", "the pusher pushes the yellow square up")


def draw_samples(parts: Parts, model: nn.Module, path: Path) -> None:
    """What `model`, a `Pocket`, makes of a few prompts now; `parts` are those of its checkpoint's folder."""
    assert isinstance(model, Pocket)
    parts.network.load_state_dict(model.network.state_dict())
    rows = [
        (prompt, _drawn(parts, prompt, frames))
        for frames, prompts in ((1, PICTURES), (9, CLIPS))
        for prompt in prompts
    ]
    sheet = Image.new("RGB", (9 * SIZE, len(rows) * (SIZE + LINE)), "white")
    for i, (prompt, frames_THW3) in enumerate(rows):
        top = i * (SIZE + LINE)
        ImageDraw.Draw(sheet).text((2, top), prompt, fill="black", font=font(11))
        sheet.paste(Image.fromarray(np.concatenate(frames_THW3, axis=1)), (0, top + LINE))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.resize((2 * sheet.width, 2 * sheet.height), Image.Resampling.NEAREST).save(path)


def _drawn(parts: Parts, prompt: str, frames: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    row = defaults(parts.checkpoint, "image" if frames == 1 else "video")
    options = SamplingOptions(row.steps, row.guidance)
    with torch.no_grad():
        made = generate(parts, Wording(prompt), canvas=Canvas(frames, FPS, SIZE, SIZE), options=options)
    return made[0].frames
