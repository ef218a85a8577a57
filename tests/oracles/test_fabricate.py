"""The fabricated checkpoints are whole: both libraries load them and do every kind of work with them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from tests.oracles.fabricate import edge_like, nano_like

Load = Callable[[Path], Any]
MESSAGES = [
    {"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "hi"}]}
]


@pytest.fixture(scope="module", params=["nano", "edge"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{f.parent.name}/{name}": t for f in files for name, t in load_file(f).items()}


def draw(pipeline: Any, **options: Any) -> Any:
    given = {"num_inference_steps": 2, "output_type": "pt", "generator": torch.Generator().manual_seed(0)}
    return pipeline("a red disc", **given, **options)


def test_a_clip_is_drawn(folder: Path, diffusers_pipeline: Load) -> None:
    drawn = draw(diffusers_pipeline(folder), num_frames=5, height=32, width=48, guidance_scale=3.0)
    assert drawn.video.shape == (5, 3, 32, 48)
    assert drawn.sound is None
    assert 0.1 < drawn.video.std() < 0.5


def test_nano_draws_sound_with_the_clip(nano_folder: Path, diffusers_pipeline: Load) -> None:
    pipeline = diffusers_pipeline(nano_folder)
    drawn = draw(pipeline, num_frames=5, height=32, width=48, guidance_scale=3.0, enable_sound=True)
    assert drawn.sound.shape == (2, 6 * 640)  # 5 frames at 24 a second, rounded up to whole latents
    assert drawn.sound.std() > 0.01
    hush = draw(pipeline, num_frames=5, height=32, width=48, guidance_scale=3.0)
    assert not torch.equal(drawn.video, hush.video)


def test_actions_are_drawn_with_the_clip(folder: Path, diffusers_pipeline: Load) -> None:
    picture = Image.effect_mandelbrot((48, 32), (-2, -1, 1, 1), 20).convert("RGB")
    action = CosmosActionCondition(
        mode="policy", chunk_size=4, domain_name="pusht", resolution_tier=256, image=picture
    )
    drawn = draw(diffusers_pipeline(folder), action=action, guidance_scale=1.0, fps=10.0)
    assert drawn.action[0].shape == (4, 2)
    assert 0.1 < drawn.action[0].std() < 10


def test_the_reasoner_reads_text_a_picture_and_a_clip(
    folder: Path, diffusers_pipeline: Load, transformers_reasoner: Load
) -> None:
    tokenizer, reasoner = diffusers_pipeline(folder).text_tokenizer, transformers_reasoner(folder)
    temporal = json.loads((folder / "preprocessor_config.json").read_text())["temporal_patch_size"]
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    clip = "<|vision_start|><|video_pad|><|vision_end|>"
    text = text.replace("<|image_pad|>", 6 * "<|image_pad|>").replace(
        clip, 2 * ("<0.5 seconds>" + clip.replace("<|video_pad|>", 4 * "<|video_pad|>"))
    )
    ids_BL = tokenizer(text, return_tensors="pt").input_ids
    kinds_BL = (ids_BL == reasoner.config.image_token_id) + 2 * (ids_BL == reasoner.config.video_token_id)
    given = {
        "input_ids": ids_BL,
        "mm_token_type_ids": kinds_BL.int(),
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "video_grid_thw": torch.tensor([[2, 4, 4]]),
        "pixel_values_videos": torch.randn(32, 48 * temporal, generator=torch.Generator().manual_seed(1)),
    }
    with torch.no_grad():
        grey, noise = (
            reasoner(**given, pixel_values=pixels).logits
            for pixels in (torch.zeros(24, 48 * temporal), torch.ones(24, 48 * temporal))
        )
    assert grey.shape == (*ids_BL.shape, 320)
    assert 0.3 < grey.std() < 3
    assert (grey[0, -1] - noise[0, -1]).abs().max() > 1e-3
    first = int(kinds_BL[0].nonzero()[0])
    assert torch.equal(grey[0, :first], noise[0, :first])


def test_both_libraries_hold_the_same_text_weights(
    folder: Path, diffusers_pipeline: Load, transformers_reasoner: Load
) -> None:
    generator, reasoner = diffusers_pipeline(folder).transformer, transformers_reasoner(folder)
    for here, there in zip(generator.layers, reasoner.model.language_model.layers, strict=True):
        assert torch.equal(here.self_attn.to_q.weight, there.self_attn.q_proj.weight)
        assert torch.equal(here.input_layernorm.weight, there.input_layernorm.weight)
    assert torch.equal(generator.lm_head.weight, reasoner.lm_head.weight)


def test_no_tensor_is_constant(folder: Path) -> None:
    assert not [name for name, tensor in tensors_of(folder).items() if tensor.unique().numel() < 2]


def test_the_root_index_points_at_stored_tensors(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stored = tensors_of(folder)
    assert all(f"{Path(file).parent.name}/{name}" in stored for name, file in index.items())
    assert "layers.0.self_attn.to_q.weight" in index
    assert all((folder / file).is_file() for file in index.values())


def test_the_root_index_lists_what_the_published_one_does(nano_folder: Path, edge_folder: Path) -> None:
    nano, edge = (
        json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        for folder in (nano_folder, edge_folder)
    )
    assert len(nano) == (22 * 4 + 22) + (12 * 4 + 3 + 6 + 6 * 3)
    assert "layers.0.self_attn.add_q_proj.weight" in nano
    assert "layers.0.self_attn.k_norm_und_for_gen.weight" in edge
    assert not [name for name in edge if "moe_gen" in name or ".add_q_proj." in name]


def test_the_chat_templates_render_as_published(
    nano_folder: Path, edge_folder: Path, diffusers_pipeline: Load
) -> None:
    nano, edge = (diffusers_pipeline(folder).text_tokenizer for folder in (nano_folder, edge_folder))
    messages = [{"role": "user", "content": "hi"}]
    user = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    empty = "\n<|im_start|>system\n<|im_end|>\n"
    given = {"tokenize": False, "add_generation_prompt": True}
    assert nano.apply_chat_template(messages, **given) == user
    assert edge.apply_chat_template(messages, **given) == empty + user + "<think>\n"
    assert (
        edge.apply_chat_template(messages, enable_thinking=False, **given) == empty + user + "<think></think>"
    )
    system = [{"role": "system", "content": "be brief"}, *messages]
    assert nano.apply_chat_template(system, **given) == "<|im_start|>system\nbe brief<|im_end|>\n" + user
    seen = "<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>hi"
    assert nano.apply_chat_template(MESSAGES, **given) == user.replace("hi", seen)


@pytest.mark.parametrize("text", ["a red disc rolls right", "  é 学 \n\n 12<|im_end|><think>x</think>"])
def test_the_tokenizers_are_lossless(folder: Path, diffusers_pipeline: Load, text: str) -> None:
    tokenizer = diffusers_pipeline(folder).text_tokenizer
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert max(tokenizer.get_vocab().values()) < 320


def test_a_reasoner_with_a_missing_tensor_is_refused(tmp_path: Path, transformers_reasoner: Load) -> None:
    folder = nano_like(tmp_path / "torn")
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    (folder / listed["weight_map"]["pos_embed.weight"]).unlink()
    listed["weight_map"] = {k: v for k, v in listed["weight_map"].items() if "vision_encoder" not in v}
    index.write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"visual\.pos_embed"):
        transformers_reasoner(folder)


def test_a_seed_is_a_checkpoint(tmp_path: Path, nano_folder: Path) -> None:
    again, other = (
        tensors_of(nano_like(tmp_path / "again")),
        tensors_of(nano_like(tmp_path / "other", seed=10)),
    )
    first = tensors_of(nano_folder)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not [name for name, tensor in first.items() if torch.equal(tensor, other[name])]


def test_keys_of_the_transformer_can_be_overridden(
    tmp_path: Path, diffusers_pipeline: Load, transformers_reasoner: Load
) -> None:
    silent = nano_like(tmp_path / "silent", sound_gen=False, sound_dim=None, base_fps=16, num_hidden_layers=3)
    assert diffusers_pipeline(silent).sound_tokenizer is None
    assert diffusers_pipeline(silent).transformer.config.base_fps == 16
    assert len(transformers_reasoner(silent).model.language_model.layers) == 3
    still = edge_like(tmp_path / "still", action_gen=False, action_dim=None)
    assert not diffusers_pipeline(still).transformer.action_gen
