"""Loading the parts of checkpoints that diffusers and transformers wrote."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from armillary.codecs.qwen_vit import QwenViT
from armillary.codecs.siglip import EdgeVision
from armillary.errors import BadRequest
from armillary.tasks.parts import Parts, load_parts
from tests.oracles.fabricate import edge_like, nano_like


def load(folder: Path, **options: list[str]) -> Parts:
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, **options)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_like(tmp_path_factory.mktemp("nano"))


def test_a_nano_like_checkpoint_has_every_part(nano: Path) -> None:
    parts = load(nano)
    assert parts.sight is not None
    assert isinstance(parts.sight.tower, QwenViT)
    assert (parts.sight.pictures.max_pixels, parts.sight.clips.max_pixels) == (4096, 16384)
    assert parts.video is not None
    assert parts.audio is not None
    for network in (parts.network, parts.sight.tower, parts.video, parts.audio):
        assert not network.training
        assert not any(p.requires_grad or p.is_meta for p in network.parameters())


def test_an_edge_like_checkpoint_has_no_sound(tmp_path: Path) -> None:
    parts = load(edge_like(tmp_path))
    assert parts.sight is not None
    assert isinstance(parts.sight.tower, EdgeVision)
    assert parts.sight.clips.edge
    assert parts.video is not None
    assert parts.audio is None


def test_only_what_is_wanted_is_loaded(nano: Path) -> None:
    parts = load(nano, want=["video"])
    assert parts.video is not None
    assert parts.sight is None
    assert parts.audio is None


def test_sight_lies_under_any_name_that_the_root_index_gives(nano: Path) -> None:
    folder, index = nano / "vision_encoder", nano / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    with pytest.raises(BadRequest, match="weight file"):
        load(nano, want=["sight"])
    renamed = {
        k: v.replace("/model.", "/model-00001-of-00001.") if "vision" in v else v
        for k, v in names["weight_map"].items()
    }
    index.write_text(json.dumps({"weight_map": renamed}))
    assert load(nano, want=["sight"]).sight is not None


def test_a_missing_tensor_of_sight_is_named(tmp_path: Path) -> None:
    file = edge_like(tmp_path) / "vision_encoder" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.projector.norm.weight"]
    save_file(tensors, file)
    with pytest.raises(BadRequest, match=r"1 in the index only: model\.projector\.norm\.weight"):
        load(tmp_path, want=["sight"])
