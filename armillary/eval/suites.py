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
from armillary.tasks.parts import Parts

Suite = Callable[[Bench], Outcome]
Has = Callable[[Parts], bool]

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
PARTS: Final[Mapping[str, Has]] = MappingProxyType(
    {
        "a vision tower": lambda parts: parts.sight is not None,
        "a video autoencoder": lambda parts: parts.video is not None,
        "sound and an audio encoder": lambda parts: (
            parts.audio is not None and parts.audio.encoder is not None and parts.checkpoint.traits.sound_gen
        ),
        "actions": lambda parts: parts.checkpoint.traits.action_gen,
    }
)
NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "codecs": ("a video autoencoder", "sound and an audio encoder"),
        "reasoner": ("a vision tower",),
        "image": ("a video autoencoder",),
        "video": ("a video autoencoder",),
        "sound": ("a video autoencoder", "sound and an audio encoder"),
        "dynamics": ("a video autoencoder", "actions"),
        "policy": ("a vision tower", "a video autoencoder", "actions"),
    }
)


def choose(names: Sequence[str] | None) -> tuple[str, ...]:
    """The named suites in their order, all of them for None. Raises BadRequest for an unknown name."""
    for name in names or ():
        if name not in SUITES:
            close = " or ".join(nearest(name, SUITES))
            raise BadRequest("suite", name, f"suites are {', '.join(SUITES)}; nearest: {close}")
    return tuple(name for name in SUITES if not names or name in names)


def require(parts: Parts, names: Sequence[str]) -> None:
    """Raises BadRequest for a suite that needs what the checkpoint has not, naming those that do not."""
    lacking = {name: [part for part in NEEDS[name] if not PARTS[part](parts)] for name in SUITES}
    able = [name for name in SUITES if not lacking[name]]
    for name in names:
        if lacking[name]:
            others = f"choose others: {', '.join(able)}" if able else "and no other suite does without"
            raise BadRequest(
                "suite", name, f"needs {' and '.join(lacking[name])}, which this checkpoint has not; {others}"
            )


def run(bench: Bench, names: Sequence[str], tell: Tell) -> Iterator[tuple[str, Outcome, float]]:
    """Each suite's name, outcome and seconds, as they are done."""
    for number, name in enumerate(names, 1):
        tell(f"suite {number} of {len(names)}: {name}")
        began = time.perf_counter()
        outcome = SUITES[name](bench)
        yield name, outcome, time.perf_counter() - began
