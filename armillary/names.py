"""What a tensor is called: our module paths, the published names, and the other spellings in use."""

# our module path -> the published one
_TOP = {
    "embed": "embed_tokens",
    "norm_ar": "norm",
    "norm_dm": "norm_moe_gen",
    "head": "lm_head",
    "time.first": "time_embedder.linear_1",
    "time.second": "time_embedder.linear_2",
    "ports.vision.enter": "proj_in",
    "ports.vision.leave": "proj_out",
    "ports.sound.enter": "audio_proj_in",
    "ports.sound.leave": "audio_proj_out",
    "ports.sound.mark": "audio_modality_embed",
    "ports.action.enter.weight": "action_proj_in.fc",
    "ports.action.enter.bias": "action_proj_in.bias",
    "ports.action.leave.weight": "action_proj_out.fc",
    "ports.action.leave.bias": "action_proj_out.bias",
    "ports.action.mark": "action_modality_embed",
}
_LAYER = {
    "ar.q": "self_attn.to_q",
    "ar.k": "self_attn.to_k",
    "ar.v": "self_attn.to_v",
    "ar.o": "self_attn.to_out",
    "ar.norm_q": "self_attn.norm_q",
    "ar.norm_k": "self_attn.norm_k",
    "ar.norm_shown": "self_attn.k_norm_und_for_gen",
    "ar.norm_in": "input_layernorm",
    "ar.norm_mlp": "post_attention_layernorm",
    "ar.gate": "mlp.gate_proj",
    "ar.up": "mlp.up_proj",
    "ar.down": "mlp.down_proj",
    "dm.q": "self_attn.add_q_proj",
    "dm.k": "self_attn.add_k_proj",
    "dm.v": "self_attn.add_v_proj",
    "dm.o": "self_attn.to_add_out",
    "dm.norm_q": "self_attn.norm_added_q",
    "dm.norm_k": "self_attn.norm_added_k",
    "dm.norm_in": "input_layernorm_moe_gen",
    "dm.norm_mlp": "post_attention_layernorm_moe_gen",
    "dm.gate": "mlp_moe_gen.gate_proj",
    "dm.up": "mlp_moe_gen.up_proj",
    "dm.down": "mlp_moe_gen.down_proj",
}


def published_name(ours: str) -> str:
    """The name on disk of one of our transformer parameters."""
    if ours in _TOP:  # a bare parameter
        return _TOP[ours]
    path, leaf = ours.rsplit(".", 1)
    if path.startswith("blocks."):
        _, number, rest = path.split(".", 2)
        return f"layers.{number}.{_LAYER[rest]}.{leaf}"
    return f"{_TOP[path]}.{leaf}"


# other spellings: the framework's and transformers'
_LEADS = ("transformer.", "vision_encoder.", "model.", "net.", "language_model.")
_TOP_ELSEWHERE = {
    "vae2llm": "proj_in",
    "llm2vae": "proj_out",
    "time_embedder.mlp.0": "time_embedder.linear_1",
    "time_embedder.mlp.2": "time_embedder.linear_2",
    "sound2llm": "audio_proj_in",
    "llm2sound": "audio_proj_out",
    "sound_modality_embed": "audio_modality_embed",
    "action2llm": "action_proj_in",
    "llm2action": "action_proj_out",
}
_LAYER_ELSEWHERE = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "o_proj": "to_out",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
    "q_proj_moe_gen": "add_q_proj",
    "k_proj_moe_gen": "add_k_proj",
    "v_proj_moe_gen": "add_v_proj",
    "o_proj_moe_gen": "to_add_out",
    "q_norm_moe_gen": "norm_added_q",
    "k_norm_moe_gen": "norm_added_k",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
SHOWN = ".k_norm_und_for_gen."
HEADS = {"sound": ("audio_proj_", "audio_modality_"), "action": ("action_proj_", "action_modality_")}
_DRAWING = (*HEADS["sound"], *HEADS["action"], "proj_in.", "proj_out.", "time_embedder.")
_DRAWING_INSIDE = ("moe_gen", ".add_", ".to_add_out.", ".norm_added_", SHOWN)
_SIGHT = (
    *("blocks.", "merger.", "patch_embed.", "pos_embed.", "deepstack_merger_list."),
    *("visual.", "projector."),
)


def canonical(name: str) -> str:
    """The published name of a transformer's tensor in any spelling (spec/model 2.3 to 2.5); others lose their
    leading words only."""
    while name.startswith(_LEADS):
        name = name.partition(".")[2]
    words = name.split(".")
    if words[0] == "layers" and len(words) > 3:
        words[3] = _LAYER_ELSEWHERE.get(words[3], words[3])
        return ".".join(words)
    for other, published in _TOP_ELSEWHERE.items():
        if name == other or name.startswith(f"{other}."):
            return published + name.removeprefix(other)
    return name


def is_sight(name: str) -> bool:
    """Whether a canonical name belongs to the vision tower."""
    return name.startswith(_SIGHT)


def is_drawing(name: str) -> bool:
    """Whether a published name belongs to the tower and the heads that draw."""
    return name.startswith(_DRAWING) or any(part in name for part in _DRAWING_INSIDE)


# What the published `transformer/config.json` hold beside what is read or written here, without a use.
UNUSED = (
    *(
        "_diffusers_version",
        "dtype",
        "torch_dtype",
        "freeze_und",
        "initializer_range",
        "max_action_dim",
        "use_cache",
    ),
    *(
        "model_type",
        "position_embedding_type",
        "qk_norm",
        "qk_norm_for_diffusion",
        "use_moe",
        "rope_axes_dim",
    ),
    *("temporal_compression_factor", "temporal_compression_factor_sound", "video_temporal_causal"),
    *("joint_attn_implementation", "max_position_embeddings", "backbone_type", "_name_or_path"),
)
