"""Decoding: the choice of tokens, stopping, and text that comes in pieces."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from armillary.codecs.text import Spelling, TextCodec
from armillary.decode import Finder, Sampler, Sampling
from armillary.errors import BadRequest
from tests.oracles.fabricate_text import nano_tokenizer


def draws(logits: Sequence[float], count: int = 400, prompt: Sequence[int] = (), **options: float) -> Tensor:
    """How often each token comes, each time as the first of its answer."""
    logits_V, counts_V = torch.tensor(logits), torch.zeros(len(logits))
    for seed in range(count):
        sampling = Sampling(seed=seed, **({"temperature": 1.0} | options))  # pyright: ignore[reportArgumentType]
        counts_V[
            Sampler(sampling, torch.tensor(prompt, dtype=torch.int64), len(logits)).choose(logits_V)
        ] += 1
    return counts_V / count


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().tolist()
    assert (draws(logits) > 0).tolist() == [True] * 4
    assert (draws(logits, top_k=2) > 0).tolist() == [False, True, False, True]
    assert (draws(logits, top_p=0.6) > 0).tolist() == [False, True, False, True]
    assert (draws(logits, top_p=0.75) > 0).tolist() == [False, True, True, True]


def test_frequencies_follow_the_chances_and_the_temperature() -> None:
    chances = torch.tensor([0.1, 0.4, 0.2, 0.3])
    assert (draws(chances.log().tolist(), 2000) - chances).abs().max() < 0.04
    sharper = chances**2 / (chances**2).sum()
    assert (draws(chances.log().tolist(), 2000, temperature=0.5) - sharper).abs().max() < 0.04


def test_repetition_penalty_weighs_on_prompt_and_answer() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0), torch.tensor([0]), 3)
    assert sampler.choose(torch.tensor([1.0, 0.6, -0.1])) == 1  # 0.5, 0.6, -0.1
    assert sampler.choose(torch.tensor([1.0, 0.6, 0.4])) == 0  # 0.5, 0.3, 0.4
    assert sampler.choose(torch.tensor([-1.0, -1.2, -1.5])) == 2  # -2, -2.4, -1.5


def test_presence_penalty_weighs_on_the_answer_alone() -> None:
    sampler = Sampler(Sampling(presence_penalty=0.5), torch.tensor([0]), 3)
    assert [sampler.choose(torch.tensor([1.0, 0.7, 0.1])) for _ in range(4)] == [0, 1, 0, 0]


@pytest.mark.parametrize("options", [{"top_p": 1e-50}, {"top_p": 5e-324}, {"top_p": 0.5, "top_k": 1}])
def test_however_little_is_kept_the_likeliest_token_stays(options: dict[str, float]) -> None:
    assert draws([0.0, 1.0, 0.5], 20, **options).tolist() == [0, 1, 0]


@pytest.mark.parametrize("penalty", [1e-30, 1e-45, 5e-324])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_smallest_penalty_makes_the_likeliest_met_token_certain(
    penalty: float, temperature: float
) -> None:
    sampler = Sampler(Sampling(repetition_penalty=penalty, temperature=temperature), torch.tensor([0, 3]), 4)
    assert sampler.choose(torch.tensor([0.5, 2.0, -1.0, 0.0])) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0: at least 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
        ({"top_k": 5}, "greedy ignores it"),
        ({"top_p": 0.5}, "greedy ignores it"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"seed": -1}, "seed"),
        ({"stop": ("",)}, "stop"),
    ],
)
def test_sampling_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        Sampling(**options)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder: Path = tmp_path_factory.mktemp("text")
    nano_tokenizer().save_pretrained(folder)
    return TextCodec.load(folder)


def test_text_comes_in_whole_characters_and_once(codec: TextCodec) -> None:
    text = "snow 雪, a fox 🦊🏽, 한글 ďá and e\u0301"
    spelling, ids = Spelling(codec), codec.encode(text)
    pieces = [spelling.add(i) for i in ids]
    assert "".join(pieces) == codec.decode(ids)
    assert not any("\ufffd" in p for p in pieces)


def test_a_character_cut_by_the_limit_is_left_out(codec: TextCodec) -> None:
    spelling = Spelling(codec)
    assert "".join(spelling.add(i) for i in codec.encode("a🦊")[:-1]) == "a"


def test_the_finder_finds_the_first_string_in_any_cutting() -> None:
    text, wanted = "abcab abcd ab", ["abcd", "cd", "b a"]
    for cuts in ((), (1, 2, 3), (5,), tuple(range(1, len(text)))):
        finder, before, found = Finder(wanted), "", None
        for start, end in pairwise((0, *cuts, len(text))):
            if found is None:
                more, found = finder.add(text[start:end])
                before += more
        assert (before, found) == ("abca", "b a")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_stop_decoding_by_the_tokens_number(
    temperature: float, broken: float
) -> None:
    sampler = Sampler(Sampling(temperature=temperature), torch.tensor([0]), 3)
    assert sampler.choose(torch.tensor([-torch.inf, 9.0, -torch.inf])) == 1
    with pytest.raises(FloatingPointError, match="the logits of token 2 are not finite"):
        sampler.choose(torch.tensor([0.0, broken, 1.0]))


@pytest.mark.parametrize("temperature", [1e-320, 1e-38, 1e-6])
def test_the_coldest_temperature_takes_the_likeliest(temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), torch.tensor([0]), 3)
    assert sampler.choose(torch.tensor([3e5, 3e5 + 1, -3e5])) == 1
