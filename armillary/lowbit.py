"""Linear layers whose weights take eight or four bits; what they compute with stays in the usual dtype.

int8: one scale a row, symmetric. int4: a scale and a lowest value for each group of 64 numbers in a row, two
numbers a byte. A row's numbers are spread evenly between its ends and rounded to the nearest; no data is
looked at.
A layer widens a few rows at a time into a buffer that stays in the processor's cache, and multiplies with it.
Its tensors are called in files as they are here.

Shape letters: N tokens, I numbers in, O numbers out, G groups of a row, R rows of the buffer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary import arguments

Form = Literal["int8", "int4"]
GROUP = 64  # numbers of a row that share a scale in int4
BUFFER = 2**20  # numbers that are widened at a time on a CPU


def check_form(form: str | None) -> None:
    """Raises BadRequest for a form of weights that does not exist."""
    if form is not None:
        arguments.one_of(form, "weights", get_args(Form))


class LowBitLinear(nn.Module, ABC):
    """A linear layer without bias that holds its weight [O, I] rounded; `pack` makes its tensors."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x_NI: Tensor) -> Tensor:
        buffer_RI = x_NI.new_empty(self._rows(x_NI.device), self.in_features)
        parts = (self._apply_rows(x_NI, rows, buffer_RI) for rows in self._slices(x_NI.device))
        return torch.cat(list(parts), dim=-1)

    def weight_OI(self) -> Tensor:
        """The weight as it is now, fp32."""
        device = self.get_buffer("weight_scale").device
        whole_OI = torch.empty(self.out_features, self.in_features, device=device)
        for rows in self._slices(device):
            self._widen(rows, whole_OI[rows])
        return whole_OI

    def like(self, state: Mapping[str, Tensor]) -> "LowBitLinear":
        """A layer of this kind and size with its own tensors."""
        with torch.device("meta"):
            made = type(self)(self.in_features, self.out_features)
        made.load_state_dict(state, assign=True)
        return made

    def pack(self, weight_OI: Tensor) -> dict[str, Tensor]:
        """The tensors that stand for a weight, by their names here; a few rows are widened at a time."""
        slices = self._slices(torch.device("cpu"))
        parts = [self._pack_rows(weight_OI[rows].float()) for rows in slices]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _rows(self, device: torch.device) -> int:
        """Rows of the buffer; a GPU takes all at once, as it waits longer for a call than for memory."""
        few = max(1, BUFFER // self.in_features)
        return min(self.out_features, few) if device.type == "cpu" else self.out_features

    def _slices(self, device: torch.device) -> Iterator[slice]:
        step = self._rows(device)
        return (slice(i, min(i + step, self.out_features)) for i in range(0, self.out_features, step))

    def _apply_rows(self, x_NI: Tensor, rows: slice, buffer_RI: Tensor) -> Tensor:
        weight_RI = buffer_RI[: rows.stop - rows.start]
        self._widen(rows, weight_RI)
        return F.linear(x_NI, weight_RI)

    @abstractmethod
    def _widen(self, rows: slice, into_RI: Tensor) -> None:
        """Write these rows of the weight."""

    @abstractmethod
    def _pack_rows(self, weight_RI: Tensor) -> dict[str, Tensor]:
        """What stands for some rows of a weight."""


class Int8Linear(LowBitLinear):
    """What it stands for is weight * scale, a scale for each row."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.empty(out_features, 1))

    def _apply_rows(self, x_NI: Tensor, rows: slice, buffer_RI: Tensor) -> Tensor:
        weight_RI = buffer_RI[: rows.stop - rows.start].copy_(self.get_buffer("weight")[rows])
        scale_R = self.get_buffer("weight_scale")[rows, 0]
        scaled = F.linear(x_NI, weight_RI) * scale_R  # cheaper than scaling weights
        return scaled.to(x_NI.dtype)

    def _widen(self, rows: slice, into_RI: Tensor) -> None:
        torch.mul(self.get_buffer("weight")[rows], self.get_buffer("weight_scale")[rows], out=into_RI)

    def _pack_rows(self, weight_RI: Tensor) -> dict[str, Tensor]:
        scale = weight_RI.abs().amax(dim=1, keepdim=True) / 127
        packed = (weight_RI / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
        return {"weight": packed.to(torch.int8), "weight_scale": scale}


class Int4Linear(LowBitLinear):
    """It stands for code * scale + low, for each group; a byte holds the codes of columns j and j + I/2."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        groups = in_features // math.gcd(in_features, GROUP)
        self.register_buffer("weight", torch.empty(out_features, in_features // 2, dtype=torch.uint8))
        self.register_buffer("weight_scale", torch.empty(out_features, groups, dtype=torch.bfloat16))
        self.register_buffer("weight_low", torch.empty(out_features, groups, dtype=torch.bfloat16))

    def _widen(self, rows: slice, into_RI: Tensor) -> None:
        packed, half = self.get_buffer("weight")[rows], self.in_features // 2
        into_RI[:, :half].copy_(packed & 15)
        into_RI[:, half:].copy_(packed >> 4)
        scale, low = (
            self.get_buffer(name)[rows, :, None].to(into_RI.dtype) for name in ("weight_scale", "weight_low")
        )
        into_RI.unflatten(-1, (scale.shape[1], -1)).mul_(scale).add_(low)

    def _pack_rows(self, weight_RI: Tensor) -> dict[str, Tensor]:
        groups_RGI = weight_RI.unflatten(-1, (self.get_buffer("weight_scale").shape[1], -1))
        low, high = groups_RGI.aminmax(dim=-1, keepdim=True)
        low = low.bfloat16()
        scale = ((high - low.float()) / 15).bfloat16()
        steps = (groups_RGI - low.float()) / scale.float().clamp(min=torch.finfo(torch.bfloat16).tiny)
        codes = steps.round().clamp(0, 15).to(torch.uint8).flatten(-2)
        first, second = codes.chunk(2, dim=-1)
        return {
            "weight": first | second << 4,
            "weight_scale": scale.squeeze(-1),
            "weight_low": low.squeeze(-1),
        }


def lower(network: nn.Module, form: Form) -> None:
    """Put low-bit layers, without numbers yet, in the place of all linear layers in the towers.

    A layer with an odd number of inputs does not go into int4 and stays.
    """
    kind = Int8Linear if form == "int8" else Int4Linear
    for name, layer in list(network.named_modules()):
        whole = form == "int4" and isinstance(layer, nn.Linear) and layer.in_features % 2
        if name.startswith("blocks.") and isinstance(layer, nn.Linear) and not whole:
            with torch.device("meta"):
                low_bit = kind(layer.in_features, layer.out_features)
            network.set_submodule(name, low_bit.requires_grad_(False).eval())
