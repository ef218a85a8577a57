"""The audio autoencoder against diffusers, on tiny random networks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.errors import BadRequest

TINY: dict[str, Any] = {
    "sampling_rate": 16000,
    "vocoder_input_dim": 4,
    "dec_dim": 4,
    "dec_c_mults": [1, 2, 3],
    "dec_strides": [2, 5, 4],
    "enc_dim": 6,
    "enc_num_blocks": 2,
    "enc_n_fft": 16,
    "enc_hop_length": 4,
    "enc_latent_dim": 8,
    "enc_c_mults": [1, 2],
    "enc_strides": [2, 5],
}
MONO = {**TINY, "stereo": False, "dec_out_channels": 1, "normalize_volume": False, "enc_use_snake": False}
ODD = {
    **TINY,
    "dec_strides": [3, 5, 3],
    "enc_n_fft": 12,
    "enc_hop_length": 3,
    "enc_strides": [3, 5],
    "hop_size": 45,
}
VARIANTS = {"stereo": TINY, "mono": MONO, "odd": ODD}


def pair(values: dict[str, Any], seed: int) -> tuple[Any, AudioVAE]:
    """The oracle with every parameter away from its initial value, and ours with the oracle's state."""
    from diffusers import Cosmos3AVAEAudioTokenizer

    torch.manual_seed(seed)
    with pytest.warns(FutureWarning, match="weight_norm"):
        oracle = Cosmos3AVAEAudioTokenizer(**values).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter) * parameter.std(correction=0).clamp(min=0.5))
    ours = AudioVAE(AudioVAEConfig.from_dict(dict(oracle.config))).eval()
    ours.load_state_dict(oracle.state_dict(), strict=True)
    return oracle, ours


def relative(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_encode_and_decode_equal_the_oracle(variant: str, seed: int) -> None:
    oracle, ours = pair(VARIANTS[variant], seed)
    for samples in (ours.hop * 7, ours.hop * 6 + 1, ours.hop * 5 - 1, 13):
        waveform_BCN = 0.3 * torch.randn(1, ours.config.channels, samples)
        posterior = oracle.encode(waveform_BCN).latent_dist
        mean_BST, deviation_BST = ours.encode_moments(waveform_BCN)
        assert mean_BST.shape[-1] == ours.latent_length(samples)
        assert relative(mean_BST, posterior.mode()) <= 1e-5
        assert relative(deviation_BST, posterior.std) <= 1e-5
        assert torch.equal(ours.encode(waveform_BCN), mean_BST)
    for steps in (1, 2, 9):
        latents_BST = torch.randn(2, ours.config.vocoder_input_dim, steps)
        decoded_BCN = ours.decode(latents_BST)
        assert decoded_BCN.shape == (2, ours.config.dec_out_channels, steps * ours.hop)
        assert relative(decoded_BCN, oracle.decode(latents_BST)) <= 1e-5
        assert relative(ours.decoder(latents_BST), oracle.decoder(latents_BST)) <= 1e-5


@torch.no_grad()
def test_decoded_sound_is_clamped() -> None:
    _, ours = pair(TINY, 0)
    loud_BCN = ours.decode(1000 * torch.randn(1, 4, 3))
    assert loud_BCN.abs().max().item() == 1.0


@torch.no_grad()
def test_a_batch_equals_each_waveform_alone() -> None:
    _, ours = pair(TINY, 1)
    waveform_BCN = torch.randn(2, 2, 100) * torch.tensor([0.5, 0.01]).view(2, 1, 1)
    alone_BST = torch.cat([ours.encode(waveform_BCN[:1]), ours.encode(waveform_BCN[1:])])
    assert relative(ours.encode(waveform_BCN), alone_BST) <= 1e-5


@torch.no_grad()
def test_published_sizes_names_and_arithmetic() -> None:
    from diffusers import Cosmos3AVAEAudioTokenizer

    with torch.device("meta"):
        with pytest.warns(FutureWarning, match="weight_norm"):
            oracle = Cosmos3AVAEAudioTokenizer()
        ours = AudioVAE(AudioVAEConfig())
    shapes = [
        {name: value.shape for name, value in network.state_dict().items()} for network in (oracle, ours)
    ]
    assert shapes[0] == shapes[1]
    assert (ours.hop, ours.sample_rate) == (oracle._hop_size, 48000) == (1920, 48000)
    assert [ours.latent_length(n) for n in (0, 1, 1920, 1921, 48000, 378000)] == [0, 1, 1, 2, 25, 197]


def test_config_returns_as_it_came() -> None:
    from diffusers import Cosmos3AVAEAudioTokenizer

    with pytest.warns(FutureWarning, match="weight_norm"):
        oracle = Cosmos3AVAEAudioTokenizer(**ODD)
    published = {
        key: list(v) if isinstance(v, tuple) else v for key, v in oracle.config.items() if key[0] != "_"
    }
    config = AudioVAEConfig.from_dict({**published, "a_key_of_tomorrow": 1})
    assert config.to_dict() == {**published, "_class_name": "Cosmos3AVAEAudioTokenizer"}
    assert AudioVAEConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"causal": True}, "causal"),
        ({"bottleneck": {"type": "vq"}}, "bottleneck"),
        ({"latent_mean": [0.0]}, "latent_mean"),
        ({"enc_strides": [2, 4]}, "enc_strides"),
        ({"hop_size": 41}, "hop_size"),
        ({"enc_latent_dim": 4}, "enc_latent_dim"),
        ({"dec_c_mults": [1, 2]}, "dec_c_mults"),
    ],
)
def test_unsupported_config_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        AudioVAEConfig.from_dict({**TINY, **change})


@torch.no_grad()
def test_decoder_only_checkpoint_decodes_and_says_why_it_cannot_encode() -> None:
    _, whole = pair(TINY, 2)
    half = {name: value for name, value in whole.state_dict().items() if name.startswith("decoder.")}
    ours = AudioVAE(whole.config)
    ours.load_state_dict(half, strict=True)
    assert ours.config == replace(whole.config, encoder_enabled=False)
    latents_BST = torch.randn(1, 4, 3)
    assert torch.equal(ours.decode(latents_BST), whole.decode(latents_BST))
    with pytest.raises(BadRequest, match="only the audio decoder"):
        ours.encode(torch.zeros(1, 2, 40))
    AudioVAE(ours.config).load_state_dict(half, strict=True)


def test_wrong_channels_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"sound\.shape"):
        AudioVAE(AudioVAEConfig.from_dict(TINY)).encode(torch.zeros(1, 1, 40))


def test_gradients_reach_every_parameter() -> None:
    _, ours = pair(TINY, 3)
    mean_BST, deviation_BST = ours.encode_moments(torch.randn(2, 2, 200))
    waveform_BCN = ours.decoder(mean_BST + deviation_BST * torch.randn_like(mean_BST))
    waveform_BCN.square().mean().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_bfloat16_stays_near_float32() -> None:
    _, ours = pair(TINY, 4)
    half = AudioVAE(ours.config)
    half.load_state_dict(ours.state_dict())
    half.bfloat16()
    waveform_BCN = 0.3 * torch.randn(1, 2, 200)
    latents_BST, latents_half_BST = ours.encode(waveform_BCN), half.encode(waveform_BCN)
    assert latents_half_BST.dtype == torch.bfloat16
    assert relative(latents_half_BST.float(), latents_BST) < 0.05
    assert relative(half.decode(latents_BST).float(), ours.decode(latents_BST)) < 0.05


@torch.no_grad()
def test_pocket_is_a_legal_published_config() -> None:
    from armillary.train.audio import pocket_audio_config

    oracle, ours = pair({k: v for k, v in pocket_audio_config().items() if k[0] != "_"}, 5)
    waveform_BCN = 0.3 * torch.randn(1, 2, 18_000)
    latents_BST = ours.encode(waveform_BCN)
    assert latents_BST.shape == (1, 16, 18)
    assert relative(latents_BST, oracle.encode(waveform_BCN).latent_dist.mode()) <= 1e-5
    assert relative(ours.decode(latents_BST), oracle.decode(latents_BST)) <= 1e-5
