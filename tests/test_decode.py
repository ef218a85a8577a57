"""Decoding: the choice of tokens, stopping, and text that comes in pieces."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from armillary.codecs.text import TextCodec
from armillary.decode import Finder, Piece, Sampler, Sampling, Speller, Token
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


def spelled(codec: TextCodec, ids: list[int], stop: Sequence[str] = (), finish: str = "length") -> list[str]:
    made = [Token(i) for i in ids[:-1]] + [Token(ids[-1], finish)]  # pyright: ignore[reportArgumentType]
    speller, pieces = Speller(codec, stop), list[Piece]()
    for token in made:
        pieces.append(speller.add(token))
        if pieces[-1].finish:
            break
    assert all(p.finish is None for p in pieces[:-1])
    assert pieces[-1].finish is not None
    return [p.text for p in pieces]


def test_text_comes_in_whole_characters_and_once(codec: TextCodec) -> None:
    text = "snow 雪, a fox 🦊🏽 and e\u0301"
    pieces = spelled(codec, codec.encode(text))
    assert "".join(pieces) == codec.decode(codec.encode(text))
    assert not any("\ufffd" in p for p in pieces)
    assert len(pieces) == len(codec.encode(text))


def test_a_character_cut_by_the_limit_is_left_out(codec: TextCodec) -> None:
    ids = codec.encode("a🦊")
    assert "".join(spelled(codec, ids[:-1])) == "a"


def test_the_end_token_is_no_text(codec: TextCodec) -> None:
    assert "".join(spelled(codec, [*codec.encode("done"), codec.eos], finish="stop")) == "done"


@pytest.mark.parametrize("stop", ["END", "\n\n", "x E", "🦊!"])
def test_text_ends_before_a_stop_string_wherever_token_borders_fall(codec: TextCodec, stop: str) -> None:
    ids = codec.encode(f"one En E two{stop}never")
    assert "".join(spelled(codec, ids, [stop, "unseen"])) == "one En E two"


def test_what_only_begins_a_stop_string_comes_out_at_last(codec: TextCodec) -> None:
    pieces = spelled(codec, codec.encode("one EN"), ["END"])
    assert "".join(pieces) == "one EN"
    assert pieces[-1].endswith("EN")


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
