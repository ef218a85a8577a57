"""Whole checkpoints of random fp32 numbers in the published layout, written by diffusers and transformers.

`nano_like` and `edge_like` fill a folder that both libraries load as they load the published repositories,
about a megabyte large. Every parameter is random, norms, biases and modality embeddings too, because a number
that is exactly 1 or 0 hides its omission.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    Cosmos3AVAEAudioTokenizer,
    Cosmos3OmniPipeline,
    Cosmos3OmniTransformer,
    UniPCMultistepScheduler,
)
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import (
    Cosmos3EdgeConfig,
    Cosmos3EdgeForConditionalGeneration,
    Cosmos3OmniConfig,
    Cosmos3OmniForConditionalGeneration,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from tests.oracles.fabricate_text import edge_tokenizer, nano_tokenizer, token_ids

VOCAB = 320
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SECTIONS = [2, 1, 1]
GENERATOR = {
    "latent_channel": 4,
    "latent_patch_size": 2,
    "patch_latent_dim": 16,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": SECTIONS, "rope_type": "default"},
    "action_gen": True,
    "action_dim": 10,
    "num_embodiment_domains": 32,
}
NANO = {
    **TEXT,
    **GENERATOR,
    "num_hidden_layers": 4,
    "rope_theta": 5e6,
    "rms_norm_eps": 1e-6,
    "sound_gen": True,
    "sound_dim": 6,
}
EDGE = {
    **TEXT,
    **GENERATOR,
    "num_hidden_layers": 3,
    "rope_theta": 1e8,
    "rms_norm_eps": 1e-5,
    "hidden_act": "relu2",
    "qk_norm_for_text": False,
    "use_und_k_norm_for_gen": True,
}
NANO_SIGHT = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1, 2],
}
EDGE_SIGHT = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "num_patches": 16,
}
VIDEO = {
    "z_dim": 4,
    "base_dim": 8,
    "decoder_base_dim": 8,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_temporal": 4,
    "scale_factor_spatial": 8,
}
SOUND = {  # 16 kHz stereo, 640 samples a latent: 25 latents a second
    "sampling_rate": 16000,
    "enc_dim": 4,
    "enc_n_fft": 64,
    "enc_hop_length": 16,
    "enc_c_mults": [1, 2, 2],
    "enc_strides": [2, 4, 5],
    "enc_num_blocks": 1,
    "dec_dim": 4,
    "dec_c_mults": [1, 2, 2, 2],
    "dec_strides": [4, 4, 5, 8],
    "hop_size": 640,
}
SCHEDULER = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
NANO_SCHEDULER = {
    **SCHEDULER,
    "use_karras_sigmas": True,
    "sigma_min": 0.147,
    "sigma_max": 200.0,
    "flow_shift": 1.0,
}
EDGE_SCHEDULER = {**SCHEDULER, "use_karras_sigmas": False, "flow_shift": 3.0}


def nano_like(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """A checkpoint shaped like Cosmos3-Nano. `overrides` are keys of `transformer/config.json`."""
    config = {**NANO, **overrides}
    tokenizer = nano_tokenizer()
    pipeline = Cosmos3OmniPipeline(
        transformer=build(Cosmos3OmniTransformer, seed, **config),
        text_tokenizer=tokenizer,
        vae=video_codec(seed + 1),
        scheduler=UniPCMultistepScheduler(**NANO_SCHEDULER),
        sound_tokenizer=sound_codec(seed + 2, config["sound_dim"]) if config["sound_gen"] else None,
        enable_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    # The published transformer lies in several files.
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    pipeline.transformer.save_pretrained(folder / "transformer", max_shard_size="256KB")
    text = text_config(config, "qwen3_vl_text", pad_token_id=tokenizer.pad_token_id)
    root = Cosmos3OmniConfig(text_config=text, vision_config=NANO_SIGHT, **token_ids(tokenizer))
    sight = build(Qwen3VLVisionModel, seed + 3, config=root.vision_config)
    sight.save_pretrained(folder / "vision_encoder")
    write_root(folder, root, tokenizer, stored_names(folder, "transformer", "vision_encoder"))
    return folder


def edge_like(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """A checkpoint shaped like Cosmos3-Edge: relu2, no text query and key norms, SigLIP2 sight, no sound."""
    config = {**EDGE, **overrides}
    tokenizer = edge_tokenizer()
    pipeline = Cosmos3OmniPipeline(
        transformer=build(Cosmos3OmniTransformer, seed, **config),
        text_tokenizer=tokenizer,
        vae=video_codec(seed + 1),
        scheduler=UniPCMultistepScheduler(**EDGE_SCHEDULER),
        enable_safety_checker=False,
        default_use_system_prompt=False,
        use_native_flow_schedule=True,
    )
    pipeline.save_pretrained(folder)
    text = text_config(config, "cosmos3_edge_text", pad_token_id=0, bos_token_id=1, eos_token_id=11)
    root = Cosmos3EdgeConfig(
        text_config=text, vision_config=EDGE_SIGHT, projector_hidden_size=40, **token_ids(tokenizer)
    )
    reasoner = build(Cosmos3EdgeForConditionalGeneration, seed + 3, config=root)
    seen = {
        k: v for k, v in reasoner.state_dict().items() if k.startswith(("model.visual.", "model.projector."))
    }
    (folder / "vision_encoder").mkdir()
    save_file(seen, folder / "vision_encoder" / "model.safetensors", metadata={"format": "pt"})
    names = stored_names(folder, "transformer", "vision_encoder")
    write_root(folder, root, tokenizer, {k: v for k, v in names.items() if is_reader(k)})
    return folder


def image_to_video_like(folder: Path, *, sees: bool = True) -> Path:
    """A checkpoint shaped like Super-Image2Video: 16 base frames a second, neither sound nor action."""
    none = {"sound_gen": False, "sound_dim": None, "action_gen": False, "action_dim": None}
    nano_like(folder, base_fps=16, **none)
    path = folder / "transformer" / "config.json"
    kept = {k: v for k, v in json.loads(path.read_text()).items() if not k.startswith("action_")}
    write_json(path, kept)  # as in the published file
    if not sees:
        shutil.rmtree(folder / "vision_encoder")
        index = {"metadata": {}, "weight_map": stored_names(folder, "transformer")}
        write_json(folder / "model.safetensors.index.json", index)
    return folder


def four_step_like(folder: Path) -> Path:
    """A four-step student of the above, without sight."""
    image_to_video_like(folder, sees=False)
    sigmas = [1.0, 0.9375, 0.8333333333333334, 0.625]
    scheduler = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "shift": 1.0,
        "stochastic_sampling": True,
        "fixed_step_sampler_config": {"sample_type": "sde", "t_list": sigmas},
    }
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    index = json.loads((folder / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", scheduler["_class_name"]]
    write_json(folder / "model_index.json", index)
    student = {
        "_class_name": "Cosmos3DistilledModularPipeline",
        "_blocks_class_name": "Cosmos3DistilledBlocks",
    }
    student |= {"is_distilled": True, "distilled_sigmas": sigmas}
    write_json(folder / "modular_model_index.json", student)
    return folder


def policy_like(folder: Path, make: Callable[[Path], Path] = nano_like) -> Path:
    """A policy for one robot: the same network, marked as one that starts from the robot's state."""
    make(folder)
    write_json(folder / "checkpoint.json", {})
    return folder


MAKE: dict[str, Callable[[Path], Path]] = {
    "nano": nano_like,
    "edge": edge_like,
    "image-to-video": image_to_video_like,
    "image-to-video without sight": partial(image_to_video_like, sees=False),
    "four-step": four_step_like,
    "policy": policy_like,
    "edge-policy": partial(policy_like, make=edge_like),
}
VARIANTS = [kind for kind in MAKE if kind not in ("nano", "edge")]


@cache
def diffusers_pipeline(folder: Path, dtype: torch.dtype = torch.float32) -> Cosmos3OmniPipeline:
    """The generator as diffusers loads it."""
    with quiet():
        pipeline = Cosmos3OmniPipeline.from_pretrained(folder, dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@cache
def transformers_reasoner(
    folder: Path, dtype: torch.dtype = torch.float32, *, sees: bool = True
) -> Cosmos3OmniForConditionalGeneration | Cosmos3EdgeForConditionalGeneration:
    """The reasoner as transformers loads it. Raises ValueError if a key or a shape does not fit.

    sees: whether the tensors of the vision tower must be there; if not, none may be.
    """
    edge = json.loads((folder / "config.json").read_text())["model_type"] == "cosmos3_edge"
    kind = Cosmos3EdgeForConditionalGeneration if edge else Cosmos3OmniForConditionalGeneration
    model, report = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if not sees:
        seen = {name for name in model.state_dict() if name.startswith("model.visual.")}
        report["missing_keys"] = seen ^ set(report["missing_keys"])
    if any(report.values()):
        raise ValueError(f"{folder} does not load cleanly: {report}")
    return model.eval()


@contextmanager
def quiet() -> Iterator[None]:
    """The audio autoencoder of diffusers uses a deprecated function of torch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*weight_norm.*", category=FutureWarning)
        yield


def build(kind: Any, seed: int, **config: Any) -> Any:
    """`kind(**config)` with random weights. Nothing else that draws random numbers is disturbed."""
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        module = kind(**config)
        randomise(module)
    return module.eval()


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Matrices get the spread that keeps activations near 1; vectors keep their start, moved a little."""
    for name, parameter in module.named_parameters():
        fan_in = parameter.numel() // len(parameter)
        if parameter.squeeze().ndim < 2:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        else:  # a row of an action table is itself a matrix
            parameter.normal_(std=0.2 if name.startswith("action_proj") else fan_in**-0.5)


def video_codec(seed: int) -> AutoencoderKLWan:
    numbers = torch.Generator().manual_seed(seed)
    mean_Z, std_Z = (
        torch.randn(VIDEO["z_dim"], generator=numbers),
        torch.rand(VIDEO["z_dim"], generator=numbers) + 0.5,
    )
    return build(AutoencoderKLWan, seed, **VIDEO, latents_mean=mean_Z.tolist(), latents_std=std_Z.tolist())


def sound_codec(seed: int, channels: int) -> Cosmos3AVAEAudioTokenizer:
    return build(
        Cosmos3AVAEAudioTokenizer, seed, **SOUND, vocoder_input_dim=channels, enc_latent_dim=2 * channels
    )


def text_config(generator: dict[str, Any], model_type: str, **ids: int) -> dict[str, Any]:
    """The reasoner's text sizes, from the keys of the transformer that holds its weights."""
    shared = (*TEXT, "num_hidden_layers", "rms_norm_eps")
    rope = {**generator["rope_scaling"], "rope_theta": generator["rope_theta"]}
    if model_type == "cosmos3_edge_text":
        del rope["mrope_interleaved"]
    return {
        "model_type": model_type,
        "hidden_act": generator.get("hidden_act", "silu"),
        "max_position_embeddings": 32768,
        "rope_parameters": rope,
        **{key: generator[key] for key in shared},
        **ids,
    }


def stored_names(folder: Path, *parts: str) -> dict[str, str]:
    """Every tensor below `parts`, with its file relative to `folder`."""
    names: dict[str, str] = {}
    for file in sorted(file for part in parts for file in (folder / part).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names |= dict.fromkeys(tensors.keys(), str(file.relative_to(folder)))
    return names


def is_reader(name: str) -> bool:
    """Edge's root index leaves out what only the generator uses, but for `k_norm_und_for_gen`."""
    drawn = ("add_", "norm_added", "moe_gen", "proj_in", "proj_out", "time_embedder", "modality_embed")
    return name.startswith("model.") or not any(word in name for word in drawn)


def write_root(
    folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, names: dict[str, str]
) -> None:
    """The files by which transformers sees the folder as one model."""
    edge = config.model_type == "cosmos3_edge"
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForConditionalGeneration"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
    pixels = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        "patch_size": 4,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "temporal_patch_size": 1 if edge else 2,
    }
    kind = "Cosmos3Edge" if edge else "Qwen2VL"
    image = {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": {"shortest_edge": 256, "longest_edge": 4096},
    }
    write_json(folder / "preprocessor_config.json", {**pixels, **image})
    kind = "Cosmos3Edge" if edge else "Qwen3VL"
    video = {
        "video_processor_type": f"{kind}VideoProcessor",
        "size": {"shortest_edge": 256, "longest_edge": 16384},
        "do_sample_frames": True,
        "fps": 2,
        "min_frames": 4,
        "max_frames": 768,
    }
    write_json(folder / "video_preprocessor_config.json", {**pixels, **video})


def write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
