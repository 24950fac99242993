"""What each kind of value keeps, what is refused, and what becomes of classes that are gone."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import logging
import re
import subprocess
import sys
import threading
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Optional, TypeVar
from zoneinfo import ZoneInfo

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables.utils import AddableDict
from langgraph.errors import GraphInterrupt
from langgraph.store.base import GetOp, Item, SearchItem
from langgraph.types import Command, Interrupt, PregelTask, Send, StateSnapshot, TimeoutPolicy
from property.strategies import decode, encode, roundtrip, same
from pydantic import HttpUrl, Secret

from langgraph_resilient.codec import registry
from langgraph_resilient.codec.types import (
    DEGRADED,
    SECRET_CODES,
    Code,
    StandInError,
    TypePolicy,
    Unrestored,
    Unsupported,
    degrade_exception,
    freeze,
    reduce,
    restore,
)
from langgraph_resilient.errors import DataCorrupt, TypeNotAllowed

STRICT = TypePolicy(strict=True)
T = TypeVar("T")


# --- standard library -------------------------------------------------------------------------


class Stamp(datetime):
    """A datetime that must not be flattened."""


class Shout(str):
    __slots__ = ("volume",)

    def __str__(self) -> str:
        return "overridden"


class Sorted(dict[str, int]):
    def items(self) -> Any:
        raise AssertionError("overridden")


class MyDefault(defaultdict[str, Any]):
    pass


class MyDeque(deque[int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        1 - 2j,
        Decimal("NaN"),
        Decimal("sNaN12"),
        Decimal("1E+400"),
        slice(1, None, ...),
        NotImplemented,
        deque([1, 2], maxlen=2),
        Counter({"a": -1, "b": 0}),
        OrderedDict(b=1, a=2),
        MappingProxyType(OrderedDict(a=1)),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        time(3, 4, 5, 6, fold=1),
        date(1, 1, 1),
        timedelta(days=-1, microseconds=3),
        timezone(timedelta(hours=1)),
        timezone(timedelta(hours=1), "CET"),
        timezone(timedelta(0)),
        re.compile("(?i)a", re.VERBOSE),
        Stamp(2026, 1, 2, tzinfo=timezone.utc),
        Shout("x"),
        Sorted(a=1),
        MyDefault(list, a=[1]),
        MyDeque([1], 3),
        frozenset({frozenset({(1, "a"), ("b",)}), frozenset()}),
        {("a", 1): 2, 3: 4, None: 5, frozenset({1}): 6, True: 7},
        int,
        list[int],
        dict[str, list[int]],
        typing.List[int],  # noqa: UP006
        Optional[int],  # noqa: UP045
        int | None,
        Literal["a", 1, None],
        typing.Any,
        type(None),
    ],
    ids=repr,
)
def test_a_standard_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    assert same(roundtrip(value), value)


def test_an_ordered_dict_keeps_an_order_made_later() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    assert list(roundtrip(value)) == ["b", "a"]


def test_a_default_dict_keeps_its_factory() -> None:
    back = roundtrip(defaultdict(list, x=[1]))
    back["new"].append(1)
    assert back == {"x": [1], "new": [1]}


def test_a_memoryview_keeps_format_shape_and_protection() -> None:
    view = memoryview(bytearray(range(8))).cast("h", [2, 2])
    back = roundtrip(view)
    assert back == view
    assert (back.format, back.shape, back.readonly) == ("h", (2, 2), False)


def test_time_zones_of_dateutil_come_back() -> None:
    tz = pytest.importorskip("dateutil.tz")
    for zone in (tz.tzutc(), tz.tzoffset("X", 3600), tz.tzlocal()):
        value = datetime(2026, 1, 1, tzinfo=zone)
        back = roundtrip(value)
        assert back == value
        assert back.tzinfo == zone
        assert type(back.tzinfo) is type(zone)
    with pytest.raises(Unsupported, match="ZoneInfo"):
        encode(tz.tzstr("EST5EDT"))


def test_time_zones_of_pytz_come_back() -> None:
    pytz = pytest.importorskip("pytz")
    value = pytz.timezone("Europe/Berlin").localize(datetime(2026, 7, 1))
    for zone in (pytz.UTC, pytz.FixedOffset(90), pytz.timezone("Europe/Berlin"), value.tzinfo):
        assert roundtrip(zone) is zone


def test_equal_sets_have_equal_bytes_in_every_process() -> None:
    code = (
        "from property.strategies import encode;"
        "print(encode({'b', 'a', (1, frozenset({'x', 'y', 'z'})), None, 3}).hex())"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root / 'tests'}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert outputs.pop().strip()


# --- classes of users -------------------------------------------------------------------------


class Outer:
    class Level(enum.Enum):
        LOW = 1

    class Word(str, enum.Enum):
        HI = "hi"

    @dataclasses.dataclass
    class Part:
        n: int


class Callback(enum.Enum):
    ODD = (1, len)


class Mask(enum.IntFlag):
    A = 1
    B = 2


class P(NamedTuple):
    x: int
    y: int = 2


Q = collections.namedtuple("Q", ["a"])


class Tagged(Q):
    """A subclass of a named tuple, with a ``__dict__``."""


@dataclasses.dataclass
class Job:
    name: str
    seed: dataclasses.InitVar[int] = 0
    attempts: int = dataclasses.field(init=False, default=0)
    runs: ClassVar[list[str]] = []

    def __post_init__(self, seed: int) -> None:
        Job.runs.append(self.name)


@dataclasses.dataclass(frozen=True)
class Base:
    a: int


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    b: list[int] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def lock(self) -> Any:
        return threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class Box(Generic[T]):
    value: T


@dataclasses.dataclass
class Wrapped(dict[str, int]):
    note: str = ""


class Private:
    __slots__ = ("__hidden",)


@dataclasses.dataclass
class Mangled(Private):
    x: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_Private__hidden", self.x + 1)


@pytest.mark.parametrize(
    "value",
    [
        Outer.Level.LOW,
        Outer.Word.HI,
        Outer.Part(1),
        Callback.ODD,
        Mask.A | Mask.B,
        Mask(0),
        P(1),
        Q(1),
        Job("a"),
        Derived(1, [2]),
        Box(1),
        Box[int](1),
        Wrapped("n"),
    ],
    ids=repr,
)
def test_an_object_of_a_users_class_comes_back_equal(value: Any) -> None:
    assert same(roundtrip(value), value)


def test_an_enum_member_comes_back_as_itself() -> None:
    assert roundtrip(Outer.Level.LOW) is Outer.Level.LOW


def test_attributes_beside_the_fields_are_kept() -> None:
    job, tagged, text = Job("a"), Tagged(1), Shout("x")
    job.stray = tagged.stray = text.volume = [1]  # type: ignore[attr-defined]
    back = roundtrip([job, tagged, text])
    assert [back[0].stray, back[1].stray, back[2].volume] == [[1]] * 3
    assert str.__str__(back[2]) == "x"


def test_a_slot_that_was_never_set_stays_unset() -> None:
    assert roundtrip(Point(1)).x == 1
    assert not hasattr(roundtrip(Point(1)), "y")


def test_private_slots_are_kept() -> None:
    assert roundtrip(Mangled(1))._Private__hidden == 2


def test_restoring_runs_no_code_of_a_users_class() -> None:
    job = Job("counted")
    Job.runs.clear()
    roundtrip(job)
    assert Job.runs == []


def test_cached_properties_are_computed_again_not_stored() -> None:
    value = Derived(1)
    assert value.lock
    assert "lock" not in vars(roundtrip(value))


def test_a_class_inside_a_function_comes_back_within_the_process() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    assert roundtrip(Local(1)) == Local(1)
    assert roundtrip(Local) is Local


def test_a_class_defined_again_is_found_under_its_new_definition() -> None:
    module = ModuleType("notebook_like")
    sys.modules["notebook_like"] = module
    try:
        source = "import dataclasses\n@dataclasses.dataclass\nclass Cell:\n    x: int\n"
        exec(source, vars(module))
        policy, data = TypePolicy(), encode(module.Cell(1))
        assert type(decode(data, policy)) is module.Cell
        exec(source + "    y: list = dataclasses.field(default_factory=list)\n", vars(module))
        back = decode(data, policy)
        assert type(back) is module.Cell
        assert back == module.Cell(1, [])
    finally:
        del sys.modules["notebook_like"]


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (lambda: 1, "look the function up"),
        (len, "look the function up"),
        (functools.partial(int, 2), "make the partial"),
        (sys, "store its name"),
        ((i for i in ()), "list"),
        (threading.Lock(), "outside the state"),
        (iter([]), "list"),
        (object(), "dataclass or a pydantic model"),
        (contextvars.ContextVar("x"), "dataclass or a pydantic model"),
        (defaultdict(lambda: 1), "factory"),
        (TypeVar("T"), "cannot be stored"),
        ({}.keys(), "list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(Unsupported, match=advice) as caught:
        encode(value)
    assert caught.value.type_name


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file, pytest.raises(Unsupported, match="store the path"):
        encode(file)


# --- exceptions -------------------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass
class DataError(Exception):
    reason: str


def _caught(raiser: Any) -> BaseException:
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _chained() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Odd(3, text="outer") from error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad row 7", 3),
        KeyError("k"),
        Odd(4, text="boom"),
        DataError("why"),
        SystemExit(3),
        StopIteration(5),
        ImportError("no", name="m", path="p"),
        GraphInterrupt((Interrupt(1, id="i"),)),
        _caught(lambda: open("/no/such/file")),  # noqa: SIM115
        _caught(lambda: b"\xff".decode("utf-8")),
        _caught(lambda: compile("a b", "f", "exec")),
        _caught(lambda: {}["x"]),
        _caught(lambda: None.foo),  # type: ignore[attr-defined]
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_class_arguments_text_and_attributes(error: Any) -> None:
    back = roundtrip(error)
    assert same(back, error)
    for name in ("filename", "errno", "name", "path", "lineno", "value", "code", "reason"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_an_exception_keeps_notes_cause_and_context_but_no_traceback() -> None:
    error = _caught(_chained)
    error.__notes__ = ["seen by a test"]  # type: ignore[attr-defined]
    back = roundtrip(error)
    assert same(back.__cause__, KeyError("inner"))
    assert back.__context__ is back.__cause__
    assert back.__suppress_context__
    assert back.__notes__ == ["seen by a test"]
    assert back.__traceback__ is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
def test_a_group_of_exceptions_comes_back() -> None:
    group = ExceptionGroup("g", [ValueError(1), Odd(2, text="t")])  # noqa: F821
    back = roundtrip(group)
    assert same(back, group)
    assert same(back.exceptions, group.exceptions)


def test_a_chain_of_exceptions_is_cut_also_when_it_is_a_ring() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert str(roundtrip(a).__cause__) == "b"


def test_a_degraded_exception_keeps_plain_parts_and_says_so() -> None:
    error = Odd(5, text="t")
    error.args = ("t", threading.Lock(), [1, {"a": object}])
    error.client = object()  # type: ignore[attr-defined]
    with pytest.raises(Unsupported):
        encode(error)
    code, payload = degrade_exception(error)
    back = restore(code, decode(encode(payload)), TypePolicy())
    assert type(back) is Odd
    assert back.args[0] == "t"
    assert "lock" in back.args[1]
    assert back.args[2][0] == 1
    assert back.code == 5
    assert back.client.startswith("<object")
    assert getattr(back, DEGRADED) is True
    assert same(roundtrip(back), back)


class Grumpy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_degrading_an_exception_never_fails() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    code, payload = degrade_exception(Bad(Grumpy(), 2**100, (Grumpy(),)))
    assert encode(payload)
    assert isinstance(restore(code, payload, TypePolicy()), Bad)


def test_an_exception_of_a_missing_class_is_an_exception_and_is_stored_unchanged() -> None:
    data = encode(Odd(1, text="boom")).replace(b"Odd", b"Old")
    back = decode(data)
    assert isinstance(back, StandInError)
    assert str(back) == "boom"
    assert "Old" in repr(back)
    assert encode(back) == data


def test_strict_mode_gives_a_stand_in_for_an_exception_it_does_not_know() -> None:
    back = decode(encode([ValueError("v"), Odd(1, text="boom")]), STRICT)
    assert same(back[0], ValueError("v"))
    assert isinstance(back[1], StandInError)
    assert str(back[1]) == "boom"


# --- langgraph ----------------------------------------------------------------------------------

_NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "value",
    [
        Send("n", HumanMessage("x")),
        Send("n", (1,), timeout=TimeoutPolicy(idle_timeout=3, refresh_on="heartbeat")),
        Command(graph=Command.PARENT, update={"a": (1,)}, resume=[1], goto=[Send("n", 1), "m"]),
        Command(),
        Interrupt({"q": 1}, id="i", response_schema=int),
        TimeoutPolicy(run_timeout=timedelta(seconds=3)),
        GetOp(("a",), "k"),
        Item(value={}, key="k", namespace=("a",), created_at=_NOW, updated_at=_NOW),
        SearchItem(("a",), "k", {}, _NOW, _NOW, score=0.5),
        PregelTask("i", "n", ("p", 1), error=None, interrupts=(Interrupt(1, id="x"),)),
        StateSnapshot({}, (), {"configurable": {}}, None, None, None, (), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_langgraph_objects_come_back_equal(value: Any) -> None:
    back = roundtrip(value)
    assert type(back) is type(value)
    assert back == value
    assert decode(encode(value), STRICT) == value


# --- policy, renamed and removed classes --------------------------------------------------------


@dataclasses.dataclass
class Order:
    id: int
    note: Any = None


@dataclasses.dataclass
class PurchaseOrder:
    id: int
    note: Any = None


@pytest.fixture
def removed() -> bytes:
    """An order of a class that has been removed since."""
    registry._warned.clear()
    return encode(Order(7, [1, 2])).replace(b"Order", b"Ordxr")


def test_a_removed_class_gives_its_data_and_no_dict(removed: bytes) -> None:
    back = decode(removed)
    assert isinstance(back, Unrestored)
    assert not isinstance(back, dict)
    assert back.id == back["id"] == back.data["id"] == 7
    assert "note" in back
    assert back == decode(removed)
    assert hash(back) == hash(decode(removed))
    assert "Ordxr" in repr(back)
    with pytest.raises(AttributeError, match="Ordxr"):
        _ = back.missing
    with pytest.raises(TypeError):
        iter(back)


def test_a_removed_class_is_stored_again_unchanged(removed: bytes) -> None:
    assert encode(decode(removed)) == removed


def test_a_removed_class_is_warned_of_once(
    removed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        decode(removed)
        decode(removed)
    assert [record for record in caplog.records if "Ordxr" in record.getMessage()] == [
        *caplog.records
    ]
    assert len(caplog.records) == 1


def test_data_of_a_removed_class_can_be_copied(removed: bytes) -> None:
    back = decode(removed)
    thaw = freeze(back)
    assert thaw is not None
    copied = thaw()
    assert copied == back
    copied.data["note"].append(3)
    assert back["note"] == [1, 2]


def test_a_renamed_class_is_restored_as_the_one_that_replaces_it(removed: bytes) -> None:
    policy = TypePolicy(strict=True, renamed={f"{__name__}:Ordxr": PurchaseOrder})
    assert decode(removed, policy) == PurchaseOrder(7, [1, 2])


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (Order(1), "Base1"),
        (Outer.Level.LOW, "Outer.Levxl"),
        (P(1), "Q"),
        (Shout("x"), "Q"),
        (Order(1), "Callback"),
        (Outer.Level.LOW, "Order"),
    ],
    ids=repr,
)
def test_a_name_that_leads_to_another_kind_of_class_gives_unrestored(
    value: Any, other: str
) -> None:
    code, payload = reduce(value)
    payload = [f"{__name__}:{other}", *payload[1:]]
    back = restore(code, payload, TypePolicy())
    assert isinstance(back, Unrestored)
    assert reduce(back) == (code, payload)


def test_a_name_that_leads_to_a_function_is_not_called() -> None:
    assert isinstance(restore(Code.DATACLASS, ["os:system", {"x": 1}], TypePolicy()), Unrestored)
    assert isinstance(restore(Code.TYPE, ["os:system"], TypePolicy()), Unrestored)
    assert isinstance(restore(Code.TYPE, ["typing:cast"], TypePolicy()), Unrestored)


def test_strict_mode_refuses_a_class_outside_the_allowlist_and_names_it() -> None:
    with pytest.raises(TypeNotAllowed, match=r"Order.*allowed_types") as caught:
        decode(encode(Order(1)), STRICT)
    assert caught.value.type_name == f"{__name__}.Order"


def test_strict_mode_imports_nothing() -> None:
    with pytest.raises(TypeNotAllowed):
        restore(Code.TYPE, ["antigravity:x"], STRICT)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["Outer.Part", "Part"])
def test_strict_mode_takes_the_qualified_and_the_plain_name(name: str) -> None:
    policy = TypePolicy(strict=True, allowed=frozenset({(__name__, name)}))
    assert decode(encode(Outer.Part(1)), policy) == Outer.Part(1)


def test_strict_mode_allows_the_standard_types_and_messages() -> None:
    value = [Path("a"), Counter("a"), Decimal(1), AIMessage("x"), Command(update={"a": 1}), {1}]
    value += [HumanMessage("a").text, AddableDict(a=1), HttpUrl("http://x"), Secret[int](1)]
    assert same(decode(encode(value), STRICT), value)


def test_an_unknown_code_is_an_error() -> None:
    with pytest.raises(DataCorrupt, match="99"):
        restore(99, None, TypePolicy())


def test_no_code_is_used_by_the_walker() -> None:
    assert max(Code) < 100
    assert {int(Code.SECRET)} == SECRET_CODES


def test_a_member_that_was_renamed_is_found_by_its_value() -> None:
    code, payload = reduce(Outer.Level.LOW)
    assert restore(code, [payload[0], "LOWEST", 1], TypePolicy()) is Outer.Level.LOW
    assert isinstance(restore(code, [payload[0], "LOWEST", 9], TypePolicy()), Unrestored)


def test_a_named_tuple_may_gain_a_field_with_a_default() -> None:
    code, payload = reduce(P(1))
    assert restore(code, [payload[0], {"x": 5}], TypePolicy()) == P(5, 2)


# --- messages -----------------------------------------------------------------------------------


class Special(HumanMessage):
    score: float = 0.5


def test_a_message_is_stored_without_what_is_default() -> None:
    assert reduce(HumanMessage("hi", id="1")) == (
        Code.MESSAGE,
        [0, {"content": "hi", "id": "1"}, 0b100001],
    )


@pytest.mark.parametrize(
    "message",
    [
        Special("x", score=1.5),
        BaseMessage(content="x", type="own"),
        HumanMessage("x", extra_part={"a": 1}),
        ToolMessage("x", tool_call_id="1", artifact={"t": (1, 2)}),
        HumanMessage.model_construct(content="x", id=("no", "text")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_any_class_comes_back(message: BaseMessage) -> None:
    back = roundtrip(message)
    assert same(back, message)
    assert list(vars(back)) == list(vars(message))


def test_a_message_that_lacks_a_field_still_lacks_it() -> None:
    message = HumanMessage("x")
    del message.__dict__["content"]
    assert vars(roundtrip(message)) == vars(message)


def test_an_artifact_that_has_no_truth_value_is_no_trouble() -> None:
    np = pytest.importorskip("numpy")
    message = ToolMessage("x", tool_call_id="1")
    message.artifact = np.arange(3)
    assert roundtrip(message).artifact.tolist() == [0, 1, 2]


def test_restored_messages_share_no_default() -> None:
    data = encode(AIMessage("x"))
    one, two = decode(data), decode(data)
    one.tool_calls.append({"name": "n", "args": {}, "id": "1"})
    one.additional_kwargs["k"] = 1
    one.__pydantic_fields_set__.add("id")
    assert same(two, AIMessage("x"))
    assert same(decode(data), AIMessage("x"))


def test_a_text_default_is_left_out_whichever_object_it_is() -> None:
    message = HumanMessage("x")
    message.__dict__["type"] = "".join(["hu", "man"])
    assert reduce(message) == reduce(HumanMessage("x"))


@dataclasses.dataclass(frozen=True)
class BadRepr:
    x: int

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_member_of_a_set_with_a_broken_repr_is_no_trouble() -> None:
    assert roundtrip({BadRepr(1), BadRepr(2)}) == {BadRepr(1), BadRepr(2)}
