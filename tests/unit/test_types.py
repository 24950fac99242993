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
from building import plain_id
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.utils import AddableDict
from langgraph.store.base import GetOp, Item, SearchItem
from langgraph.types import Command, Interrupt, PregelTask, Send, StateSnapshot, TimeoutPolicy
from property.strategies import decode, encode, roundtrip, same
from pydantic import HttpUrl, Secret

from langgraph_resilient.codec import registry
from langgraph_resilient.codec.types import (
    SECRET_CODES,
    Code,
    TypePolicy,
    Unrestored,
    Unsupported,
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
    ids=plain_id,
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


@dataclasses.dataclass(frozen=True)
class BadRepr:
    x: int

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_member_of_a_set_with_a_broken_repr_is_no_trouble() -> None:
    assert roundtrip({BadRepr(1), BadRepr(2)}) == {BadRepr(1), BadRepr(2)}


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


def test_classes_made_by_the_thousand_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_MAX_CACHED", len(registry._FIXED) + 10)
    for number in range(50):
        reduce(type(f"Made{number}", (list,), {})())
        assert reduce((1,)) == (Code.TUPLE, [1])
    assert len(registry._reducers) <= registry._MAX_CACHED + 1


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
