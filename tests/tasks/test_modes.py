"""Long clips in chunks, given sound, editing and controls on a small random checkpoint."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from armillary.attention import KV, attend, attend_apart
from armillary.errors import BadRequest
from armillary.facts import Canvas
from armillary.prompts import SYSTEM_EDIT, SYSTEM_TRANSFER
from armillary.tasks import denoise
from armillary.tasks.controls import Control
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.frames import encode
from armillary.tasks.generate import Given, Made, generate
from armillary.tasks.parts import Parts, load_parts
from armillary.tasks.segments import Latents
from armillary.wording import Wording
from tests.random_pocket import random_pocket

CLIP = Canvas(5, 8.0, 16, 16)
QUICK = SamplingOptions(steps=2)
WORDS = Wording("a red disc")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = random_pocket(tmp_path_factory.mktemp("pocket"))
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=("video", "audio"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Latents, SamplingOptions]]:
    """What every run of the sampler was given."""
    import armillary.tasks.generate as task

    seen: list[tuple[Latents, SamplingOptions]] = []
    real = denoise.draw_many

    def draw_many(parts: Parts, latents: Any, contexts: Any, options: SamplingOptions) -> Any:
        seen.extend((x, options) for x in latents)
        return real(parts, latents, contexts, options)

    monkeypatch.setattr(task, "draw_many", draw_many)
    return seen


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def make(parts: Parts, canvas: Canvas = CLIP, **others: Any) -> Made:
    options = others.pop("options", QUICK)
    return generate(parts, others.pop("words", WORDS), canvas=canvas, options=options, **others)[0]


# -- chunks


@pytest.mark.parametrize(
    ("frames", "chunk", "overlap", "count"), [(13, 9, 5, 2), (21, 9, 1, 3), (9, 9, 1, 1)]
)
def test_a_long_clip_is_as_long_as_asked(
    parts: Parts, runs: list[Any], frames: int, chunk: int, overlap: int, count: int
) -> None:
    made = make(parts, Canvas(frames, 8.0, 16, 16, chunk, overlap), sound=True)
    assert len(made.frames) == frames
    assert made.sound is not None
    assert made.sound.shape[1] == int(frames / 8 * 16000)
    assert len(runs) == count
    assert [options.chunk for _, options in runs] == list(range(count))


def test_a_long_clip_begins_as_a_short_one(parts: Parts) -> None:
    long = make(parts, Canvas(13, 8.0, 16, 16, 9, 5))
    short = make(parts, Canvas(9, 8.0, 16, 16))
    np.testing.assert_array_equal(long.frames[:9], short.frames)


def test_a_chunk_goes_on_from_the_end_of_the_one_before(parts: Parts, runs: list[Any]) -> None:
    assert parts.video is not None
    made = make(parts, Canvas(13, 8.0, 16, 16, 9, 5))
    first, second = made.latents
    from armillary.tasks.frames import decode_frames

    tail = encode(parts.video, decode_frames(parts.video, first.vision_ZThw)[0][-5:])
    torch.testing.assert_close(second.vision_ZThw[:, :2], tail)
    assert list(runs[1][0].clean_frames) == [0, 1]


def test_steps_are_counted_over_all_chunks(parts: Parts) -> None:
    seen: list[tuple[int, int]] = []
    options = replace(QUICK, on_step=lambda done: seen.append((done.step, done.of)))
    make(parts, Canvas(13, 8.0, 16, 16, 9, 5), options=options)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


# -- sound


def test_a_given_sound_is_what_is_heard(parts: Parts, runs: list[Any]) -> None:
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 6000)).astype(np.float32)
    made = make(parts, given=Given(image=pixels(16, 16), sound=sound))
    assert made.sound is not None
    np.testing.assert_array_equal(made.sound[:, :6000], sound)
    assert (made.sound[:, 6000:] == 0).all()
    ((latents, _),) = runs
    assert latents.clean_sound
    assert latents.sound_SL is not None
    assert made.latents[0].sound_SL is not None
    torch.testing.assert_close(made.latents[0].sound_SL, latents.sound_SL)


# -- editing


def test_an_edited_picture_stands_one_after_its_reference(parts: Parts, runs: list[Any]) -> None:
    made = make(parts, Canvas(1, 8.0, 16, 16), given=Given(edit=pixels(20, 30)))
    assert made.frames.shape == (1, 16, 16, 3)
    segments = runs[0][0].segments(parts.checkpoint.traits)
    assert [bool(s.noisy_N.any()) for s in segments] == [False, True]
    assert [s.positions_3N[0].unique().tolist() for s in segments] == [[0.0], [1.0]]
    torch.testing.assert_close(segments[0].positions_3N[1:], segments[1].positions_3N[1:])
    assert made.tokens["vision"] == 2


@pytest.mark.parametrize(
    ("given", "canvas", "want"),
    [
        (Given(edit=pixels(16, 16)), Canvas(1, 8.0, 16, 16), SYSTEM_EDIT),
        (Given(controls=(Control("depth", pixels(5, 16, 16)),)), CLIP, SYSTEM_TRANSFER),
        (Given(), CLIP, None),
    ],
)
def test_edits_and_controls_have_their_own_sentence(
    parts: Parts, given: Given, canvas: Canvas, want: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import armillary.tasks.generate as task

    seen: list[str | None] = []
    real = denoise.read_prompts

    def read_prompts(*args: Any, system: str | None, **others: Any) -> Any:
        seen.append(system)
        return real(*args, system=system, **others)

    monkeypatch.setattr(task, "read_prompts", read_prompts)
    make(parts, canvas, given=given)
    make(parts, canvas, given=given, words=replace(WORDS, system="Be brief."))
    assert seen == [want, "Be brief."]


# -- controls


def test_controls_share_the_places_of_the_clip_and_are_clean(parts: Parts, runs: list[Any]) -> None:
    controls = tuple(Control(hint, pixels(5, 16, 16, seed=i)) for i, hint in enumerate(("depth", "seg")))
    made = make(parts, given=Given(controls=controls))  # pyright: ignore[reportArgumentType]
    first, second, clip = runs[0][0].segments(parts.checkpoint.traits)
    assert not first.noisy_N.any()
    assert not second.noisy_N.any()
    assert clip.noisy_N.all()
    assert torch.equal(first.positions_3N, clip.positions_3N)
    assert not torch.equal(first.tokens_NF, second.tokens_NF)
    assert len(made.frames) == 5


def test_control_guidance_moves_away_from_no_control(parts: Parts) -> None:
    given = Given(controls=(Control("depth", pixels(5, 16, 16)),))
    weak, strong, none = (
        make(parts, given=g, options=replace(QUICK, control_guidance=s)).latents[0].vision_ZThw
        for g, s in ((given, 1.0), (given, 3.0), (Given(), 1.0))
    )
    assert not torch.equal(weak, strong)
    assert not torch.equal(weak, none)
    late = replace(QUICK, control_guidance=3.0, control_interval=(0, 900))
    assert not torch.equal(make(parts, given=given, options=late).latents[0].vision_ZThw, strong)


@pytest.mark.parametrize("field", ["interval", "control_interval"])
def test_an_interval_that_no_step_falls_into_is_refused(parts: Parts, field: str) -> None:
    with pytest.raises(BadRequest, match=rf"^{field}=\[0, 1\]: no step falls into it"):
        make(parts, options=replace(QUICK, **{field: (0, 1)}))


# -- controls that do not see each other


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention [N, H, C] written out, heads of queries sharing those of keys."""
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    scores = torch.einsum("nhc,mhc->hnm", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hnm,mhc->nhc", F.softmax(scores, -1), v)


def test_weighted_controls_are_seen_apart_and_summed() -> None:
    torch.manual_seed(0)
    context, sizes, rest, weights = 3, (2, 4), 5, (0.25, 0.75)
    count = sum(sizes) + rest
    q = torch.randn(count, 4, 8)
    k, v = torch.randn(context + count, 2, 8), torch.randn(context + count, 2, 8)
    got = attend_apart(
        q, (count,), KV.of(k, v, (context + count,)), (tuple(zip(sizes, weights, strict=True)),)
    )
    text, target = range(context), range(context + sum(sizes), context + count)
    want, total = [], torch.zeros(rest, 4, 8)
    for start, size, weight in zip((0, 2), sizes, weights, strict=True):
        seen = [*text, *range(context + start, context + start + size), *target]
        queries = torch.cat([q[start : start + size], q[sum(sizes) :]])
        answer = naive(queries, k[seen], v[seen])
        want.append(answer[:size])
        total += weight * answer[size:]
    torch.testing.assert_close(got, torch.cat([*want, total]))


def test_one_control_apart_is_one_attention_and_neighbours_do_not_matter() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(9, 4, 8), torch.randn(14, 2, 8), torch.randn(14, 2, 8)
    kv = KV.of(k, v, (6, 8))
    plain = attend(q, (4, 5), kv)
    torch.testing.assert_close(attend_apart(q, (4, 5), kv, ((), ((2, 1.0),))), plain)
    assert torch.equal(attend_apart(q, (4, 5), kv, ((), ())), plain)


def test_weights_change_what_is_drawn_and_the_heavier_control_counts_more(parts: Parts) -> None:
    one, other = pixels(5, 16, 16, seed=1), pixels(5, 16, 16, seed=2)

    def drawn(*weighted: tuple[np.ndarray, float]) -> torch.Tensor:
        hints: Any = ("depth", "seg")
        controls = tuple(Control(h, x, w) for h, (x, w) in zip(hints, weighted, strict=False))
        return make(parts, given=Given(controls=controls)).latents[0].vision_ZThw

    first, second = drawn((one, 1), (other, 0)), drawn((one, 0), (other, 1))
    assert not torch.equal(first, second)
    both = drawn((one, 1), (other, 1))
    assert not torch.allclose(both, first)
    assert not torch.allclose(both, second)
