"""Actions as they travel: numbers with the contract that says what they mean.

Shape letters: K actions, D numbers of one action.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any, cast

from armillary import arguments
from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.robots.contract import Floats, Robot
from armillary.robots.files import robot


@dataclass(frozen=True, eq=False)
class Actions:
    """What a robot does: values float32 [K, D] in its own units, one row a transition, `fps` rows a second.

    names: the columns. clip: the imagined rollout, where there is one. body: the robot, needed where it is
    none of the table (`Actions.of` knows it). Raises BadRequest for an unknown domain, another width, NaN or
    infinity.
    """

    values: Floats
    domain: str
    fps: float
    names: tuple[str, ...] = ()
    clip: Clip | None = None
    receipt: dict[str, Any] = field(default_factory=dict[str, Any])
    body: Robot | None = field(default=None, repr=False)

    @classmethod
    def of(cls, body: Robot, values: Any, receipt: dict[str, Any] | None = None) -> "Actions":
        """Actions of a robot, at its rate and with its columns."""
        return cls(values, body.name, body.fps, body.columns, receipt=receipt or {}, body=body)

    def __post_init__(self) -> None:
        body = self.body or robot(self.domain)
        if body.name != self.domain:
            raise BadRequest("domain", self.domain, f"these actions are for {body.name!r}")
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "values", body.check(self.values))
        arguments.positive(self.fps, "fps")
        arguments.several(self.names, "names", "must be a list of the columns' names")
        if self.names and len(self.names) != self.values.shape[1]:
            raise BadRequest("names", list(self.names), f"{self.values.shape[1]} columns need as many names")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def digest(self) -> str:
        """That of the body: equal digests mean equal columns and scaling."""
        return self.contract.digest

    @property
    def contract(self) -> Robot:
        """The robot, with as many columns as there are."""
        assert self.body is not None  # __post_init__ filled it in
        return self.body.with_width(self.values.shape[1])

    def to_json(self) -> str:
        """Plain JSON: domain, digest, fps, names, units, shape, values, receipt. The clip is not in it."""
        content = {
            "domain": self.domain,
            "digest": self.digest,
            "fps": self.fps,
            "names": list(self.names),
            "units": list(self.contract.units),
            "shape": list(self.values.shape),
            "values": self.values.tolist(),
            "receipt": self.receipt,
        }
        return json.dumps(content)

    @classmethod
    def from_json(
        cls, text: str | bytes, *, domain: str | os.PathLike[str] | Robot | None = None
    ) -> "Actions":
        """Read `to_json`'s form, or a bare array [K][D] or [1][K][D], which names no domain: then give it.

        Raises BadRequest for anything else, for a domain other than `domain`, and for a digest other than
        ours: those numbers meant something else where they were written.
        """
        if not isinstance(text, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
            raise BadRequest("actions", arguments.kind(text), "must be JSON, as text or bytes")
        shown = f"<{len(text)} {'bytes' if isinstance(text, bytes) else 'letters'}>"  # it may be any file
        try:
            content: Any = json.loads(text)
        except UnicodeDecodeError:
            raise BadRequest("actions", shown, "is no text, so no JSON") from None
        except RecursionError:
            raise BadRequest("actions", shown, "is nested too deeply") from None
        except ValueError as error:
            raise BadRequest("actions", shown, f"not valid JSON ({error})") from None
        wanted = None if domain is None else robot(domain)
        name = wanted and wanted.name
        if isinstance(content, list):
            content = {"values": content, "domain": name}
        if not isinstance(content, dict) or "values" not in content or content.get("domain", name) is None:
            raise BadRequest(
                "actions", shown, "needs `values` and `domain`, or a bare array and the domain given"
            )
        written = cast(dict[str, Any], {"domain": name, **content})
        if wanted is not None and written["domain"] != name:
            raise BadRequest("domain", name, f"these actions were written for {written['domain']!r}")
        body = wanted or robot(written["domain"])
        try:
            fps, names = float(written.get("fps", body.fps)), tuple(written.get("names", body.columns))
        except (TypeError, ValueError, OverflowError):
            raise BadRequest("actions", shown, "fps must be a number and names a list") from None
        receipt = written.get("receipt", {})
        actions = cls(written["values"], body.name, fps, names, receipt=receipt, body=body)
        if written.get("digest", actions.digest) != actions.digest:
            message = f"{body.name} is {actions.digest} here: its columns or scaling were others"
            raise BadRequest("digest", written["digest"], message)
        return actions
