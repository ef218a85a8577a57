"""A recipe: the TOML that says what is trained, in which stages, for how long. `stages.run` carries it out.

`armillary train recipes/pocket.toml` makes pocket from nothing but this repository; a recipe that names a
checkpoint to `start` from takes from there what no stage of its own has made.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armillary.errors import BadRequest, nearest
from armillary.train.loop import Schedule


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Training(_Strict):
    """The schedule of one stage."""

    steps: int = Field(ge=1)
    rate: float = Field(gt=0)
    warmup: int = Field(50, ge=1)
    decay: float = Field(0.5, gt=0, le=1, description="share of the steps over which the rate falls to zero")
    average: float = Field(0.998, ge=0, lt=1)

    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.rate, self.warmup, self.decay, self.average)


class VideoStage(Training):
    kind: Literal["video"]
    stills: int = Field(8, ge=1)
    clips: int = Field(2, ge=1)
    still_share: float = Field(0.15, ge=0, le=1)


class AudioStage(Training):
    kind: Literal["audio"]
    clips: int = Field(8, ge=1)


class SightStage(Training):
    kind: Literal["sight"]
    pictures: int = Field(24, ge=1)


class ReasonerStage(Training):
    kind: Literal["reasoner"]
    pictures: int = Field(16, ge=1)
    clips: int = Field(8, ge=1)
    asked: int = Field(4, ge=2)  # lessons on captions ask one less


class CacheStage(_Strict):
    kind: Literal["cache"]
    still: int = Field(6000, ge=1)
    push: int = Field(3000, ge=1)
    wander: int = Field(3000, ge=1)
    roam: int = Field(700, ge=0, description="longer clips, of four pieces each")
    slide: int = Field(3000, ge=1)


class GeneratorStage(Training):
    kind: Literal["generator"]
    size: int = Field(32, ge=1)


class JointStage(Training):
    kind: Literal["joint"]
    size: int = Field(32, ge=1)


class TokenizerStage(_Strict):
    kind: Literal["tokenizer"]
    episodes: int = Field(1500, ge=1)


Stage = Annotated[
    TokenizerStage
    | VideoStage
    | AudioStage
    | SightStage
    | ReasonerStage
    | CacheStage
    | GeneratorStage
    | JointStage,
    Field(discriminator="kind"),
]


KINDS: dict[str, type[_Strict]] = {
    "tokenizer": TokenizerStage,
    "video": VideoStage,
    "audio": AudioStage,
    "sight": SightStage,
    "reasoner": ReasonerStage,
    "cache": CacheStage,
    "generator": GeneratorStage,
    "joint": JointStage,
}


class Recipe(_Strict):
    """Stages in the order they are run; each needs what the earlier ones made."""

    folder: Path
    start: str | None = Field(None, description="a checkpoint like pocket, by folder or name")
    seed: int = Field(0, ge=0, le=2**63 - 1)
    threads: int = Field(1, ge=1, le=512)
    stages: tuple[Stage, ...] = Field(min_length=1)


def read_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file; `settings` such as "generator.steps=100" change single values."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest("recipe", str(path), error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest("recipe", str(path), f"not valid TOML: {error}") from None
    for setting in settings:
        _set(content, setting)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        _refuse(content, error)


def _refuse(content: dict[str, Any], error: ValidationError) -> NoReturn:
    """The first fault in a person's words: the stage's kind and the key, the value, and what is legal."""
    first = error.errors()[0]
    kind, keys, value = first["type"], [str(key) for key in first["loc"]], first.get("input")
    fields, where, key = Recipe.model_fields, "", keys[-1]
    if keys[0] == "stages" and len(keys) > 1:
        number = int(keys[1])
        if len(keys) == 2:
            found = content["stages"][number]
            found = found.get("kind") if isinstance(found, dict) else found
            close = " or ".join(nearest(found, KINDS))
            message = f"stage {number + 1} needs one of the kinds {', '.join(KINDS)}; nearest: {close}"
            raise BadRequest("kind", found, message) from None
        where, fields = f"{keys[2]}.", KINDS[keys[2]].model_fields
    if kind == "extra_forbidden":
        close = " or ".join(nearest(key, fields))
        raise BadRequest(where + key, value, f"no such setting; nearest: {close}") from None
    if kind == "missing":
        raise BadRequest(where + key, None, "is needed") from None
    raise BadRequest(where + key, value, _legal(kind, first.get("ctx") or {})) from None


def _legal(kind: str, context: dict[str, Any]) -> str:
    """What a value should have been, by the kind of its fault."""
    for limit, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if limit in context:
            value = context[limit]
            return f"must be {words} {value if isinstance(value, int) else format(value, 'g')}"
    plain = {
        "int": "a whole number",
        "float": "a number",
        "finite": "a finite number",
        "path": "a folder's name",
        "string": "a checkpoint's folder or name",
        "too": "a list of at least one stage",
    }
    return f"must be {plain.get(kind.partition('_')[0], 'a list of stages')}"


def _set(content: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    if not equals:
        raise BadRequest("set", setting, "must look like name=value or stage.name=value")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    stage, _, key = name.rpartition(".")
    if not stage:
        content[key] = value
        return
    stages = content.get("stages", [])
    if not isinstance(stages, list) or not all(isinstance(s, dict) for s in stages):
        return  # the recipe is refused for these
    matching = [s for s in stages if s.get("kind") == stage]
    if not matching:
        known = ", ".join(str(s.get("kind", "?")) for s in stages)
        raise BadRequest("set", setting, f"the recipe has no stage {stage!r}; it has {known}")
    for found in matching:
        found[key] = value
