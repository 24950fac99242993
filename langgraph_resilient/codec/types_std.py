"""Values of the standard library: numbers, containers, times, paths, addresses, patterns."""

from __future__ import annotations

import re
import sys
from array import array
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import (
    Path,
    PosixPath,
    PurePath,
    PurePosixPath,
    PureWindowsPath,
    WindowsPath,
)
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langgraph_resilient.codec.naming import (
    TypePolicy,
    Unresolved,
    Unsupported,
    class_ref,
    safe_text,
    type_name,
)
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, reduces, restores

# --- numbers --------------------------------------------------------------------------------


@reduces(int)
def _reduce_int(obj: int) -> Reduced:
    return Code.BIGINT, obj.to_bytes(obj.bit_length() // 8 + 1, "big", signed=True)


@restores(Code.BIGINT)
def _restore_int(payload: Any, policy: TypePolicy) -> int:
    return int.from_bytes(payload, "big", signed=True)


@reduces(complex)
def _reduce_complex(obj: complex) -> Reduced:
    return Code.COMPLEX, [obj.real, obj.imag]


@restores(Code.COMPLEX)
def _restore_complex(payload: Any, policy: TypePolicy) -> complex:
    return complex(payload[0], payload[1])


@reduces(Fraction)
def _reduce_fraction(obj: Fraction) -> Reduced:
    return Code.FRACTION, [obj.numerator, obj.denominator]


@restores(Code.FRACTION)
def _restore_fraction(payload: Any, policy: TypePolicy) -> Fraction:
    return Fraction(payload[0], payload[1])


@reduces(Decimal)
def _reduce_decimal(obj: Decimal) -> Reduced:
    return Code.DECIMAL, str(obj)


@restores(Code.DECIMAL)
def _restore_decimal(payload: Any, policy: TypePolicy) -> Decimal:
    return Decimal(payload)


# --- containers -----------------------------------------------------------------------------


@reduces(tuple)
def _reduce_tuple(obj: tuple[Any, ...]) -> Reduced:
    return Code.TUPLE, list(obj)


@restores(Code.TUPLE)
def _restore_tuple(payload: Any, policy: TypePolicy) -> tuple[Any, ...]:
    return tuple(payload)


def _sort_key(member: Any) -> Any:
    """An order for any members that does not depend on hashes or addresses."""
    if isinstance(member, tuple):
        return (type_name(type(member)), "", [_sort_key(part) for part in member])
    if isinstance(member, frozenset):
        return (type_name(frozenset), "", sorted(map(_sort_key, member)))
    return (type_name(type(member)), safe_text(repr, member), [])


def in_order(members: Iterable[Any]) -> list[Any]:
    """Members of a set in an order that is the same in every process."""
    items = list(members)
    kinds = set(map(type, items))
    if kinds == {str} or kinds == {int}:
        items.sort()
    elif len(items) > 1:
        items.sort(key=_sort_key)
    return items


@reduces(set)
def _reduce_set(obj: set[Any]) -> Reduced:
    return Code.SET, in_order(obj)


@restores(Code.SET)
def _restore_set(payload: Any, policy: TypePolicy) -> set[Any]:
    return set(payload)


@reduces(frozenset)
def _reduce_frozenset(obj: frozenset[Any]) -> Reduced:
    return Code.FROZENSET, in_order(obj)


@restores(Code.FROZENSET)
def _restore_frozenset(payload: Any, policy: TypePolicy) -> frozenset[Any]:
    return frozenset(payload)


@reduces(bytearray)
def _reduce_bytearray(obj: bytearray) -> Reduced:
    return Code.BYTEARRAY, bytes(obj)


@restores(Code.BYTEARRAY)
def _restore_bytearray(payload: Any, policy: TypePolicy) -> bytearray:
    return bytearray(payload)


@reduces(memoryview)
def _reduce_memoryview(obj: memoryview) -> Reduced:
    if obj.ndim == 0 or obj.format.lstrip("@") not in "bBhHiIlLqQnNfd?c" or 0 in (obj.shape or ()):
        raise Unsupported("a memoryview of this format cannot be stored; use bytes", "memoryview")
    return Code.MEMORYVIEW, [obj.tobytes(), obj.format, list(obj.shape or ()), obj.readonly]


@restores(Code.MEMORYVIEW)
def _restore_memoryview(payload: Any, policy: TypePolicy) -> memoryview:
    data, form, shape, readonly = payload
    view = memoryview(data if readonly else bytearray(data))
    return view.cast(form) if len(shape) == 1 else view.cast(form, shape)


@reduces(range)
def _reduce_range(obj: range) -> Reduced:
    return Code.RANGE, [obj.start, obj.stop, obj.step]


@restores(Code.RANGE)
def _restore_range(payload: Any, policy: TypePolicy) -> range:
    return range(*payload)


@reduces(slice)
def _reduce_slice(obj: slice) -> Reduced:
    return Code.SLICE, [obj.start, obj.stop, obj.step]


@restores(Code.SLICE)
def _restore_slice(payload: Any, policy: TypePolicy) -> slice:
    return slice(*payload)


_SINGLETONS: dict[str, Any] = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}


@reduces(type(Ellipsis), type(NotImplemented))
def _reduce_singleton(obj: Any) -> Reduced:
    return Code.SINGLETON, repr(obj)


@restores(Code.SINGLETON)
def _restore_singleton(payload: Any, policy: TypePolicy) -> Any:
    return _SINGLETONS[payload]


@reduces(deque)
def _reduce_deque(obj: deque[Any]) -> Reduced:
    return Code.DEQUE, [list(obj), obj.maxlen]


@restores(Code.DEQUE)
def _restore_deque(payload: Any, policy: TypePolicy) -> deque[Any]:
    return deque(payload[0], payload[1])


@reduces(Counter)
def _reduce_counter(obj: Counter[Any]) -> Reduced:
    return Code.COUNTER, dict(obj)


@restores(Code.COUNTER)
def _restore_counter(payload: Any, policy: TypePolicy) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, payload)  # Counter.update would add, and needs numbers
    return counter


@reduces(OrderedDict)
def _reduce_ordered(obj: OrderedDict[Any, Any]) -> Reduced:
    return Code.ORDERED_DICT, dict(obj)


@restores(Code.ORDERED_DICT)
def _restore_ordered(payload: Any, policy: TypePolicy) -> OrderedDict[Any, Any]:
    return OrderedDict(payload)


_FACTORIES: dict[str, Any] = {
    factory.__name__: factory
    for factory in (
        *(list, dict, set, frozenset, tuple, deque, Counter, OrderedDict),
        *(int, float, complex, bool, str, bytes, bytearray),
    )
}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}


def factory_ref(factory: Any) -> str | None:
    """The name under which a ``defaultdict`` factory is stored.

    Raises:
        Unsupported: it is not one of the built-in classes.
    """
    if factory is None:
        return None
    name = _FACTORY_NAMES.get(factory) if isinstance(factory, type) else None
    if name is None:
        raise Unsupported(
            f"a defaultdict whose factory is {factory!r} cannot be stored; use a built-in class "
            "such as list or dict as factory, or a plain dict with setdefault()",
            "collections.defaultdict",
        )
    return name


@reduces(defaultdict)
def _reduce_defaultdict(obj: defaultdict[Any, Any]) -> Reduced:
    return Code.DEFAULTDICT, [factory_ref(obj.default_factory), dict(obj)]


def factory_of(name: str | None) -> Any:
    """The factory that `factory_ref` named."""
    return None if name is None else _FACTORIES[name]


@restores(Code.DEFAULTDICT)
def _restore_defaultdict(payload: Any, policy: TypePolicy) -> defaultdict[Any, Any]:
    return defaultdict(factory_of(payload[0]), payload[1])


@reduces(ChainMap)
def _reduce_chainmap(obj: ChainMap[Any, Any]) -> Reduced:
    return Code.CHAINMAP, list(obj.maps)


@restores(Code.CHAINMAP)
def _restore_chainmap(payload: Any, policy: TypePolicy) -> ChainMap[Any, Any]:
    return ChainMap(*payload)


@reduces(MappingProxyType)
def _reduce_proxy(obj: MappingProxyType[Any, Any]) -> Reduced:
    # The mapping inside decides the type: copy() gives it, `|` on both sides would flatten it.
    return Code.MAPPING_PROXY, obj.copy()


@restores(Code.MAPPING_PROXY)
def _restore_proxy(payload: Any, policy: TypePolicy) -> MappingProxyType[Any, Any]:
    return MappingProxyType(payload)


@reduces(SimpleNamespace)
def _reduce_namespace(obj: SimpleNamespace) -> Reduced:
    return Code.NAMESPACE, dict(obj.__dict__)


@restores(Code.NAMESPACE)
def _restore_namespace(payload: Any, policy: TypePolicy) -> SimpleNamespace:
    namespace = SimpleNamespace()
    namespace.__dict__.update(payload)
    return namespace


@reduces(array)
def _reduce_array(obj: array[Any]) -> Reduced:
    if obj.typecode in ("u", "w"):
        return Code.ARRAY, [obj.typecode, 0, obj.tounicode()]
    data = obj
    if sys.byteorder == "big":
        data = array(obj.typecode, obj)
        data.byteswap()
    return Code.ARRAY, [obj.typecode, obj.itemsize, data.tobytes()]


@restores(Code.ARRAY)
def _restore_array(payload: Any, policy: TypePolicy) -> array[Any]:
    typecode, itemsize, data = payload
    if itemsize == 0:
        return array(typecode, data)
    result: array[Any] = array(typecode)
    if result.itemsize != itemsize:  # "l" is 4 bytes wide on some systems and 8 on others
        step = range(0, len(data), itemsize)
        signed = typecode.islower()
        result.extend(int.from_bytes(data[i : i + itemsize], "little", signed=signed) for i in step)
        return result
    result.frombytes(data)
    if sys.byteorder == "big":
        result.byteswap()
    return result


# --- time -----------------------------------------------------------------------------------


@reduces(timedelta)
def _reduce_timedelta(obj: timedelta) -> Reduced:
    return Code.TIMEDELTA, [obj.days, obj.seconds, obj.microseconds]


@restores(Code.TIMEDELTA)
def _restore_timedelta(payload: Any, policy: TypePolicy) -> timedelta:
    return timedelta(*payload)


@reduces(date)
def _reduce_date(obj: date) -> Reduced:
    return Code.DATE, [obj.year, obj.month, obj.day]


@restores(Code.DATE)
def _restore_date(payload: Any, policy: TypePolicy) -> date:
    return date(*payload)


def datetime_parts(obj: datetime) -> list[Any]:
    """Arguments of ``datetime.__new__``, with `fold` last."""
    day = [obj.year, obj.month, obj.day, obj.hour, obj.minute, obj.second, obj.microsecond]
    return [*day, obj.tzinfo, obj.fold]


@reduces(datetime)
def _reduce_datetime(obj: datetime) -> Reduced:
    return Code.DATETIME, datetime_parts(obj)


@restores(Code.DATETIME)
def _restore_datetime(payload: Any, policy: TypePolicy) -> datetime:
    return datetime(*payload[:8], fold=payload[8])  # noqa: DTZ001 -- part 8 is the time zone


@reduces(time)
def _reduce_time(obj: time) -> Reduced:
    return Code.TIME, [obj.hour, obj.minute, obj.second, obj.microsecond, obj.tzinfo, obj.fold]


@restores(Code.TIME)
def _restore_time(payload: Any, policy: TypePolicy) -> time:
    return time(*payload[:5], fold=payload[5])


@reduces(timezone)
def _reduce_timezone(obj: timezone) -> Reduced:
    if obj is timezone.utc:
        return Code.TIMEZONE, None
    # Arguments as given: timezone(offset) and timezone(offset, "its default name") differ in repr.
    return Code.TIMEZONE, list(obj.__getinitargs__())  # type: ignore[attr-defined]


@restores(Code.TIMEZONE)
def _restore_timezone(payload: Any, policy: TypePolicy) -> timezone:
    return timezone.utc if payload is None else timezone(*payload)


@reduces(ZoneInfo)
def _reduce_zoneinfo(obj: ZoneInfo) -> Reduced:
    if obj.key is None:
        raise Unsupported("a ZoneInfo made from a file has no key to store", "zoneinfo.ZoneInfo")
    return Code.ZONEINFO, obj.key


@restores(Code.ZONEINFO)
def _restore_zoneinfo(payload: Any, policy: TypePolicy) -> ZoneInfo:
    try:
        return ZoneInfo(payload)
    except ZoneInfoNotFoundError as error:
        # A datetime needs a tzinfo, so Unrestored is no way out here.
        raise ZoneInfoNotFoundError(
            f"No time zone data for {payload!r}; install it with `pip install tzdata`."
        ) from error


def tz_family(cls: type) -> Reducer | None:
    """Time zones of pytz and dateutil, as older pandas makes them."""
    if not issubclass(cls, tzinfo):
        return None
    package = cls.__module__.partition(".")[0]
    if package == "pytz":
        return _reduce_pytz
    if cls.__module__ == "dateutil.tz.tz" and cls.__name__ in ("tzutc", "tzlocal", "tzoffset"):
        return _reduce_dateutil
    name = type_name(cls)
    raise Unsupported(f"time zones of type {name} cannot be stored; use zoneinfo.ZoneInfo", name)


def _reduce_pytz(obj: Any) -> Reduced:
    zone = getattr(obj, "zone", None)
    if zone is None:
        return Code.FOREIGN_TZ, ["pytz.fixed", int(obj.utcoffset(None).total_seconds() // 60)]
    # A zone has one object for each of its offsets; this is the key that tells them apart.
    variants = getattr(obj, "_tzinfos", None) or {}
    key = next((key for key, value in variants.items() if value is obj), None)
    return Code.FOREIGN_TZ, ["pytz", zone, key]


def _reduce_dateutil(obj: Any) -> Reduced:
    name = type(obj).__name__
    if name == "tzoffset":
        return Code.FOREIGN_TZ, ["dateutil.tzoffset", obj._name, obj.utcoffset(None)]
    return Code.FOREIGN_TZ, [f"dateutil.{name}"]


@restores(Code.FOREIGN_TZ)
def _restore_foreign_tz(payload: Any, policy: TypePolicy) -> Any:
    kind, *args = payload
    if kind.startswith("pytz"):
        import pytz  # type: ignore[import-untyped,unused-ignore]

        if kind == "pytz.fixed":
            return pytz.FixedOffset(args[0])
        zone: Any = pytz.timezone(args[0])
        return zone if args[1] is None else zone._tzinfos[args[1]]
    from dateutil import tz  # type: ignore[import-untyped,unused-ignore]

    makers: dict[str, Any] = {"tzutc": tz.tzutc, "tzlocal": tz.tzlocal, "tzoffset": tz.tzoffset}
    return makers[kind.partition(".")[2]](*args)


# --- names and places -----------------------------------------------------------------------


@reduces(UUID)
def _reduce_uuid(obj: UUID) -> Reduced:
    return Code.UUID, obj.bytes


@restores(Code.UUID)
def _restore_uuid(payload: Any, policy: TypePolicy) -> UUID:
    return UUID(bytes=payload)


_PATHS: dict[str, type[PurePath]] = {
    cls.__name__: cls
    for cls in (Path, PosixPath, WindowsPath, PurePath, PurePosixPath, PureWindowsPath)
}


@reduces(*_PATHS.values())
def _reduce_path(obj: PurePath) -> Reduced:
    return Code.PATH, [type(obj).__name__, str(obj)]


@restores(Code.PATH)
def _restore_path(payload: Any, policy: TypePolicy) -> PurePath:
    name, text = payload
    # A WindowsPath cannot be made on POSIX (and the other way round): Path is what fits here.
    if name in ("PosixPath", "WindowsPath") and not isinstance(Path(), _PATHS[name]):
        return (PurePosixPath if name == "PosixPath" else PureWindowsPath)(text)
    return _PATHS[name](text)


_ADDRESSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        IPv4Address,
        IPv4Interface,
        IPv4Network,
        IPv6Address,
        IPv6Interface,
        IPv6Network,
    )
}


@reduces(*_ADDRESSES.values())
def _reduce_address(obj: Any) -> Reduced:
    return Code.IP, [type(obj).__name__, str(obj)]


@restores(Code.IP)
def _restore_address(payload: Any, policy: TypePolicy) -> Any:
    return _ADDRESSES[payload[0]](payload[1])


@reduces(re.Pattern)
def _reduce_pattern(obj: re.Pattern[Any]) -> Reduced:
    if obj.flags & re.DEBUG:
        raise Unsupported("a pattern compiled with re.DEBUG cannot be stored", "re.Pattern")
    return Code.PATTERN, [obj.pattern, obj.flags]


@restores(Code.PATTERN)
def _restore_pattern(payload: Any, policy: TypePolicy) -> re.Pattern[Any]:
    try:
        return re.compile(payload[0], payload[1])
    except re.error as error:
        raise Unresolved("re.Pattern", f"this Python rejects {payload[0]!r} ({error})") from error


def path_family(cls: type) -> Reducer | None:
    """Subclasses of paths are refused rather than flattened."""
    if not issubclass(cls, PurePath):
        return None
    name = class_ref(cls).replace(":", ".")
    raise Unsupported(f"subclasses of pathlib classes ({name}) cannot be stored; use Path", name)
