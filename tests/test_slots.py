"""Many contexts at once: the cache, pieces, what is remembered, and that neighbours change nothing."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import armillary.slots
from armillary.decode import Sampling, Token
from armillary.errors import BadRequest
from armillary.model import Config, Network
from armillary.sequence import Context, Sample, Visual, pack, text_context
from armillary.slots import Decoder, piece_ends
from tests.decoding import decode

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
    monkeypatch.setattr(armillary.slots, "ROOM", room)
    assert tokens(network, context) == greedy_without_cache(network, context, 20)


@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 17, 99])
@pytest.mark.parametrize("cuts", [(), (11,), (3, 11, 12)])
def test_a_context_may_be_read_in_pieces(
    network: Network, chunk: int, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = greedy_without_cache(network, picture_context(17), 8)
    monkeypatch.setattr(armillary.slots, "CHUNK", chunk)
    decoder = Decoder(network)
    decoder.add(picture_context(17), Sampling(max_tokens=8), cuts=cuts)
    assert run(decoder)[0] == whole


def test_an_empty_context_is_refused(network: Network) -> None:
    with pytest.raises(BadRequest, match="nothing to read"):
        Decoder(network).add(text_context(words(0)), Sampling())


def test_the_context_is_read_once(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = count_read(network, monkeypatch)
    tokens(network, text_context(words(17)), max_tokens=5)
    assert lengths == [17, *[armillary.slots.ROWS] * 4]


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


def count_read(network: Network, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass through the network has, from now on."""
    lengths: list[int] = []
    whole = network.read

    def counted(*arguments: object) -> object:
        lengths.append(sum(arguments[0].lengths_A))  # pyright: ignore[reportAttributeAccessIssue]
        return whole(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(network, "read", counted)
    return lengths


def run(decoder: Decoder) -> dict[int, list[int]]:
    """All tokens of all sequences, by their tickets."""
    told: dict[int, list[int]] = {}
    while decoder.busy:
        for ticket, token in decoder.step():
            assert isinstance(token, Token)
            told.setdefault(ticket, []).append(token.id)
    return dict(sorted(told.items()))


def requests(count: int) -> list[tuple[Context, Sampling]]:
    """Mixed lengths, every second one with a picture, greedy and sampled."""
    made: list[tuple[Context, Sampling]] = []
    for i in range(count):
        context = picture_context(17 + 3 * (i % 4)) if i % 2 else text_context(words(5 + 7 * (i % 5), i))
        temperature = 1.3 if i % 3 else 0.0
        made.append((context, Sampling(max_tokens=2 + 3 * (i % 4), temperature=temperature, seed=i)))
    return made


@pytest.mark.parametrize(("slots", "order"), [(16, 0), (5, 1)])
def test_sixteen_at_once_say_what_each_says_alone(
    network: Network, slots: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admitted in any order between steps, some cancelled, with pieces shared: token for token the same."""
    monkeypatch.setattr(armillary.slots, "CHUNK", 8)
    asked = requests(16)
    alone = [[t.id for t in decode(network, c, sampling=s)] for c, s in asked]
    rng, decoder, told = random.Random(order), Decoder(network, slots=slots), dict[int, list[int]]()
    waiting, tickets, doomed = rng.sample(range(16), 16), dict[int, int](), list[int]()
    while waiting or decoder.busy:
        if waiting and rng.random() < 0.3:
            i = waiting.pop()
            tickets[decoder.add(*asked[i], cuts=(11,) if i % 2 else ())] = i
        if rng.random() < 0.1:
            doomed.append(decoder.add(text_context(words(9, len(doomed))), Sampling()))
        if doomed and rng.random() < 0.2:
            decoder.cancel(doomed.pop())
        for ticket, token in decoder.step():
            assert isinstance(token, Token)
            told.setdefault(ticket, []).append(token.id)
    assert [told[ticket] for ticket in tickets] == [alone[i] for i in tickets.values()]


def test_scores_do_not_depend_on_neighbours_to_the_last_bit(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens could agree by luck; scores cannot."""
    heard: dict[int, list[Tensor]] = {}
    choose = armillary.slots.Sampler.choose

    def listen(sampler: object, logits_V: Tensor, *rest: object) -> int:
        heard.setdefault(id(sampler), []).append(logits_V.clone())
        return choose(sampler, logits_V, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(armillary.slots.Sampler, "choose", listen)
    asked, scores = requests(10), list[list[list[Tensor]]]()
    for together in (False, True):
        heard.clear()
        decoder = Decoder(network, remembered=0)
        keep = list[object]()  # samplers live on, so that their ids stay apart
        for context, sampling in asked:
            decoder.add(context, sampling)
            keep += [s.sampler for s in decoder._waiting.values()]  # pyright: ignore[reportPrivateUsage]
            if not together:
                run(decoder)
        run(decoder)
        scores.append([heard[id(sampler)] for sampler in dict.fromkeys(keep)])
    for alone, beside in zip(*scores, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_running_sequences_wait_for_one_piece_at_most(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armillary.slots, "CHUNK", 4)
    decoder = Decoder(network)
    first = decoder.add(text_context(words(4)), Sampling(max_tokens=12))
    decoder.step()
    decoder.add(text_context(words(18, 1)), Sampling(max_tokens=3))
    lengths = count_read(network, monkeypatch)
    heard = [[ticket for ticket, _ in decoder.step()] for _ in range(8)]
    row = armillary.slots.ROWS
    assert lengths == [row, 4, row, 4, row, 4, row, 4]
    assert heard == [[first], []] * 4


def test_waiting_contexts_take_turns(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(armillary.slots, "CHUNK", 4)
    decoder = Decoder(network)
    decoder.add(text_context(words(40)), Sampling(max_tokens=1))
    short = decoder.add(text_context(words(4, 1)), Sampling(max_tokens=1))
    assert [decoder.step(), [t for t, _ in decoder.step()]] == [[], [short]]


def test_cancelling_frees_the_slot_at_once(network: Network) -> None:
    decoder = Decoder(network, slots=1)
    first = decoder.add(text_context(words(5)), Sampling(max_tokens=100))
    second = decoder.add(text_context(words(6)), Sampling(max_tokens=1))
    for _ in range(3):
        assert [ticket for ticket, _ in decoder.step()] == [first]
    assert decoder.free == 0
    decoder.cancel(first)
    assert decoder.free == 1
    assert [ticket for ticket, _ in decoder.step()] == [second]
    decoder.cancel(first)  # again is no harm
    assert not decoder.busy


def test_a_beginning_in_common_is_read_once(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [picture_context(count) for count in (17, 20, 23)]  # the same picture, more words after it
    alone = [[t.id for t in decode(network, c, sampling=Sampling(max_tokens=6))] for c in contexts]
    decoder, lengths = Decoder(network), count_read(network, monkeypatch)
    for context in contexts:
        decoder.add(context, Sampling(max_tokens=6), cuts=(11,))
    assert list(run(decoder).values()) == alone
    assert sorted(n for n in lengths if n != armillary.slots.ROWS) == [6, 9, 11, 12]


def test_several_answers_to_one_context_read_it_once(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = count_read(network, monkeypatch)
    decoder = Decoder(network)
    for seed in range(4):
        decoder.add(text_context(words(17)), Sampling(max_tokens=6, temperature=1.0, seed=seed))
    said = list(run(decoder).values())
    assert [n for n in lengths if n != armillary.slots.ROWS] == [17]
    assert said == [
        tokens(network, text_context(words(17)), max_tokens=6, temperature=1.0, seed=seed)
        for seed in range(4)
    ]


@pytest.mark.parametrize("change", ["features", "deepstack", "positions", "ids"])
def test_what_was_seen_otherwise_is_not_taken_for_the_same(network: Network, change: str) -> None:
    context = picture_context(17)
    visual = context.visual
    assert visual is not None
    other = {
        "features": replace(context, visual=replace(visual, features_VE=visual.features_VE + 1)),
        "deepstack": replace(context, visual=replace(visual, deepstack=visual.deepstack[::-1])),
        "positions": replace(context, positions_3A=context.positions_3A.flip(0)),
        "ids": replace(context, ids_A=(context.ids_A + 1) % VOCABULARY),
    }[change]
    decoder = Decoder(network)
    decoder.add(context, Sampling(max_tokens=8), cuts=(11,))
    decoder.add(other, Sampling(max_tokens=8), cuts=(11,))
    said = list(run(decoder).values())
    assert said == [
        [t.id for t in decode(network, c, sampling=Sampling(max_tokens=8))] for c in (context, other)
    ]


@pytest.mark.parametrize("remembered", [0, 10, 17, 40])
def test_no_more_is_remembered_than_allowed(network: Network, remembered: int) -> None:
    decoder = Decoder(network, remembered=remembered)
    for seed in (0, 1, 2, 0, 1, 2):
        decoder.add(text_context(words(17, seed)), Sampling(max_tokens=2))
        run(decoder)
        pieces = decoder._pieces  # pyright: ignore[reportPrivateUsage]
        kept = [len(piece) for piece in pieces._kept.values()]  # pyright: ignore[reportPrivateUsage]
        assert sum(kept) <= remembered
    assert len(kept) == remembered // 17


def test_pieces_of_contexts_that_begin_alike_end_alike() -> None:
    for length in range(1, 3000, 97):
        for cuts in ((), (5,), (600, 900), (512, 1024, 2999)):
            ends = piece_ends(length, cuts)
            assert ends == sorted(set(ends))
            assert ends[-1] == length
            assert {cut for cut in cuts if cut < length} <= set(ends)
            assert max(b - a for a, b in zip([0, *ends], ends, strict=False)) <= armillary.slots.CHUNK
            assert piece_ends(length + 700, cuts)[: len(ends) - 1] == ends[:-1]


def test_what_the_decoder_may_say_next_can_be_limited(network: Network) -> None:
    """And an error in one sequence leaves the others alone."""
    allowed_V = torch.zeros(VOCABULARY, dtype=torch.bool)
    decoder, context = Decoder(network), text_context(words(9))
    limited = decoder.add(
        context, Sampling(max_tokens=4), allowed=lambda: allowed_V.index_fill(0, torch.tensor([7]), True)
    )
    broken = decoder.add(context, Sampling(max_tokens=4), allowed=lambda: allowed_V)
    free = decoder.add(context, Sampling(max_tokens=4))
    told: dict[int, list[Token | FloatingPointError]] = {}
    while decoder.busy:
        for ticket, token in decoder.step():
            told.setdefault(ticket, []).append(token)
    assert [t.id for t in told[limited] if isinstance(t, Token)] == [7] * 4
    assert [type(t) for t in told[broken]] == [FloatingPointError]
    assert [t.id for t in told[free] if isinstance(t, Token)] == greedy_without_cache(network, context, 4)
