"""What pocket is made of: its numbers, its tokenizer, and the published folder they are written to.

Everything is the published classes with small numbers. Where a number is free it is chosen for a table-top
of 64 x 64 pixels at 8 frames a second: one position unit a latent frame, a quarter of one an action, an
eighth of one a sound token.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from armillary.codecs.qwen_vit import QwenViT, QwenViTConfig
from armillary.codecs.sight import POCKET_CLIPS, POCKET_PICTURES
from armillary.model import Block, Config, DomainLinear, Network, Port
from armillary.sequence import Kind
from armillary.shards import sources, write_json
from armillary.train import files
from armillary.train.dense import HEARD, WIDTH
from armillary.weights import Traits, published_config, published_state, write_towers

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = ("<think>", "</think>")
VOCABULARY = 768
FLOW_SHIFT = 4.5
LATENT, SOUND_LATENT, ACTION_WIDTH = 8, 16, 4
SOUND_FPS = 16.0

# The sentences that surround every prompt are cut as wholes, so that they cost a token or two and not forty.
_SENTENCES = (
    r"\. The video is(?: not)? [\d.]+ seconds long and is(?: not)? of \d+ FPS",
    r"The video is(?: not)? [\d.]+ seconds long and is(?: not)? of \d+ FPS",
    r"\. This (?:video|image) is(?: not)? of \d+x\d+ resolution\.",
    r"This (?:video|image) is(?: not)? of \d+x\d+ resolution\.",
    r'\{"cinematography": \{"framing": "[^"]*"\}, "actions": \[\{"time": "[\d:-]+", "description": "',
    (
        r'\.?"\}\], "duration": "\d+s", "fps": [\d.]+, '
        r'"resolution": \{"H": \d+, "W": \d+\}, "aspect_ratio": "[\d,]+"\}'
    ),
    r'[\]}",. ]*[\[{ ]*"[a-z_0-9]+": [\[{"]*',  # a key of JSON with the punctuation on both its sides
    r"<[\d.]+ seconds>",
    r", (?=\p{N})",
)
_WORDS = (  # Qwen's own rule
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' or part.type == 'image_url' or 'image' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or part.type == 'video_url' or 'video' in part %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in part %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def pocket_config(vocabulary: int = VOCABULARY) -> Config:
    """The two towers: 5 layers of width 192, 6 query and 2 key heads of 32."""
    return Config(
        width=192,
        layers=5,
        heads=6,
        kv_heads=2,
        head_size=32,
        mlp=512,
        vocabulary=vocabulary,
        features={"vision": 4 * LATENT, "sound": SOUND_LATENT, "action": ACTION_WIDTH},
        rope_theta=100.0,
        rope_axes=(6, 5, 5),
        margin=10,
    )


def pocket_traits() -> Traits:
    """What pocket's pictures, sounds and actions are made of.

    By the published rule a second of sound is as long, on the axis of time, as four seconds of video: the
    video's time is divided by its autoencoder's factor, the sound's is not. Nothing but positions is made of
    `sound_latent_fps`; with four times the true rate every token of sound stands at the frame it sounds with.
    """
    return Traits(
        latent_channel=LATENT,
        base_fps=8.0,
        action_gen=True,
        action_dim=ACTION_WIDTH,
        sound_gen=True,
        sound_dim=SOUND_LATENT,
        sound_latent_fps=4 * SOUND_FPS,
    )


def pocket_sight_config() -> QwenViTConfig:
    """The Qwen3-VL vision tower: 4 pixels a patch, 64 tokens a picture, one deepstack level."""
    return QwenViTConfig(
        depth=3,
        hidden_size=96,
        intermediate_size=288,
        num_heads=3,
        out_hidden_size=192,
        num_position_embeddings=256,
        deepstack_visual_indexes=(1,),
        patch_size=4,
    )


class Pocket(nn.Module):
    """The parts that the reasoner and generator stages train together.

    The heads begin at zero, so that they teach nothing before they have learnt something.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.network = Network(pocket_config())
        self.sight = QwenViT(pocket_sight_config())
        _start_small(self.network)
        _tie_ports(self.network)
        nn.init.normal_(self.sight.pos_embed.weight, std=0.3)
        # what is told of every visual token, by the vision tower and by the AR tower, and of what the DM
        # tower draws, visual and sound: for training alone
        width = self.network.config.width
        self.tell, self.tell_drawn = (
            nn.ModuleList(nn.Sequential(nn.RMSNorm(width), nn.Linear(width, n)) for n in told)
            for told in ((WIDTH, WIDTH), (WIDTH, HEARD))
        )
        for name, p in [*self.tell.named_parameters(), *self.tell_drawn.named_parameters()]:
            if not name.endswith("0.weight"):  # but their norms
                nn.init.zeros_(p)

    def copy_tower(self) -> None:
        """Start the DM tower as a copy of the AR tower (spec/training 1.3): the shapes are the same, the
        roles differ."""
        for block in self.network.blocks:
            assert isinstance(block, Block)
            block.dm.load_state_dict(block.ar.state_dict())
        self.network.norm_dm.load_state_dict(self.network.norm_ar.state_dict())


def _start_small(network: Network) -> None:
    """Residual branches start small for their depth; attention starts a little sharp."""
    depth = 2 * len(network.blocks)
    for name, p in network.named_parameters():
        if name.endswith((".o.weight", ".down.weight")):
            nn.init.normal_(p, std=0.5 / math.sqrt(p.shape[1] * depth))
        elif name.endswith(("norm_q.weight", "norm_k.weight")):
            nn.init.constant_(p, 1.4)
    nn.init.normal_(network.embed.weight, std=0.5)


@torch.no_grad()
def _tie_ports(network: Network) -> None:
    """In and out projections start tied, so that the first velocity is a multiple of the noisy input."""
    width = network.config.width
    for kind, port in network.ports.items():
        assert isinstance(port, Port)
        enter, leave = port.enter, port.leave
        count = network.config.features[cast(Kind, kind)]
        basis_EF = torch.linalg.qr(torch.randn(width, count))[0]
        if isinstance(enter, DomainLinear) and isinstance(leave, DomainLinear):
            enter.weight.weight.copy_((1.5 * basis_EF.T).reshape(1, -1).expand_as(enter.weight.weight))
            leave.weight.weight.copy_((0.35 * basis_EF).reshape(1, -1).expand_as(leave.weight.weight))
            biases = (enter.bias.weight, leave.bias.weight)
        else:
            assert isinstance(enter, nn.Linear)
            assert isinstance(leave, nn.Linear)
            enter.weight.copy_(1.5 * basis_EF)
            leave.weight.copy_(0.35 * basis_EF.T)
            biases = (enter.bias, leave.bias)
        for bias in biases:
            bias.zero_()
        if port.mark is not None:
            nn.init.normal_(port.mark, std=0.3)


def build_tokenizer(corpus: Iterable[str]) -> Tokenizer:
    """A byte-level BPE with Qwen's special tokens and word rules, trained on the world's own words."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex("|".join((*_SENTENCES, _WORDS))), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in TAGS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`text_tokenizer/`: the chat template, the config, and last tokenizer.json: where it is, all are."""
    files.write(CHAT_TEMPLATE.encode(), folder / "chat_template.jinja")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(config, folder / "tokenizer_config.json")
    files.write(tokenizer.to_str(pretty=True).encode(), folder / "tokenizer.json")


def write_checkpoint(
    pocket: Pocket, tokenizer: Tokenizer, folder: Path, dtype: torch.dtype = torch.float16
) -> None:
    """Everything of pocket but its codecs (`vae/`, `sound_tokenizer/`), in the published layout."""
    network = pocket.network
    write_tokenizer(tokenizer, folder / "text_tokenizer")
    write_json(published_config(network.config, pocket_traits()), folder / "transformer" / "config.json")
    write_towers(
        folder,
        sources(published_state(network), dtype),
        sources(pocket.sight.state_dict(), dtype),
    )
    write_json(_root_config(network.config, tokenizer), folder / "config.json")
    write_json(_scheduler(), folder / "scheduler" / "scheduler_config.json")
    write_json(_model_index(), folder / "model_index.json")
    write_json(POCKET_PICTURES.to_dict(), folder / "preprocessor_config.json")
    write_json(POCKET_CLIPS.to_dict(), folder / "video_preprocessor_config.json")
    end = tokenizer.token_to_id("<|im_end|>")
    generation = {
        "eos_token_id": end,
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "do_sample": False,
    }
    write_json(generation, folder / "generation_config.json")


def _root_config(c: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """The reasoner's configuration as transformers reads it."""
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "intermediate_size": c.mlp,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": c.eps,
        "max_position_embeddings": 4096,
        "rope_theta": c.rope_theta,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_section": list(c.rope_axes),
            "mrope_interleaved": True,
        },
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    return {
        "model_type": "cosmos3_omni",
        "architectures": ["Cosmos3OmniForConditionalGeneration"],
        "text_config": text,
        "vision_config": pocket_sight_config().to_dict(),
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "tie_word_embeddings": False,
    }


def _scheduler() -> dict[str, Any]:
    return {
        "_class_name": "UniPCMultistepScheduler",
        "num_train_timesteps": 1000,
        "prediction_type": "flow_prediction",
        "use_flow_sigmas": True,
        "flow_shift": FLOW_SHIFT,
        "solver_order": 2,
        "solver_type": "bh2",
        "predict_x0": True,
        "lower_order_final": True,
        "final_sigmas_type": "zero",
        "timestep_spacing": "linspace",
    }


def _model_index() -> dict[str, Any]:
    return {
        "_class_name": "Cosmos3OmniPipeline",
        "_diffusers_version": "0.42.1",
        "transformer": ["diffusers", "Cosmos3OmniTransformer"],
        "text_tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "sound_tokenizer": ["diffusers", "Cosmos3AVAEAudioTokenizer"],
        "safety_checker": [None, None],
        "enable_safety_checker": False,
        "default_use_system_prompt": False,
        "use_native_flow_schedule": True,
    }
