"""Messages in, a context out: the parts of a conversation read, seen by the vision tower, and placed.

Shape letters: A tokens of the context, V visual tokens, N patches, P numbers a patch, E width, H W pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from armillary.answers import Film
from armillary.codecs.qwen_vit import Grid
from armillary.codecs.sight import (
    DEFAULT_FPS,
    Patches,
    clip_patches,
    picture_patches,
    reasoner_positions,
    sample_frames,
    slice_text,
    tokens,
)
from armillary.codecs.text import PADS, THINK, Message, Slice
from armillary.errors import BadRequest, nearest
from armillary.media import Clip, ClipIn, probe, read_clip, read_picture
from armillary.media.source import Pixels, read_data_uri
from armillary.sequence import Context, Visual
from armillary.tasks.parts import Parts, Sight
from armillary.tools import past_calls

FILM, FILM_SIDE = 12, 192  # frames of a clip that an answer keeps, and their longer side in pixels
ROLES = ("system", "user", "assistant", "tool")
MORE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}
KEYS = {
    "text": {"text"},
    "image": {"image"},
    "image_url": {"image_url"},
    "video": {"video", "fps", "num_frames"},
    "video_url": {"video_url", "fps", "num_frames"},
}


@dataclass(frozen=True)
class Seen:
    """A picture or clip of a conversation, prepared for the tower, and what a person knows of it."""

    patches: Patches
    slices: tuple[Slice, ...]
    picture_HW3: Pixels  # the picture, or the clip's first frame, in its own pixels
    receipt: Mapping[str, Any]
    film: Film | None = None  # of a clip


@dataclass(frozen=True)
class Conversation:
    """Messages as the AR tower reads them."""

    context: Context
    seen: tuple[Seen, ...]
    opens_thinking: bool  # the prompt ends inside a think block
    cuts: tuple[int, ...] = ()  # rows after each picture and clip: where others about the same may part


def converse(
    parts: Parts,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    flags: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> Conversation:
    """The context of a conversation: ids by the chat template, what the tower saw, the reasoner's positions.

    Raises BadRequest naming the part that cannot be used; nothing is dropped.
    """
    seen, limit = list[Seen](), parts.checkpoint.longest
    parts.text.check_size(sum(_words(m.get("content")) for m in messages), limit, "messages")
    plain = [_message(parts, m, f"messages[{i}]", seen) for i, m in enumerate(messages)]
    _check_results(plain)
    ids = parts.text.render(
        plain,
        media=[s.slices for s in seen],
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        **(flags or {}),
    )
    if limit and len(ids) > limit:  # before anything is looked at
        message = f"take {len(ids)} of this checkpoint's {limit} tokens; make them shorter"
        raise BadRequest("messages", "...", message)
    tail = parts.text.decode(ids[-8:], skip_special=False).rstrip()
    context, opens_thinking = place(parts, ids, seen), add_generation_prompt and tail.endswith(THINK)
    return Conversation(context, tuple(seen), opens_thinking, _cuts(context, seen))


def _words(content: Any) -> int:
    """Bytes of text in a message."""
    if isinstance(content, str):
        return len(content.encode())
    parts = cast("Sequence[Any]", content) if isinstance(content, list | tuple) else ()
    said = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return sum(len(text.encode()) for text in said if isinstance(text, str))


def _cuts(context: Context, seen: Sequence[Seen]) -> tuple[int, ...]:
    if context.visual is None:
        return ()
    counts = accumulate(sum(s.tokens for s in one.slices) for one in seen)
    return tuple(int(context.visual.rows_V[count - 1]) + 1 for count in counts)


def place(parts: Parts, ids: Sequence[int], seen: Sequence[Seen]) -> Context:
    """Ids whose runs of placeholders stand for what was `seen`, as a context on the model's device."""
    ids_A = torch.tensor(ids, dtype=torch.int64)
    if not seen or parts.sight is None:
        positions_3A, delta = reasoner_positions([len(ids)], 1)
        return Context(ids_A.to(parts.device), positions_3A.to(parts.device), len(ids) + delta)
    pads = [parts.text.special(name) for name in PADS.values()]
    grids = iter((1, *s.patches.grid[1:]) for s in seen for _ in s.slices)
    runs: list[int | Grid] = []
    for is_seen, run in groupby(ids, key=lambda i: i in pads):
        runs.append(next(grids) if is_seen else len(list(run)))
    positions_3A, delta = reasoner_positions(runs, parts.sight.merge)
    rows_V = torch.isin(ids_A, torch.tensor(pads)).nonzero()[:, 0]
    looked = [look(parts.sight, s.patches, parts.device) for s in seen]  # each as if it were alone
    features_VE = torch.cat([features for features, _ in looked])
    deepstack = tuple(torch.cat(layers) for layers in zip(*(deep for _, deep in looked), strict=True))
    visual = Visual(rows_V.to(parts.device), features_VE, deepstack)
    return Context(ids_A.to(parts.device), positions_3A.to(parts.device), len(ids) + delta, visual)


@torch.no_grad()
def look(sight: Sight, patches: Patches, device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Tokens [V, E] of a picture or clip through the vision tower, and its deepstack layers."""
    return sight.tower(patches.pixels_NP.to(device), [patches.grid])


def see_picture(sight: Sight, source: Any, *, field: str = "image") -> Seen:
    """A picture prepared for the vision tower."""
    picture_HW3 = read_picture(source, field=field)
    patches = picture_patches(picture_HW3, sight.pictures, field=field)
    size, count = _size(patches.grid, sight), tokens(patches.grid, sight.merge)
    return Seen(patches, (Slice(count),), picture_HW3, {"kind": "image", "looked_at": size, "tokens": count})


def see_clip(
    sight: Sight,
    source: Any,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    field: str = "video",
) -> Seen:
    """A clip prepared for the vision tower: `num_frames` of it, or `fps` a second, or by the checkpoint."""
    if fps is not None and num_frames is not None:
        raise BadRequest(field, {"fps": fps, "num_frames": num_frames}, "give fps or num_frames, not both")
    if fps is not None and not (_is_number(fps, Real) and 0 < fps <= 1000):
        raise BadRequest(f"{field}.fps", fps, "frames a second to look at: more than 0, at most 1000")
    if num_frames is not None and not _is_number(num_frames, Integral):
        raise BadRequest(f"{field}.num_frames", num_frames, "a whole number of frames to look at")
    rules = replace(sight.clips, fps=fps) if fps is not None else sight.clips

    def choose(total: int, own_fps: float | None) -> list[int]:
        return sample_frames(total, own_fps, rules, num_frames, field=field)

    frames_THW3, times_s = _sampled(source, choose, field)
    patches, slices_s = clip_patches(frames_THW3, times_s, rules, field=field)
    count = tokens(patches.grid, sight.merge) // len(slices_s)
    receipt: dict[str, Any] = {"kind": "video", "looked_at": _size(patches.grid, sight)}
    receipt["tokens"] = count * len(slices_s)
    slices = tuple(Slice(count, slice_text(s)) for s in slices_s)
    receipt["times_s"] = [round(t, 3) for t in times_s]
    return Seen(patches, slices, frames_THW3[0], receipt, _film(frames_THW3, times_s))


def _film(frames_THW3: Pixels, times_s: Sequence[float]) -> Film:
    """At most FILM frames of at most FILM_SIDE pixels, for a person to look at."""
    chosen = np.linspace(0, len(frames_THW3) - 1, min(FILM, len(frames_THW3))).round().astype(int)
    small: list[Pixels] = []
    for i in chosen:
        picture = Image.fromarray(frames_THW3[i])
        picture.thumbnail((FILM_SIDE, FILM_SIDE))
        small.append(np.asarray(picture))
    return Film(np.stack(small), tuple(times_s[i] for i in chosen))


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _sampled(
    source: Any, choose: Callable[[int, float | None], list[int]], field: str
) -> tuple[Pixels, list[float]]:
    """The chosen frames of a clip and their times; of a file, only these are decoded."""
    if isinstance(source, Clip | ClipIn | np.ndarray):
        frames, fps = (source, DEFAULT_FPS) if isinstance(source, np.ndarray) else (source.frames, source.fps)
        if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            raise BadRequest(field, f"{frames.dtype} {list(frames.shape)}", "frames are uint8 [T, H, W, 3]")
        times_s = source.times_s if isinstance(source, ClipIn) else np.arange(len(frames)) / fps
        if len(times_s) != len(frames):
            raise BadRequest(
                field, f"{len(times_s)} times", f"each of the {len(frames)} frames needs its own"
            )
        chosen = choose(len(frames), fps)
        return frames[chosen], [float(t) for t in times_s[chosen]]
    info = probe(source, field=field)
    clip = read_clip(source, indices=choose(info.frames, info.fps), field=field)
    return clip.frames, [float(t) for t in clip.times_s]


def _size(grid: Grid, sight: Sight) -> str:
    patch = sight.pictures.patch_size
    return f"{grid[2] * patch}x{grid[1] * patch}"


def _message(parts: Parts, message: Message, field: str, seen: list[Seen]) -> dict[str, Any]:
    """A message as the template sees it; what its parts show is added to `seen`."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadRequest(f"{field}.role", role, f"one of {', '.join(ROLES)}")
    more = MORE.get(role, set[str]())
    _check_keys(message, {"role", "content"} | more, field)
    told: dict[str, Any] = {"role": role} | {key: message[key] for key in more & message.keys()}
    if (role == "tool" or "tool_calls" in told) and not parts.text.shows_tools:
        raise BadRequest(field, "a tool's turn", "this checkpoint's chat template has no place for tools")
    if "tool_calls" in told:
        told["tool_calls"], content = past_calls(told["tool_calls"], f"{field}.tool_calls"), content or ""
    if isinstance(content, str):
        return {**told, "content": content}
    if not isinstance(content, list | tuple) or not content:
        raise BadRequest(f"{field}.content", content, "text, or a list of parts: text, pictures, clips")
    pieces = enumerate(cast("Sequence[Any]", content))
    return {**told, "content": [_part(parts.sight, p, f"{field}.content[{i}]", seen) for i, p in pieces]}


def _check_results(messages: Sequence[Message]) -> None:
    """Each tool's turn answers a call before it: a template shows them in their order, without ids."""
    open_ids: list[Any] = []
    for i, message in enumerate(messages):
        open_ids += [call["id"] for call in message.get("tool_calls", ())]
        if message["role"] != "tool":
            continue
        said, waits = message.get("tool_call_id"), open_ids[0] if open_ids else None
        if not open_ids or (said is not None and said != waits):
            about = f"the call that waits is {waits!r}" if open_ids else "no call before it waits"
            raise BadRequest(f"messages[{i}].tool_call_id", said, f"{about}; results go in the calls' order")
        del open_ids[0]


def _part(sight: Sight | None, part: Any, field: str, seen: list[Seen]) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in KEYS:
        close = " or ".join(nearest(kind, KEYS))
        raise BadRequest(f"{field}.type", kind, f"parts are {', '.join(KEYS)}; say {close}")
    _check_keys(part, KEYS[kind] | {"type"}, field)
    if part.get(kind) is None:
        raise BadRequest(f"{field}.{kind}", None, f"a part of type {kind} needs this")
    if kind == "text":
        if not isinstance(part["text"], str):
            raise BadRequest(f"{field}.text", part["text"], "text")
        return {"type": "text", "text": part["text"]}
    if sight is None:
        raise BadRequest(field, kind, "this checkpoint has no vision tower: it reads text only")
    field = f"{field}.{kind}"
    source = _data_uri(part[kind], field) if kind.endswith("_url") else part[kind]
    kind = kind.removesuffix("_url")
    if kind == "image":
        seen.append(see_picture(sight, source, field=field))
    else:
        options = {k: part[k] for k in ("fps", "num_frames") if k in part}
        seen.append(see_clip(sight, source, **options, field=field))
    return {"type": kind}


def _data_uri(value: Any, field: str) -> bytes:
    """The bytes of a `..._url` part, {"url": ...} or the URL itself. Nothing is fetched, no file opened."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value)
        known = {"url", "detail"} if value.get("detail") == "auto" else {"url"}  # auto asks for nothing
        _check_keys(value, known, field)
        field, value = f"{field}.url", value.get("url")
    if not isinstance(value, str) or value[:5].lower() != "data:":
        message = "give a data URI (data:image/png;base64,...); addresses and files are not opened here"
        raise BadRequest(field, value, message)
    return read_data_uri(value, field)


def _check_keys(given: Mapping[str, Any], known: set[str], field: str) -> None:
    for key in given.keys() - known:
        raise BadRequest(
            f"{field}.{key}", given[key], f"would be ignored; known here: {', '.join(sorted(known))}"
        )
