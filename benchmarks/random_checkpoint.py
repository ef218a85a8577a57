"""Checkpoints of any size with random bf16 weights, in the published layout, as fast as the disk takes them.

Every tensor repeats one random block, scaled so that activations stay near 1: what a network computes with
them means nothing, but costs what real weights cost.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.qwen_vit import QwenViT, QwenViTConfig
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.locate import POCKET
from armillary.model import Config, Network
from armillary.names import published_name
from armillary.shards import Source, write_json, write_shards
from armillary.weights import TRANSFORMER, Traits, published_config, write_towers

NANO = Config(features={"vision": 192, "sound": 64, "action": 64})
NANO_SIGHT = QwenViTConfig(
    depth=27,
    hidden_size=1152,
    intermediate_size=4304,
    num_heads=16,
    out_hidden_size=4096,
    num_position_embeddings=2304,
    deepstack_visual_indexes=(8, 16, 24),
    patch_size=16,
)
NANO_VIDEO = WanVAEConfig(latents_mean=(0.0,) * 48, latents_std=(1.0,) * 48)
NANO_SOUND = AudioVAEConfig(encoder_enabled=False)


def write_random(
    folder: Path,
    config: Config = NANO,
    sight: QwenViTConfig = NANO_SIGHT,
    video: WanVAEConfig = NANO_VIDEO,
    sound: AudioVAEConfig = NANO_SOUND,
) -> Path:
    """A checkpoint of these shapes, Cosmos3-Nano's if left out; words as pocket's. Returns the folder."""
    block_X = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    with torch.device("meta"):
        network, eye = Network(config), QwenViT(sight)
        codecs = {"vae": WanVAE(video), "sound_tokenizer": AudioVAE(sound)}
    towers = _sources(network, block_X, published_name)
    write_towers(folder, towers, _sources(eye, block_X))
    for name, codec in codecs.items():
        write_json(codec.config.to_dict(), folder / name / "config.json")
        write_shards(_sources(codec, block_X), folder / name, TRANSFORMER)
    _write_documents(folder, config, sight)
    return folder


def _sources(network: nn.Module, block_X: Tensor, rename: Callable[[str], str] = str) -> dict[str, Source]:
    state = network.state_dict()
    return {
        rename(name): Source(tuple(t.shape), torch.bfloat16, partial(_numbers, name, t.shape, block_X))
        for name, t in state.items()
    }


def _numbers(name: str, shape: torch.Size, block_X: Tensor) -> Tensor:
    """Matrices and kernels keep the size of what passes; norms are near 1, biases and marks near 0."""
    count = math.prod(shape)
    matrix = sum(side > 1 for side in shape) > 1
    spread = (count / shape[0]) ** -0.5 if matrix else 0.02
    around = float(not matrix and name.endswith(("norm.weight", "weight", "gamma", "weight_g")))
    block_X = (block_X[:count] * spread + around).bfloat16()
    return block_X.repeat(math.ceil(count / len(block_X)))[:count].view(shape)


def _write_documents(folder: Path, config: Config, sight: QwenViTConfig) -> None:
    """Pocket's own, but for what says the sizes."""
    shutil.copytree(POCKET / "text_tokenizer", folder / "text_tokenizer")
    for name in ("generation_config.json", "model_index.json", "scheduler/scheduler_config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(POCKET / name, folder / name)
    dims = {f"{kind}_dim": config.features.get(kind) for kind in ("sound", "action")}
    heads = {f"{kind}_gen": kind in config.features for kind in ("sound", "action")}
    traits = Traits(**heads, **dims, latent_channel=config.features["vision"] // 4)
    write_json(
        published_config(config, traits) | {"dtype": "bfloat16"}, folder / "transformer" / "config.json"
    )
    root: dict[str, Any] = json.loads((POCKET / "config.json").read_text())
    root["vision_config"] = sight.to_dict()
    sizes = asdict(config)
    for theirs, ours in {
        "vocab_size": "vocabulary",
        "hidden_size": "width",
        "num_hidden_layers": "layers",
    }.items():
        root["text_config"][theirs] = sizes[ours]
    write_json(root, folder / "config.json")
    patches = {"patch_size": sight.patch_size, "merge_size": sight.spatial_merge_size}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        write_json(json.loads((POCKET / name).read_text()) | patches, folder / name)
