"""Decoding: the cache, the choice of tokens, stopping, and text that comes in pieces."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import armillary.decode
from armillary.codecs.text import TextCodec
from armillary.decode import Finder, Sampler, Sampling, Token, decode, read, spell, step
from armillary.errors import BadRequest
from armillary.model import Config, Network
from armillary.sequence import Context, Sample, Visual, pack, text_context
from tests.oracles.fabricate_text import nano_tokenizer

VOCABULARY = 60
SMALL = Config(32, 3, 4, 2, 8, 48, VOCABULARY, {"vision": 16}, rope_axes=(2, 1, 1))
EDGE = Config(32, 3, 4, 2, 8, 48, VOCABULARY, {"vision": 16}, 4, False, False, True, rope_axes=(2, 1, 1))


@pytest.fixture(params=[SMALL, EDGE], ids=["nano", "edge"])
def network(request: pytest.FixtureRequest) -> Network:
    torch.manual_seed(3)
    made = Network(request.param).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_(std=0.3)
    return made.eval()


def words(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def picture_context(count: int) -> Context:
    """Text around 6 visual tokens of a 2 x 3 picture with two deepstack layers."""
    generator = torch.Generator().manual_seed(1)
    features = [torch.randn(6, 32, generator=generator) for _ in range(3)]
    rows_V = torch.arange(5, 11)
    positions_3A = torch.arange(count).expand(3, -1).clone()
    positions_3A[:, 5:11] = torch.tensor([[5] * 6, [5, 5, 5, 6, 6, 6], [5, 6, 7, 5, 6, 7]])
    positions_3A[:, 11:] -= 3
    visual = Visual(rows_V, features[0], tuple(features[1:]))
    return Context(words(count), positions_3A.float(), count - 3, visual)


def greedy_without_cache(network: Network, context: Context, count: int) -> list[int]:
    start = len(context)
    for _ in range(count):
        hidden_AE = network.read(pack([Sample(context)])).hidden_AE
        assert hidden_AE is not None
        token = network.logits(hidden_AE[-1:]).argmax()
        context = Context(
            torch.cat([context.ids_A, token[None]]),
            torch.cat([context.positions_3A, torch.full((3, 1), float(context.end))], dim=1),
            context.end + 1,
            context.visual,
        )
    return context.ids_A[start:].tolist()


def tokens(network: Network, context: Context, **options: object) -> list[int]:
    sampling = Sampling(**({"max_tokens": 20} | options))  # pyright: ignore[reportArgumentType]
    return [t.id for t in decode(network, context, sampling=sampling, eos=())]


@pytest.mark.parametrize("context", [text_context(words(17)), picture_context(17)], ids=["text", "picture"])
@pytest.mark.parametrize("room", [3, 256])
def test_cached_decoding_equals_uncached(
    network: Network, context: Context, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armillary.decode, "ROOM", room)
    assert tokens(network, context) == greedy_without_cache(network, context, 20)


@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 17, 99])
def test_a_context_may_be_read_in_chunks(network: Network, chunk: int) -> None:
    context = picture_context(17)
    whole, parts = read(network, context), read(network, context, chunk=chunk)
    for token in (3, 8, 1):
        torch.testing.assert_close(parts.logits_SV, whole.logits_SV, rtol=0, atol=2e-6)
        whole, parts = (step(network, r, [token]) for r in (whole, parts))
    assert parts.places == whole.places == (context.end + 3,)


def test_an_empty_context_is_refused(network: Network) -> None:
    with pytest.raises(BadRequest, match="nothing to read"):
        read(network, text_context(words(0)))


def test_sequences_stepped_together_equal_each_alone(network: Network) -> None:
    paths = [[3, 7, 1, 1], [9, 9, 2, 0], [3, 7, 5, 8]]
    reading = read(network, picture_context(17))
    together = reading.pick([0, 0, 0])
    alone = [reading.pick([0]) for _ in paths]
    for column in zip(*paths, strict=True):
        together = step(network, together, column)
        alone = [step(network, r, [token]) for r, token in zip(alone, column, strict=True)]
        torch.testing.assert_close(
            together.logits_SV, torch.cat([r.logits_SV for r in alone]), rtol=0, atol=2e-6
        )


def test_the_context_is_read_once(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    read_lengths: list[int] = []
    whole = network.read

    def counted(*arguments: object) -> object:
        read_lengths.append(sum(arguments[0].lengths_A))  # pyright: ignore[reportAttributeAccessIssue]
        return whole(*arguments)  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(network, "read", counted)
    tokens(network, text_context(words(17)), max_tokens=5)
    assert read_lengths == [17, 1, 1, 1, 1]


def test_finish_says_stop_at_an_end_token_and_length_at_the_limit(network: Network) -> None:
    context = text_context(words(17))
    greedy = greedy_without_cache(network, context, 6)
    at = greedy.index(greedy[4])
    ended = list(decode(network, context, sampling=Sampling(max_tokens=6), eos={greedy[4]}))
    assert [t.id for t in ended] == greedy[: at + 1]
    assert [t.finish for t in ended] == [None] * at + ["stop"]
    cut = list(decode(network, context, sampling=Sampling(max_tokens=6), eos=()))
    assert [t.finish for t in cut] == [None] * 5 + ["length"]


def test_a_seed_reproduces_and_another_differs(network: Network) -> None:
    context = text_context(words(17))
    first, again, other = (tokens(network, context, temperature=1.5, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_global_randomness_is_neither_used_nor_moved(network: Network) -> None:
    context = text_context(words(17))
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = tokens(network, context, temperature=1.0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert tokens(network, context, temperature=1.0) == first


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}])
def test_the_narrowest_sampling_is_greedy(network: Network, narrow: dict[str, float]) -> None:
    context = text_context(words(17))
    assert tokens(network, context, **({"temperature": 1.0} | narrow)) == tokens(network, context)


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
    pieces = list(spell(made, codec, stop))
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
