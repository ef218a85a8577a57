"""Do the figures of pocket hang on one lucky seed? Trains it again from another one, in a tenth of the time,
and prints the two reports side by side.

    .venv/bin/python benchmarks/retrain.py --seed 1 --folder runs/seed-1

The two autoencoders get all of their steps: they take little of the time, and whatever else is measured is
seen and heard through them. All the rest gets a tenth of its steps and of its data. That reaches less; what
should come out alike is the report's shape: the same suites easy, the same ones hard, every figure above its
baselines that is above them as shipped. Started again, it goes on.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from armillary.eval import evaluate
from armillary.train.recipe import read_recipe
from armillary.train.stages import run

ROOT = Path(__file__).parents[1]
SHRINKS = ("steps", "still", "push", "wander", "roam", "slide")  # what a share of a recipe has less of
WHOLE = ("video", "audio")  # stages that it has as they are


def settings(recipe: Path, share: float, seed: int, folder: Path) -> list[str]:
    """The `--set` values that make a recipe a share of itself, from another seed, in a folder of its own."""
    stages = [stage.model_dump() for stage in read_recipe(recipe, ()).stages]
    sizes = [
        (s["kind"], name, s[name]) for s in stages if s["kind"] not in WHOLE for name in SHRINKS if name in s
    ]
    smaller = [f"{kind}.{name}={max(1, round(size * share))}" for kind, name, size in sizes]
    return [f"seed={seed}", f"folder={folder}", *smaller]


def side_by_side(shipped: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """One line a figure: as shipped, again, and the best of what stands beside it without skill."""
    yield f"{'':62}{'shipped':>9}{'again':>9}{'no skill':>10}"
    for suite, found in again["suites"].items():
        before = {f["name"]: f for f in shipped["suites"].get(suite, {"figures": []})["figures"]}
        for f in found["figures"]:
            blind = [s["value"] for name, s in f["beside"].items() if "ceiling" not in name]
            known = [value for value in blind if value is not None]
            best = (min if f["unit"] == "px" else max)(known) if known else None
            values = (before.get(f["name"], {}).get("value"), f["value"], best)
            told = ["–" if value is None else f"{value:.3f}" for value in values]
            yield f"{suite + ': ' + f['name']:62}{told[0]:>9}{told[1]:>9}{told[2]:>10}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--share", type=float, default=0.1, help="of the steps and the data")
    options.add_argument("--folder", type=Path, default=Path("runs/seed-1"))
    options.add_argument("-n", type=int, default=64, help="cases a figure")
    given = options.parse_args()
    recipe = ROOT / "recipes" / "pocket.toml"
    chosen = settings(recipe, given.share, given.seed, given.folder)
    checkpoint = run(read_recipe(recipe, chosen), tell=print)
    again = evaluate(checkpoint, n=given.n, out=given.folder / "report")
    shipped = json.loads((ROOT / "docs" / "pocket.json").read_text(encoding="utf-8"))
    print("\n".join(side_by_side(shipped, again)))


if __name__ == "__main__":
    main()
