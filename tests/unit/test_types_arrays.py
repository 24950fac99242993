"""NumPy and pandas values come back equal, with dtype, order and index, and can be changed."""

from __future__ import annotations

import zoneinfo
from typing import Any

import pytest
from property.strategies import decode, encode, roundtrip

from langgraph_resilient.codec.types import TypePolicy, Unsupported

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")

STRUCT = np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", [("d", "U3"), ("e", "?")])])
ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)

ARRAYS = [
    np.arange(4.0),
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(12).reshape(3, 4)[::2, ::-1],
    np.arange(12).reshape(3, 4).T,
    np.array(5),
    np.array([]),
    np.empty((0, 3), "f4"),
    np.array([1, 2], ">i2"),
    np.array([True, False]),
    np.array(["2026-01-01", "NaT"], "M8[D]"),
    np.array([1, 2], "m8[us]"),
    np.array(["ab", "c"]),
    np.array(["", ""], "U0"),
    np.array([b"ab", b"c"]),
    np.array([1j]),
    np.array([1, 2], np.longlong),
    np.zeros(2, STRUCT),
    np.zeros(2, ALIGNED),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["x", None, 3, [1]], dtype=object),
    np.array([[{"a": 1}, (1,)], [2, 3]], dtype=object),
    np.array(np.nan),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_an_array_comes_back_equal_and_may_be_written_to(array: Any) -> None:
    back = roundtrip(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.dtype.char, back.shape) == (array.dtype, array.dtype.char, array.shape)
    assert back.dtype.isalignedstruct == array.dtype.isalignedstruct
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable
    assert encode(back) == encode(array)


def test_an_array_keeps_its_memory_order() -> None:
    assert roundtrip(np.asfortranarray(np.ones((2, 3)))).flags.f_contiguous


@pytest.mark.parametrize(
    "scalar",
    [
        np.int64(3),
        np.uint8(3),
        np.longlong(3),
        np.float32(0.5),
        np.float64(np.nan),
        np.longdouble(1) / 3,
        np.complex64(1j),
        np.bool_(True),
        np.datetime64("2026-01-01T00:00", "s"),
        np.datetime64("NaT", "s"),
        np.timedelta64(3, "D"),
        np.str_("äb"),
        np.str_(""),
        np.bytes_(b"a\0"),
        np.zeros(1, STRUCT)[0],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_scalar_keeps_its_type(scalar: Any) -> None:
    back = roundtrip(scalar)
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype
    np.testing.assert_array_equal(back, scalar)


def test_dtypes_and_scalar_classes_come_back() -> None:
    for dtype in (np.dtype("f4"), STRUCT, np.dtype((np.int8, (2, 3)))):
        assert roundtrip(dtype) == dtype
    assert roundtrip(np.float32) is np.float32


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(1, [("a", object)]),
        np.rec.array([(1,)], dtype=[("a", "i4")]),
    ],
    ids=lambda array: type(array).__name__,
)
def test_arrays_that_would_change_are_refused(array: Any) -> None:
    with pytest.raises(Unsupported):
        encode(array)


def test_arrays_need_no_allowlist() -> None:
    back = decode(encode(np.arange(3)), TypePolicy(strict=True))
    np.testing.assert_array_equal(back, np.arange(3))


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
DATES = pd.date_range("2026-10-24", periods=3, tz=BERLIN, freq="D")

SERIES = [
    pd.Series([1, 2, 3], name="n"),
    pd.Series(["x", None, "z"]),
    pd.Series(["x", None, "z"], dtype=object),
    pd.Series(["x", pd.NA], dtype="string"),
    pd.Series([1, pd.NA], dtype="Int64"),
    pd.Series([0.5, pd.NA], dtype="Float32"),
    pd.Series([True, pd.NA], dtype="boolean"),
    pd.Series(["a", "b", None], dtype="category"),
    pd.Series(pd.Categorical(["a"], ["b", "a"], ordered=True)),
    pd.Series(DATES),
    pd.Series(pd.to_datetime(["2026-01-01", None])),
    pd.Series(pd.to_timedelta([1, None], unit="s")),
    pd.Series(pd.period_range("2026-01", periods=2, freq="M")),
    pd.Series(pd.interval_range(0, 2)),
    pd.Series([[1], (2,), {"a": 1}, None], dtype=object),
    pd.Series([], dtype="f4"),
    pd.Series([1, 2], index=DATES[:2], name=("a", 1)),
]


@pytest.mark.parametrize("series", SERIES, ids=lambda s: str(s.dtype))
def test_a_series_comes_back_equal(series: Any) -> None:
    back = roundtrip(series)
    pd.testing.assert_series_equal(back, series, check_freq=True)
    assert encode(back) == encode(series)


INDEXES = [
    pd.RangeIndex(1, 9, 2, name="r"),
    pd.Index([3, 1], name="i"),
    pd.Index(["a", "b"], dtype=object),
    pd.Index(["a", "b"]),
    DATES,
    pd.timedelta_range("1h", periods=3, freq="h"),
    pd.period_range("2026", periods=2, freq="Q"),
    pd.CategoricalIndex(["a", "b"]),
    pd.interval_range(0, 3, closed="left"),
    pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["x", None]),
    pd.MultiIndex.from_tuples([("a", np.nan), ("b", 1.0)]),
]


@pytest.mark.parametrize("index", INDEXES, ids=lambda i: type(i).__name__)
def test_an_index_comes_back_equal(index: Any) -> None:
    back = roundtrip(index)
    pd.testing.assert_index_equal(back, index, exact=True)
    assert list(back.names) == list(index.names)
    assert getattr(back, "freq", None) == getattr(index, "freq", None)


def _frame(**columns: Any) -> Any:
    return pd.DataFrame(columns)


FRAMES = [
    _frame(a=[1, 2], b=["x", None], t=pd.to_datetime(["2026-01-01", "2026-01-02"])),
    _frame(a=[1.5, None], c=pd.Categorical(["u", "v"]), o=pd.Series([1, "x"], dtype=object)),
    pd.DataFrame([[1, 2]], columns=["same", "same"]),
    pd.DataFrame(index=[1, 2]),
    pd.DataFrame(columns=["a", "b"]),
    pd.DataFrame(),
    pd.DataFrame({("a", 1): [1], ("b", 2): [2]}),
    pd.DataFrame(np.arange(4).reshape(2, 2)),
    _frame(a=[1, 2]).set_index(DATES[:2]),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: str(f.shape))
def test_a_frame_comes_back_equal(frame: Any) -> None:
    back = roundtrip(frame)
    pd.testing.assert_frame_equal(back, frame, check_freq=True)
    assert encode(back) == encode(frame)


def test_a_frame_keeps_attributes_and_flags_and_may_be_changed() -> None:
    frame = _frame(a=[1, 2]).set_flags(allows_duplicate_labels=False)
    frame.attrs["source"] = ("x", 1)
    back = roundtrip(frame)
    assert back.attrs == {"source": ("x", 1)}
    assert not back.flags.allows_duplicate_labels
    back.loc[0, "a"] = 9
    back["b"] = [1, 2]
    assert back.a.tolist() == [9, 2]


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2026-01-01 00:00:00.123456789"),
        pd.Timestamp("2026-10-25 01:30", tz="UTC").tz_convert(BERLIN),
        pd.Timestamp("2026-01-01").as_unit("s"),
        pd.Timedelta("1 days 00:00:00.000000001"),
        pd.Timedelta(3, unit="s").as_unit("ms"),
        pd.Period("2026-03", freq="M"),
        pd.Interval(0, 1.5, closed="both"),
        pd.offsets.MonthEnd(2),
    ],
    ids=str,
)
def test_a_pandas_scalar_comes_back_equal(value: Any) -> None:
    back = roundtrip(value)
    assert type(back) is type(value)
    assert back == value
    for name in ("unit", "fold", "tzinfo", "nanosecond"):
        assert getattr(back, name, None) == getattr(value, name, None)


def test_the_missing_values_of_pandas_come_back_as_themselves() -> None:
    assert roundtrip(pd.NaT) is pd.NaT
    assert roundtrip(pd.NA) is pd.NA


@pytest.mark.parametrize(
    "value",
    [
        pd.arrays.SparseArray([0, 1]),
        _frame(a=[1]).groupby("a"),
        type("Sub", (pd.DataFrame,), {})({"a": [1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pandas_objects_that_would_change_are_refused(value: Any) -> None:
    with pytest.raises(Unsupported):
        encode(value)
