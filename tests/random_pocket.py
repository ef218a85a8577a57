"""A checkpoint of pocket's layout with random weights, narrower still: what the tests load in a moment."""

from pathlib import Path

import torch

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.wan_vae import WanVAE
from armillary.shards import sources, write_file, write_json
from armillary.train.audio import pocket_audio_config
from armillary.train.layout import Pocket, build_tokenizer, write_checkpoint
from armillary.train.video import pocket_video_config
from armillary.weights import TRANSFORMER

WORDS = [
    "Where is the red disc?",
    "a green square rolls right and hits the wall",
    "push the blue triangle left",
]


def random_pocket(folder: Path, seed: int = 0) -> Path:
    """Write every part of the checkpoint, fp32; returns the folder."""
    write_checkpoint(Pocket(seed), build_tokenizer(WORDS), folder, torch.float32)
    video = WanVAE(pocket_video_config())
    audio = AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))
    for name, network in (("vae", video), ("sound_tokenizer", audio)):
        write_json(network.config.to_dict(), folder / name / "config.json")
        write_file(sources(network.state_dict()), folder / name / f"{TRANSFORMER}.safetensors")
    return folder
