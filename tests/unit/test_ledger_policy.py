"""What may be done with a tool's calls: who says so, who is believed first, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import StructuredTool, tool

from langgraph_resilient.errors import ConfigurationError
from langgraph_resilient.ledger.policy import (
    Done,
    NotDone,
    ToolPolicy,
    effect,
    policy_of,
    resolved,
)
from langgraph_resilient.records import Effect


def send(to: str) -> str:
    """Send."""
    return to


def made(function: Any = send, **fields: Any) -> StructuredTool:
    return StructuredTool.from_function(function, **fields)


# --- what a tool says of itself -------------------------------------------------------------


def test_a_tool_that_says_nothing_has_no_policy() -> None:
    assert policy_of(made()) is None
    assert policy_of(send) is None
    assert policy_of(made(metadata={"retry_safe": False, "other": 1})) is None


@pytest.mark.parametrize("kind", Effect)
def test_effect_marks_above_and_below_the_tool_decorator(kind: Effect) -> None:
    @effect(kind.value)
    @tool
    def above(to: str) -> str:
        """Above."""
        return to

    @tool
    @effect(kind)
    def below(to: str) -> str:
        """Below."""
        return to

    @tool
    @effect(kind, on_unknown="message")
    async def coroutine(to: str) -> str:
        """Coroutine."""
        return to

    for marked in (above, below, coroutine):
        found = policy_of(marked)
        assert found is not None
        assert found.effect is kind


def test_effect_gives_back_the_very_object() -> None:
    def own(to: str) -> str:
        """Own."""
        return to

    assert effect("pure")(own) is own
    one = made()
    assert effect("pure")(one) is one
    assert policy_of(send) is None  # the function inside stays unmarked


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({}, None),
        ({"retry_safe": True}, Effect.IDEMPOTENT),
        ({"retry_safe": False}, None),
        ({"retry_safe": "yes"}, None),
        ({"readOnlyHint": True}, Effect.PURE),
        ({"readOnlyHint": True, "destructiveHint": True}, Effect.PURE),
        ({"readOnlyHint": True, "idempotentHint": True}, Effect.PURE),
        ({"readOnlyHint": False}, None),
        ({"readOnlyHint": None, "idempotentHint": None, "destructiveHint": None}, None),
        ({"idempotentHint": True}, Effect.IDEMPOTENT),
        ({"idempotentHint": True, "destructiveHint": True}, Effect.IDEMPOTENT),
        ({"idempotentHint": False, "destructiveHint": False}, None),
        ({"destructiveHint": False}, None),
        ({"destructiveHint": True}, None),
    ],
)
def test_metadata_and_the_annotations_of_mcp_servers(
    metadata: dict[str, Any], wanted: Effect | None
) -> None:
    """A tool that destroys nothing may still do something twice: only two hints count."""
    found = policy_of(made(metadata=metadata))
    assert (found and found.effect) == wanted


def test_a_mark_counts_more_than_metadata() -> None:
    marked = effect("external")(made(metadata={"retry_safe": True}))
    found = policy_of(marked)
    assert found is not None
    assert found.effect is Effect.EXTERNAL


# --- who is believed first ------------------------------------------------------------------


def test_the_middleware_counts_more_than_the_tool_and_the_default_least() -> None:
    own, given = ToolPolicy(effect="pure"), ToolPolicy(effect="idempotent")
    assert resolved(given, own, Effect.EXTERNAL).effect is Effect.IDEMPOTENT
    assert resolved(None, own, Effect.EXTERNAL).effect is Effect.PURE
    assert resolved(given, None, Effect.EXTERNAL).effect is Effect.IDEMPOTENT
    assert resolved(None, None, Effect.EXTERNAL).effect is Effect.EXTERNAL
    assert resolved(None, None, Effect.PURE).effect is Effect.PURE


def test_what_the_middleware_leaves_out_the_tool_may_say() -> None:
    def probe(entry: Any) -> Done:
        return Done()

    own = ToolPolicy(effect="external", verify=probe, on_unknown="raise", scope="global")
    given = ToolPolicy(on_unknown="message", ambiguous=(ValueError,))
    found = resolved(given, own, Effect.PURE)
    assert found == ToolPolicy(
        effect="external",
        verify=probe,
        on_unknown="message",
        scope="global",
        ambiguous=(ValueError,),
    )


def test_every_field_is_merged() -> None:
    """A field that is added later is not forgotten: each one is taken from whoever sets it."""
    values: dict[str, Any] = {
        "effect": Effect.PURE,
        "key": lambda args: "k",
        "scope": "global",
        "verify": lambda entry: None,
        "on_unknown": "retry",
        "precondition": lambda entry: True,
        "still_valid": lambda result: True,
        "artifacts": lambda result: [],
        "definite": (KeyError,),
        "ambiguous": (ValueError,),
    }
    assert set(values) == set(ToolPolicy.__dataclass_fields__)
    full, empty = ToolPolicy(**values), ToolPolicy()
    for name, value in values.items():
        one = ToolPolicy(**{name: value})
        assert getattr(resolved(one, empty, Effect.EXTERNAL), name) == value
        assert getattr(resolved(empty, one, Effect.EXTERNAL), name) == value
        assert getattr(resolved(one, full, Effect.EXTERNAL), name) == value
    assert resolved(empty, full, Effect.EXTERNAL) == full


def test_no_policy_is_without_an_effect_once_resolved() -> None:
    own = ToolPolicy(verify=lambda entry: None)
    assert resolved(None, own, Effect.EXTERNAL).effect is Effect.EXTERNAL
    assert resolved(own, None, Effect.IDEMPOTENT).effect is Effect.IDEMPOTENT
    assert own.effect is None


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "external!"},
        {"effect": "PURE"},
        {"on_unknown": "guess"},
        {"on_unknown": None},
        {"scope": "world"},
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="is not"):
        ToolPolicy(**wrong)


def test_a_business_key_must_be_a_text() -> None:
    def policy(value: Any) -> ToolPolicy:
        return ToolPolicy(key=lambda args: value)

    assert ToolPolicy().business_key("send", {}) is None
    assert policy("order:1").business_key("send", {"id": 1}) == "order:1"
    for wrong in (None, "", 1, b"order", ["order"]):
        with pytest.raises(ConfigurationError, match=r"'send'.*must give a text"):
            policy(wrong).business_key("send", {})


def test_a_business_key_is_made_of_the_arguments() -> None:
    policy = ToolPolicy(key=lambda args: f"order:{args['id']}")
    assert policy.business_key("send", {"id": 7}) == "order:7"
    with pytest.raises(KeyError):
        policy.business_key("send", {})


def test_what_probes_say_has_a_text_for_the_model() -> None:
    assert Done().result
    assert Done(None).result is None
    assert NotDone().reason == ""
