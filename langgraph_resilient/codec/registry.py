"""The table of type codes, and the dispatch from a class or a code to what handles it.

What a value of some type looks like when stored is said in the ``types_*`` modules, which
register themselves here. Knows no MessagePack and no SQL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from langgraph_resilient.codec.naming import TypePolicy, Unresolved
from langgraph_resilient.errors import DataCorrupt

logger = logging.getLogger(__name__)


class Code(IntEnum):
    """Number that stands before a stored object. A file format: a number is never reused.

    100 to 127 belong to the walker (references) and are never used here.
    """

    TUPLE = 0
    SET = 1
    FROZENSET = 2
    BIGINT = 3
    COMPLEX = 4
    BYTEARRAY = 5
    MEMORYVIEW = 6
    RANGE = 7
    SLICE = 8
    SINGLETON = 9
    FRACTION = 10
    DECIMAL = 11
    DATETIME = 12
    DATE = 13
    TIME = 14
    TIMEDELTA = 15
    TIMEZONE = 16
    ZONEINFO = 17
    UUID = 18
    PATH = 19
    IP = 20
    PATTERN = 21
    DEQUE = 22
    COUNTER = 23
    ORDERED_DICT = 24
    DEFAULTDICT = 25
    CHAINMAP = 26
    MAPPING_PROXY = 27
    NAMESPACE = 28
    ARRAY = 29
    FOREIGN_TZ = 30
    # classes written by the user
    ENUM = 32
    FLAG = 33
    NAMEDTUPLE = 34
    DATACLASS = 35
    SUBCLASS = 36
    EXCEPTION = 37
    TYPE = 38
    VALIDATION_ERROR = 39
    # pydantic and langchain
    MODEL = 40
    MODEL_V1 = 41
    SECRET = 42
    URL = 43
    MESSAGE = 44
    # langgraph
    SEND = 50
    COMMAND = 51
    INTERRUPT = 52
    OVERWRITE = 53
    DELTA_SNAPSHOT = 54
    SLOTTED = 55
    # numpy
    NDARRAY = 60
    NP_SCALAR = 61
    NP_DTYPE = 62
    # pandas
    FRAME = 70
    SERIES = 71
    INDEX = 72
    PD_SCALAR = 73
    PD_ARRAY = 74
    PD_OFFSET = 75


Reduced = tuple[int, Any]
Reducer = Callable[[Any], Reduced]
Restorer = Callable[[Any, TypePolicy], Any]


# --- data whose class is gone -----------------------------------------------------------------

_warned: set[str] = set()


class Unrestored:
    """The data of an object whose class was renamed or removed. Not a dict.

    Stored fields are readable as attributes and as items; `data` holds them all. Saved again, it
    is stored exactly as it was, so nothing is lost until the class is back (or is named in
    ``renamed_types``).

    Attributes:
        type_name: dotted name of the missing class.
        data: the stored state: a dict of fields, or the bare value.
    """

    __slots__ = ("_code", "_payload", "data", "type_name")
    __iter__ = None

    def __init__(
        self, type_name: str, data: Any, code: int = Code.DATACLASS, payload: Any = None
    ) -> None:
        self.type_name = type_name
        self.data = data
        self._code = code
        self._payload = payload if payload is not None else [type_name, data]

    def __getattr__(self, name: str) -> Any:
        # Only called when the normal lookup failed; slots may be unset while being copied.
        if not name.startswith("__") and name not in Unrestored.__slots__:
            data = self.data
            if isinstance(data, dict) and name in data:
                return data[name]
            raise AttributeError(
                f"{self.type_name} could not be restored, and its data has no {name!r}"
            )
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __contains__(self, key: object) -> bool:
        return isinstance(self.data, dict) and key in self.data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unrestored):
            return NotImplemented
        return (self._code, self._payload) == (other._code, other._payload)

    def __hash__(self) -> int:
        return hash((self._code, self.type_name))

    def __repr__(self) -> str:
        return f"<Unrestored {self.type_name}>"


def warn_once(why: Unresolved) -> None:
    """Logs that a class is gone, once per class."""
    if why.type_name not in _warned:
        _warned.add(why.type_name)
        logger.warning(
            "Stored data holds %s, which cannot be restored: %s. It is returned as Unrestored "
            "with its data; name the class that replaces it in renamed_types.",
            why.type_name,
            why.why,
        )


def _unrestored(code: int, payload: Any, why: Unresolved) -> Unrestored:
    warn_once(why)
    data = payload[1] if isinstance(payload, list) and len(payload) > 1 else payload
    return Unrestored(why.type_name, data, code, payload)


# --- dispatch -----------------------------------------------------------------------------------

_FIXED: dict[type, Reducer] = {}
_families: list[Callable[[type], Reducer | None]] = []
_restorers: list[Restorer | None] = [None] * 128
_reducers: dict[type, Reducer] = {}

# The cache holds classes strongly; programs that make a class per request must not grow it.
_MAX_CACHED = 4096


def reduces(*classes: type) -> Callable[[Reducer], Reducer]:
    """Registers the reducer of exactly these classes."""

    def register(reducer: Reducer) -> Reducer:
        for cls in classes:
            _FIXED[cls] = _reducers[cls] = reducer
        return reducer

    return register


def restores(code: Code) -> Callable[[Restorer], Restorer]:
    """Registers what reads a code."""

    def register(restorer: Restorer) -> Restorer:
        if _restorers[code] is not None:
            raise AssertionError(f"two restorers for {code!r}")
        _restorers[code] = restorer
        return restorer

    return register


def register_families(*finders: Callable[[type], Reducer | None]) -> None:
    """Registers the rules that find the reducer of a class by what it is; asked in this order."""
    _families.extend(finders)


def reducer_for(cls: type) -> Reducer:
    """The reducer of a class, found once and then cached.

    Raises:
        Unsupported: objects of this class cannot be stored.
    """
    global _reducers
    for find in _families:
        reducer = find(cls)
        if reducer is not None:
            if len(_reducers) > _MAX_CACHED:
                # A new dict at once: another thread must never find a fixed type missing.
                _reducers = _FIXED.copy()
            _reducers[cls] = reducer
            return reducer
    raise AssertionError("the last family refuses")


def reduce(obj: Any) -> Reduced:
    """Takes an object apart: its type code and its state.

    The state holds builtins and further objects, which the caller takes apart in turn; it may
    share containers with `obj` and must not be changed.

    Raises:
        Unsupported: the object would not come back equal.
    """
    cls = type(obj)
    reducer = _reducers.get(cls)
    if reducer is None:
        reducer = reducer_for(cls)
    return reducer(obj)


def restore(code: int, payload: Any, policy: TypePolicy) -> Any:
    """Puts an object together again; the containers of `payload` are used, not copied.

    No constructor of a user's class runs. A class that is gone gives `Unrestored`.

    Raises:
        TypeNotAllowed: strict mode, and the class is on no list.
        DataCorrupt: the code is unknown.
    """
    restorer = _restorers[code]
    if restorer is None:
        raise DataCorrupt(
            f"Stored data holds an object with type code {code}, which this release does not "
            "know: it was written by a newer release, or the data is damaged."
        )
    try:
        return restorer(payload, policy)
    except Unresolved as why:
        return _unrestored(code, payload, why)
