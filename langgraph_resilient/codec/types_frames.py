"""Pandas frames, series, indexes and scalars, without pickle.

A frame is stored as its two indexes and one array per column; an array as NumPy data, or as the
parts its extension type is made of. Object columns are lists of cells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from langgraph_resilient.codec.naming import TypePolicy, Unsupported, type_name
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, restores


def pandas_family(cls: type) -> Reducer | None:
    """Everything of pandas that can be stored; the rest of pandas is refused here."""
    pd = sys.modules.get("pandas")
    if pd is None or not hasattr(pd, "DataFrame"):
        return None
    offset = getattr(pd, "DateOffset", None)
    table: list[tuple[Any, Reducer]] = [
        (pd.DataFrame, _reduce_frame),
        (pd.Series, _reduce_series),
        (type(pd.NaT), lambda obj: (Code.PD_SCALAR, ["NaT"])),
        (type(pd.NA), lambda obj: (Code.PD_SCALAR, ["NA"])),
        (pd.Timestamp, _reduce_timestamp),
        (pd.Timedelta, lambda obj: (Code.PD_SCALAR, ["Timedelta", obj._value, obj.unit])),
        (pd.Period, lambda obj: (Code.PD_SCALAR, ["Period", obj.ordinal, obj.freqstr])),
        (pd.Interval, _reduce_interval),
    ]
    for known, reducer in table:
        if cls is known:
            return reducer
    if issubclass(cls, pd.Index) and cls.__module__.partition(".")[0] == "pandas":
        return _reduce_index
    if issubclass(cls, pd.api.extensions.ExtensionArray):
        return lambda obj: (Code.PD_ARRAY, _array_parts(obj))
    if offset is not None and issubclass(cls, pd.tseries.offsets.BaseOffset):
        return lambda obj: (Code.PD_OFFSET, obj.freqstr)
    if cls.__module__.partition(".")[0] == "pandas" or issubclass(cls, (pd.DataFrame, pd.Series)):
        name = type_name(cls)
        raise Unsupported(f"objects of type {name} cannot be stored; use a DataFrame", name)
    return None


# --- scalars --------------------------------------------------------------------------------


def _reduce_timestamp(obj: Any) -> Reduced:
    return Code.PD_SCALAR, ["Timestamp", obj._value, obj.unit, obj.tzinfo, obj.fold]


def _reduce_interval(obj: Any) -> Reduced:
    return Code.PD_SCALAR, ["Interval", obj.left, obj.right, obj.closed]


def _make_timestamp(pd: Any, value: int, unit: str, tz: Any, fold: int) -> Any:
    stamp = pd.Timestamp(value, unit=unit).as_unit(unit)
    if tz is not None:
        stamp = stamp.tz_localize("UTC").tz_convert(tz)
    return stamp


_SCALARS: dict[str, Callable[..., Any]] = {
    "NaT": lambda pd: pd.NaT,
    "NA": lambda pd: pd.NA,
    "Timestamp": _make_timestamp,
    "Timedelta": lambda pd, value, unit: pd.Timedelta(value, unit=unit).as_unit(unit),
    "Period": lambda pd, ordinal, freq: pd.Period(ordinal=ordinal, freq=freq),
    "Interval": lambda pd, left, right, closed: pd.Interval(left, right, closed),
}


@restores(Code.PD_SCALAR)
def _restore_scalar(payload: Any, policy: TypePolicy) -> Any:
    import pandas as pd

    return _SCALARS[payload[0]](pd, *payload[1:])


@restores(Code.PD_OFFSET)
def _restore_offset(payload: Any, policy: TypePolicy) -> Any:
    from pandas.tseries.frequencies import to_offset

    return to_offset(payload)


# --- arrays ---------------------------------------------------------------------------------


def _parts_of_strings(array: Any) -> list[Any]:
    dtype = array.dtype
    pd = sys.modules["pandas"]
    missing = array.isna()
    cells = [None if gone else str(cell) for cell, gone in zip(array, missing, strict=True)]
    # pandas 2 has no na_value to choose for its "string" dtype.
    return ["string", cells, dtype.storage, getattr(dtype, "na_value", pd.NA) is pd.NA]


def _parts_of_datetimes(array: Any) -> list[Any]:
    np = sys.modules["numpy"]
    return ["datetimetz", np.asarray(array.asi8), array.dtype.unit, array.dtype.tz]


def _parts_of_interval(array: Any) -> list[Any]:
    return ["interval", array.left, array.right, array.closed]


_PARTS: dict[str, Callable[[Any], list[Any]]] = {
    "Categorical": lambda a: ["category", a.codes.copy(), a.categories, a.ordered],
    "DatetimeArray": _parts_of_datetimes,
    "PeriodArray": lambda a: ["period", a.asi8.copy(), a.freqstr],
    "IntervalArray": _parts_of_interval,
    "IntegerArray": lambda a: ["masked", a._data.copy(), a._mask.copy()],
    "FloatingArray": lambda a: ["masked", a._data.copy(), a._mask.copy()],
    "BooleanArray": lambda a: ["masked", a._data.copy(), a._mask.copy()],
    "StringArray": _parts_of_strings,
    "StringArrayNumpySemantics": _parts_of_strings,
    "ArrowStringArray": _parts_of_strings,
    "ArrowStringArrayNumpySemantics": _parts_of_strings,
}


def _array_parts(array: Any) -> list[Any]:
    """What an extension array is made of, behind the name of its kind."""
    plain = sys.modules["pandas"].arrays.NumpyExtensionArray
    if isinstance(array.dtype, sys.modules["numpy"].dtype) or type(array) is plain:
        return ["numpy", array.to_numpy()]
    take = _PARTS.get(type(array).__name__)
    if take is None:
        name = type_name(type(array))
        raise Unsupported(f"columns of dtype {array.dtype} ({name}) cannot be stored", name)
    return take(array)


def _make_masked(pd: Any, data: Any, mask: Any) -> Any:
    kind = {"b": "BooleanArray", "f": "FloatingArray"}.get(data.dtype.kind, "IntegerArray")
    return getattr(pd.arrays, kind)(data, mask)


def _make_strings(pd: Any, cells: list[Any], storage: str, uses_na: bool) -> Any:
    if uses_na:
        return pd.array(cells, dtype=pd.StringDtype(storage))
    import numpy as np

    return pd.array(cells, dtype=pd.StringDtype(storage, na_value=np.nan))


def _make_datetimes(pd: Any, values: Any, unit: str, tz: Any) -> Any:
    return pd.DatetimeIndex(values.view(f"M8[{unit}]")).tz_localize("UTC").tz_convert(tz).array


def _make_category(pd: Any, codes: Any, categories: Any, ordered: bool) -> Any:
    return pd.Categorical.from_codes(codes, categories, ordered=ordered)


def _make_periods(pd: Any, ordinals: Any, freq: str) -> Any:
    return pd.PeriodIndex.from_ordinals(ordinals, freq=freq).array


def _make_intervals(pd: Any, left: Any, right: Any, closed: str) -> Any:
    return pd.arrays.IntervalArray.from_arrays(left, right, closed)


_MAKERS: dict[str, Callable[..., Any]] = {
    "numpy": lambda pd, data: data,
    "category": _make_category,
    "datetimetz": _make_datetimes,
    "period": _make_periods,
    "interval": _make_intervals,
    "masked": _make_masked,
    "string": _make_strings,
}


def _make_array(parts: list[Any]) -> Any:
    import pandas as pd

    return _MAKERS[parts[0]](pd, *parts[1:])


@restores(Code.PD_ARRAY)
def _restore_array(payload: Any, policy: TypePolicy) -> Any:
    import pandas as pd

    array = _make_array(payload)
    if payload[0] != "numpy":
        return array
    return pd.Series(array, dtype=array.dtype).array


# --- indexes --------------------------------------------------------------------------------


def _reduce_index(obj: Any) -> Reduced:
    """Shape: ``[kind, names, parts...]``."""
    pd = sys.modules["pandas"]
    names = list(obj.names)
    if isinstance(obj, pd.MultiIndex):
        codes = [code.copy() if hasattr(code, "copy") else code for code in obj.codes]
        return Code.INDEX, ["multi", names, list(obj.levels), codes]
    if isinstance(obj, pd.RangeIndex):
        return Code.INDEX, ["range", names, obj.start, obj.stop, obj.step]
    freq = getattr(obj, "freqstr", None)
    return Code.INDEX, ["flat", names, _array_parts(obj.array), freq]


@restores(Code.INDEX)
def _restore_index(payload: Any, policy: TypePolicy) -> Any:
    import pandas as pd

    kind, names, *parts = payload
    if kind == "multi":
        return pd.MultiIndex(levels=parts[0], codes=parts[1], names=names, verify_integrity=False)
    if kind == "range":
        return pd.RangeIndex(*parts, name=names[0])
    array = _make_array(parts[0])
    index = pd.Index(array, dtype=array.dtype, name=names[0])
    if parts[1] is not None and isinstance(index, (pd.DatetimeIndex, pd.TimedeltaIndex)):
        index.freq = parts[1]
    return index


# --- series and frames ----------------------------------------------------------------------


def _flags(obj: Any) -> bool:
    return bool(obj.flags.allows_duplicate_labels)


def _reduce_series(obj: Any) -> Reduced:
    parts = [obj.index, _array_parts(obj.array), obj.name, dict(obj.attrs), _flags(obj)]
    return Code.SERIES, parts


@restores(Code.SERIES)
def _restore_series(payload: Any, policy: TypePolicy) -> Any:
    import pandas as pd

    index, parts, name, attrs, duplicates = payload
    array = _make_array(parts)
    series = pd.Series(array, index=index, dtype=array.dtype, name=name)
    return _finish(series, attrs, duplicates)


def _reduce_frame(obj: Any) -> Reduced:
    columns = [_array_parts(obj.iloc[:, place].array) for place in range(obj.shape[1])]
    return Code.FRAME, [obj.index, obj.columns, columns, dict(obj.attrs), _flags(obj)]


@restores(Code.FRAME)
def _restore_frame(payload: Any, policy: TypePolicy) -> Any:
    import pandas as pd

    index, labels, columns, attrs, duplicates = payload
    arrays = map(_make_array, columns)
    # By position first: labels may be equal, and a Series keeps an object column as it is.
    series = {p: pd.Series(a, index=index, dtype=a.dtype) for p, a in enumerate(arrays)}
    frame = pd.DataFrame(series, index=index)
    frame.columns = labels
    return _finish(frame, attrs, duplicates)


def _finish(obj: Any, attrs: dict[Any, Any], duplicates: bool) -> Any:
    obj.attrs = attrs
    return obj if duplicates else obj.set_flags(allows_duplicate_labels=False)
