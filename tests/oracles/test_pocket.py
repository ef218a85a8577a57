"""The shipped checkpoint is the published layout: both libraries load it whole and give what we give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import armillary
from armillary.decode import Sampling
from armillary.facts import Canvas
from armillary.sim.scenes import episode
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.generate import generate
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts, load_parts
from armillary.tasks.reason import stop_tokens
from armillary.wording import Wording
from tests.decoding import decode

POCKET = Path(armillary.__file__).parent / "pocket" / "checkpoint"
STEPS, SEED = 4, 3
# what diffusers says of its own use of torch
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")


@pytest.fixture(scope="module")
def parts() -> Parts:
    torch.set_num_threads(1)
    return load_parts(POCKET, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    from diffusers import Cosmos3OmniPipeline, Cosmos3OmniTransformer

    _, info = Cosmos3OmniTransformer.from_pretrained(
        POCKET / "transformer", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    pipeline = Cosmos3OmniPipeline.from_pretrained(POCKET, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("frames", [1, 9])
def test_diffusers_makes_our_frames_and_sound_from_equal_noise(
    parts: Parts, pipeline: Any, frames: int
) -> None:
    prompt, sound = "a red disc slides right and hits the wall", frames > 1
    size = {"height": 64, "width": 64, "num_frames": frames, "fps": 8.0}
    generator = torch.Generator().manual_seed(SEED)
    theirs = pipeline(
        prompt, num_inference_steps=STEPS, guidance_scale=2.0, enable_sound=sound, generator=generator, **size
    )
    options = SamplingOptions(STEPS, 2.0, seed=SEED, noise="diffusers")
    canvas = Canvas(frames, 8.0, 64, 64)
    ours = generate(parts, Wording(prompt), canvas=canvas, sound=sound, options=options)[0]
    want = np.stack([np.asarray(f) for f in theirs.video]).astype(int)
    assert ours.frames.shape == want.shape
    assert np.abs(ours.frames.astype(int) - want).max() <= 1
    if sound:
        assert ours.sound is not None
        made = theirs.sound.numpy()[:, : ours.sound.shape[1]]
        assert np.abs(ours.sound - made).max() <= 1e-3


def test_transformers_gives_our_greedy_text_about_a_picture(parts: Parts) -> None:
    from transformers import Cosmos3OmniForConditionalGeneration

    model, info = Cosmos3OmniForConditionalGeneration.from_pretrained(
        POCKET, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    picture = episode("still", 5, split="test").picture()
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "Describe this."}]
    talk = converse(parts, [{"role": "user", "content": content}])
    ids = talk.context.ids_A[None]
    patches = talk.seen[0].patches
    pad = json.loads((POCKET / "config.json").read_text())["image_token_id"]
    theirs = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=patches.pixels_NP,
        image_grid_thw=torch.tensor([patches.grid]),
        mm_token_type_ids=(ids == pad).int(),
        max_new_tokens=24,
        do_sample=False,
    )[0, ids.shape[1] :].tolist()
    sampling = Sampling(max_tokens=24)
    ours = [t.id for t in decode(parts.network, talk.context, sampling=sampling, eos=stop_tokens(parts))]
    end = parts.text.special("<|im_end|>")
    assert [i for i in ours if i != end] == [i for i in theirs if i != end]


def test_its_tokenizer_and_template_are_read_alike(parts: Parts) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(POCKET / "text_tokenizer")
    messages = [{"role": "user", "content": "Where is the red disc? Answer with a box."}]
    ids = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    assert parts.text.render(messages) == list(ids["input_ids"] if hasattr(ids, "keys") else ids)


def test_it_is_small_enough_to_ship() -> None:
    assert sum(f.stat().st_size for f in POCKET.rglob("*") if f.is_file()) < 16_000_000
