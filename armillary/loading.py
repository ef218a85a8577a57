"""From a name to a World; from a checkpoint to another; and requests checked without weights.

`load` reads a checkpoint, `convert` writes one anew; `validate` checks a request by json files alone, and
`explain` shows the sequence that it would become.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, TypedDict, Unpack

from armillary import arguments
from armillary.adapters import AdapterSource, apply_all, weighted
from armillary.adapters import merge as fold_in
from armillary.budget import Job, Plan, lay, tokens, work
from armillary.errors import BadRequest
from armillary.facts import Facts
from armillary.guard import Guard, find_guard
from armillary.layout import Layout
from armillary.layout.blank import Shown, blank_parts
from armillary.locate import JSON_FILES, check_want, files_for, find_device, find_dtype, locate
from armillary.lowbit import Form, check_form
from armillary.memory import Mode, check_mode, choose, free_bytes
from armillary.sequence import Pack, Sample, pack
from armillary.settle import Receipt
from armillary.shards import SHARD_LIMIT
from armillary.tasks.messages import converse
from armillary.tasks.parts import EVERY_PART, Part, Parts, load_parts, weigh, weigh_mapped
from armillary.tasks.ready import checker, describing, question, read_facts, upsampling
from armillary.tasks.reason import check_length
from armillary.tasks.save import save_parts
from armillary.tasks.upsample import manner, messages
from armillary.tools import toolbox
from armillary.weights import Checkpoint
from armillary.world import World


class LoadOptions(TypedDict, total=False):
    """What few people give."""

    merge: bool
    guard: str | os.PathLike[str] | Guard | None


def load(
    source: str | os.PathLike[str] = "pocket",
    *,
    device: str = "auto",
    dtype: str = "auto",
    memory: Mode | None = None,
    weights: Form | None = None,
    adapters: Sequence[AdapterSource] = (),
    want: Collection[Part] = EVERY_PART,
    **rare: Unpack[LoadOptions],
) -> World:
    """A checkpoint in memory, ready to be asked.

    source: "pocket" (shipped with the package), a folder in a published layout, or a name on the Hugging
    Face hub such as "nvidia/Cosmos3-Nano", of which only the parts that are needed are downloaded. device:
    "auto" is the GPU if there is one. dtype: "auto" is bfloat16 on a GPU and float32 on a CPU. memory:
    "resident", "tower" (one tower or autoencoder at a time) or "stream" (one block at a time, from disk); the
    results are the same; None is the fastest that fits what is free, and `world.memory` says why. weights:
    "int8" or "int4" hold the linear layers of both towers rounded to so many bits; None is as stored, which
    may be so too. adapters: LoRA files, or pairs of a file and how strongly it counts; `merge` folds them
    into the weights. want: what of "sight", "video" and "audio" come beside the towers; what needs another is
    refused. guard: looks at what is asked and made: a file of words, "cosmos" (`cosmos_guardrail`), or one of
    one's own; None is off, which every receipt says. Raises BadRequest for a source that cannot be found and
    for weights that do not fit their configs.
    """
    check_mode(memory)
    check_form(weights)
    watch, merge, loras = find_guard(rare.get("guard")), rare.get("merge", False), weighted(adapters)
    check_want(want)
    where = find_device(device)
    kind = find_dtype(dtype, where)
    name, folder = locate(source, files=files_for(want))
    with describing(folder):
        facts, checkpoint = _limited(read_facts(name, folder), want), Checkpoint(folder)
        weights = checkpoint.quantised.settle(weights)
        choice = choose(weigh(checkpoint, kind, weights), free_bytes(where), memory)
        if merge and choice.mode != "resident":
            message = f"memory={choice.mode} reads weights anew, without it; leave it out, or `convert` first"
            raise BadRequest("merge", merge, message)
        parts = load_parts(folder, device=where, dtype=kind, want=want, memory=choice.mode, weights=weights)
    apply_all(parts.network, adapters)
    if merge:
        fold_in(parts.network)
    named = tuple((str(path), weight) for path, weight in loras)
    facts = replace(facts, memory=choice.mode, weights=weights, adapters=named, guard=watch)
    return World(parts, facts, choice)


def _limited(facts: Facts, want: Collection[Part]) -> Facts:
    """What can still be done with some parts only."""
    return replace(
        facts,
        sees=facts.sees and "sight" in want,
        draws=facts.draws and "video" in want,
        sounds=facts.sounds and "audio" in want,
    )


def convert(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    adapters: Sequence[AdapterSource] = (),
    weights: Form | None = None,
    shard_bytes: int = SHARD_LIMIT,
) -> None:
    """Write a checkpoint of any layout in the published one, adapters folded in; arguments as for `load`.

    `dtype` None keeps that of each tensor, bit by bit. weights: "int8" or "int4" write the linear layers of
    both towers rounded, once they are merged; `load` uses them as they lie there, other libraries cannot.
    Raises BadRequest if `folder` is there already; what is broken off leaves nothing there.
    """
    check_form(weights)
    target = arguments.path(folder, "folder")
    limit = arguments.whole(shard_bytes, "shard_bytes", 1, 2**63 - 1)
    weighted(adapters)  # before weights are read
    device = find_device("cpu")
    kind = None if dtype is None else find_dtype(dtype, device)
    found = locate(source)[1]
    with describing(found):
        Checkpoint(found).check_family()
        parts = load_parts(found, device=device, dtype=None, memory="stream", weights=weights)
    apply_all(parts.network, adapters)
    save_parts(parts, target, dtype=kind, limit=limit)


def validate(
    task: str,
    source: str | os.PathLike[str] = "pocket",
    *,
    guard: str | os.PathLike[str] | Guard | None = None,
    **options: Any,
) -> Receipt:
    """What `World.<task>(**options)` would use, fill in and round, and the tokens it would read and draw.

    guard: as for `load`. Reads json files and media, no weights. Of a task in several runs the tokens are the
    first's; of `upsample=True` there are none, for they are not known yet. Raises the BadRequest that the
    call itself would raise.
    """
    receipt = check(task, source, guard=guard, **options)
    if receipt.used.get("upsample"):
        return receipt
    _, _, given = _prepared(task, source, options)
    return replace(receipt, tokens=tokens(given))


def check(
    task: str,
    source: str | os.PathLike[str] = "pocket",
    *,
    guard: str | os.PathLike[str] | Guard | None = None,
    **options: Any,
) -> Receipt:
    """`validate` without counting: what comes before each call, and takes a few milliseconds."""
    facts = read_facts(*locate(source, files=JSON_FILES))
    return checker(task)(options, replace(facts, guard=find_guard(guard)))


def explain(task: str, source: str | os.PathLike[str] = "pocket", **options: Any) -> Layout:
    """The packed sequence that the network would be given for `World.<task>(**options)`; no weights are read.

    Of a task in several runs it is the first. Raises the BadRequest that the call itself would raise.
    """
    name, parts, given = _prepared(task, source, options)
    return Layout.of(given, task=task, model=name, margin=parts.checkpoint.config.margin)


def plan(
    task: str,
    source: str | os.PathLike[str] = "pocket",
    *,
    memory: Mode | None = None,
    device: str = "auto",
    dtype: str = "auto",
    weights: Form | None = None,
    **options: Any,
) -> Plan:
    """What `World.<task>(**options)` will take in every memory mode; no weights are read.

    memory, device, dtype, weights: as for `load`. Of a task in several runs it is the first. Raises the
    BadRequest that the call itself would raise.
    """
    check_mode(memory)
    check_form(weights)
    where = find_device(device)
    kind = find_dtype(dtype, where)
    facts = read_facts(*locate(source, files=JSON_FILES))
    used = checker(task)(options, facts).used
    if task == "upsample":
        used = {**used, "max_tokens": manner(small=facts.small).sampling.max_tokens}
    name, parts, given = _prepared(task, source, options)
    weights = parts.checkpoint.quantised.settle(weights)
    weighed = weigh(parts.checkpoint, kind, weights)
    mapped = weigh_mapped(parts.checkpoint, kind, weights, where)
    size = kind.itemsize
    job = Job.of(parts, given, used, itemsize=size, device=where, weights=weights)
    return Plan(
        task,
        name,
        choose(weighed, free_bytes(where), memory),
        job.tokens,
        work(job),
        lay(job, weighed, itemsize=size, mapped=mapped),
        job.tile,
    )


def _prepared(
    task: str, source: str | os.PathLike[str], options: Mapping[str, Any]
) -> tuple[str, Parts, Pack]:
    """The name of a checkpoint, its parts without weights, and the pack that a request becomes."""
    checker(task)  # it exists
    name, folder = locate(source, files=JSON_FILES)
    facts = read_facts(name, folder)
    with describing(folder):
        parts = blank_parts(folder)
    if task in ("reason", "upsample"):
        return name, parts, _given_context(parts, facts, task, options)
    return name, parts, _given_pack(parts, facts, task, options)


def _given_context(parts: Parts, facts: Facts, task: str, options: Mapping[str, Any]) -> Pack:
    """What the AR tower would read to answer."""
    if task == "reason":
        request, _, turns = question(options, facts)
        tools, most = toolbox(request.tools).shown, request.max_tokens
    else:
        ready, tools, how = upsampling(options, facts), (), manner(small=facts.small)
        turns = messages(ready.request.prompt, how, ready.canvas, ready.image)
        most = how.sampling.max_tokens
    context = converse(parts, turns, tools=tools).context
    check_length(parts, len(context), most)
    return pack([Sample(context)])


def _given_pack(parts: Parts, facts: Facts, task: str, options: Mapping[str, Any]) -> Pack:
    """What both towers would be given at the first step: the task runs up to there."""
    if options.get("upsample"):
        raise BadRequest("upsample", True, "what the reasoner will write is not known yet; `upsample` first")
    call = getattr(World(parts, facts), task)
    needed = {
        name: None
        for name, p in signature(call).parameters.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    }
    try:
        call(**{**needed, **options})
    except Shown as shown:
        return shown.pack
    raise AssertionError("every task but reason draws")
