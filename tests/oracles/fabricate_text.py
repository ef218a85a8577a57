"""Small byte-level tokenizers with the published marks and chat templates."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

CORPUS = (
    "a red disc rolls right and hits the wall. where is the blue square? the video is of 24 FPS resolution."
)
NANO_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
THINK_MARKS = ("<think>", "</think>")
EDGE_MARKS = {  # Edge keeps its marks among the first ids
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    10: "<|im_start|>",
    11: "<|im_end|>",
    12: "<think>",
    13: "</think>",
    18: "<|video_pad|>",
    19: "<|image_pad|>",
    20: "<|vision_start|>",
    21: "<|vision_end|>",
}

CONTENT = r"""
{%- set count = namespace(images=0, videos=0) -%}
{%- macro show(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
        {%- set count.images = count.images + 1 -%}
        {%- if add_vision_id -%}{{- 'Picture ' ~ count.images ~ ': ' -}}{%- endif -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- elif part.type == 'video' or 'video' in part -%}
        {%- set count.videos = count.videos + 1 -%}
        {%- if add_vision_id -%}{{- 'Video ' ~ count.videos ~ ': ' -}}{%- endif -%}
        {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
      {%- elif 'text' in part -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
"""
TURNS = r"""
{%- for message in turns -%}
  {{- '<|im_start|>' + message.role + '\n' + show(message.content) + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' + opening -}}{%- endif -%}
"""
NANO_START = r"""
{%- set turns = messages -%}
{%- set opening = '' -%}
"""
EDGE_START = r"""
{%- set has_system = messages[0].role == 'system' -%}
{%- set turns = messages[1:] if has_system else messages -%}
{%- set opening = '<think>\n' if enable_thinking | default(true) else '<think></think>' -%}
{{- '\n<|im_start|>system\n' + (show(messages[0].content) if has_system else '') + '<|im_end|>\n' -}}
"""


def byte_tokenizer(first_marks: Iterable[str] = ()) -> Tokenizer:
    """Byte-level BPE, split as Qwen splits, with a few merges learned from one line of text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=list(first_marks), show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def nano_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(list(NANO_MARKS))
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in THINK_MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CONTENT + NANO_START + TURNS,
        clean_up_tokenization_spaces=False,
    )


def edge_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(EDGE_MARKS.get(i, f"<SPECIAL_{i}>") for i in range(24)),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CONTENT + EDGE_START + TURNS,
        clean_up_tokenization_spaces=False,
    )


def token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    marks = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    marks |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {f"{name}_token_id": tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}
