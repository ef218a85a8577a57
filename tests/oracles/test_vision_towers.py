"""Both vision towers, on tiny random weights, and what is fed to them, against transformers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers.models.cosmos3_edge.configuration_cosmos3_edge import (
    Cosmos3EdgeConfig,
    Cosmos3EdgeTextConfig,
    Cosmos3EdgeVisionConfig,
)
from transformers.models.cosmos3_edge.image_processing_pil_cosmos3_edge import Cosmos3EdgeImageProcessorPil
from transformers.models.cosmos3_edge.image_processing_pil_cosmos3_edge import (
    smart_resize as edge_picture_size,
)
from transformers.models.cosmos3_edge.modeling_cosmos3_edge import (
    Cosmos3EdgePatchMerger,
    Cosmos3EdgeVisionModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as qwen_picture_size
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as qwen_clip_size
from transformers.video_utils import VideoMetadata

from armillary.codecs.qwen_vit import Grid, QwenViT, QwenViTConfig
from armillary.codecs.sight import (
    POCKET_PICTURES,
    ClipRules,
    PictureRules,
    clip_patches,
    clip_size,
    picture_patches,
    picture_size,
    sample_frames,
)
from armillary.codecs.siglip import EdgeVision, EdgeVisionConfig

GRIDS: dict[str, list[Grid]] = {
    "one picture": [(1, 4, 6)],
    "three pictures of unlike sizes": [(1, 4, 6), (1, 8, 2), (1, 10, 14)],
    "a clip": [(3, 4, 6)],
    "odd block counts, larger than the learned table": [(1, 14, 18), (2, 6, 2)],
    "equal pictures around another": [(1, 6, 6), (1, 6, 6), (1, 2, 2), (1, 6, 6)],
    "a single row of blocks": [(1, 2, 16)],
}
QWEN = {
    "depth": 4,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 40,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 2],
}
EDGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "num_patches": 16,
}
PROJECTOR, TEXT = 40, 24


def perturb(module: nn.Module) -> None:
    """Weights of visible size everywhere: fresh norms and biases would hide an omission."""
    for parameter in module.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)


def distance(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def patches(grids: Sequence[Grid], numbers: int) -> Tensor:
    return torch.randn(sum(t * h * w for t, h, w in grids), numbers)


def qwen_pair(seed: int) -> tuple[Qwen3VLVisionModel, QwenViT]:
    torch.manual_seed(seed)
    theirs = Qwen3VLVisionModel(Qwen3VLVisionConfig(**QWEN)).eval()
    perturb(theirs)
    ours = QwenViT(QwenViTConfig.from_dict(QWEN)).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", GRIDS)
def test_qwen_tower_matches_transformers(case: str, seed: int) -> None:
    theirs, ours = qwen_pair(seed)
    patches_NP = patches(GRIDS[case], 3 * 2 * 4 * 4)
    want = theirs(patches_NP, torch.tensor(GRIDS[case]))
    features_ME, deepstack_ME = ours(patches_NP, GRIDS[case])
    assert distance(features_ME, want.pooler_output) <= 1e-5
    assert len(deepstack_ME) == len(want.deepstack_features) == 2
    for level, want_level in zip(deepstack_ME, want.deepstack_features, strict=True):
        assert distance(level, want_level) <= 1e-5


def edge_configs() -> tuple[Cosmos3EdgeConfig, EdgeVisionConfig]:
    text = Cosmos3EdgeTextConfig(
        vocab_size=32,
        hidden_size=TEXT,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e8, "mrope_section": [2, 1, 1]},
    )
    theirs = Cosmos3EdgeConfig(
        text_config=text, vision_config=Cosmos3EdgeVisionConfig(**EDGE), projector_hidden_size=PROJECTOR
    )
    return theirs, EdgeVisionConfig.from_dict(theirs.to_dict())


def edge_pair(seed: int) -> tuple[nn.ModuleDict, EdgeVision]:
    torch.manual_seed(seed)
    their_config, our_config = edge_configs()
    visual = Cosmos3EdgeVisionModel(their_config.vision_config)
    theirs = nn.ModuleDict({"visual": visual, "projector": Cosmos3EdgePatchMerger(their_config)}).eval()
    perturb(theirs)
    ours = EdgeVision(our_config).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", GRIDS)
def test_edge_tower_and_projector_match_transformers(case: str, seed: int) -> None:
    theirs, ours = edge_pair(seed)
    patches_NP = patches(GRIDS[case], 4 * 4 * 3)
    seen_NW = theirs["visual"](patches_NP, torch.tensor(GRIDS[case])).last_hidden_state
    features_ME, deepstack = ours(patches_NP, GRIDS[case])
    assert distance(features_ME, theirs["projector"](seen_NW)) <= 1e-5
    assert deepstack == []


@pytest.mark.parametrize("pair", [qwen_pair, edge_pair])
def test_parameter_names_and_shapes_are_the_published_ones(pair: object) -> None:
    theirs, ours = qwen_pair(0) if pair is qwen_pair else edge_pair(0)
    assert {name: p.shape for name, p in ours.state_dict().items()} == {
        name: p.shape for name, p in theirs.state_dict().items()
    }


def test_configs_survive_the_published_json() -> None:
    qwen = QwenViTConfig.from_dict(QWEN)
    assert QwenViTConfig.from_dict(qwen.to_dict()) == qwen
    assert Qwen3VLVisionConfig(**qwen.to_dict()).deepstack_visual_indexes == [0, 2]
    _, edge = edge_configs()
    assert EdgeVisionConfig.from_dict(edge.to_dict()) == edge


@torch.no_grad()
def test_pictures_seen_together_equal_each_seen_alone() -> None:
    _, ours = qwen_pair(3)
    grids = [*GRIDS["equal pictures around another"], (2, 4, 4)]
    patches_NP = patches(grids, 3 * 2 * 4 * 4)
    together_ME, _ = ours(patches_NP, grids)
    sizes = [t * h * w for t, h, w in grids]
    alone = [ours(part_NP, [grid])[0] for part_NP, grid in zip(patches_NP.split(sizes), grids, strict=True)]
    assert distance(together_ME, torch.cat(alone)) <= 1e-6


@torch.no_grad()
def test_kept_angles_are_reused_and_change_nothing() -> None:
    _, ours = qwen_pair(4)
    grids: list[Grid] = [(1, 4, 6), (2, 4, 4)]
    patches_NP = patches(grids, 3 * 2 * 4 * 4)
    kept: dict[Grid, Tensor] = {}
    first_ME, _ = ours(patches_NP, grids, kept)
    assert kept.keys() == set(grids)
    before = dict(kept)
    again_ME, _ = ours(patches_NP, grids, kept)
    assert all(kept[grid] is before[grid] for grid in grids)
    assert torch.equal(first_ME, again_ME)


def test_gradients_reach_every_parameter() -> None:
    _, ours = qwen_pair(5)
    grids: list[Grid] = [(1, 4, 6), (1, 4, 6)]
    features_ME, deepstack_ME = ours(patches(grids, 3 * 2 * 4 * 4), grids)
    loss = features_ME.square().sum() + sum(level.square().sum() for level in deepstack_ME)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in ours.parameters())


NANO_PICTURES, EDGE_PICTURES = (
    PictureRules.from_dict({"image_processor_type": kind})
    for kind in ("Qwen2VLImageProcessor", "Cosmos3EdgeImageProcessor")
)


def smooth_picture(height: int, width: int) -> Image.Image:
    coarse = np.random.default_rng(height * width).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def pil_processor(rules: PictureRules) -> Qwen2VLImageProcessorPil | Cosmos3EdgeImageProcessorPil:
    kind = Cosmos3EdgeImageProcessorPil if rules.edge else Qwen2VLImageProcessorPil
    own = ("image_processor_type", "processor_class")
    return kind(**{key: value for key, value in rules.to_dict().items() if key not in own})


@pytest.mark.parametrize(
    "rules", [NANO_PICTURES, EDGE_PICTURES, POCKET_PICTURES], ids=["nano", "edge", "pocket"]
)
@pytest.mark.parametrize("shape", [(64, 64), (256, 256), (480, 640), (333, 517), (31, 64)], ids=str)
def test_picture_patches_match_the_transformers_processors(
    shape: tuple[int, int], rules: PictureRules
) -> None:
    picture = smooth_picture(*shape)
    want = pil_processor(rules)(images=[picture], return_tensors="pt")
    patches = picture_patches(np.asarray(picture), rules)
    assert [list(patches.grid)] == want["image_grid_thw"].tolist()
    # Equal where nothing is resized; PIL's bicubic kernel rounds some pixels otherwise than torch's.
    levels = 0.01 if picture_size(*shape, rules) == shape else 2.01
    assert (patches.pixels_NP - want["pixel_values"]).abs().max().item() * 127.5 < levels


@pytest.mark.parametrize("limits", [(131072, 786432), (4096, 25165824), (2048, 131072)])
def test_clip_sizes_match_transformers_for_any_shape(limits: tuple[int, int]) -> None:
    low, high = limits
    random = np.random.default_rng(0)
    for temporal in (1, 2):
        rules = replace(
            ClipRules.from_dict({"temporal_patch_size": temporal}), min_pixels=low, max_pixels=high
        )
        for frames, height, width in random.integers(2, 900, (300, 3)).tolist():
            want = qwen_clip_size(frames, height, width, temporal, 32, low, high)
            assert clip_size(frames, height, width, rules) == want


def test_picture_sizes_match_transformers_for_any_shape() -> None:
    random = np.random.default_rng(1)
    for height, width in random.integers(16, 3000, (300, 2)).tolist():
        want = qwen_picture_size(height, width, 32, 65536, 16777216)
        assert picture_size(height, width, NANO_PICTURES) == want
        want = edge_picture_size(1, height, width, 1, 32, 65536, 16777216)
        assert picture_size(height, width, EDGE_PICTURES) == want


def test_frame_choice_and_slice_times_match_transformers() -> None:
    rules = ClipRules.from_dict({})
    random = np.random.default_rng(2)
    for total in random.integers(1, 2000, 100).tolist():
        fps = float(random.choice([8, 12.5, 24, 29.97, 60]))
        metadata = VideoMetadata(total_num_frames=total, fps=fps)
        want = Qwen3VLVideoProcessor.sample_frames(
            rules, metadata
        )  # reads fps and limits from its first argument
        indices = sample_frames(total, fps, rules)
        assert indices == want.tolist()
        frames_THWC = np.zeros((len(indices), 32, 32, 3), np.uint8)
        _, times_s = clip_patches(frames_THWC, [i / fps for i in indices], rules)
        assert times_s == pytest.approx(Qwen3VLProcessor._calculate_timestamps(None, indices.copy(), fps, 2))


def test_clip_patches_match_the_transformers_order() -> None:
    rules = ClipRules.from_dict({})
    frames_THWC = np.random.default_rng(3).integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)
    videos = torch.from_numpy(frames_THWC).permute(0, 3, 1, 2).contiguous()[None] / 127.5 - 1
    want, *grid = Qwen3VLVideoProcessor.patchify(None, videos, 16, 2, 2)
    patches, _ = clip_patches(frames_THWC, [0.0] * 5, rules)
    assert list(patches.grid) == grid
    torch.testing.assert_close(patches.pixels_NP, want[0])
