"""What lives where while a request runs: everything, one tower at a time, or block after block from disk.

A *page* is a module whose weights are in memory only around its calls. Whoever calls it sees an ordinary
module: a hook brings its tensors from the checkpoint's files first, and sends away those whose place they
take. The networks know nothing of it, and compute the same numbers.
"""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from armillary import arguments
from armillary.lowbit import Form, lower
from armillary.model import Network
from armillary.shards import Stored, read_tensor, tensors
from armillary.weights import Checkpoint, build_network, check, fill, is_time, ready, stored_network

Module = TypeVar("Module", bound=nn.Module)
Mode = Literal["resident", "tower", "stream"]
MODES = cast("tuple[Mode, ...]", get_args(Mode))  # the fastest first
SHARE = 0.8  # of the free memory that weights may take; the rest is for what is computed with them
FAULT = 4096  # bytes of a page of the operating system: touching one byte of each reads a mapped tensor


def check_mode(memory: str | None) -> None:
    """Raises BadRequest for a memory mode that does not exist."""
    if memory is not None:
        arguments.one_of(memory, "memory", MODES)


# -- pages -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Page:
    """A module on loan, where its tensors lie, and the next page of its group and kind."""

    module: nn.Module
    found: Stored
    group: str
    after: "_Page | None" = None


class Keeper:
    """Loads modules for one memory mode, and in other modes than "resident" lends them their weights.

    "tower": pages leave when one of another group is called. "stream": each leaves when any other is called,
    and while it computes the next block of its tower is read by a thread of its own.
    """

    def __init__(
        self, mode: Mode, *, device: torch.device, dtype: torch.dtype | None, weights: Form | None = None
    ) -> None:
        self.mode: Mode = mode
        self.weights: Form | None = weights
        self.device, self.dtype = device, dtype
        self._here: list[_Page] = []
        self._ahead: tuple[_Page, Future[dict[str, Tensor]]] | None = None
        self._reader = ThreadPoolExecutor(1, "armillary-read-ahead")

    def load(
        self,
        module: Module,
        found: Stored,
        *,
        where: Path,
        pages: Sequence[tuple[str, str]] = (),
        towers: bool = False,
        keep_fp32: Callable[[str], bool] = lambda name: False,
    ) -> Module:
        """A network built on the meta device, given its tensors strictly.

        pages: (path, group) of the submodules that may leave ("" is the whole), in the order in which a group
        is called. Of an embedding only the rows that are looked up are read. towers: whether these are the
        towers, whose weights may take few bits: rounded whenever they are read, unless they are stored so.
        keep_fp32: as for `fill`.
        """
        check(module, found, where)
        if towers and self.weights is not None:
            lower(module, self.weights)
        module.requires_grad_(False).eval()
        last, stay = dict[str, _Page](), dict(found)
        for path, group in () if self.mode == "resident" else pages:
            part = module.get_submodule(path)
            lead = path and f"{path}."
            own = {n.removeprefix(lead): stay.pop(n) for n in found if n.startswith(lead)}
            if isinstance(part, nn.Embedding):
                self._look_up_on_disk(part, own)
                continue
            page = _Page(part, own, group)
            self._send_away(page)
            part.register_forward_pre_hook(partial(self._bring, page))
            if group in last and type(last[group].module) is type(part):
                last[group].after = page
            last[group] = page
        fill(module, stay, device=self.device, dtype=self.dtype, keep_fp32=keep_fp32)
        return module

    def _look_up_on_disk(self, table: nn.Embedding, found: Stored) -> None:
        """The table stays in its file. Casting the rows found there is casting the table."""
        table.weight = nn.Parameter(read_tensor(found["weight"]), requires_grad=False)
        table.register_forward_pre_hook(lambda _module, inputs: (inputs[0].cpu(),))
        table.register_forward_hook(lambda _module, _inputs, rows: rows.to(self.device, self.dtype))

    def _bring(self, page: _Page, _module: nn.Module, _inputs: tuple[Any, ...]) -> None:
        if page in self._here:
            return
        state = self._read_ahead(page)
        for other in list(self._here):
            if self.mode == "stream" or other.group != page.group:
                self._here.remove(other)
                self._send_away(other)
        page.module.load_state_dict(state or self._fetch(page), strict=False, assign=True)
        self._here.append(page)
        if page.after is not None and page.after not in self._here:
            self._ahead = page.after, self._reader.submit(self._fetch, page.after)

    def _send_away(self, page: _Page) -> None:
        """Only shapes and dtypes stay."""
        plain = dict(page.module.named_parameters())  # what a low-bit layer holds stays what it is
        kinds = {
            n: (self.dtype if e.dtype.is_floating_point else None) or e.dtype
            for n, e in page.found.items()
            if n in plain
        }
        empty = {
            n: torch.empty(t.shape, dtype=kinds.get(n, t.dtype), device="meta")
            for n, t in page.module.state_dict().items()
        }
        page.module.load_state_dict(empty, strict=False, assign=True)

    def _read_ahead(self, page: _Page) -> dict[str, Tensor] | None:
        """The tensors of a page if it is the one that was read ahead; of another one they are dropped."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead[0] is page:
            return ahead[1].result()
        if not ahead[1].cancel():
            ahead[1].exception()  # waits
        return None

    def _fetch(self, page: _Page) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, mapped in tensors(page.found):
            state |= ready(page.module, name, mapped, self.device, self.dtype)
            if state.get(name) is mapped:  # it can stay in its file, and is read by touching it
                mapped.flatten().view(torch.uint8)[::FAULT].sum()
        return state


def load_network(checkpoint: Checkpoint, keeper: Keeper) -> Network:
    """Both towers, strictly, or the AR tower of a reasoner; the time embedding is in fp32.

    It, the norms and the ports, a hundredth of the whole, always stay.
    """
    network = build_network(checkpoint)
    blocks = range(len(network.blocks))
    pages = [("embed", "reader"), ("head", "reader"), *((f"blocks.{i}.ar", "reader") for i in blocks)]
    if not checkpoint.reads_only:
        pages += [(f"blocks.{i}.dm", "drawer") for i in blocks]
    found, where = stored_network(checkpoint, network), checkpoint.folder
    return keeper.load(network, found, where=where, pages=pages, towers=True, keep_fp32=is_time)


# -- which mode --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's weights by part, in the dtype that they are computed in."""

    layers: int
    ar: int  # the AR tower in one layer
    dm: int
    table: int  # the embedding
    head: int
    rest: int  # norms, ports, time embedding: what always stays
    sight: int
    encoder: int  # of the video autoencoder
    decoder: int
    hearing: int  # the encoder of the audio autoencoder
    sound: int  # its decoder

    @property
    def total(self) -> int:
        towers = self.layers * (self.ar + self.dm) + self.table + self.head
        codecs = self.sight + self.encoder + self.decoder + self.hearing + self.sound
        return self.rest + towers + codecs

    def held(self, mode: Mode, *, looks: bool = True) -> dict[str, int]:
        """Bytes that are there in each stage of a request; `looks`: it has pictures to look at."""
        if mode == "tower":
            read, draw = self.layers * self.ar + looks * self.sight, self.layers * self.dm
            needed = {"look": self.sight, "read": read, "answer": read + self.head, "draw": draw}
        else:  # a block, and the next one on its way
            answer = max(2 * self.ar, self.head)
            needed = {"look": self.sight, "read": 2 * self.ar, "answer": answer, "draw": 2 * self.dm}
        needed |= {"load": 0, "encode": self.encoder, "decode": self.decoder, "sound": self.sound}
        if mode == "resident":
            return dict.fromkeys(needed, self.total)
        return {stage: self.rest + count for stage, count in needed.items()}

    def beyond(self, others: "Weights") -> "Weights":
        """Those without others of the same checkpoint."""
        own, other = asdict(self), asdict(others)
        return Weights(**own | {name: own[name] - other[name] for name in own if name != "layers"})

    def most(self, mode: Mode) -> int:
        """The most that is there at once."""
        return max(self.held(mode).values())


@dataclass(frozen=True)
class Choice:
    """A memory mode and why it was taken."""

    mode: Mode
    why: str


def choose(weights: Weights, free: int, asked: Mode | None = None) -> Choice:
    """The mode that is asked for, else the fastest whose weights take at most `SHARE` of the free bytes."""
    fits: list[Mode] = [mode for mode in MODES if weights.most(mode) <= SHARE * free]
    mode = asked or (fits[0] if fits else MODES[-1])
    least = f"its weights take {gigabytes(weights.most(mode))} at once, of {gigabytes(weights.total)} in all"
    return Choice(mode, f"{least}; {gigabytes(free)} are free" if asked is None else f"asked for; {least}")


def gigabytes(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on a device; on a CPU this counts what the system keeps of files."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    with suppress(OSError, ValueError):  # a container may have less; what it keeps of files can be had again
        group = Path("/sys/fs/cgroup")
        kept = re.search(r"^file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        used = int((group / "memory.current").read_text()) - int(kept[1] if kept else 0)
        found.append(int((group / "memory.max").read_text()) - used)
    return max(0, min(found))


def decoding_room(device: torch.device) -> int:
    """Bytes that decoding one latent frame may take; beyond them it is done in tiles."""
    return int(SHARE * free_bytes(device))
