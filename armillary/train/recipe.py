"""A recipe: the TOML that says what is trained, in which stages, for how long; and the one function that
runs it.

Every stage goes on from where it was stopped: its state lies in the run's folder. `armillary train
recipes/pocket.toml` makes
pocket from nothing but this repository.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer
from torch import nn

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.text import TextCodec
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest, nearest
from armillary.shards import sources, write_file, write_json
from armillary.sim.scenes import Kind
from armillary.tasks.parts import load_parts
from armillary.train import cache
from armillary.train.audio import AudioJob, judge, pocket_audio_config
from armillary.train.corpus import sentences
from armillary.train.generator import GeneratorJob, JointJob, latent_statistics
from armillary.train.layout import Pocket, build_tokenizer, write_checkpoint, write_tokenizer
from armillary.train.look import draw_samples
from armillary.train.loop import Job, Look, Schedule, read_state, train
from armillary.train.reasoner import ReasonerJob
from armillary.train.sight import SightJob
from armillary.train.video import VideoJob, pocket_video_config
from armillary.weights import TRANSFORMER

Tell = Callable[[str], None]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    stills: int = 8
    clips: int = 2
    still_share: float = 0.15


class AudioStage(Training):
    kind: Literal["audio"]
    clips: int = 8


class SightStage(Training):
    kind: Literal["sight"]
    pictures: int = 24


class ReasonerStage(Training):
    kind: Literal["reasoner"]
    pictures: int = 16
    clips: int = 8
    asked: int = 4


class CacheStage(_Strict):
    kind: Literal["cache"]
    still: int = 6000
    push: int = 3000
    wander: int = 3000
    slide: int = 3000


class GeneratorStage(Training):
    kind: Literal["generator"]
    size: int = 32


class JointStage(Training):
    kind: Literal["joint"]
    size: int = 32


class TokenizerStage(_Strict):
    kind: Literal["tokenizer"]
    episodes: int = 1500


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
    seed: int = 0
    threads: int = Field(1, ge=1)
    stages: tuple[Stage, ...]


def read_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file; `settings` such as "generator.steps=100" change single values."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest("recipe", str(path), error.strerror or "cannot be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
            return f"must be {words} {context[limit]:g}"
    plain = {"int": "a whole number", "float": "a number", "path": "a folder's name"}
    return f"must be {plain.get(kind.partition('_')[0], 'a list of stages')}"


def _set(content: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    if not equals:
        raise BadRequest("set", setting, "must look like name=value or stage.name=value")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    stage, _, key = name.rpartition(".")
    if not stage:
        content[key] = value
        return
    matching = [s for s in content.get("stages", ()) if s.get("kind") == stage]
    if not matching:
        known = ", ".join(s.get("kind", "?") for s in content.get("stages", ()))
        raise BadRequest("set", setting, f"the recipe has no stage {stage!r}; it has {known}")
    for found in matching:
        found[key] = value


@dataclass(frozen=True)
class Run:
    """A recipe being carried out in its folder."""

    recipe: Recipe
    tell: Tell

    @property
    def folder(self) -> Path:
        return self.recipe.folder

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def codec(self) -> TextCodec:
        return TextCodec.load(self.checkpoint / "text_tokenizer")

    def write(self, model: Pocket) -> None:
        tokenizer = Tokenizer.from_file(str(self.checkpoint / "text_tokenizer" / "tokenizer.json"))
        write_checkpoint(model, tokenizer, self.checkpoint)

    def train(self, job: Job, stage: Training, name: str, look: Look | None = None) -> nn.Module:
        schedule, folder = stage.schedule(), self.folder / name
        return train(job, schedule, folder, seed=self.recipe.seed, tell=self.tell, look=look)

    def draw(self, job: GeneratorJob, stage: Training, name: str) -> None:
        """Train a generator, with a picture of its samples every few minutes, and write the checkpoint."""
        self.write(job.model)
        parts = load_parts(self.checkpoint, device=torch.device("cpu"), dtype=torch.float32, want=("video",))

        def look(model: nn.Module, step: int) -> None:
            draw_samples(parts, model, self.folder / name / "samples" / f"{step:06d}.png")

        job.model.load_state_dict(self.train(job, stage, name, look).state_dict())
        self.write(job.model)


def run(recipe: Recipe, tell: Tell = print) -> Path:
    """Carry out every stage, going on from what the folder holds; returns the checkpoint's folder."""
    torch.set_num_threads(recipe.threads)
    here = Run(recipe, tell)
    for number, stage in enumerate(recipe.stages, 1):
        tell(f"stage {number} of {len(recipe.stages)}: {stage.kind}")
        _STAGES[stage.kind](here, stage)
    return here.checkpoint


def tokenizer_stage(run: Run, stage: TokenizerStage) -> None:
    if not (run.checkpoint / "text_tokenizer" / "tokenizer.json").exists():
        write_tokenizer(build_tokenizer(sentences(stage.episodes)), run.checkpoint / "text_tokenizer")


def video_stage(run: Run, stage: VideoStage) -> None:
    job = VideoJob(
        stills=stage.stills, clips=stage.clips, still_share=stage.still_share, seed=run.recipe.seed
    )
    model = run.train(job, stage, "video")
    write_file(sources(model.state_dict()), run.folder / "video" / f"{TRANSFORMER}.safetensors")


def audio_stage(run: Run, stage: AudioStage) -> None:
    model = run.train(AudioJob(clips=stage.clips, seed=run.recipe.seed), stage, "audio")
    assert isinstance(model, AudioVAE)
    run.tell(f"on sounds it has not heard: {judge(model)}")
    _write_codec(model, pocket_audio_config(), run.checkpoint / "sound_tokenizer")


def cache_stage(run: Run, stage: CacheStage) -> None:
    video, audio = WanVAE(pocket_video_config()), AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))
    video.load_state_dict(_average(run.folder / "video"))
    audio.load_state_dict(_average(run.folder / "audio"))
    counts: dict[Kind, int] = {
        "still": stage.still,
        "slide": stage.slide,
        "wander": stage.wander,
        "push": stage.push,
    }
    for kind, count in counts.items():
        cache.fill(run.folder / "cache", kind, count, video, audio, tell=run.tell)
    mean, std = latent_statistics(run.folder / "cache")
    config = replace(pocket_video_config(), latents_mean=mean, latents_std=std)
    _write_codec(video, config.to_dict(), run.checkpoint / "vae")


def sight_stage(run: Run, stage: SightStage) -> None:
    run.train(SightJob(Pocket(run.recipe.seed), pictures=stage.pictures), stage, "sight")


def reasoner_stage(run: Run, stage: ReasonerStage) -> None:
    model = Pocket(run.recipe.seed)
    model.load_state_dict(_average(run.folder / "sight"))
    job = ReasonerJob(model, run.codec(), pictures=stage.pictures, clips=stage.clips, asked=stage.asked)
    run.train(job, stage, "reasoner")


def generator_stage(run: Run, stage: GeneratorStage) -> None:
    model = Pocket(run.recipe.seed)
    model.load_state_dict(_average(run.folder / "reasoner"))
    model.copy_tower()
    run.draw(GeneratorJob(model, run.codec(), run.folder / "cache", size=stage.size), stage, "generator")


def joint_stage(run: Run, stage: JointStage) -> None:
    model = Pocket(run.recipe.seed)
    model.load_state_dict(_average(run.folder / "generator"))
    run.draw(JointJob(model, run.codec(), run.folder / "cache", size=stage.size), stage, "joint")


_STAGES: dict[str, Callable[[Run, Any], None]] = {
    "tokenizer": tokenizer_stage,
    "video": video_stage,
    "audio": audio_stage,
    "cache": cache_stage,
    "sight": sight_stage,
    "reasoner": reasoner_stage,
    "generator": generator_stage,
    "joint": joint_stage,
}


def _average(folder: Path) -> dict[str, torch.Tensor]:
    """The averaged weights that a stage left in its folder. Raises BadRequest if it did not run."""
    path = folder / "state.pt"
    if not path.exists():
        raise BadRequest("stages", str(path), f"is not there: the stage {folder.name!r} must come first")
    return read_state(path)["average"]


def _write_codec(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    write_json(config, folder / "config.json")
    write_file(sources(model.state_dict(), torch.float16), folder / f"{TRANSFORMER}.safetensors")
