"""Memory modes: the same numbers to the last bit, and only what a task needs in memory and read from disk."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from armillary import memory
from armillary.errors import BadRequest
from armillary.loading import load
from armillary.memory import MODES, Choice, Mode, Weights, choose
from armillary.names import SHOWN, canonical, is_drawing
from armillary.robots import robot
from armillary.sequence import Sample, Segment, pack, text_context
from armillary.shards import Entry, Stored, tensors
from armillary.world import World

PICTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
BODY = replace(robot("tabletop"), chunk=4, tier=None)
OTHERS: tuple[Mode, ...] = ("tower", "stream")


@pytest.fixture(scope="module", params=["nano_folder", "edge_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def everything(world: World) -> list[Any]:
    """One request of each kind, and the first again."""
    quick: dict[str, Any] = {"steps": 2, "seed": 1}
    size: dict[str, Any] = {"size": "16x16", "frames": 5}
    asked = [
        lambda: world.reason("what is this?", images=[PICTURE], max_tokens=4).text,
        lambda: world.generate("a disc", guidance=3.0, sound=world.facts.sounds, **size, **quick),
        lambda: world.generate("a disc", image=PICTURE, **size, **quick).frames,
        lambda: world.policy("push it", PICTURE, domain=BODY, **quick).values,
        lambda: world.forward_dynamics(PICTURE, np.ones((5, 2)), domain=BODY, **quick).frames,
        lambda: world.reason("what is this?", images=[PICTURE], max_tokens=4).text,
    ]
    clip = asked.pop(1)()
    return [clip.frames, clip.sound, *(ask() for ask in asked)]


@pytest.fixture(scope="module")
def resident(folder: Path) -> list[Any]:
    return everything(load(folder, device="cpu", memory="resident"))


@pytest.mark.parametrize("mode", OTHERS)
def test_every_mode_gives_the_same_numbers(folder: Path, resident: list[Any], mode: Mode) -> None:
    found = everything(load(folder, device="cpu", memory=mode))
    for one, other in zip(resident, found, strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("mode", OTHERS)
def test_logits_and_velocities_are_the_same_bits(folder: Path, mode: Mode) -> None:
    context = text_context(torch.arange(30, 37))
    segment = Segment("vision", torch.randn(4, 16), torch.ones(4, dtype=torch.bool), torch.zeros(3, 4))
    sample = pack([Sample(context, (segment,))])
    found: list[list[torch.Tensor]] = []
    for each in ("resident", mode):
        network = load(folder, device="cpu", memory=each, dtype="bfloat16").parts.network
        read = network.read(sample)
        assert read.hidden_AE is not None
        drawn = network.draw(sample, torch.tensor([700.0]), read.memory)
        joint = network(sample, torch.tensor([700.0]))
        found.append([read.hidden_AE, network.logits(read.hidden_AE), *drawn, *joint.velocities])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# -- what is in memory


def held(world: World) -> set[str]:
    """The parts of which some weights are in memory, blocks by tower."""
    network, found = world.parts.network, set[str]()
    for name, tensor in network.state_dict().items():
        if not tensor.is_meta:
            words = name.split(".")
            found.add(".".join(words[:3]) if words[0] == "blocks" else words[0])
    for name, part in (
        ("sight", world.parts.sight and world.parts.sight.tower),
        ("video", world.parts.video),
    ):
        for path, tensor in part.state_dict().items() if part else ():
            if not tensor.is_meta:
                found.add(name if name == "sight" else f"video.{path.split('.')[0]}")
    return found


SMALL = {"embed", "norm_ar", "norm_dm", "ports", "time", "video.quant_conv", "video.post_quant_conv"}


def test_nothing_large_is_read_before_it_is_asked_for(folder: Path) -> None:
    assert held(load(folder, device="cpu", memory="tower")) == SMALL
    assert held(load(folder, device="cpu", memory="stream")) == SMALL


def test_one_tower_at_a_time(folder: Path) -> None:
    world = load(folder, device="cpu", memory="tower")
    layers = range(len(world.parts.network.blocks))
    during: list[set[str]] = []
    world.reason("what?", images=[PICTURE], max_tokens=2)
    assert held(world) == SMALL | {"sight", "head"} | {f"blocks.{i}.ar" for i in layers}
    world.generate("a disc", frames=1, size="16x16", steps=2, on_step=lambda *_: during.append(held(world)))
    assert during == [SMALL | {f"blocks.{i}.dm" for i in layers}] * 2
    assert held(world) == SMALL | {"video.decoder"}


def test_one_block_at_a_time(folder: Path) -> None:
    world = load(folder, device="cpu", memory="stream")
    network, during = world.parts.network, list[set[str]]()
    for block in network.blocks:
        for tower in block.children():
            tower.register_forward_hook(lambda *_: during.append(held(world) - SMALL))
    world.generate("a disc", frames=1, size="16x16", steps=2, guidance=1.0)
    layers = range(len(network.blocks))
    assert during == [{f"blocks.{i}.{tower}"} for tower in ("ar", "dm", "dm") for i in layers]


def test_a_task_reads_only_what_it_needs_from_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()

    def listening(found: Stored) -> Iterator[tuple[str, torch.Tensor]]:
        read.update(entry.key for entry in found.values())
        return tensors(found)

    world = load(folder, device="cpu", memory="stream")
    monkeypatch.setattr(memory, "tensors", listening)
    world.reason("what?", max_tokens=2)
    assert "lm_head.weight" in read
    assert not {key for key in read if is_drawing(canonical(key)) and SHOWN not in key}
    read.clear()
    world.generate("a disc", frames=1, size="16x16", steps=1)
    assert "lm_head.weight" not in read
    assert not {key for key in read if key.startswith("encoder.")}


def test_read_ahead_is_of_the_next_block_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is read once a pass: what was read ahead is used, and nothing is read twice."""
    read: list[Entry] = []
    world = load(folder, device="cpu", memory="stream")
    monkeypatch.setattr(memory, "tensors", lambda found: (read.extend(found.values()), tensors(found))[1])
    world.parts.network.read(pack([Sample(text_context(torch.arange(30, 37)))]))
    assert len(read) == len(set(read))
    assert {entry.key.split(".")[1] for entry in read} == {
        str(i) for i in range(world.parts.network.config.layers)
    }


# -- with adapters, and written back


def lora(path: Path, world: World) -> Path:
    numbers = torch.Generator().manual_seed(3)
    width = world.parts.network.config.width
    made = {}
    for layer in ("layers.0.self_attn.to_k", "layers.1.mlp_moe_gen.up_proj"):
        out = world.parts.checkpoint.stored[f"{layer}.weight"].shape[0]
        made[f"transformer.{layer}.lora_A.weight"] = torch.randn(2, width, generator=numbers)
        made[f"transformer.{layer}.lora_B.weight"] = torch.randn(out, 2, generator=numbers)
    save_file(made, path)
    return path


def test_adapters_work_in_every_mode_and_are_written(folder: Path, tmp_path: Path) -> None:
    file = lora(tmp_path / "style.safetensors", load(folder, device="cpu"))
    worlds = [load(folder, device="cpu", memory=mode, adapters=[file]) for mode in MODES]
    asked: dict[str, Any] = {"frames": 1, "size": "16x16", "steps": 2}
    plain = load(folder, device="cpu").generate("a disc", **asked).frames
    frames, *others = (world.generate("a disc", **asked).frames for world in worlds)
    assert not np.array_equal(frames, plain)
    assert all(np.array_equal(frames, other) for other in others)
    worlds[0].save(tmp_path / "one")
    worlds[2].save(tmp_path / "other")
    first, second = (load(tmp_path / n, device="cpu").parts.network.state_dict() for n in ("one", "other"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    with pytest.raises(BadRequest, match=r"^merge=True: memory="):
        load(folder, device="cpu", memory="tower", adapters=[file], merge=True)


# -- which mode

WEIGHTS = Weights(
    layers=10, ar=10, dm=10, table=20, head=20, rest=1, sight=5, encoder=7, decoder=9, hearing=3, sound=4
)


@pytest.mark.parametrize(
    ("free", "mode"),
    [(1000, "resident"), (337, "resident"), (336, "tower"), (158, "tower"), (156, "stream"), (1, "stream")],
)
def test_the_fastest_mode_that_fits_is_taken(free: int, mode: Mode) -> None:
    """269 bytes of weights in all; a tower with its head and the sight is 126."""
    choice = choose(WEIGHTS, free)
    assert choice.mode == mode
    assert "are free" in choice.why


def test_the_mode_that_is_asked_for_is_taken_and_told(folder: Path) -> None:
    world = load(folder, device="cpu", memory="stream")
    assert world.memory == Choice("stream", world.memory.why)
    assert world.memory.why.startswith("asked for; its weights take")
    assert "memory stream" in repr(world)
    assert world.notes[-1].startswith("memory stream: asked for")
    assert world.reason("what?", max_tokens=1).receipt["memory"] == "stream"
    assert load(folder, device="cpu").reason("what?", max_tokens=1).receipt["memory"] == "resident"


def test_an_unknown_mode_is_refused(folder: Path) -> None:
    mode: Any = "streaming"
    with pytest.raises(BadRequest, match=r"^memory='streaming': nearest"):
        load(folder, memory=mode)
