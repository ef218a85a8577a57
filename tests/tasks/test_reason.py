"""Messages become contexts, every part consumed or refused by name; answers stream, thinking apart."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import armillary.tasks.reason
from armillary.answers import Answer, Box
from armillary.codecs.qwen_vit import QwenViT, QwenViTConfig
from armillary.codecs.sight import POCKET_CLIPS, POCKET_PICTURES
from armillary.codecs.text import TextCodec
from armillary.decode import Sampling, Token
from armillary.errors import BadRequest
from armillary.media import Clip, ClipIn, write_mp4
from armillary.model import Config, Network
from armillary.tasks.deltas import Delta, ThinkSplitter
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts, Sight
from armillary.tasks.reason import Reasoner, reason, stream
from armillary.weights import Checkpoint
from tests.oracles.fabricate_text import edge_tokenizer, nano_tokenizer

PICTURE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
FRAMES = np.random.default_rng(1).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
IMAGE = {"type": "image", "image": PICTURE}
ASK = {"type": "text", "text": "Where is it?"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder: Path = tmp_path_factory.mktemp("model")
    nano_tokenizer().save_pretrained(folder / "text_tokenizer")
    (folder / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 1000}}))
    torch.manual_seed(0)
    network = Network(Config(32, 2, 4, 2, 8, 48, 320, {"vision": 16}, rope_axes=(2, 1, 1))).eval()
    tower = QwenViT(QwenViTConfig(1, 16, 16, 2, 32, 36, (0,), patch_size=4)).eval()
    return Parts(
        Checkpoint(folder),
        torch.device("cpu"),
        torch.float32,
        network.requires_grad_(False),
        TextCodec.load(folder / "text_tokenizer"),
        Sight(tower, POCKET_PICTURES, POCKET_CLIPS),
    )


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def say(monkeypatch: pytest.MonkeyPatch, parts: Parts, text: str, finish: Any = "stop") -> None:
    """Let the model say `text`, whatever it reads."""
    ids = parts.text.encode(text)
    said = [*(Token(i) for i in ids), Token(parts.text.eos, "stop")]
    if finish == "length":
        said = [*said[:-2], Token(ids[-1], "length")]

    class Said:
        """A decoder of one conversation."""

        free = 1

        def __init__(self, *_: Any, **__: Any) -> None:
            self.left = list(said)

        @property
        def busy(self) -> bool:
            return bool(self.left)

        def add(self, *_: Any, **__: Any) -> int:
            return 0

        def cancel(self, ticket: int) -> None:
            self.left.clear()

        def step(self) -> list[tuple[int, Token]]:
            return [(0, self.left.pop(0))]

    monkeypatch.setattr(armillary.tasks.reason, "Decoder", Said)


def test_pictures_and_clips_take_their_places(parts: Parts) -> None:
    talk = converse(parts, user(IMAGE, {"type": "video", "video": Clip(FRAMES, 8.0)}, ASK))
    ids = talk.context.ids_A.tolist()
    assert ids.count(parts.text.special("<|image_pad|>")) == 64
    # 9 frames at 8 a second, all looked at: 5 slices, the last frame twice
    assert ids.count(parts.text.special("<|video_pad|>")) == 320
    visual = talk.context.visual
    assert visual is not None
    assert visual.features_VE.shape == visual.deepstack[0].shape == (384, 32)
    pads = [parts.text.special(f"<|{kind}_pad|>") for kind in ("image", "video")]
    assert all(ids[row] in pads for row in visual.rows_V.tolist())
    assert talk.seen[1].receipt["times_s"] == [i / 8 for i in range(9)]
    assert "<0.3 seconds>" in parts.text.decode(ids)
    assert talk.context.end < len(ids)  # pictures take fewer positions than tokens


def test_a_clip_is_the_same_however_it_comes(parts: Parts, tmp_path: Path) -> None:
    frames = np.repeat(np.arange(0, 180, 20, dtype=np.uint8)[:, None, None, None], 64, axis=1)
    frames = np.ascontiguousarray(np.broadcast_to(frames[:, :, :1], (9, 64, 64, 3)))
    write_mp4(tmp_path / "clip.mp4", frames, fps=8.0)
    sources: list[Any] = [Clip(frames, 8.0), ClipIn(frames, np.arange(9) / 8, 8.0), tmp_path / "clip.mp4"]
    talks = [converse(parts, user({"type": "video", "video": s}, ASK)) for s in sources]
    assert all(t.seen[0].receipt == talks[0].seen[0].receipt for t in talks)
    assert all(torch.equal(t.context.ids_A, talks[0].context.ids_A) for t in talks)


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({"num_frames": 3}, [0.0, 0.5, 1.0]),
        ({"num_frames": 1}, [0.0]),
        ({"fps": 4.0}, [0.0, 0.375, 0.625, 1.0]),
    ],
)
def test_a_clip_is_looked_at_as_asked(parts: Parts, options: dict[str, Any], times: list[float]) -> None:
    talk = converse(parts, user({"type": "video", "video": Clip(FRAMES, 8.0), **options}, ASK))
    assert talk.seen[0].receipt["times_s"] == times


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([ASK, {"type": "audio", "audio": b""}], r"messages\[0\]\.content\[1\]\.type='audio'"),
        ([{"type": "picture", "picture": "x"}], r"parts are text, image, image_url.*say"),
        ([{"image": PICTURE}], r"content\[0\]\.type=None"),
        (["hello"], r"content\[0\]\.type"),
        ([{**IMAGE, "detail": "high"}], r"content\[0\]\.detail='high'.*ignored"),
        ([{**ASK, "fps": 2}], r"content\[0\]\.fps"),
        ([{"type": "image"}], r"content\[0\]\.image=None"),
        ([{"type": "text", "text": 5}], r"content\[0\]\.text=5"),
        ([{"type": "image", "image": PICTURE.astype(float)}], r"messages\[0\]\.content\[0\]\.image"),
        ([{"type": "video", "video": PICTURE}], r"content\[0\]\.video.*\[T, H, W, 3\]"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "fps": 2, "num_frames": 2}], "not both"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "fps": 0}], r"video\.fps=0"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "fps": "2"}], r"video\.fps='2'"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "fps": True}], r"video\.fps=True"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "num_frames": 2.5}], r"video\.num_frames=2\.5"),
        ([{"type": []}], r"content\[0\]\.type=\[\]"),
        ([{"type": "video", "video": Clip(FRAMES, 8.0), "num_frames": 10}], "num_frames=10.*9 frames"),
        ([], r"messages\[0\]\.content"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(parts: Parts, content: list[Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        converse(parts, [{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "robot", "content": "x"}, r"messages\[0\]\.role='robot'"),
        ({"role": "user", "content": None}, r"messages\[0\]\.content=None"),
        ({"role": "user", "content": "x", "name": "me"}, r"messages\[0\]\.name='me'"),
    ],
)
def test_a_message_that_cannot_be_used_is_named(parts: Parts, message: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        converse(parts, [message])


def test_a_checkpoint_without_sight_refuses_pictures(parts: Parts) -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[0\].*no vision tower"):
        converse(replace(parts, sight=None), user(IMAGE, ASK))


def test_too_long_a_prompt_is_refused_before_anything_is_decoded(parts: Parts) -> None:
    with pytest.raises(
        BadRequest, match=r"max_tokens=990.*of this checkpoint's 1000 tokens; give at most 9\d\d"
    ):
        stream(parts, user(ASK), sampling=Sampling(max_tokens=990))


def test_deltas_joined_are_the_answer(parts: Parts) -> None:
    deltas = list(stream(parts, user(IMAGE, ASK), sampling=Sampling(max_tokens=24, temperature=2.0)))
    answer = deltas[-1].answer
    assert answer is not None
    assert "".join(d.text for d in deltas) == answer.text
    assert "".join(d.thinking for d in deltas) == answer.thinking
    assert all(d.answer is None for d in deltas[:-1])
    assert answer.usage.completion_tokens == len(deltas)
    assert (
        reason(parts, user(IMAGE, ASK), sampling=Sampling(max_tokens=24, temperature=2.0)).text == answer.text
    )


def test_the_receipt_says_what_was_read(parts: Parts) -> None:
    answer = reason(parts, user(IMAGE, ASK), sampling=Sampling(max_tokens=3))
    assert answer.finish_reason == "length"
    shown = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Where is it?<|im_end|>\n"
    assert answer.receipt["prompt"] == f"{shown}<|im_start|>assistant\n"
    assert answer.receipt["seen"] == [{"kind": "image", "looked_at": "64x64", "tokens": 64}]
    assert answer.receipt["sampling"]["max_tokens"] == 3
    json.dumps(answer.receipt)


def test_boxes_are_given_in_pixels_of_the_source(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.zeros((50, 200, 3), np.uint8)
    say(monkeypatch, parts, '```json\n[{"bbox_2d": [100, 200, 500, 1000], "label": "disc"}]\n```')
    answer = reason(parts, user(IMAGE, {"type": "image", "image": wide}, ASK))
    assert answer.boxes == (Box(20, 10, 100, 50, "disc"),)
    assert answer.picture is not None
    assert answer.picture.shape == (50, 200, 3)


@pytest.mark.parametrize(
    ("said", "finish", "thinking", "text"),
    [
        ("<think>\nit is blue\n</think>\n\nblue", "stop", "it is blue\n", "blue"),
        ("\n <think>why</think>because", "stop", "why", "because"),
        ("no thought, a < b", "stop", "", "no thought, a < b"),
        ("<thin ice>", "stop", "", "<thin ice>"),
        ("late <think>x</think>", "stop", "", "late <think>x</think>"),
        ("<think>endless </thi", "length", "endless </thi", ""),
        ("<thi", "length", "", "<thi"),
    ],
)
def test_thinking_is_separated_from_the_answer(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, said: str, finish: str, thinking: str, text: str
) -> None:
    say(monkeypatch, parts, said, finish)
    answer = reason(parts, user(ASK))
    assert (answer.thinking, answer.text, answer.finish_reason) == (thinking, text, finish)


@pytest.mark.parametrize("stop", ["END", "\n\n", "x E", "🦊!", "two"])
def test_an_answer_ends_before_a_stop_string_wherever_token_borders_fall(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    said = f"one En E {stop}never"
    say(monkeypatch, parts, said)
    deltas = list(stream(parts, user(ASK), sampling=Sampling(stop=(stop, "unseen"))))
    assert "".join(delta.text for delta in deltas) == "one En E "
    assert deltas[-1].answer is not None
    assert (deltas[-1].answer.text, deltas[-1].answer.finish_reason) == ("one En E ", "stop")


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_what_only_begins_a_stop_string_comes_out_at_last(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, finish: str
) -> None:
    say(monkeypatch, parts, "one EN", finish)
    deltas = list(stream(parts, user(ASK), sampling=Sampling(stop=("END",))))
    answer = deltas[-1].answer
    assert answer is not None
    assert (answer.text, answer.finish_reason) == ("one EN", finish)
    assert deltas[-1].text.endswith("EN")


@pytest.mark.parametrize(
    ("said", "finish", "thinking", "text"),
    [
        ("<think>Question: END?\n</think>\n\nblue END never", "stop", "Question: END?\n", "blue "),
        ("<think>not yet EN</think>D, but END", "stop", "not yet EN", "D, but "),
        ("<think>END</think>END", "stop", "END", ""),
        ("<think>an END that goes on", "length", "an END that goes on", ""),
        ("no thought END <think>", "stop", "", "no thought "),
    ],
)
def test_a_stop_string_is_let_pass_in_thinking_and_ends_the_answer(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, said: str, finish: str, thinking: str, text: str
) -> None:
    say(monkeypatch, parts, said, finish)
    answer = reason(parts, user(ASK), sampling=Sampling(stop=("END",)))
    assert (answer.thinking, answer.text, answer.finish_reason) == (thinking, text, finish)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_thinking_splits_the_same_in_any_cutting(size: int) -> None:
    text = "<think> a </b> c </think>\n the answer </think> stays"
    splitter = ThinkSplitter(False)
    cuts = range(0, len(text), size)
    deltas = [splitter.add(text[i : i + size], last=i == cuts[-1]) for i in cuts]
    assert "".join(d.thinking for d in deltas) == "a </b> c "
    assert "".join(d.text for d in deltas) == "the answer </think> stays"


def test_a_template_that_opens_thinking_starts_inside_it(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge_tokenizer().save_pretrained(tmp_path)
    edge = replace(parts, text=TextCodec.load(tmp_path))
    say(monkeypatch, edge, "it rolls</think>\nyes")
    answer = reason(edge, user(ASK))
    assert (answer.thinking, answer.text) == ("it rolls", "yes")
    say(monkeypatch, edge, "it END</think>\nyes END no")
    answer = reason(edge, user(ASK), sampling=Sampling(stop=("END",)))
    assert (answer.thinking, answer.text) == ("it END", "yes ")
    say(monkeypatch, edge, "yes")
    assert reason(edge, user(ASK), flags={"enable_thinking": False}).text == "yes"


def everything(reasoner: Reasoner) -> dict[int, dict[int, Answer]]:
    """All answers, by ticket and choice; the deltas of each joined are the answer."""
    answers: dict[int, dict[int, Answer]] = {}
    text: dict[tuple[int, int], str] = {}
    while reasoner.busy:
        for ticket, delta in reasoner.step():
            assert isinstance(delta, Delta)
            text[ticket, delta.choice] = text.get((ticket, delta.choice), "") + delta.text
            if delta.answer:
                answers.setdefault(ticket, {})[delta.choice] = delta.answer
                assert text[ticket, delta.choice] == delta.answer.text
    return answers


def test_conversations_at_once_are_answered_as_alone(parts: Parts) -> None:
    asked = [
        (user(IMAGE, {"type": "text", "text": f"Where is it, {i}?"}) if i % 3 else user(ASK), i)
        for i in range(16)
    ]
    reasoner = Reasoner(parts)
    how = [Sampling(max_tokens=4 + i % 5, temperature=float(i % 2), seed=i, stop=("e",)) for _, i in asked]
    tickets = [reasoner.add(messages, sampling=s) for (messages, _), s in zip(asked, how, strict=True)]
    answers = everything(reasoner)
    for (messages, _), sampling, ticket in zip(asked, how, tickets, strict=True):
        alone, beside = reason(parts, messages, sampling=sampling), answers[ticket][0]
        assert (alone.text, alone.finish_reason, alone.usage) == (
            beside.text,
            beside.finish_reason,
            beside.usage,
        )
        assert alone.receipt == beside.receipt


def test_several_answers_are_those_of_the_seeds_alone(parts: Parts) -> None:
    sampling = Sampling(max_tokens=8, temperature=2.0, seed=5)
    answer = reason(parts, user(IMAGE, ASK), sampling=sampling, n=3)
    alone = [reason(parts, user(IMAGE, ASK), sampling=replace(sampling, seed=5 + i)) for i in range(3)]
    assert [a.text for a in (answer, *answer.others)] == [a.text for a in alone]
    assert [a.receipt["sampling"]["seed"] for a in (answer, *answer.others)] == [5, 6, 7]
    assert len({a.text for a in alone}) == 3


def test_a_cancelled_conversation_says_no_more(parts: Parts) -> None:
    reasoner = Reasoner(parts, slots=2)
    endless = reasoner.add(user(ASK), sampling=Sampling(max_tokens=400, temperature=1.0), n=2)
    waiting = reasoner.add(user(ASK), sampling=Sampling(max_tokens=1))
    heard = [ticket for _ in range(8) for ticket, _ in reasoner.step()]
    assert set(heard) == {endless}
    reasoner.cancel(endless)
    assert [ticket for ticket, _ in reasoner.step()] == [waiting]
    reasoner.cancel(endless)
    assert not reasoner.busy
