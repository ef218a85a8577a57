"""What one linear layer of Nano's width takes with its weight plain, int8 and int4, and how far off it is.

Where torchao is installed its weight-only int8 is timed too. Run: python benchmarks/lowbit.py [width]
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary.lowbit import Int4Linear, Int8Linear


def torchao_int8(weight_OI: Tensor) -> Callable[[Tensor], Tensor] | None:
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        return None
    layer = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False, dtype=weight_OI.dtype)
    layer.weight = nn.Parameter(weight_OI.clone(), requires_grad=False)
    model = nn.Sequential(layer)
    quantize_(model, Int8WeightOnlyConfig())
    return model


def layers(weight_OI: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    made: dict[str, Callable[[Tensor], Tensor]] = {"plain": lambda x_NI: F.linear(x_NI, weight_OI)}
    for name, kind in (("int8", Int8Linear), ("int4", Int4Linear)):
        layer = kind(weight_OI.shape[1], weight_OI.shape[0])
        layer.load_state_dict(layer.pack(weight_OI), assign=True)
        made[name] = layer
    other = torchao_int8(weight_OI)
    return made if other is None else {**made, "torchao int8": other}


def least_ms(call: Callable[[], object], times: int = 5) -> float:
    call()
    found = [time.perf_counter()]
    for _ in range(times):
        call()
        found.append(time.perf_counter())
    return 1000 * min(b - a for a, b in pairwise(found))


@torch.no_grad()
def main(width: int = 4096) -> None:
    torch.manual_seed(0)
    weight_OI = torch.randn(width, width) / width**0.5
    print(f"{'dtype':9} {'tokens':>6}  {'layer':13} {'ms':>8}  relative error")
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in (1, 64, 512):
            x_NI = torch.randn(tokens, width)
            due_NO = x_NI @ weight_OI.T
            for name, layer in layers(weight_OI.to(dtype)).items():
                off = float((layer(x_NI.to(dtype)).float() - due_NO).norm() / due_NO.norm())
                spent = least_ms(partial(layer, x_NI.to(dtype)))
                kind = str(dtype).removeprefix("torch.")
                print(f"{kind:9} {tokens:6}  {name:13} {spent:8.2f}  {off:.4f}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
