"""What is found on a machine and in a checkpoint, and how exact fewer bits are; no request is served here.

Shape letters: N tokens, H and K heads of queries and keys, C head size.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

import torch
from torch import Tensor

from armillary import __version__
from armillary.attention import KV, attend
from armillary.facts import Facts
from armillary.locate import JSON_FILES, find_device, find_dtype, locate
from armillary.lowbit import Form
from armillary.memory import free_bytes
from armillary.sequence import Sample, Segment, grid_positions, pack, text_context
from armillary.tasks.defaults import DrawTask, defaults, origins
from armillary.tasks.parts import load_parts
from armillary.tasks.ready import describing, read_facts
from armillary.weights import Checkpoint

PACKAGES = ("torch", "tokenizers", "safetensors", "huggingface_hub", "av", "pillow", "numpy", "pydantic")
EXTRAS = ("pymunk", "gymnasium", "pyarrow", "fastapi", "llguidance")
TASKS: tuple[DrawTask, ...] = ("image", "video", "policy")
LOOSE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}  # of attention, against fp64


def machine(device: str = "auto", dtype: str = "auto") -> dict[str, Any]:
    """Device, dtype, memory, packages, and whether attention there computes what its formula says."""
    where = find_device(device)
    kind = find_dtype(dtype, where)
    error = attention_error(where, kind)
    return {
        "armillary": __version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(where)
        if where.type == "cuda"
        else f"{where.type}, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "dtype": str(kind).removeprefix("torch."),
        "memory": {"free": free_bytes(where), "total": total_bytes(where)},
        "attention": {"form": "scaled_dot_product_attention", "error": error, "sound": error <= LOOSE[kind]},
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {name: _version(name) for name in EXTRAS},
    }


def total_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def attention_error(device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference of `attend` from softmax(q k^T / sqrt(C)) v in fp64, over the forms in use."""
    draw = torch.Generator().manual_seed(0)
    heads, kv_heads, size, worst = 4, 2, 16, 0.0
    for queries, keys, causal in ((9, 9, True), (3, 9, True), (1, 9, True), (5, 9, False)):
        shapes = ((queries, heads), (keys, kv_heads), (keys, kv_heads))
        q, k, v = (torch.randn(*shape, size, generator=draw).to(device, dtype) for shape in shapes)
        found = attend(q, (queries,), KV.of(k, v, (keys,)), causal=causal)
        due = _plainly(q.double(), k.double(), v.double(), causal=causal)
        worst = max(worst, float((found.double() - due).abs().max()))
    return worst


def _plainly(q_NHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, *, causal: bool) -> Tensor:
    repeats, n, m = q_NHC.shape[1] // k_NKC.shape[1], len(q_NHC), len(k_NKC)
    k_NHC, v_NHC = (x.repeat_interleave(repeats, dim=1) for x in (k_NKC, v_NKC))
    scores_HNN = torch.einsum("nhc,mhc->hnm", q_NHC, k_NHC) / q_NHC.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(n, m, dtype=torch.bool, device=q_NHC.device).triu(m - n + 1)
        scores_HNN = scores_HNN.masked_fill(hidden, float("-inf"))
    return torch.einsum("hnm,mhc->nhc", scores_HNN.softmax(dim=-1), v_NHC)


# -- a checkpoint ------------------------------------------------------------------------------------------


def describe(source: str) -> dict[str, Any]:
    """Layout, variant, parts, sizes, heads and defaults of a checkpoint, by its json files alone."""
    name, folder = locate(source, files=JSON_FILES)
    facts = read_facts(name, folder)
    with describing(folder):
        checkpoint = Checkpoint(folder)
        config = checkpoint.config
        return {
            "model": name,
            "folder": str(folder),
            "digest": facts.digest,
            "layout": _layout(checkpoint),
            "variant": _variant(checkpoint, facts),
            "parts": {"vision tower": facts.sees, "video": facts.draws, "sound": facts.sounds},
            "towers": {
                "layers": config.layers,
                "width": config.width,
                "heads": [config.heads, config.kv_heads],
                "mlp": config.mlp,
                "vocabulary": config.vocabulary,
                "reads": True,
                "draws": not checkpoint.reads_only,
            },
            "heads": [] if checkpoint.reads_only else list(config.features),
            "robots": list(facts.robots),
            "defaults": _defaults(checkpoint, facts),
            "notes": checkpoint.notes,
        }


def _layout(checkpoint: Checkpoint) -> str:
    if checkpoint.reads_only:
        return "reasoner alone: config.json and model.safetensors"
    return f"whole model: model_index.json ({checkpoint.index.get('_class_name', 'no class named')})"


def _variant(checkpoint: Checkpoint, facts: Facts) -> str:
    kind = (
        "pocket"
        if facts.small
        else "Edge"
        if checkpoint.is_edge
        else "Nano"
        if checkpoint.config.width == 4096
        else "Super"
    )
    marks = {
        "reasoner": checkpoint.reads_only,
        "few-step student": facts.fixed_steps,
        "policy with a state row": facts.starts_from_state,
        f"{checkpoint.traits.base_fps:g} positions a second": checkpoint.traits.base_fps != 24,
        "FP8": checkpoint.quantised.fp8,
        f"stored in {checkpoint.quantised.form}": checkpoint.quantised.form is not None,
    }
    return ", ".join([f"{kind}-like", *(mark for mark, held in marks.items() if held)])


def _defaults(checkpoint: Checkpoint, facts: Facts) -> dict[str, dict[str, Any]]:
    """By task: each number that will be used and where it comes from."""
    if not facts.draws:
        return {}
    usual = {"image": facts.image, "video": facts.video, "policy": facts.action}
    tasks: list[DrawTask] = [task for task in TASKS if task != "policy" or facts.robots]
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        used = asdict(defaults(checkpoint, task)) | {"shift": usual[task].shift}
        names = ("steps", "guidance", "shift") if task == "policy" else tuple(used)  # the rest is the robot's
        found[task] = {n: {"value": used[n], "from": origins(checkpoint, task)[n]} for n in names}
    return found


# -- fewer bits --------------------------------------------------------------------------------------------

Numbers = dict[str, Tensor]


def check(source: str) -> dict[str, dict[str, float]]:
    """How far logits and velocities of a small fixed input move in bf16, int8 and int4, relative to fp32.

    The error is |x - due| / |due|, both in the Euclidean norm. On the CPU, one form in memory at a time. What
    is stored in few bits is not rounded anew.
    """
    _, folder = locate(source)
    with describing(folder):
        due = _numbers(folder, torch.float32, None)
        forms: dict[str, tuple[torch.dtype, Form | None]] = {"bfloat16": (torch.bfloat16, None)}
        if Checkpoint(folder).quantised.form is None:
            forms |= {form: (torch.float32, form) for form in get_args(Form)}
        return {name: _errors(_numbers(folder, *how), due) for name, how in forms.items()}


def _errors(found: Mapping[str, Tensor], due: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float((found[name] - x).norm() / x.norm()) for name, x in due.items()}


@torch.no_grad()
def _numbers(folder: Any, dtype: torch.dtype, weights: Form | None) -> Numbers:
    """Logits and, where there is a tower that draws, velocities."""
    parts = load_parts(folder, device=torch.device("cpu"), dtype=dtype, want=(), weights=weights)
    network, draw = parts.network, torch.Generator().manual_seed(0)
    context = text_context(torch.randint(parts.network.config.vocabulary, (16,), generator=draw))
    if parts.checkpoint.reads_only:
        read = network.read(pack([Sample(context)]))
        assert read.hidden_AE is not None  # contexts were read
        return {"logits": network.logits(read.hidden_AE).float()}
    tokens_NF = torch.randn(2 * 3 * 3, network.config.features["vision"], generator=draw)
    segment = Segment(
        "vision", tokens_NF, torch.ones(len(tokens_NF), dtype=torch.bool), grid_positions((2, 3, 3))
    )
    done = network(pack([Sample(context, (segment,))]), torch.tensor([500.0]))
    return {"logits": network.logits(done.hidden_AE).float(), "velocities": torch.cat(done.velocities)}
