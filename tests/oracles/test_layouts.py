"""Every published layout, fabricated small: it loads exactly, or is refused with one clear sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from armillary import load
from armillary.errors import BadRequest
from armillary.shards import write_json
from armillary.tasks.parts import Parts, load_parts
from armillary.weights import TRANSFORMER
from tests.oracles.fabricate import four_step_like, image_to_video_like

State = dict[str, Tensor]
FRAMEWORK = {
    "self_attn.to_q": "self_attn.q_proj",
    "self_attn.to_k": "self_attn.k_proj",
    "self_attn.to_v": "self_attn.v_proj",
    "self_attn.to_out": "self_attn.o_proj",
    "self_attn.norm_q": "self_attn.q_norm",
    "self_attn.norm_k": "self_attn.k_norm",
    "self_attn.add_q_proj": "self_attn.q_proj_moe_gen",
    "self_attn.add_k_proj": "self_attn.k_proj_moe_gen",
    "self_attn.add_v_proj": "self_attn.v_proj_moe_gen",
    "self_attn.to_add_out": "self_attn.o_proj_moe_gen",
    "self_attn.norm_added_q": "self_attn.q_norm_moe_gen",
    "self_attn.norm_added_k": "self_attn.k_norm_moe_gen",
    "time_embedder.linear_1": "time_embedder.mlp.0",
    "time_embedder.linear_2": "time_embedder.mlp.2",
}
FRAMEWORK_HEADS = {
    "proj_in": "vae2llm",
    "proj_out": "llm2vae",
    "action_proj_in": "action2llm",
    "action_proj_out": "llm2action",
    "audio_proj_in": "sound2llm",
    "audio_proj_out": "llm2sound",
    "audio_modality_embed": "sound_modality_embed",
}
LANGUAGE = ("layers.", "embed_tokens.", "norm", "lm_head.")


def read(folder: Path, **options: Any) -> Parts:
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, **options)


def transformer(folder: Path) -> State:
    files = (folder / "transformer").glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def rewrite(folder: Path, state: State, part: str = "transformer", stem: str = TRANSFORMER) -> Path:
    """Replace a part's weights by one file, the root index by none."""
    for file in (folder / part).glob("*.safetensors*"):
        file.unlink()
    save_file(state, folder / part / f"{stem}.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    return folder


def edit(path: Path, **changes: Any) -> None:
    kept = json.loads(path.read_text()) | changes
    write_json({key: value for key, value in kept.items() if value is not None}, path)


def same(one: Parts, other: Parts) -> bool:
    """Whether both hold bit-equal networks and vision towers."""
    pairs = [(one.network, other.network)]
    if one.sight and other.sight:
        pairs.append((one.sight.tower, other.sight.tower))  # pyright: ignore[reportArgumentType]
    states = [(a.state_dict(), b.state_dict()) for a, b in pairs]
    return all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) for a, b in states)


@pytest.fixture(params=["nano", "edge"])
def original(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of either checkpoint, to be changed."""
    return shutil.copytree(original, tmp_path / "copy")


@pytest.fixture
def nano(nano_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(nano_folder, tmp_path / "nano")


# -- names and files


def in_framework_words(name: str, lead: str) -> str:
    first = name.split(".", maxsplit=1)[0]
    name = name.replace(first, FRAMEWORK_HEADS.get(first, first), 1)
    for ours, theirs in FRAMEWORK.items():
        name = name.replace(f"{ours}.", f"{theirs}.")
    inner = {"net.": "net.language_model.model.", "model.net.": "model.net.language_model."}.get(lead, lead)
    if name.startswith("lm_head") and lead == "net.":
        return f"net.language_model.{name}"
    return f"{inner if name.startswith(LANGUAGE) else lead}{name}"


@pytest.mark.parametrize("lead", ["net.", "model.net.", "transformer.", "model.", ""])
def test_the_frameworks_spellings_are_read(folder: Path, original: Path, lead: str) -> None:
    renamed = {in_framework_words(name, lead): t for name, t in transformer(folder).items()}
    assert not renamed.keys() & {"layers.0.self_attn.to_q.weight", "proj_in.weight"}
    assert same(read(rewrite(folder, renamed), want=()), read(original, want=()))


@pytest.mark.parametrize("lead", ["vision_encoder.", "model.", "net.language_model.", ""])
def test_the_spellings_of_sight_are_read(folder: Path, original: Path, lead: str) -> None:
    file = next((folder / "vision_encoder").glob("*.safetensors"))
    nested = "visual." if lead.startswith("net.") and "edge" in str(original) else ""
    state = {
        f"{lead}{nested}{n.removeprefix('model.') if n.startswith('model.') else f'visual.{n}'}": t
        for n, t in load_file(file).items()
    }
    rewrite(folder, state, "vision_encoder", "model")
    assert same(read(folder, want=["sight"]), read(original, want=["sight"]))


def test_a_tensor_under_two_spellings_is_refused(folder: Path) -> None:
    state = transformer(folder)
    state["transformer.norm.weight"] = state["norm.weight"].clone()
    with pytest.raises(BadRequest, match=r"1 twice: norm\.weight"):
        read(rewrite(folder, state))


def test_one_file_and_several_are_the_same(nano: Path, nano_folder: Path) -> None:
    assert len(list((nano_folder / "transformer").glob("*.safetensors"))) > 1
    assert same(read(rewrite(nano, transformer(nano)), want=()), read(nano_folder, want=()))


def test_shards_are_found_by_the_index_of_the_whole_checkpoint(folder: Path, original: Path) -> None:
    names = list(state := transformer(folder))
    root = folder / "model.safetensors.index.json"
    index = json.loads(root.read_text())["weight_map"]
    sight = {name: file for name, file in index.items() if file.startswith("vision_encoder/")}
    rewrite(folder, {}, stem="unused")
    for i, half in enumerate((names[::2], names[1::2]), 1):
        file = f"transformer/part-{i}.safetensors"
        save_file({n: state[n] for n in half}, folder / file)
        index = dict.fromkeys(half[:3], file) | index if i == 2 else dict.fromkeys(half[:3], file) | sight
    write_json({"weight_map": {n: f for n, f in index.items() if "part-" in f or n in sight}}, root)
    assert same(read(folder, want=["sight"]), read(original, want=["sight"]))


def test_the_older_pipeline_index_is_read(nano: Path, nano_folder: Path) -> None:
    index = nano / "model_index.json"
    kept = {k: v for k, v in json.loads(index.read_text()).items() if isinstance(v, list)}
    older = {"_class_name": "Cosmos3OmniDiffusersPipeline", "_diffusers_version": "0.37.1"}
    write_json({**older, **kept, "vision_encoder": ["transformers", "Qwen3VLVisionModel"]}, index)
    world = load(nano, device="cpu")
    assert same(world.parts, read(nano_folder))
    assert world.parts.checkpoint.index.get("default_use_system_prompt", True)


def test_another_familys_checkpoint_is_refused(nano: Path) -> None:
    edit(nano / "model_index.json", _class_name="WanPipeline")
    with pytest.raises(BadRequest, match="holds a WanPipeline, which is no Cosmos 3 model"):
        load(nano, device="cpu")


def test_a_folder_may_be_called_anything(nano: Path, nano_folder: Path) -> None:
    moved = nano.rename(nano.parent / "my model (copy)")
    assert same(load(moved, device="cpu").parts, load(nano_folder, device="cpu").parts)


# -- variants


@pytest.fixture(scope="module")
def image_to_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_to_video_like(tmp_path_factory.mktemp("i2v"), sees=False)


def test_image_to_video_has_no_sound_no_action_and_no_sight(image_to_video: Path) -> None:
    world = load(image_to_video, device="cpu")
    assert world.parts.checkpoint.traits.base_fps == 16
    assert list(world.parts.network.ports) == ["vision"]
    facts = world.facts
    assert (facts.fps, facts.sees, facts.sounds, facts.robots) == (16.0, False, False, ())
    with pytest.raises(BadRequest, match="sound"):
        world.generate("a disc", sound=True)


def test_a_four_step_student_keeps_its_steps(tmp_path: Path) -> None:
    world = load(four_step_like(tmp_path / "student"), device="cpu")
    clip = world.generate("a disc", frames=1, size="32x32")
    assert clip.receipt["used"]["steps"] == 4
    with pytest.raises(BadRequest, match="steps"):
        world.generate("a disc", frames=1, size="32x32", steps=35)


def test_unknown_config_keys_are_tolerated(folder: Path, original: Path) -> None:
    odd = {
        "dtype": "bfloat16",
        "qk_norm": False,
        "use_moe": True,
        "max_action_dim": 64,
        "novelty": {"a": [1]},
    }
    edit(folder / "transformer" / "config.json", **odd)
    edit(folder / "config.json", allow_patterns_overrides=["*/*.safetensors"], model={"framework": 1})
    found = read(folder)
    assert same(found, read(original))
    assert found.checkpoint.notes == ["its config has keys that mean nothing here: novelty"]
    assert not read(original).checkpoint.notes


@pytest.mark.parametrize("kind", ["sound", "action"])
def test_a_promised_head_may_be_absent(nano: Path, kind: str) -> None:
    prefix = {"sound": "audio_", "action": "action_"}[kind]
    rewrite(nano, {n: t for n, t in transformer(nano).items() if not n.startswith(prefix)})
    world = load(nano, device="cpu")
    assert world.notes == (f"its config promises {kind}, but it holds no {kind} head",)
    assert kind not in world.parts.network.ports
    assert world.facts.sounds == (kind != "sound")
    assert bool(world.facts.robots) == (kind != "action")


def test_half_a_head_is_refused(nano: Path) -> None:
    state = transformer(nano)
    del state["audio_proj_out.bias"]
    with pytest.raises(BadRequest, match=r"1 missing: ports\.sound\.leave\.bias"):
        read(rewrite(nano, state))


# -- a reasoner alone


def transformers_words(name: str) -> str:
    for ours, theirs in list(FRAMEWORK.items())[:6]:
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name if name.startswith("lm_head") else f"model.language_model.{name}"


def reasoner_alone(whole: Path, folder: Path, *, shards: int, words: Callable[[str], str]) -> Path:
    """UND and sight in the root, as the -Reasoner repositories."""
    drawn = (
        "moe_gen",
        ".add_",
        "to_add",
        "norm_added",
        "proj_in",
        "proj_out",
        "time_",
        "modality",
        "k_norm_und",
    )
    state = {words(n): t for n, t in transformer(whole).items() if not any(d in n for d in drawn)}
    seen = load_file(next((whole / "vision_encoder").glob("*.safetensors")))
    state |= {n if n.startswith("model.") else f"model.visual.{n}": t for n, t in seen.items()}
    folder.mkdir()
    for file in whole.iterdir():
        if file.is_file() and file.name not in ("model_index.json", "model.safetensors.index.json"):
            shutil.copy(file, folder)
    names = list(state)
    if shards == 1:
        save_file(state, folder / "model.safetensors")
        return folder
    files = {n: f"model-0000{1 + i % shards}-of-0000{shards}.safetensors" for i, n in enumerate(names)}
    for file in set(files.values()):
        save_file({n: state[n] for n in names if files[n] == file}, folder / file)
    write_json({"weight_map": files}, folder / "model.safetensors.index.json")
    return folder


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("words", [transformers_words, str], ids=["transformers", "published"])
def test_a_reasoner_alone_reasons(
    original: Path, tmp_path: Path, shards: int, words: Callable[[str], str]
) -> None:
    alone = reasoner_alone(original, tmp_path / "alone", shards=shards, words=words)
    world, whole = load(alone, device="cpu"), load(original, device="cpu")
    held, kept = whole.parts.network.state_dict(), world.parts.network.state_dict()
    assert all(torch.equal(tensor, held[name]) for name, tensor in kept.items())
    assert not [name for name in kept if ".dm." in name or name.startswith(("ports.", "time.", "norm_dm."))]
    picture = torch.zeros(24, 24, 3, dtype=torch.uint8).numpy()
    asked: Any = {"images": [picture], "max_tokens": 4}
    assert world.reason("what?", **asked).text == whole.reason("what?", **asked).text
    for draw in (lambda: world.generate("a disc"), lambda: world.policy("go", picture, domain="pusht")):
        with pytest.raises(BadRequest, match="model"):
            draw()


# -- what is broken


def test_a_missing_tensor_never_falls_back_to_its_twin(folder: Path) -> None:
    state = transformer(folder)
    del state["layers.1.self_attn.add_k_proj.weight"], state["layers.1.mlp_moe_gen.up_proj.weight"]
    missing = r"2 missing: blocks\.1\.dm\.k\.weight, blocks\.1\.dm\.up\.weight"
    with pytest.raises(BadRequest, match=missing):
        read(rewrite(folder, state))


def test_edge_must_have_the_norm_of_shown_keys(edge_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(edge_folder, tmp_path / "edge")
    config = folder / "transformer" / "config.json"
    edit(config, use_und_k_norm_for_gen=False)
    with pytest.raises(BadRequest, match=r"3 unexpected: layers\.0\.self_attn\.k_norm_und_for_gen\.weight"):
        read(folder)
    edit(config, backbone_type="cosmos3_edge_nemotron_dense")
    with pytest.raises(BadRequest, match="Edge cannot draw without this norm"):
        read(folder)
    edit(config, use_und_k_norm_for_gen=True)
    state = {n: t for n, t in transformer(folder).items() if "k_norm_und" not in n}
    with pytest.raises(BadRequest, match=r"3 missing: blocks\.0\.ar\.norm_shown\.weight"):
        read(rewrite(folder, state))


def test_no_more_than_ten_names_are_listed(nano: Path) -> None:
    state = {n: t for n, t in transformer(nano).items() if "moe_gen" not in n}
    with pytest.raises(BadRequest, match="missing") as caught:
        read(rewrite(nano, state))
    assert "21 missing: " in str(caught.value)
    assert str(caught.value).count(",") == 9


def test_a_missing_shard_is_named(nano: Path) -> None:
    shard = sorted((nano / "transformer").glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(BadRequest, match=f"weight file {shard.name} is missing"):
        read(nano)


def test_index_and_files_must_agree(nano: Path) -> None:
    index = nano / "transformer" / f"{TRANSFORMER}.safetensors.index.json"
    names = json.loads(index.read_text())
    file = names["weight_map"].pop("norm.weight")
    write_json(names, index)
    with pytest.raises(BadRequest, match=r"1 in a file only: norm\.weight"):
        read(nano)
    names["weight_map"] |= {"norm.weight": file, "more.weight": file}
    write_json(names, index)
    with pytest.raises(BadRequest, match=r"1 in the index only: more\.weight"):
        read(nano)


def test_the_time_embedding_stays_in_fp32(folder: Path) -> None:
    rewrite(folder, {n: t.bfloat16() for n, t in transformer(folder).items()})
    for dtype in (torch.bfloat16, None):
        network = load_parts(folder, device=torch.device("cpu"), dtype=dtype, want=()).network
        assert network.time.first.weight.dtype == torch.float32
        assert network.head.weight.dtype == torch.bfloat16


def test_files_are_left_as_they_are(nano: Path) -> None:
    file = next((nano / "transformer").glob("*.safetensors"))
    before = file.read_bytes()
    read(nano)
    assert file.read_bytes() == before
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
