"""Do the figures of pocket hang on one lucky seed? Trains it again from another one, in a tenth of the steps,
and prints the two reports side by side.

    .venv/bin/python benchmarks/retrain.py --seed 1 --folder runs/seed-1

The two autoencoders get all of their steps: they take little of the time, and whatever else is measured is
seen and heard through them. All the rest gets a tenth of its steps and of its data. That reaches less; what
should come out alike is the report's shape: the same suites easy, the same ones hard, every figure above its
baselines that is above them as shipped. Started again, it goes on.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.eval import evaluate
from armillary.train.recipe import read_recipe
from armillary.train.stages import run

ROOT = Path(__file__).parents[1]
SHRINKS = ("steps", "still", "push", "wander", "roam", "slide")  # what a share of a recipe has less of
WHOLE = ("video", "audio")  # stages that it has as they are
PERFECT = ("ceiling", "before it")  # what stands beside a figure and is not without skill


def settings(recipe: Path, share: float, seed: int, folder: Path) -> list[str]:
    """The `--set` values that make a recipe a share of itself, from another seed, in a folder of its own."""
    stages = [stage.model_dump() for stage in read_recipe(recipe, ()).stages]
    sizes = [
        (s["kind"], name, s[name]) for s in stages if s["kind"] not in WHOLE for name in SHRINKS if name in s
    ]
    smaller = [f"{kind}.{name}={max(1, round(size * share))}" for kind, name, size in sizes]
    return [f"seed={seed}", f"folder={folder}", *smaller]


@dataclass(frozen=True)
class Row:
    """A figure as shipped, again, and the best of what stands beside it each time without skill."""

    name: str
    values: tuple[float | None, float | None]
    blind: tuple[float | None, float | None]
    smaller_is_better: bool

    def skilled(self) -> tuple[bool, bool]:
        """Is it better than no skill, as shipped and again?"""
        shipped, again = zip(self.values, self.blind, strict=True)
        return self._above(*shipped), self._above(*again)

    def _above(self, value: float | None, blind: float | None) -> bool:
        blind = 0.0 if blind is None else blind
        return value is not None and (value < blind if self.smaller_is_better else value > blind)


def rows(shipped: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[Row]:
    for suite, found in again["suites"].items():
        before = {f["name"]: f for f in shipped["suites"].get(suite, {"figures": []})["figures"]}
        for f in found["figures"]:
            pair = before.get(f["name"], {}), f
            values = pair[0].get("value"), f["value"]
            blind = _without_skill(pair[0]), _without_skill(f)
            yield Row(f"{suite}: {f['name']}", values, blind, f["unit"] == "px")


def _without_skill(figure: Mapping[str, Any]) -> float | None:
    beside = figure.get("beside", {}).items()
    known = [s["value"] for name, s in beside if not name.startswith(PERFECT) and s["value"] is not None]
    return (min if figure["unit"] == "px" else max)(known) if known else None


def side_by_side(found: Sequence[Row]) -> Iterator[str]:
    """A line a figure, and at the end how many are above no skill both times."""
    yield f"{'':64}{'shipped':>9}{'again':>9}{'no skill':>10}"
    for row in found:
        told = ["–" if value is None else f"{value:.3f}" for value in (*row.values, row.blind[1])]
        yield f"{row.name:64}{told[0]:>9}{told[1]:>9}{told[2]:>10}"
    skilled = [(row.name, row.skilled()) for row in found]
    lost = [name for name, (before, now) in skilled if before and not now]
    before = sum(b for _, (b, _) in skilled)
    kept = before - len(lost)
    yield f"{kept} of the {before} figures that are above no skill as shipped are so again; not so:"
    yield from (f"  {name}" for name in lost)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--share", type=float, default=0.1, help="of the steps and the data")
    options.add_argument("--folder", type=Path, default=Path("runs/seed-1"))
    options.add_argument("-n", type=int, default=100, help="cases a figure")
    given = options.parse_args()
    recipe = ROOT / "recipes" / "pocket.toml"
    chosen = settings(recipe, given.share, given.seed, given.folder)
    checkpoint = run(read_recipe(recipe, chosen), tell=print)
    again = evaluate(checkpoint, n=given.n, out=given.folder / "report")
    shipped = json.loads((ROOT / "docs" / "pocket.json").read_text(encoding="utf-8"))
    print("\n".join(side_by_side([*rows(shipped, again)])))


if __name__ == "__main__":
    main()
