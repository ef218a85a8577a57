"""Robots by name, by a TOML file of one's own, or by the `meta` folder of a LeRobot data set."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armillary.errors import BadRequest, nearest
from armillary.robots.contract import Robot, Spread, Statistics
from armillary.robots.poses import Convention
from armillary.robots.table import ROBOTS

# Where a LeRobot data set keeps what each kind of statistics is made of.
PARTS: Mapping[Spread, tuple[str, str]] = {
    "quantile": ("q01", "q99"),
    "min_max": ("min", "max"),
    "mean_std": ("mean", "std"),
}


def robot(
    name: str | os.PathLike[str] | Robot, *, width: int | None = None, fps: float | None = None
) -> Robot:
    """A robot of the table, or that of a `.toml` file (`from_toml`); `width` and `fps` where they are open.

    Raises BadRequest for an unknown name, for a file that holds no robot, and for a width it cannot have.
    """
    body = name if isinstance(name, Robot) else _find(name)
    if fps is not None:
        body = replace(body, fps=fps, unknown=tuple(field for field in body.unknown if field != "fps"))
    return body if width is None else body.with_width(width)


def _find(name: str | os.PathLike[str]) -> Robot:
    if not isinstance(name, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
        raise BadRequest("domain", name, "must be the name of a robot, a .toml file, or a Robot")
    if name in ROBOTS:
        return ROBOTS[os.fspath(name)]
    path = Path(name)
    if path.suffix == ".toml":
        return from_toml(path)
    if path.is_dir():
        message = (
            "a data set does not say which port of the network to use: write a .toml file with `port` and "
        )
        raise BadRequest("domain", os.fspath(name), f"{message}`lerobot = {os.fspath(name)!r}`")
    close = ", ".join(nearest(name, ROBOTS, 3))
    raise BadRequest("domain", os.fspath(name), f"no such domain, and no .toml file; nearest: {close}")


class _Scale(BaseModel):
    """`[statistics]` of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Spread
    low: list[float]
    high: list[float]


class _File(BaseModel):
    """A robot as a TOML file tells it; what is left out is that of `like`, of `lerobot`, or usual."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    like: str | None = None
    lerobot: str | None = None
    port: Annotated[int, Field(ge=0)] | None = None
    width: Annotated[int, Field(ge=1)] | None = None
    fps: float | None = None
    chunk: int | None = None
    view: str | None = None
    tier: int | Literal["own"] | None = None
    columns: list[str] | None = None
    units: list[str] | None = None
    poses: Convention | None = None
    scaled: bool | None = None
    statistics: Spread | _Scale | None = None
    digest: str | None = None


def from_toml(path: str | os.PathLike[str]) -> Robot:
    """A robot of one's own; docs/acting.md shows a file. Raises BadRequest naming file and field.

    `digest`, where it is given, must be that of the contract which the file then tells.
    """
    file, told = Path(path), _read(path)
    start = _start(told, file.parent)
    own = {name: getattr(told, name) for name in ("name", "fps", "chunk", "view", "tier", "poses", "scaled")}
    own |= {"domain": told.port, "width": told.width or (told.columns and len(told.columns))}
    own |= {name: tuple(value) for name in ("columns", "units") if (value := getattr(told, name)) is not None}
    if isinstance(told.statistics, _Scale):
        scale = told.statistics
        own["statistics"] = _named(file, Statistics, scale.kind, tuple(scale.low), tuple(scale.high))
    fields = {name: value for name, value in own.items() if value is not None}
    if told.fps is not None:
        fields["unknown"] = ()
    if told.tier == "own":
        fields["tier"] = None
    body = _named(file, replace, start, **fields) if start else _named(file, _new, **fields)
    if told.digest not in (None, body.digest):
        raise BadRequest(f"{file}: digest", told.digest, f"the contract in this file is {body.digest}")
    return body


def _new(**fields: Any) -> Robot:
    for name, what in (("domain", "port"), ("width", "columns"), ("fps", "fps")):
        if name not in fields:
            raise BadRequest(what, None, "is needed, or `like` or `lerobot` that has it")
    return Robot(**fields)


def _named(file: Path, make: Any, *args: Any, **fields: Any) -> Any:
    """What `make` makes; a BadRequest names the file too."""
    try:
        return make(*args, **fields)
    except BadRequest as error:
        raise BadRequest(f"{file}: {error.field}", error.value, error.message) from None


def _read(path: str | os.PathLike[str]) -> _File:
    try:
        return _File.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise BadRequest("domain", os.fspath(path), f"cannot be opened: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place, known = ".".join(map(str, first["loc"])), _File.model_fields
        close = (
            f"; nearest: {' or '.join(nearest(place, known))}" if first["type"] == "extra_forbidden" else ""
        )
        raise BadRequest(f"{path}: {place}", first.get("input"), first["msg"] + close) from None
    except ValueError as error:
        raise BadRequest("domain", os.fspath(path), f"is no TOML file ({error})") from None


def _start(told: _File, folder: Path) -> Robot | None:
    """The robot that a file starts from."""
    if told.like is not None and told.lerobot is not None:
        raise BadRequest("lerobot", told.lerobot, "start from `like` or from `lerobot`, not from both")
    if told.like is not None:
        try:
            return robot(folder / told.like if told.like.endswith(".toml") else told.like)
        except RecursionError:
            raise BadRequest("like", told.like, "leads back to this file; start from another robot") from None
    if told.lerobot is None:
        if isinstance(told.statistics, str):
            raise BadRequest("statistics", told.statistics, "only `lerobot` has some to choose from")
        return None
    if told.port is None:
        raise BadRequest("port", None, "is needed: a data set does not say which port of the network to use")
    kind = told.statistics if isinstance(told.statistics, str) else "quantile"
    return from_lerobot(folder / told.lerobot, port=told.port, name=told.name, statistics=kind)


def from_lerobot(
    folder: str | os.PathLike[str], *, port: int, name: str | None = None, statistics: Spread = "quantile"
) -> Robot:
    """The robot of a LeRobot data set, scaled by its statistics; port: which of the network's it uses.

    folder: the data set or its `meta` folder, of any version that has `stats.json`. Raises BadRequest naming
    file, feature and both widths for what is missing or does not fit.
    """
    if statistics not in PARTS:
        raise BadRequest("statistics", statistics, f"nearest: {' or '.join(nearest(statistics, PARTS))}")
    meta = Path(folder) if (Path(folder) / "info.json").is_file() else Path(folder) / "meta"
    info, stats = _json(meta / "info.json"), _json(meta / "stats.json")
    try:
        feature = info["features"]["action"]
        (width,), fps, columns = feature["shape"], float(info["fps"]), _columns(feature.get("names"))
    except (KeyError, TypeError, ValueError) as error:
        what = f"needs fps and a feature `action` of one axis ({type(error).__name__}: {error})"
        raise BadRequest("domain", str(meta / "info.json"), what) from None
    found = stats.get("action", {})
    low, high = (_numbers(found, part, meta / "stats.json", width) for part in PARTS[statistics])
    return _named(
        meta / "stats.json",
        Robot,
        name or Path(folder).resolve().name,
        *(port, width, fps),
        columns=columns if len(columns) == width else (),
        statistics=_named(meta / "stats.json", Statistics, statistics, low, high),
        scaled=True,
    )


def _columns(names: Any) -> tuple[str, ...]:
    """The names of columns, a list or (in older sets) a dictionary of one list; () where there are none."""
    if isinstance(names, dict) and len(names) == 1:
        (names,) = cast("dict[str, Any]", names).values()
    return tuple(str(name) for name in cast("list[Any]", names)) if isinstance(names, list) else ()


def _json(path: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRequest("domain", str(path), f"cannot be opened: {error.strerror}") from None
    except ValueError as error:
        raise BadRequest("domain", str(path), f"is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise BadRequest("domain", str(path), "is no JSON object")
    return cast("dict[str, Any]", content)


def _numbers(found: Mapping[str, Any], part: str, file: Path, width: int) -> tuple[float, ...]:
    values = found.get(part)
    if not isinstance(values, list):
        kinds = [kind for kind, parts in PARTS.items() if all(name in found for name in parts)]
        have = f"; it has those of {' and '.join(kinds)}: choose by `statistics`" if kinds else ""
        raise BadRequest(f"{file}: action.{part}", None, f"these statistics are missing{have}")
    numbers = cast("list[Any]", values)
    if len(numbers) != width:
        message = f"the feature `action` has {width} columns; make the statistics anew"
        raise BadRequest(f"{file}: action.{part}", len(numbers), message)
    return tuple(float(x) if isinstance(x, int) else x for x in numbers)
