"""Answers of a form, thinking of a length, chances of tokens: on a small random checkpoint that babbles."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from armillary import schema
from armillary.decode import Sampling
from armillary.errors import BadRequest
from armillary.sequence import Sample, pack
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts, load_parts
from armillary.tasks.reason import Reasoner, reason
from tests.random_pocket import random_pocket

ASK = [{"role": "user", "content": "Where is it?"}]


class Found(BaseModel):
    """A small form."""

    colour: str = Field(pattern="^(red|green)$")
    x: int = Field(ge=0, le=1000)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = random_pocket(tmp_path_factory.mktemp("pocket"))
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=())


def babble(seed: int, **options: Any) -> Sampling:
    return Sampling(**{"max_tokens": 200, "temperature": 2.0, "seed": seed, **options})


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer", "minimum": -3, "maximum": 120},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "string", "maxLength": 6},
            {"enum": ["red disc", 7, None]},
            {"type": "number", "minimum": 0, "maximum": 1},
        ]
    ),
    lambda inner: (
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "minItems": st.just(1), "maxItems": st.just(2)}
        )
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(
            lambda p: {"type": "object", "properties": p, "required": list(p)}
        )
    ),
    max_leaves=3,
)  # fmt: skip


def fits(value: Any, form: dict[str, Any]) -> bool:
    """An independent check of what SCHEMAS can say."""
    if "enum" in form:
        return value in form["enum"]
    match form["type"]:
        case "object":
            inner = form["properties"]
            return (
                isinstance(value, dict)
                and set(value) == set(inner)
                and all(fits(value[k], inner[k]) for k in inner)
            )
        case "array":
            return (
                isinstance(value, list)
                and 1 <= len(value) <= 2
                and all(fits(v, form["items"]) for v in value)
            )
        case "string":
            return isinstance(value, str) and len(value) <= 6
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case kind:
            wanted = int if kind == "integer" else int | float
            return (
                isinstance(value, wanted)
                and not isinstance(value, bool)
                and form["minimum"] <= value <= form["maximum"]
            )


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(form=SCHEMAS, limit=st.integers(1, 60), seed=st.integers(0, 99))
def test_an_answer_with_a_schema_is_whole_or_says_that_it_was_cut(
    parts: Parts, form: dict[str, Any], limit: int, seed: int
) -> None:
    answer = reason(parts, ASK, sampling=babble(seed, max_tokens=limit), schema=form)
    if answer.finish_reason == "stop":
        assert answer.parsed == json.loads(answer.text)
        assert fits(answer.parsed, form)
        assert "parsed" not in answer.receipt
    else:
        assert answer.usage.completion_tokens == limit
        assert (answer.parsed is None) == ("parsed" in answer.receipt) or form.get("type") == "null"


@pytest.mark.parametrize(
    ("form", "text", "taken"),
    [
        ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"b": 1}', False),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
            '{"b": 1}',
            True,
        ),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]}, '{"b": 1}', True),
        ({"type": "object"}, '{"b": 1}', True),
        ({"const": {"type": "object", "properties": {}}}, '{"type": "object", "properties": {}}', True),
        (
            {"allOf": [{"type": "object", "properties": {name: {"type": "null"}}} for name in "ab"]},
            '{"a": null, "b": null}',
            True,
        ),
        (
            {
                "$defs": {"base": {"type": "object", "properties": {"a": {"type": "null"}}}},
                "$ref": "#/$defs/base",
                "properties": {"b": {"type": "null"}},
            },
            '{"a": null, "b": null}',
            True,
        ),
    ],
)
def test_an_object_holds_what_its_schema_names_unless_it_says_otherwise(
    parts: Parts, form: dict[str, Any], text: str, taken: bool
) -> None:
    held = schema.Form(parts.text.schema_tokens, schema.grammar(schema.json_schema(form)))
    held.add_text(text)
    if taken:
        assert held.allowed()
    else:
        with pytest.raises(BadRequest):
            held.allowed()


def test_a_pydantic_model_gives_its_object(parts: Parts) -> None:
    answer = reason(parts, ASK, sampling=babble(1), schema=Found)
    assert isinstance(answer.parsed, Found)
    assert answer.parsed == Found.model_validate_json(answer.text)


def test_an_unfinished_form_says_so(parts: Parts) -> None:
    answer = reason(parts, ASK, sampling=babble(1, max_tokens=3), schema=Found)
    assert (answer.finish_reason, answer.parsed) == ("length", None)
    assert answer.receipt["parsed"] == "cut by max_tokens before it was whole"


def test_what_only_the_model_itself_refuses_is_told(parts: Parts) -> None:
    class Picky(Found):
        @field_validator("x")
        @classmethod
        def never(cls, value: int) -> int:
            raise ValueError("no x is good enough")

    answer = reason(parts, ASK, sampling=babble(1), schema=Picky)
    assert (answer.finish_reason, answer.parsed) == ("stop", None)
    assert "no x is good enough" in answer.receipt["parsed"]


def test_an_error_in_a_models_own_check_keeps_the_answer(parts: Parts) -> None:
    class Careless(Found):
        @field_validator("x")
        @classmethod
        def broken(cls, value: int) -> int:
            raise KeyError("no such thing")

    answer = reason(parts, ASK, sampling=babble(1), schema=Careless)
    assert (answer.parsed, "no such thing" in answer.receipt["parsed"]) == (None, True)
    assert Found.model_validate_json(answer.text)


def test_json_too_deep_to_read_is_no_value() -> None:
    value, reason_why = schema.parse({}, "[" * 100_000)
    assert (value, "recursion" in reason_why) == (None, True)


@pytest.mark.parametrize(
    ("form", "letters", "told"),
    [
        ({"$ref": "#"}, "", "nothing satisfies"),
        ({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}, '"' + "a" * 60, "too many"),
    ],
)
def test_where_the_engine_gives_up_no_answer_ends_in_the_middle(
    parts: Parts, form: Any, letters: str, told: str
) -> None:
    held = schema.Form(parts.text.schema_tokens, schema.grammar(form))

    def follow() -> None:
        for letter in [*letters, ""]:
            held.allowed()
            held.add_text(letter)

    with pytest.raises(BadRequest, match=told):
        follow()


class Callback(BaseModel):
    act: Callable[[int], int]


class Unfinished(BaseModel):
    other: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


DEEP: Any = {}
for _ in range(5000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (Callback, "no JSON schema"),
        (Unfinished, "no JSON schema"),
        (BaseModel, "no JSON schema"),
        (DEEP, "too deeply"),
        ({"type": "integer", "minimum": 10**30}, "cannot be held to"),
        ({"title": "\ud800"}, "cannot be held to"),
        ({"type": "object", "properties": {}, "required": [[]]}, "required"),
        ({"type": "wrong"}, "wrong"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"const": float("inf")}, "plain JSON"),
        ("text", "pydantic model"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_by_its_keyword(form: Any, named: str) -> None:
    with pytest.raises(BadRequest, match=named) as refused:
        schema.grammar(schema.json_schema(form))
    assert refused.value.field == "schema"


@pytest.mark.parametrize("budget", [0, 5])
def test_thinking_ends_with_its_budget(parts: Parts, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the prompt opens thinking; then the answer goes on, held to its schema."""
    opens(monkeypatch)
    answer = reason(parts, ASK, sampling=babble(3, thinking_budget=budget), schema=Found)
    assert isinstance(answer.parsed, Found)
    assert answer.receipt["thinking"] == {"tokens": budget, "closed": True}
    assert bool(answer.thinking) == bool(budget)
    assert "</think>" not in answer.thinking + answer.text


def test_a_budget_that_is_not_reached_changes_nothing(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    opens(monkeypatch)
    free, bounded = (
        reason(parts, ASK, sampling=babble(3, max_tokens=20, thinking_budget=b)) for b in (None, 20)
    )
    assert (free.thinking, free.text) == (bounded.thinking, bounded.text)
    assert bounded.receipt["thinking"] == {"tokens": 20, "closed": False}


def opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every prompt end inside a think block."""
    import dataclasses

    import armillary.tasks.reason as module

    monkeypatch.setattr(
        module,
        "converse",
        lambda *a, **k: dataclasses.replace(converse(*a, **k), opens_thinking=True),
    )


def test_a_broken_answer_leaves_the_others_alone(parts: Parts) -> None:
    """Text that went from thinking straight into what the schema does not allow ends that answer."""
    reasoner = Reasoner(parts)
    tickets = [reasoner.add(ASK, sampling=babble(2, max_tokens=6), schema=s) for s in (Found, None)]
    writers = reasoner._writers  # pyright: ignore[reportPrivateUsage]
    form = writers[tickets[0]]._form  # pyright: ignore[reportPrivateUsage]
    assert form is not None
    form.add_text("no JSON")
    told = dict[int, list[Any]]()
    while reasoner.busy:
        for ticket, delta in reasoner.step():
            told.setdefault(ticket, []).append(delta)
    assert [type(d) for d in told[tickets[0]]] == [BadRequest]
    assert told[tickets[1]][-1].answer.text == reason(parts, ASK, sampling=babble(2, max_tokens=6)).text


@torch.no_grad()
def test_logprobs_are_those_of_a_plain_pass(parts: Parts) -> None:
    sampling = babble(4, max_tokens=6, logprobs=3, repetition_penalty=1.5, top_k=50)
    answer = reason(parts, ASK, sampling=sampling)
    assert len(answer.logprobs) == answer.usage.completion_tokens
    context = converse(parts, ASK).context
    ids_A = torch.cat([context.ids_A, torch.tensor([t.id for t in answer.logprobs])])
    whole = type(context)(ids_A, torch.arange(len(ids_A)).float().expand(3, -1), len(ids_A))
    hidden_AE = parts.network.read(pack([Sample(whole)])).hidden_AE
    assert hidden_AE is not None
    chances_AV = parts.network.logits(hidden_AE[len(context) - 1 : -1]).log_softmax(-1)
    for token, chances_V in zip(answer.logprobs, chances_AV, strict=True):
        assert token.logprob == pytest.approx(float(chances_V[token.id]), abs=1e-4)
        assert [t.id for t in token.top] == chances_V.topk(3).indices.tolist()
        assert [t.logprob for t in token.top] == pytest.approx(chances_V.topk(3).values.tolist(), abs=1e-4)


def test_chances_of_all_tokens_sum_to_one() -> None:
    from armillary.decode import logprobs_of

    told = logprobs_of(torch.randn(50) * 5, 7, 50)
    assert told[0] in told[1:]
    assert sum(torch.tensor([chance for _, chance in told[1:]]).exp()) == pytest.approx(1, abs=1e-5)
