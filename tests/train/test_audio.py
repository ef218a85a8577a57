"""The trainer of pocket's audio autoencoder."""

import random
import time
from pathlib import Path

import pytest
import torch

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.train.audio import (
    AudioJob,
    distance_from_unit,
    judge,
    pocket_audio_config,
    random_clips,
    spectrum_error,
    wave_error,
)
from armillary.train.loop import Schedule, train


def test_pocket_has_16_latents_a_second_and_few_parameters() -> None:
    network = AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))
    assert (network.hop, network.sample_rate, network.latent_length(18_000)) == (1000, 16_000, 18)
    assert network.config.vocoder_input_dim == 16
    assert sum(p.numel() for p in network.parameters()) <= 500_000


def test_sounds_fit_nine_frames_and_many_clips_are_silent() -> None:
    waveform_BCN, events = random_clips(random.Random(0), 40)
    assert waveform_BCN.shape == (40, 2, 18_000)
    assert waveform_BCN.dtype == torch.float32
    silent = [not own for own in events]
    assert [bool(s) for s in (waveform_BCN == 0).all(dim=(1, 2))] == silent
    assert 4 < sum(silent) < 20


def test_errors_vanish_on_the_target_and_stay_finite_on_silence() -> None:
    target_BCN = random_clips(random.Random(1), 4)[0]
    assert wave_error(target_BCN, target_BCN) == 0
    assert spectrum_error(target_BCN, target_BCN) == 0
    silent_BCN = torch.zeros(1, 2, 18_000, requires_grad=True)
    (wave_error(silent_BCN, target_BCN) + spectrum_error(silent_BCN, torch.zeros(1, 2, 18_000))).backward()
    assert silent_BCN.grad is not None
    assert silent_BCN.grad.isfinite().all()


def test_unit_latents_are_at_no_distance() -> None:
    latents_BST = torch.randn(8, 4, 500, generator=torch.Generator().manual_seed(0))
    assert distance_from_unit(latents_BST) < 0.01
    assert distance_from_unit(3 * latents_BST) > 1
    assert distance_from_unit(latents_BST + 1) > 0.9


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    schedule, quiet = Schedule(4, 1e-3), lambda _: None
    whole = train(AudioJob(clips=1), schedule, tmp_path / "whole", tell=quiet)
    train(AudioJob(clips=1), schedule, tmp_path / "parts", tell=quiet, stop_after=2)
    parts = train(AudioJob(clips=1, seed=9), schedule, tmp_path / "parts", tell=quiet)
    for (name, a), b in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b), name


@torch.no_grad()
def test_judgement_of_a_perfect_and_of_a_mute_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network = AudioJob().model
    heard: list[torch.Tensor] = []

    def encode(waveform_BCN: torch.Tensor) -> torch.Tensor:
        heard.append(waveform_BCN)
        return torch.randn(len(waveform_BCN), 16, 18)

    monkeypatch.setattr(network, "encode", encode)
    monkeypatch.setattr(network, "decode", lambda _: heard[-1] * 0.9)
    good = judge(network)
    assert good.snr == pytest.approx(20, abs=0.01)
    assert (good.onsets, good.hiss) == (1.0, 0.0)
    monkeypatch.setattr(network, "decode", lambda _: torch.zeros_like(heard[-1]))
    mute = judge(network)
    assert mute.snr == pytest.approx(0, abs=0.01)
    assert mute.onsets == 0


@torch.no_grad()
def test_a_clip_is_decoded_in_40_ms_of_one_thread() -> None:
    network, latents_BST = AudioJob().model, torch.randn(1, 16, 18)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    network.decode(latents_BST)
    times: list[float] = []
    for _ in range(5):
        begun = time.thread_time()
        network.decode(latents_BST)
        times.append(time.thread_time() - begun)
    torch.set_num_threads(threads)
    assert min(times) < 0.04
