"""The same velocity from diffusers' transformer, for speed.py."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from armillary.locate import POCKET
from armillary.sequence import Sample
from armillary.tasks.segments import Latents
from armillary.weights import Traits


def diffusers_velocity(sample: Sample, latents: Latents, traits: Traits) -> Callable[[Tensor], list[Tensor]]:
    """`velocity(time_1)` is one call, for a sample of vision alone; the sequence is laid out before."""
    from diffusers import Cosmos3OmniPipeline
    from diffusers.utils import logging

    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of its own use of torch
        pipeline = Cosmos3OmniPipeline.from_pretrained(POCKET, dtype=torch.float32)
    tokens = latents.vision_ZThw[None]
    text = pipeline._prepare_text_segment(sample.context.ids_A.tolist(), "cpu")
    start, length = text.pop("vision_start_temporal_offset"), text["und_len"]
    vision = pipeline._prepare_vision_segment(tokens, False, start, latents.fps, length, "cpu", [])
    positions = [text.pop("text_mrope_ids"), vision.pop("vision_mrope_ids")]
    length, noisy = length + vision.pop("num_vision_tokens"), vision.pop("num_noisy_vision_tokens")

    def velocity(time_1: Tensor) -> list[Tensor]:
        drawn = pipeline.transformer(
            **text,
            **vision,
            vision_tokens=[tokens],
            vision_timesteps=time_1.expand(noisy),
            position_ids=torch.cat(positions, dim=1),
            sequence_length=length,
            return_dict=False,
        )
        return [Latents(drawn[0][0][0], latents.fps).segments(traits)[0].tokens_NF.flatten()]

    return velocity
