"""How a client is called so that it sends what was recorded."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from langgraph_resilient.integrations.parameters import changes, secrets_of


class Client(BaseModel):
    """Fields as clients have them: an alias, another name on the wire, a body of its own."""

    model_config = ConfigDict(populate_by_name=True)

    model_name: str = Field(default="m", alias="model")
    max_tokens: int | None = None
    temperature: float | None = None
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] | None = None
    key: SecretStr | None = None


class Plain(BaseModel):
    temperature: float | None = None


def test_a_field_is_found_by_name_alias_and_name_on_the_wire() -> None:
    got = changes(Client(), {}, {"model": "n", "temperature": 0.1, "max_output_tokens": 5})
    assert got.fields == {"model_name": "n", "temperature": 0.1, "max_tokens": 5}
    assert (got.given, got.arguments({"a": 1})) == ({}, {"a": 1})


def test_what_was_not_sent_is_taken_away() -> None:
    got = changes(Client(temperature=1), {"temperature": 2, "top_p": 3}, {"temperature": None})
    assert got.fields == {"temperature": None}
    assert got.arguments({"temperature": 2, "top_p": 3}) == {"top_p": 3}


def test_an_argument_of_the_call_is_replaced() -> None:
    got = changes(Client(), {"temperature": 2}, {"temperature": 1})
    assert got.arguments({"temperature": 2}) == {"temperature": 1}


def test_what_is_no_field_goes_into_the_body_or_the_call() -> None:
    model = Client(extra_body={"top_k": 9, "other": 1})
    assert changes(model, {}, {"top_k": 7}).fields == {"extra_body": {"top_k": 7, "other": 1}}
    assert changes(model, {}, {"top_k": None}).fields == {"extra_body": {"other": 1}}
    assert changes(Plain(), {}, {"top_k": 7}).arguments({}) == {"top_k": 7}


def test_stop_sequences_are_those_that_were_recorded() -> None:
    assert changes(Client(), {}, {}).stop == ()
    assert changes(Client(stop=["Y"]), {}, {"stop": ["X"]}).stop == (["X"],)
    none = changes(Client(stop=["Y"]), {}, {"stop": None})
    assert (none.stop, none.fields) == ((None,), {"stop": None})


def test_a_field_that_is_sent_within_another_does_not_speak_twice() -> None:
    got = changes(Client(reasoning_effort="high"), {}, {"reasoning": {"effort": "low"}})
    assert got.fields["reasoning_effort"] is None


def test_secrets_are_the_values_of_secret_fields() -> None:
    assert secrets_of(Client(key=SecretStr("k"))) == ["k"]
    assert secrets_of(Client()) == secrets_of(Client(key=SecretStr(""))) == []
