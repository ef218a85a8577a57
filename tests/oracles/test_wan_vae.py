"""The video autoencoder against diffusers' `AutoencoderKLWan`, small and random, in fp32."""

import functools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from armillary.codecs.wan_vae import Stream, WanVAE, WanVAEConfig
from armillary.errors import BadRequest

SMALL: dict[str, Any] = {
    "z_dim": 6,
    "base_dim": 8,
    "decoder_base_dim": 8,
    "num_res_blocks": 1,
    "attn_scales": [],
    "dropout": 0.0,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_temporal": 4,
    "latents_mean": [0.3, -0.2, 0.1, 0.0, -0.5, 0.4],
    "latents_std": [0.5, 1.5, 1.0, 0.7, 2.0, 0.9],
}
THREE = SMALL | {"dim_mult": [1, 2, 2], "temperal_downsample": [True, True], "scale_factor_spatial": 8}
FOUR = SMALL | {
    "decoder_base_dim": 4,
    "dim_mult": [1, 2, 4, 4],
    "temperal_downsample": [False, True, True],
    "scale_factor_spatial": 16,
}
BOTH = pytest.mark.parametrize("published", [THREE, FOUR], ids=["three stages", "four stages"])


def oracle_of(published: dict[str, Any], seed: int) -> Any:
    """The oracle with every parameter perturbed, so that no zero bias or unit scale hides a mistake."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
    torch.manual_seed(seed)
    oracle = AutoencoderKLWan(**published).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return oracle


@functools.cache
def pair(stages: int, seed: int = 0) -> tuple[WanVAE, Any]:
    published = {3: THREE, 4: FOUR}[stages]
    oracle = oracle_of(published, seed)
    ours = WanVAE(WanVAEConfig.from_dict(published)).eval()
    ours.load_state_dict(oracle.state_dict(), strict=True)
    return ours, oracle


def clip(vae: WanVAE, frames: int, height: int = 5, width: int = 7, batch: int = 1, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    side = vae.config.scale_factor_spatial
    return torch.rand(batch, 3, frames, height * side, width * side, generator=generator) * 2 - 1


def latents(vae: WanVAE, count: int, height: int = 5, width: int = 7, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, vae.config.z_dim, count, height, width, generator=generator)


def difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected."""
    assert found.shape == expected.shape
    return ((found - expected).abs().max() / expected.abs().max()).item()


def statistics(vae: WanVAE) -> tuple[Tensor, Tensor]:
    return tuple(
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )  # type: ignore[return-value]


CASES = [(stages, frames, seed) for stages in (3, 4) for frames, seed in ((1, 0), (5, 1), (9, 0), (13, 1))]


@torch.no_grad()
@pytest.mark.parametrize(("stages", "frames", "seed"), CASES)
def test_encoding_equals_the_oracle(stages: int, frames: int, seed: int) -> None:
    ours, oracle = pair(stages, seed)
    # An odd latent size; small for the deeper network, whose frames are larger.
    frames_BCTHW = clip(ours, frames, *((5, 7) if stages == 3 else (3, 1)))
    posterior = oracle.encode(frames_BCTHW).latent_dist
    mean_BZthw, logvar_BZthw = ours.encode_moments(frames_BCTHW)
    assert difference(mean_BZthw, posterior.mean) <= 1e-5
    assert difference(logvar_BZthw, posterior.logvar) <= 1e-5
    center, deviation = statistics(ours)
    assert difference(ours.encode(frames_BCTHW), (posterior.mode() - center) / deviation) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(("stages", "frames", "seed"), CASES)
def test_decoding_equals_the_oracle(stages: int, frames: int, seed: int) -> None:
    ours, oracle = pair(stages, seed)
    normal_BZthw = latents(ours, (frames + 3) // 4, *((5, 7) if stages == 3 else (3, 1)))
    center, deviation = statistics(ours)
    raw_BZthw = normal_BZthw * deviation + center
    expected_BCTHW = oracle.decode(raw_BZthw).sample
    assert expected_BCTHW.shape[2] == frames
    assert (expected_BCTHW.abs() < 1).float().mean() > 0.5  # the clamp hides little
    assert difference(ours.decode(normal_BZthw), expected_BCTHW) <= 1e-5
    assert difference(ours.decode_raw(raw_BZthw).clamp(-1, 1), expected_BCTHW) <= 1e-5


@BOTH
def test_parameter_names_and_shapes_are_the_published_ones(published: dict[str, Any]) -> None:
    oracle = oracle_of(published, seed=3)
    ours = WanVAE(WanVAEConfig.from_dict(published))
    shapes = {name: value.shape for name, value in ours.state_dict().items()}
    assert shapes == {name: value.shape for name, value in oracle.state_dict().items()}
    ours.load_state_dict(oracle.state_dict(), strict=True)
    oracle.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("prefix", [1, 5])
def test_a_prefix_encodes_as_it_does_within_the_clip(stages: int, prefix: int) -> None:
    vae, _ = pair(stages)
    frames_BCTHW = clip(vae, 9, 3, 2)
    whole_BZthw = vae.encode(frames_BCTHW)
    prefix_BZthw = vae.encode(frames_BCTHW[:, :, :prefix])
    assert difference(prefix_BZthw, whole_BZthw[:, :, : prefix_BZthw.shape[2]]) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("stages", [3, 4])
def test_the_stream_yields_one_frame_then_fours_and_equals_the_whole_clip(stages: int) -> None:
    vae, _ = pair(stages)
    latents_BZthw = latents(vae, 4, 3, 2)
    pieces = list(vae.decode_stream(latents_BZthw))
    assert [piece.shape[2] for piece in pieces] == [1, 4, 4, 4]
    assert torch.equal(torch.cat(pieces, dim=2), vae.decode(latents_BZthw))
    center, deviation = statistics(vae)
    whole_BCTHW = vae.decode_raw(latents_BZthw * deviation + center).clamp(-1, 1)
    assert difference(torch.cat(pieces, dim=2), whole_BCTHW) <= 1e-5


@torch.no_grad()
def test_a_stream_of_uneven_pieces_decodes_and_encodes_as_the_whole() -> None:
    vae, _ = pair(3)
    raw_BZthw, frames_BCTHW = latents(vae, 5, 3, 2), clip(vae, 17, 3, 2)
    stream = Stream()
    decoded = [vae.decode_raw(piece, stream) for piece in raw_BZthw.split([2, 1, 2], dim=2)]
    assert difference(torch.cat(decoded, dim=2), vae.decode_raw(raw_BZthw)) <= 1e-5
    stream = Stream()
    means = [vae.encode_moments(piece, stream)[0] for piece in frames_BCTHW.split([5, 4, 8], dim=2)]
    assert difference(torch.cat(means, dim=2), vae.encode_moments(frames_BCTHW)[0]) <= 1e-5


def test_a_long_clip_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, _ = pair(3)
    frames_BCTHW = clip(vae, 13, 2, 2)
    whole_BZthw = vae.encode(frames_BCTHW)
    monkeypatch.setattr("armillary.codecs.wan_vae.PIXELS_A_PIECE", 1)
    assert difference(vae.encode(frames_BCTHW), whole_BZthw) <= 1e-5


def test_the_memory_of_a_stream_does_not_grow() -> None:
    vae, _ = pair(3)
    stream, sizes = Stream(), list[int]()
    with torch.no_grad():
        for latent_BZ1hw in latents(vae, 5, 2, 2).split(1, dim=2):
            vae.decode_raw(latent_BZ1hw, stream)
            sizes.append(sum(past.untyped_storage().nbytes() for past in stream.past.values()))
    assert sizes[1] == sizes[2] == sizes[4]


@torch.no_grad()
def test_the_second_latent_does_not_see_the_first_through_the_time_convolutions() -> None:
    """To each time convolution of the decoder the first latent never was: the past of the second is zeros."""
    vae, _ = pair(3)
    seen = list[Tensor]()
    convolution: Any = vae.decoder.up_blocks[0].upsampler.time_conv
    handle = convolution.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    vae.decode_raw(latents(vae, 1, 2, 2))
    assert not seen
    stream = Stream()
    for latent_BZ1hw in latents(vae, 2, 2, 2).split(1, dim=2):
        vae.decode_raw(latent_BZ1hw, stream)
    handle.remove()
    assert len(seen) == 1
    past_BCtHW = stream.past[convolution]
    assert not past_BCtHW[:, :, 0].any()
    assert torch.equal(past_BCtHW[:, :, 1], seen[0][:, :, 0])


@pytest.mark.parametrize("stages", [3, 4])
def test_gradients_equal_the_oracles_and_reach_every_parameter(stages: int) -> None:
    ours, oracle = pair(stages, seed=1)
    frames_BCTHW = clip(ours, 9, 2, 2)
    means_BZthw, logvar_BZthw = ours.encode_moments(frames_BCTHW)
    posterior = oracle.encode(frames_BCTHW).latent_dist
    # Small latents, so that the oracle's clamp stops no gradient.
    ours_out, oracle_out = ours.decode_raw(0.1 * means_BZthw), oracle.decode(0.1 * posterior.mean).sample
    inside = oracle_out.detach().abs() < 1
    for vae, out, logvar in ((ours, ours_out, logvar_BZthw), (oracle, oracle_out, posterior.logvar)):
        vae.zero_grad()
        ((out * inside).square().mean() + logvar.square().mean()).backward()
    expected = {name: parameter.grad for name, parameter in oracle.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        assert (parameter.grad - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-7, name


@torch.no_grad()
def test_bfloat16_stays_close_to_float32() -> None:
    exact, oracle = pair(3)
    vae = WanVAE(exact.config).to(torch.bfloat16)
    vae.load_state_dict(oracle.state_dict())
    frames_BCTHW = clip(vae, 5, 2, 2)
    encoded_BZthw = vae.encode(frames_BCTHW.bfloat16())
    assert encoded_BZthw.dtype == torch.bfloat16
    expected_BZthw = exact.encode(frames_BCTHW)
    assert (encoded_BZthw.float() - expected_BZthw).norm() <= 0.03 * expected_BZthw.norm()
    decoded_BCTHW = vae.decode(expected_BZthw.bfloat16())
    expected_BCTHW = exact.decode(expected_BZthw)
    assert decoded_BCTHW.dtype == torch.bfloat16
    assert (decoded_BCTHW.float() - expected_BCTHW).norm() <= 0.05 * expected_BCTHW.norm()


@BOTH
def test_the_configuration_returns_to_its_published_form(published: dict[str, Any]) -> None:
    extra = published | {
        "_class_name": "AutoencoderKLWan",
        "_diffusers_version": "0.35.0",
        "clip_output": False,
    }
    config = WanVAEConfig.from_dict(extra)
    assert config.to_dict() == published | {"_class_name": "AutoencoderKLWan"}
    assert WanVAEConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_residual", False),
        ("attn_scales", [0.5]),
        ("patch_size", None),
        ("dim_mult", [1, 2, 4]),
        ("temperal_downsample", [True]),
        ("latents_mean", [0.0]),
        ("latents_std", [1.0]),
        ("scale_factor_temporal", 8),
        ("scale_factor_spatial", 16),
    ],
)
def test_a_form_that_cannot_run_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadRequest) as refusal:
        WanVAEConfig.from_dict(THREE | {field: value})
    assert refusal.value.field == field


@pytest.mark.parametrize("missing", ["is_residual", "latents_mean", "latents_std"])
def test_a_configuration_that_lacks_what_this_form_needs_is_refused(missing: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        WanVAEConfig.from_dict({name: value for name, value in THREE.items() if name != missing})
    assert refusal.value.field == missing


@pytest.mark.parametrize(
    ("shape", "field", "nearest"),
    [((6, 16, 16), "frames", "5 or 9"), ((5, 20, 16), "height", "16 or 24"), ((5, 16, 4), "width", "8")],
)
def test_frames_of_a_wrong_size_are_refused(shape: tuple[int, int, int], field: str, nearest: str) -> None:
    vae, _ = pair(3)
    with pytest.raises(BadRequest, match=nearest) as refusal:
        vae.encode(torch.zeros(1, 3, *shape))
    assert refusal.value.field == field


def test_the_published_widths_are_the_defaults() -> None:
    config = WanVAEConfig(latents_mean=(0.0,) * 48, latents_std=(1.0,) * 48)
    with torch.device("meta"):
        vae = WanVAE(config)
    count = sum(math.prod(parameter.shape) for parameter in vae.parameters())
    assert count == pytest.approx(704.69e6, rel=1e-4)
