"""The suites by name, and running them: one function a suite, from a bench to an outcome."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from armillary.errors import BadRequest, nearest
from armillary.eval.acting import dynamics, policy
from armillary.eval.asking import reasoner
from armillary.eval.bench import Bench, Outcome, Tell
from armillary.eval.making import image, video
from armillary.eval.sounding import codecs, sound

Suite = Callable[[Bench], Outcome]

SUITES: Final[Mapping[str, Suite]] = MappingProxyType(
    {
        "codecs": codecs,
        "reasoner": reasoner,
        "image": image,
        "video": video,
        "sound": sound,
        "dynamics": dynamics,
        "policy": policy,
    }
)


def choose(names: Sequence[str] | None) -> tuple[str, ...]:
    """The named suites in their order, all of them for None. Raises BadRequest for an unknown name."""
    for name in names or ():
        if name not in SUITES:
            close = " or ".join(nearest(name, SUITES))
            raise BadRequest("suite", name, f"suites are {', '.join(SUITES)}; nearest: {close}")
    return tuple(name for name in SUITES if not names or name in names)


def run(bench: Bench, names: Sequence[str], tell: Tell) -> Iterator[tuple[str, Outcome, float]]:
    """Each suite's name, outcome and seconds, as they are done."""
    for number, name in enumerate(names, 1):
        tell(f"suite {number} of {len(names)}: {name}")
        began = time.perf_counter()
        outcome = SUITES[name](bench)
        yield name, outcome, time.perf_counter() - began
