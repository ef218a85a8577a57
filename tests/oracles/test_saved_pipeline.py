"""What `World.save` wrote, drawn by us and by diffusers' pipeline from equal noise: in every mode that it
has, on every grid and with both guidances."""

import pytest

from armillary.robots import robot
from armillary.tasks.denoise import GridName
from armillary.tasks.generate import Given
from armillary.tasks.parts import Parts
from tests.oracles import test_pipeline
from tests.oracles.test_pipeline import Diffusers, acts_the_same, clip, generates_the_same, picture

folder, parts, theirs, small_tier = (
    test_pipeline.folder,
    test_pipeline.parts,
    test_pipeline.theirs,
    test_pipeline.small_tier,
)
MODES: dict[str, tuple[tuple[int, int, int], Given]] = {
    "picture": ((1, 16, 32), Given()),
    "clip": ((5, 16, 32), Given()),
    "from a picture": ((5, 16, 32), Given(image=picture(16, 32))),
    "continued": ((9, 16, 32), Given(video=clip(5, 16, 32))),
}
GRIDS: tuple[GridName | None, ...] = (None, "stock", "native")  # None: the one of the checkpoint's files
CASES = [("image-to-video", mode) for mode in MODES]
CASES += [(kind, mode) for kind in ("policy", "edge-policy") for mode in ("picture", "from a picture")]


@pytest.mark.parametrize(("folder", "mode"), CASES, indirect=["folder"])
@pytest.mark.parametrize("guidance", [1.0, 6.0])
@pytest.mark.parametrize("grid", GRIDS)
def test_pictures_and_clips(
    parts: Parts, theirs: Diffusers, mode: str, grid: GridName | None, guidance: float
) -> None:
    generates_the_same(parts, theirs, *MODES[mode], guidance, grid)


@pytest.mark.usefixtures("small_tier")
@pytest.mark.parametrize("folder", ["policy", "edge-policy"], indirect=True)
@pytest.mark.parametrize("guidance", [1.0, 6.0])
@pytest.mark.parametrize("grid", GRIDS)
def test_actions(parts: Parts, theirs: Diffusers, grid: GridName | None, guidance: float) -> None:
    acts_the_same(parts, theirs, (64, 64), robot("bridge_orig_lerobot"), guidance, grid)
