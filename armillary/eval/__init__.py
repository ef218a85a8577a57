"""How good a checkpoint is at the table-top world, measured on what it has never seen."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from armillary import arguments
from armillary.errors import BadRequest

__all__ = ["evaluate"]

CASES, QUICK_CASES = 256, 24


def evaluate(
    model: str | os.PathLike[str] = "pocket",
    *,
    suites: Sequence[str] | None = None,
    quick: bool = False,
    n: int | None = None,
    out: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] = print,
    on_result: Callable[[dict[str, Any]], object] = lambda _result: None,
) -> dict[str, Any]:
    """Run suites on a checkpoint that knows the table-top, and return every figure with interval, baselines
    and bar.

    model: as in `armillary.load`. suites: their names, all of them if left out: codecs, reasoner, image,
    video, sound, dynamics, policy. n: cases a figure, 256 if left out and 24 if `quick`. out: a folder for
    the report: `<name>.md`, `<name>.json` and `pictures/`. tell: hears what is being done, and each figure.
    on_result: hears what will be returned, before the report is written. The same checkpoint gives the same
    figures each time. Raises BadRequest for an unknown suite, fewer than 4 cases, n beside quick, a folder in
    which nothing can be written, and a suite that needs a part which the checkpoint lacks.
    """
    from armillary.eval import report
    from armillary.eval.bench import Bench
    from armillary.eval.suites import choose, require, run
    from armillary.loading import load

    names, count = choose(suites), (QUICK_CASES if quick else CASES) if n is None else n
    if quick and n is not None:
        raise BadRequest("n", n, f"quick means {QUICK_CASES} cases; give n or quick, not both")
    if count < 4:
        raise BadRequest("n", n, "a figure needs at least 4 cases")
    folder = None if out is None else arguments.path(out, "out")
    stem = arguments.path(model, "model").absolute().name
    if folder is not None:
        report.check_place(folder, stem)
    began, world = time.perf_counter(), load(model)
    require(world.parts, names)
    outcomes, seconds = {}, dict[str, float]()
    for name, outcome, spent in run(Bench(world.parts, count), names, tell):
        outcomes[name], seconds[name] = outcome, spent
        for f in outcome.figures:
            tell(f"  {report.line(f.to_dict())}")
    result = {
        "model": os.fspath(model),
        "command": _command(model, suites, quick, n, out),
        "digest": world.facts.digest,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "quick": quick,
        "n": count,
        "seconds": round(time.perf_counter() - began, 1),
        "suites": {
            name: {"seconds": round(seconds[name], 1), "figures": [f.to_dict() for f in outcome.figures]}
            for name, outcome in outcomes.items()
        },
    }
    on_result(result)
    if folder is not None:
        tell(f"written: {report.write(folder, stem, result, outcomes)}")
    return result


def _command(
    model: str | os.PathLike[str],
    suites: Sequence[str] | None,
    quick: bool,
    n: int | None,
    out: str | os.PathLike[str] | None,
) -> str:
    """What makes the same report again."""
    options = [f"--suite {name}" for name in suites or ()] + ["--quick"] * quick
    options += [f"--{name} {value}" for name, value in (("n", n), ("out", out)) if value is not None]
    return " ".join(["armillary eval", os.fspath(model), *options])
