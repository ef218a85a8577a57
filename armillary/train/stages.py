"""A recipe carried out: its stages one after another, each going on from where it was stopped.

The state of a stage lies in the run's folder. What no stage has made there comes from the checkpoint that
the recipe starts from, if it names one.
"""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from armillary.alone import alone
from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.text import TextCodec
from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest
from armillary.locate import locate
from armillary.shards import sources, write_file, write_json
from armillary.tasks.frames import require_video
from armillary.tasks.parts import Part, Parts, load_parts
from armillary.tasks.sounds import require_audio
from armillary.train import cache, files
from armillary.train.audio import AudioJob, judge, pocket_audio_config
from armillary.train.corpus import sentences
from armillary.train.generator import GeneratorJob, JointJob, keep_statistics, latent_statistics
from armillary.train.layout import Pocket, build_tokenizer, write_checkpoint, write_tokenizer
from armillary.train.look import draw_samples
from armillary.train.loop import Job, Look, load_average, train
from armillary.train.reasoner import ReasonerJob
from armillary.train.recipe import (
    AudioStage,
    CacheStage,
    GeneratorStage,
    JointStage,
    ReasonerStage,
    Recipe,
    SightStage,
    TokenizerStage,
    Training,
    VideoStage,
)
from armillary.train.sight import SightJob
from armillary.train.video import VideoJob, pocket_video_config
from armillary.weights import TRANSFORMER

Tell = Callable[[str], None]


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
        """The tokenizer. Raises BadRequest if there is none, and for a damaged one."""
        folder = self.checkpoint / "text_tokenizer"
        if not folder.exists():
            raise BadRequest("stages", str(folder), "is not there: the stage 'tokenizer' must come first")
        try:
            return TextCodec.load(folder)
        except Exception as error:  # the tokenizers library raises nothing narrower
            message = "is damaged; remove it, and the stage 'tokenizer' makes it anew"
            raise BadRequest("tokenizer", str(folder), message) from error

    def begin(self) -> None:
        """Lay what the recipe starts from, but its model card, where its own stages will write."""
        if self.recipe.start is None or self.checkpoint.exists():
            return
        partial = self.folder / "checkpoint.partial"
        shutil.rmtree(partial, ignore_errors=True)
        start = locate(self.recipe.start)[1]
        try:
            shutil.copytree(start, partial, ignore=shutil.ignore_patterns("README.md"))
            partial.rename(self.checkpoint)
        except shutil.Error as error:  # it lists every file
            raise OSError(f"{self.checkpoint} cannot be copied: {error.args[0][0][2]}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def made(self, stage: str) -> Path | None:
        """The state that a stage left in the folder; None: the weights of the start take its place.
        Raises BadRequest where there is neither."""
        path = self.folder / stage / "state.pt"
        if path.exists():
            return path
        if self.recipe.start is None:
            raise BadRequest("stages", str(path), f"is not there: the stage {stage!r} must come first")
        return None

    def start(self, *want: Part) -> Parts:
        """The named parts of the checkpoint that the recipe starts from, in fp32."""
        assert self.recipe.start is not None
        folder = locate(self.recipe.start)[1]
        return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=want)

    def video(self) -> WanVAE:
        """The video autoencoder, as its stage left it or as the start has it."""
        state, model = self.made("video"), WanVAE(pocket_video_config())
        if state is None:
            return require_video(self.start("video"))
        load_average(model, state)
        return model

    def audio(self) -> AudioVAE:
        """The audio autoencoder, likewise."""
        state, model = self.made("audio"), AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))
        if state is None:
            return require_audio(self.start("audio"))
        load_average(model, state)
        return model

    def towers(self, after: str) -> Pocket:
        """The towers, as the stage `after` left them or as the start has them; the heads that only lessons
        need are not shipped and begin anew. Raises BadRequest for a start of other sizes."""
        state, model = self.made(after), Pocket(self.recipe.seed)
        if state is not None:
            load_average(model, state)
            return model
        parts = self.start("sight")
        try:
            model.network.load_state_dict(parts.network.state_dict())
            model.sight.load_state_dict(parts.sight.tower.state_dict() if parts.sight else {})
        except RuntimeError as error:
            message = "has not pocket's sizes, which the stages train"
            raise BadRequest("start", self.recipe.start, message) from error
        return model

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


@contextmanager
def threads(count: int) -> Generator[None]:
    """So many threads of torch, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(recipe: Recipe, tell: Tell = print) -> Path:
    """Carry out every stage, going on from what the folder holds; returns the checkpoint's folder.

    Raises BadRequest for a folder that cannot be made, or that another process works in.
    """
    here = Run(recipe, tell)
    files.make_folder(here.folder)
    with alone(here.folder), threads(recipe.threads):
        here.begin()
        for number, stage in enumerate(recipe.stages, 1):
            tell(f"stage {number} of {len(recipe.stages)}: {stage.kind}")
            _STAGES[stage.kind](here, stage)
    return here.checkpoint


def tokenizer_stage(run: Run, stage: TokenizerStage) -> None:
    folder = run.checkpoint / "text_tokenizer"
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(build_tokenizer(sentences(stage.episodes)), folder)
    run.codec()  # one that an earlier run left damaged is told now


def video_stage(run: Run, stage: VideoStage) -> None:
    job = VideoJob(
        stills=stage.stills, clips=stage.clips, still_share=stage.still_share, seed=run.recipe.seed
    )
    model = run.train(job, stage, "video")
    write_file(sources(model.state_dict()), run.folder / "video" / f"{TRANSFORMER}.safetensors")


def audio_stage(run: Run, stage: AudioStage) -> None:
    model = run.train(AudioJob(clips=stage.clips, seed=run.recipe.seed), stage, "audio")
    assert isinstance(model, AudioVAE)
    found = judge(model)
    run.tell(f"on sounds it has not heard: {found.snr:.1f} dB, {found.onsets:.2f} of the onsets kept")
    _write_codec(model, pocket_audio_config(), run.checkpoint / "sound_tokenizer")


def cache_stage(run: Run, stage: CacheStage) -> None:
    folder, video, audio = run.folder / "cache", run.video(), run.audio()
    counts: dict[cache.Stored, int] = {
        "still": stage.still,
        "slide": stage.slide,
        "wander": stage.wander,
        "roam": stage.roam,
        "push": stage.push,
    }
    for name, count in counts.items():
        cache.fill(folder, name, count, video, audio, tell=run.tell)
    if run.made("video") is None:  # the start's towers know latents by the start's own mean and spread
        keep_statistics(folder, video.config.latents_mean, video.config.latents_std)
        return
    mean, std = latent_statistics(folder)
    config = replace(pocket_video_config(), latents_mean=mean, latents_std=std)
    _write_codec(video, config.to_dict(), run.checkpoint / "vae")


def sight_stage(run: Run, stage: SightStage) -> None:
    run.train(SightJob(Pocket(run.recipe.seed), pictures=stage.pictures), stage, "sight")


def reasoner_stage(run: Run, stage: ReasonerStage) -> None:
    sizes = {"pictures": stage.pictures, "clips": stage.clips, "asked": stage.asked}
    run.train(ReasonerJob(run.towers(after="sight"), run.codec(), **sizes), stage, "reasoner")


def generator_stage(run: Run, stage: GeneratorStage) -> None:
    model = run.towers(after="reasoner")
    model.copy_tower()
    run.draw(GeneratorJob(model, run.codec(), run.folder / "cache", size=stage.size), stage, "generator")


def joint_stage(run: Run, stage: JointStage) -> None:
    model = run.towers(after="generator")
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


def _write_codec(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    write_json(config, folder / "config.json")
    write_file(sources(model.state_dict(), torch.float16), folder / f"{TRANSFORMER}.safetensors")
