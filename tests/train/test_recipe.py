"""A recipe makes a whole checkpoint from nothing or goes on from another, goes on after a stop, and refuses
what it does not know."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from armillary.codecs.audio_vae import AudioVAEConfig
from armillary.codecs.text import TextCodec
from armillary.errors import BadRequest
from armillary.shards import read_json
from armillary.tasks.parts import load_parts
from armillary.train.audio import pocket_audio_config
from armillary.train.generator import IMAGE, GeneratorJob, JointJob
from armillary.train.layout import Pocket, pocket_config, pocket_sight_config
from armillary.train.look import draw_samples
from armillary.train.loop import Draw
from armillary.train.reasoner import draws
from armillary.train.recipe import Recipe, read_recipe
from armillary.train.stages import run
from armillary.train.video import pocket_video_config
from benchmarks.random_checkpoint import write_random

POCKET = Path(__file__).parents[2] / "recipes" / "pocket.toml"
SMALL = [
    "tokenizer.episodes=24",
    "video.steps=2",
    "video.stills=2",
    "video.clips=1",
    "audio.steps=1",
    "audio.clips=1",
    "sight.steps=2",
    "sight.pictures=2",
    "reasoner.steps=2",
    "reasoner.pictures=2",
    "reasoner.clips=1",
    "reasoner.asked=2",
    "cache.still=2",
    "cache.push=2",
    "cache.wander=2",
    "cache.roam=1",
    "cache.slide=2",
    "generator.steps=3",
    "generator.size=4",
    "joint.steps=2",
    "joint.size=4",
]


def small(folder: Path, *more: str) -> Recipe:
    return read_recipe(POCKET, [f'folder="{folder}"', *SMALL, *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return run(small(tmp_path_factory.mktemp("run")), tell=lambda _: None)


def test_the_pocket_recipe_makes_a_checkpoint_that_loads_whole(made: Path) -> None:
    parts = load_parts(made, device=torch.device("cpu"), dtype=torch.float32)
    assert parts.video is not None
    assert parts.audio is not None
    assert parts.sight is not None
    assert parts.network.config.layers == 5


def test_samples_of_the_same_prompts_are_drawn_as_it_learns(made: Path) -> None:
    parts = load_parts(made, device=torch.device("cpu"), dtype=torch.float32, want=("video",))
    for seed in (0, 1):
        draw_samples(parts, Pocket(seed), made.parent / "samples" / f"{seed}.png")
    first, second = (Image.open(made.parent / "samples" / f"{seed}.png") for seed in (0, 1))
    assert first.size == second.size
    assert first.tobytes() != second.tobytes()


def test_what_it_writes_fits_in_sixteen_megabytes(made: Path) -> None:
    assert sum(f.stat().st_size for f in made.rglob("*") if f.is_file()) < 16e6


def test_only_the_joint_stage_teaches_the_reasoner_to_read_prompts(made: Path) -> None:
    codec, cache = TextCodec.load(made / "text_tokenizer"), made.parent / "cache"

    def learning(job: GeneratorJob) -> set[bool]:
        """Which parameters get a gradient from images: those that draw (True), those that read (False)."""
        draw, stills = Draw.of(0, 0), [(IMAGE, 0), (IMAGE, 1)]
        job.flow(draw, job.stills, stills)[0].backward()
        found = {draws(name) for name, p in job.model.named_parameters() if p.grad is not None}
        job.model.zero_grad()
        return found

    assert learning(GeneratorJob(Pocket(), codec, cache)) == {True}
    assert learning(JointJob(Pocket(), codec, cache)) == {True, False}


def test_a_finished_recipe_run_again_changes_no_weight(made: Path) -> None:
    weights = made / "transformer" / "diffusion_pytorch_model.safetensors"
    before = weights.read_bytes()
    run(small(made.parent), tell=lambda _: None)
    assert weights.read_bytes() == before


def test_unknown_keys_and_stages_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="stepz"):
        small(tmp_path, "video.stepz=3")
    with pytest.raises(BadRequest, match="no stage 'vido'"):
        small(tmp_path, "vido.steps=3")
    with pytest.raises(BadRequest, match="steps"):
        small(tmp_path, "video.steps=0")
    with pytest.raises(BadRequest, match="name=value"):
        small(tmp_path, "video.steps")
    with pytest.raises(BadRequest, match="recipe"):
        read_recipe(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("video.stepz=3", "video.stepz=3: no such setting; nearest: steps"),
        ("sed=3", "sed=3: no such setting; nearest: seed"),
        ("video.steps=2.5", "video.steps=2.5: must be a whole number"),
        ("video.rate=fast", "video.rate='fast': must be a number"),
        ("video.decay=2", "video.decay=2: must be at most 1"),
        ("video.average=1", "video.average=1: must be less than 1"),
        ("folder=3", "folder=3: must be a folder's name"),
        ("stages=5", "stages=5: must be a list of stages"),
        ("stages=[]", "stages=[]: must be a list of at least one stage"),
        ("start=3", "start=3: must be a checkpoint's folder or name"),
        ("video.steps=1e400", "video.steps=inf: must be a finite number"),
        ("video.rate=inf", "video.rate=inf: must be a finite number"),
        ("video.still_share=-0.1", "video.still_share=-0.1: must be at least 0"),
        ("video.still_share=1.5", "video.still_share=1.5: must be at most 1"),
        ("seed=-1", "seed=-1: must be at least 0"),
        ("seed=9223372036854775808", "must be at most 9223372036854775807"),
        ("threads=513", "threads=513: must be at most 512"),
        ("cache.roam=-1", "cache.roam=-1: must be at least 0"),
        ("reasoner.asked=1", "reasoner.asked=1: must be at least 2"),
        ("stages=[5]", "kind=5: stage 1 needs one of the kinds tokenizer,"),
        ("stages=[{}]", "kind=None: stage 1 needs one of the kinds tokenizer,"),
        ('stages=[{kind="vido"}]', "nearest: video"),
        ('stages=[{kind="video"}]', "video.steps=None: is needed"),
    ],
)
def test_a_recipes_fault_is_told_in_its_own_words(setting: str, told: str) -> None:
    with pytest.raises(BadRequest) as error:
        read_recipe(POCKET, [setting])
    assert told in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.episodes",
        "video.stills",
        "video.clips",
        "audio.clips",
        "sight.pictures",
        "reasoner.pictures",
        "reasoner.clips",
        "cache.still",
        "cache.push",
        "cache.wander",
        "cache.slide",
        "generator.size",
        "joint.size",
    ],
)
def test_a_count_that_training_draws_from_is_one_at_least(name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name}=0: must be at least 1"):
        read_recipe(POCKET, [f"{name}=0"])


@pytest.mark.parametrize("stages", ["stages = [1, 2]", "stages = 3", "[stages]", "stages = [[]]"])
def test_stages_that_are_none_are_refused_alike_whatever_is_set(tmp_path: Path, stages: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f'folder = "run"\n{stages}\n')
    with pytest.raises(BadRequest) as bare:
        read_recipe(path)
    with pytest.raises(BadRequest) as changed:
        read_recipe(path, ["video.steps=3"])
    assert str(changed.value) == str(bare.value)


def test_a_stage_whose_forerunner_did_not_run_says_which_is_needed(tmp_path: Path, made: Path) -> None:
    recipe = small(tmp_path)
    alone = recipe.model_copy(
        update={"stages": tuple(s for s in recipe.stages if s.kind in ("tokenizer", "joint"))}
    )
    with pytest.raises(BadRequest, match="'generator' must come first"):
        run(alone, tell=lambda _: None)


LONGER = POCKET.with_name("longer.toml")


def longer(folder: Path, start: Path, *more: str) -> Recipe:
    kept = [x for x in SMALL if x.partition(".")[0] in ("cache", "joint")]
    return read_recipe(LONGER, [f'folder="{folder}"', f'start="{start}"', *kept, *more])


def test_a_recipe_goes_on_from_a_checkpoint_with_its_codecs_and_its_numbers(
    tmp_path: Path, made: Path
) -> None:
    found = run(longer(tmp_path, made), tell=lambda _: None)
    for name in ("vae", "sound_tokenizer", "text_tokenizer"):
        for file in (made / name).iterdir():
            assert (found / name / file.name).read_bytes() == file.read_bytes()
    known = read_json(made / "vae" / "config.json")
    kept = read_json(tmp_path / "cache" / "statistics.json")
    assert [kept["mean"], kept["std"]] == [known["latents_mean"], known["latents_std"]]
    before, after = (
        load_file(x / "transformer" / "diffusion_pytorch_model.safetensors") for x in (made, found)
    )
    far = max(float((before[name].float() - after[name].float()).abs().max()) for name in before)
    assert 0 < far < 0.05  # two small steps away, not begun anew


def test_a_start_that_is_no_pocket_is_refused(tmp_path: Path) -> None:
    sound = AudioVAEConfig.from_dict(pocket_audio_config())
    thin = replace(pocket_config(), mlp=256)
    folder = write_random(tmp_path / "thin", thin, pocket_sight_config(), pocket_video_config(), sound)
    with pytest.raises(BadRequest, match="sizes"):
        run(longer(tmp_path / "run", folder, 'stages=[{kind="joint",steps=1,rate=0.1}]'), tell=lambda _: None)


def test_threads_are_the_recipes_while_it_runs_and_then_as_before(tmp_path: Path) -> None:
    recipe, seen = tmp_path / "r.toml", list[int]()
    recipe.write_text('threads = 2\nstages = [{kind = "tokenizer", episodes = 8}]\n', encoding="utf-8")
    torch.set_num_threads(1)
    run(
        read_recipe(recipe, [f'folder="{tmp_path}/made"']),
        tell=lambda _: seen.append(torch.get_num_threads()),
    )
    assert (seen, torch.get_num_threads()) == ([2], 1)
