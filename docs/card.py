"""Writes the model card of pocket, README.md in its folder, from the figures of `armillary eval`.

python docs/card.py docs/pocket.json armillary/pocket/checkpoint/README.md
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from armillary.eval.report import mark, number, numbers

HEAD = """\
---
license: apache-2.0
language: en
tags:
- cosmos3
- world-model
- robotics
- text-to-image
- text-to-video
- image-to-video
- visual-question-answering
- small"""

WHAT = """\
# Pocket

A checkpoint of under 16 MB that reasons, draws pictures and clips with sound, says what actions do, which
were done and which to do, in the published layout of Cosmos 3: two towers in every layer, one that reads
and one that draws. It is small so that the whole architecture runs on a laptop's CPU and every claim
about it can be checked there. It knows one world only, the simulated table-top of Armillary: discs,
squares and triangles in six colours, a black pusher, 64x64 pixels, 8 frames a second.

```python
import armillary

world = armillary.load("pocket")
world.generate("a red disc slides right and hits the wall", sound=True).save("clip.mp4")
```

diffusers (`Cosmos3OmniPipeline`) and transformers (`Cosmos3OmniForConditionalGeneration`) load it too.

## Data

Everything comes from the simulator, which is exact: pictures, clips, sound, captions, questions with
answers, boxes, events, instructions and actions, each a pure function of a seed. No photograph, no
recording, no person's data. Seeds of the `train` split only; two pairs of colour and shape (red triangle,
blue square) are in no training episode. Beside the episodes the vision tower was shown the three shapes in
colours that have no name (with hues at least 25 degrees from that of such a pair) and blobs in the six
colours, so that it knows a shape whatever its colour.

## Training

From random numbers, by the stages of `recipes/pocket.toml` in the repository, on two CPU cores; how long
each took and in what it differed from a clean run of that recipe is told in `docs/training.md` there."""

LIMITS = """\
## Limits

It is no use outside its world: other pictures, other words and other robots give nonsense, and nothing
warns of it. It holds no knowledge and no opinion. Do not take its figures for those of the models whose
layout it shares."""

LICENCE = """\
## Licence

Apache License 2.0, the weights included. Not affiliated with NVIDIA."""


def card(result: Mapping[str, Any]) -> str:
    """The whole card; `result` is what `armillary eval` writes as JSON."""
    return "\n".join([*_head(result), "", WHAT, "", *_scores(result), "", *_limits(result), "", LICENCE, ""])


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for suite, found in result["suites"].items():
        for figure in found["figures"]:
            yield suite, figure


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    """The card's YAML, with the figures that have a bar as a model index."""
    yield HEAD
    yield "model-index:"
    yield "- name: pocket"
    yield "  results:"
    for suite in result["suites"]:
        measured = [f for name, f in _figures(result) if name == suite and f["bar"] is not None and f["n"]]
        if not measured:
            continue
        yield f"  - task: {{type: {suite}}}"
        yield "    dataset: {name: Armillary table-top, held-out episodes, type: tabletop, split: test}"
        yield "    metrics:"
        for f in measured:
            yield f"    - {{type: {quoted(f['unit'])}, name: {quoted(f['name'])}, value: {f['value']}}}"
    yield "---"


def _scores(result: Mapping[str, Any]) -> Iterator[str]:
    yield "## How good it is"
    yield ""
    yield f"Measured by `{result['command']}` on {result['date']}, checkpoint `{result['digest']}`, on"
    yield "episodes that no training has seen, with 95 % intervals; beside each figure what no skill would"
    yield "score on the same cases, and the ceiling. With pictures: `docs/pocket.md` in the repository."
    yield ""
    yield "| suite | figure | score | n | bar | beside it |"
    yield "|---|---|---|---|---|---|"
    for suite, f in _figures(result):
        beside = "; ".join(f"{name} {number(s['value'], f['unit'])}" for name, s in f["beside"].items())
        value, low, high = numbers(f)
        bar = "" if f["bar"] is None else f"{f['bar']:g} {mark(f['reached'])}"
        yield f"| {suite} | {f['name']} | **{value}** ({low} to {high}) | {f['n']} | {bar} | {beside} |"


def _limits(result: Mapping[str, Any]) -> Iterator[str]:
    yield LIMITS
    short = [f"{suite}: {f['name']}" for suite, f in _figures(result) if f["reached"] is False and f["n"]]
    if short:
        yield ""
        yield f"Below the bar that was set for it: {'; '.join(short)}."


def quoted(text: str) -> str:
    """As YAML has it."""
    return json.dumps(text, ensure_ascii=False)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(card(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    print(target)
