"""What the reasoner sees: sizes, patch order, sampling, times and positions, against published values."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from armillary.codecs import sight
from armillary.codecs.sight import POCKET_CLIPS, POCKET_PICTURES, ClipRules, PictureRules
from armillary.errors import BadRequest

NANO = PictureRules.from_dict(
    {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
)
EDGE = PictureRules.from_dict({"image_processor_type": "Cosmos3EdgeImageProcessor"})
NANO_CLIP = ClipRules.from_dict({"size": {"shortest_edge": 4096, "longest_edge": 25165824}})
SMALL_CLIP = ClipRules.from_dict({"size": {"shortest_edge": 131072, "longest_edge": 786432}})
EDGE_CLIP = ClipRules.from_dict({"video_processor_type": "Cosmos3EdgeVideoProcessor"})

# (height, width) -> patch rows, patch columns: the published processors' answers.
GRIDS = {
    (480, 640): (30, 40),
    (720, 1280): (44, 80),
    (1080, 1920): (68, 120),
    (336, 336): (20, 20),
    (100, 100): (16, 16),
    (16, 16): (16, 16),
    (48, 80): (14, 22),
    (31, 64): (12, 24),
    (20, 400): (4, 72),
    (50, 5000): (4, 312),
    (5000, 5000): (256, 256),
}


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def clip(frames: int, height: int, width: int) -> NDArray[np.uint8]:
    return np.stack([picture(height, width, seed) for seed in range(frames)])


@pytest.mark.parametrize("rules", [NANO, EDGE], ids=["nano", "edge"])
@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_pictures_get_the_published_grids(shape: tuple[int, int], rules: PictureRules) -> None:
    height, width = sight.picture_size(*shape, rules)
    assert (height / 16, width / 16) == GRIDS[shape]


def test_a_grid_of_patches_takes_a_quarter_as_many_tokens() -> None:
    patches = sight.picture_patches(picture(96, 160), NANO)
    assert patches.grid == (1, 14, 22)
    assert patches.pixels_NP.shape == (14 * 22, 3 * 2 * 16 * 16)
    assert sight.tokens(patches.grid, NANO.merge_size) == 77


def test_nano_numbers_stand_as_channel_time_row_column_in_block_order() -> None:
    image = picture(256, 320)
    pixels = sight.picture_patches(image, NANO).pixels_NP.view(-1, 3, 2, 16, 16)
    assert torch.equal(pixels[:, :, 0], pixels[:, :, 1])  # a still picture twice
    corners = [(0, 0), (0, 16), (16, 0), (16, 16), (0, 32), (0, 48)]
    for patch, (y, x) in zip(pixels[:, :, 0], corners, strict=False):
        cut = torch.from_numpy(image[y : y + 16, x : x + 16]).permute(2, 0, 1)
        torch.testing.assert_close(patch, cut.float() / 127.5 - 1)


def test_edge_numbers_stand_as_row_column_channel_in_block_order() -> None:
    image = picture(256, 320)
    pixels = sight.picture_patches(image, EDGE).pixels_NP.view(-1, 16, 16, 3)
    corners = [(0, 0), (0, 16), (16, 0), (16, 16), (0, 32), (0, 48)]
    for patch, (y, x) in zip(pixels, corners, strict=False):
        torch.testing.assert_close(patch, torch.from_numpy(image[y : y + 16, x : x + 16]).float() / 127.5 - 1)


def test_channels_are_normalised_each_by_its_own_mean_and_deviation() -> None:
    rules = PictureRules.from_dict(
        NANO.to_dict() | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    )
    pixels = sight.picture_patches(np.full((256, 256, 3), 51, np.uint8), rules).pixels_NP.view(-1, 3, 512)
    torch.testing.assert_close(pixels[0, :, 0], torch.tensor([0.1 / 0.5, 0.0, -0.1 / 0.7]))


@pytest.mark.parametrize("rules", [NANO, EDGE], ids=["nano", "edge"])
def test_a_sliver_is_refused_and_the_field_named(rules: PictureRules) -> None:
    sight.picture_size(20, 4000, rules)
    with pytest.raises(BadRequest, match="4000x20") as caught:
        sight.picture_patches(picture(20, 4001), rules, field="images[0]")
    assert (caught.value.field, caught.value.value) == ("images[0]", "4001x20")


def test_read_only_and_mirrored_pictures_are_taken() -> None:
    image = picture(64, 64)
    image.flags.writeable = False
    straight = sight.picture_patches(image, POCKET_PICTURES).pixels_NP
    assert torch.equal(sight.picture_patches(image[:, ::-1][:, ::-1], POCKET_PICTURES).pixels_NP, straight)
    assert not torch.equal(sight.picture_patches(image[:, ::-1], POCKET_PICTURES).pixels_NP, straight)


@pytest.mark.parametrize(
    ("rules", "grid"),
    [(SMALL_CLIP, (3, 16, 30)), (NANO_CLIP, (3, 44, 80)), (EDGE_CLIP, (6, 44, 80))],
    ids=["class default limits", "nano", "edge"],
)
def test_limits_bound_the_whole_clip(rules: ClipRules, grid: tuple[int, int, int]) -> None:
    frames = len(sight.sample_frames(100, 30.0, rules))
    height, width = sight.clip_size(frames, 720, 1280, rules)
    assert frames == 6
    assert (-(-frames // rules.temporal_patch_size), height // 16, width // 16) == grid


@pytest.mark.parametrize(
    ("rules", "grid", "texts"),
    [
        (NANO_CLIP, (2, 30, 40), ["<0.3 seconds>", "<1.6 seconds>"]),
        (EDGE_CLIP, (4, 30, 40), ["<0.0 seconds>", "<0.7 seconds>", "<1.3 seconds>", "<2.0 seconds>"]),
    ],
    ids=["nano", "edge"],
)
def test_two_seconds_of_video_get_the_published_frames_grid_and_times(
    rules: ClipRules, grid: tuple[int, int, int], texts: list[str]
) -> None:
    indices = sight.sample_frames(48, 24.0, rules)
    assert indices == [0, 16, 31, 47]
    patches, times_s = sight.clip_patches(clip(4, 480, 640), [i / 24 for i in indices], rules)
    assert patches.grid == grid
    assert [sight.slice_text(t) for t in times_s] == texts


def test_slices_take_the_true_presentation_times() -> None:
    _, times_s = sight.clip_patches(clip(4, 64, 64), [0.0, 0.1, 5.0, 9.0], POCKET_CLIPS)
    assert times_s == [0.05, 7.0]


def test_one_frame_and_sub_second_clips_work() -> None:
    assert sight.sample_frames(1, 30.0, NANO_CLIP) == [0]
    assert sight.sample_frames(3, 30.0, NANO_CLIP) == [0, 1, 2]
    assert sight.sample_frames(10, 30.0, NANO_CLIP) == [0, 3, 6, 9]
    patches, times_s = sight.clip_patches(clip(1, 64, 64), [0.5], POCKET_CLIPS)
    assert (patches.grid, times_s) == ((1, 16, 16), [0.5])
    patches, times_s = sight.clip_patches(clip(3, 64, 64), [0.0, 0.1, 0.2], POCKET_CLIPS)
    assert (patches.grid, times_s) == ((2, 16, 16), [0.05, 0.2])


def test_a_last_slice_that_is_not_full_repeats_the_last_frame() -> None:
    frames = clip(3, 64, 64)
    patches, _ = sight.clip_patches(frames, [0.0, 0.1, 0.2], POCKET_CLIPS)
    filled, _ = sight.clip_patches(frames[[0, 1, 2, 2]], [0.0, 0.1, 0.2, 0.3], POCKET_CLIPS)
    assert torch.equal(patches.pixels_NP, filled.pixels_NP)


def test_sampling_obeys_a_frame_count_and_the_clip_s_own_limits() -> None:
    assert sight.sample_frames(9, 8.0, POCKET_CLIPS, 3) == [0, 4, 8]
    assert len(sight.sample_frames(100_000, 24.0, NANO_CLIP)) == 768
    assert sight.sample_frames(48, None, NANO_CLIP) == sight.sample_frames(48, 24.0, NANO_CLIP)


@pytest.mark.parametrize("asked", [0, 10])
def test_a_frame_count_that_the_clip_cannot_give_is_refused(asked: int) -> None:
    with pytest.raises(BadRequest, match="give 1 to 9"):
        sight.sample_frames(9, 8.0, POCKET_CLIPS, asked)


def test_an_empty_clip_and_missing_times_are_refused() -> None:
    with pytest.raises(BadRequest, match="no frames"):
        sight.sample_frames(0, 8.0, POCKET_CLIPS)
    with pytest.raises(BadRequest, match="a time for each"):
        sight.clip_patches(clip(2, 64, 64), [0.0], POCKET_CLIPS)


def test_pocket_looks_at_its_own_pictures_and_clips_unscaled() -> None:
    image = picture(64, 64)
    patches = sight.picture_patches(image, POCKET_PICTURES)
    assert (patches.grid, sight.tokens(patches.grid, POCKET_PICTURES.merge_size)) == ((1, 16, 16), 64)
    first = patches.pixels_NP[0].view(3, 2, 4, 4)[:, 0]
    torch.testing.assert_close(first, torch.from_numpy(image[:4, :4]).permute(2, 0, 1).float() / 127.5 - 1)
    for fps, slices in ((4.0, 2), (8.0, 5)):
        rules = ClipRules.from_dict(POCKET_CLIPS.to_dict() | {"fps": fps})
        indices = sight.sample_frames(9, 8.0, rules)
        seen, times_s = sight.clip_patches(clip(9, 64, 64)[indices], [i / 8 for i in indices], rules)
        assert (seen.grid, len(times_s)) == ((slices, 16, 16), slices)


@pytest.mark.parametrize("rules", [NANO, EDGE, POCKET_PICTURES, NANO_CLIP, EDGE_CLIP, POCKET_CLIPS])
def test_rules_survive_the_published_json(rules: PictureRules) -> None:
    assert type(rules).from_dict(rules.to_dict()) == rules


def test_absent_keys_take_the_values_of_cosmos() -> None:
    assert PictureRules.from_dict({}) == NANO
    assert ClipRules.from_dict({}) == NANO_CLIP
    assert PictureRules.from_dict({"temporal_patch_size": 1}) == EDGE


def test_older_spellings_of_the_limits_are_read() -> None:
    rules = PictureRules.from_dict(NANO.to_dict() | {"min_pixels": 3136, "max_pixels": 12845056})
    assert (rules.min_pixels, rules.max_pixels) == (3136, 12845056)


def test_positions_around_a_picture() -> None:
    positions_3A, delta = sight.reasoner_positions([3, (1, 4, 6), 3], 2)
    assert positions_3A.dtype == torch.float32
    assert positions_3A.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8],
    ]
    assert delta == -3


def test_positions_around_the_slices_of_a_clip() -> None:
    positions_3A, delta = sight.reasoner_positions([4, (1, 4, 4), 5, (1, 4, 4), 3], 2)
    assert positions_3A.tolist() == [
        [0, 1, 2, 3, 4, 4, 4, 4, 6, 7, 8, 9, 10, 11, 11, 11, 11, 13, 14, 15],
        [0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 11, 12, 12, 13, 14, 15],
        [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11, 12, 11, 12, 13, 14, 15],
    ]
    assert delta == -4


def test_several_slices_in_one_grid_equal_slices_in_a_row() -> None:
    together, _ = sight.reasoner_positions([2, (3, 4, 6)], 2)
    apart, _ = sight.reasoner_positions([2, (1, 4, 6), (1, 4, 6), (1, 4, 6)], 2)
    assert torch.equal(together, apart)


def test_text_alone_counts_up_with_no_delta() -> None:
    positions_3A, delta = sight.reasoner_positions([5], 2)
    assert positions_3A.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert delta == 0
