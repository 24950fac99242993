"""NumPy arrays and scalars, without pickle. NumPy is only looked at if the program uses it."""

from __future__ import annotations

import sys
from typing import Any

from langgraph_resilient.codec.naming import TypePolicy, Unsupported, type_name
from langgraph_resilient.codec.registry import Code, Reduced, Reducer, restores


def numpy_family(cls: type) -> Reducer | None:
    """Arrays, scalars and dtypes."""
    np = sys.modules.get("numpy")
    if np is None:
        return None
    if issubclass(cls, np.generic):
        return _reduce_scalar
    if issubclass(cls, np.dtype):
        return lambda obj: (Code.NP_DTYPE, _dtype_tree(obj))
    if cls is np.ndarray:
        return _reduce_array
    if issubclass(cls, np.ndarray):
        name = type_name(cls)
        raise Unsupported(f"arrays of type {name} cannot be stored; use numpy.asarray(...)", name)
    return None


# --- dtypes ---------------------------------------------------------------------------------


def _dtype_tree(dtype: Any) -> Any:
    """A dtype as a string, ``{"base", "shape"}`` or a dict of what ``numpy.dtype`` takes."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _dtype_tree(base), "shape": list(shape)}
    if dtype.names is not None:
        titles = [field[2] if len(field) > 2 else None for field in _fields(dtype)]
        return {
            "names": list(dtype.names),
            "formats": [_dtype_tree(field[0]) for field in _fields(dtype)],
            "offsets": [field[1] for field in _fields(dtype)],
            "titles": titles,
            "itemsize": dtype.itemsize,
            "aligned": dtype.isalignedstruct,
        }
    if dtype.char == "T":
        if getattr(dtype, "na_object", "") != "" or not dtype.coerce:
            raise Unsupported("a StringDType with options cannot be stored", "numpy.StringDType")
        return "T"
    np = sys.modules["numpy"]
    # longlong and int64 are two types with one dtype.str.
    if dtype.isnative and dtype.char != np.dtype(dtype.str).char:
        return str(dtype.char)
    return str(dtype.str)


def _fields(dtype: Any) -> list[Any]:
    return [dtype.fields[name] for name in dtype.names]


def _dtype_of(tree: Any) -> Any:
    import numpy as np

    if isinstance(tree, str):
        return np.dtypes.StringDType() if tree == "T" else np.dtype(tree)
    if "base" in tree:
        return np.dtype((_dtype_of(tree["base"]), tuple(tree["shape"])))
    titles = tree["titles"]
    spec: Any = {
        "names": tree["names"],
        "formats": [_dtype_of(part) for part in tree["formats"]],
        "offsets": tree["offsets"],
        "itemsize": tree["itemsize"],
    }
    if any(title is not None for title in titles):
        spec["titles"] = titles
    return np.dtype(spec, align=tree["aligned"])


@restores(Code.NP_DTYPE)
def _restore_dtype(payload: Any, policy: TypePolicy) -> Any:
    return _dtype_of(payload)


# --- arrays ---------------------------------------------------------------------------------


def _reduce_array(obj: Any) -> Reduced:
    """Shape: ``[dtype, shape, order, bytes]``, or a list of the cells instead of bytes."""
    tree = _dtype_tree(obj.dtype)
    fortran = obj.flags.f_contiguous and not obj.flags.c_contiguous
    order = "F" if fortran else "C"
    if tree in ("O", "|O", "T"):
        cells = obj.ravel(order).tolist()
        return Code.NDARRAY, [tree, list(obj.shape), order, cells]
    if obj.dtype.hasobject:
        raise Unsupported("a structured array with object fields cannot be stored", "numpy.ndarray")
    if obj.dtype.names is not None:  # what lies between the fields is old memory: not for a file
        clean = sys.modules["numpy"].zeros(obj.shape, obj.dtype, order)
        clean[...] = obj
        obj = clean
    return Code.NDARRAY, [tree, list(obj.shape), order, obj.tobytes(order)]


@restores(Code.NDARRAY)
def _restore_array(payload: Any, policy: TypePolicy) -> Any:
    import numpy as np

    tree, shape, order, data = payload
    dtype = _dtype_of(tree)
    if isinstance(data, list):
        flat = np.empty(len(data), dtype)
        for place, cell in enumerate(data):  # one by one: a cell may be a sequence itself
            flat[place] = cell
        return flat.reshape(shape, order=order)
    if not data:
        return np.empty(tuple(shape), dtype, order=order)
    # A bytearray, so that the array can be written to.
    return np.ndarray(tuple(shape), dtype, buffer=bytearray(data), order=order)


def _reduce_scalar(obj: Any) -> Reduced:
    np = sys.modules["numpy"]
    cls = type(obj)
    if not isinstance(getattr(np, cls.__name__, None), type) or cls.__module__ != "numpy":
        name = type_name(cls)
        raise Unsupported(f"subclasses of numpy scalars ({name}) cannot be stored", name)
    if cls is np.str_:
        return Code.NP_SCALAR, ["U", str.__str__(obj)]
    if cls is np.bytes_:
        return Code.NP_SCALAR, ["S", bytes.__getitem__(obj, slice(None))]
    if obj.dtype.hasobject:
        raise Unsupported("a structured value with object fields cannot be stored", "numpy.void")
    return Code.NP_SCALAR, [_dtype_tree(obj.dtype), obj.tobytes()]


@restores(Code.NP_SCALAR)
def _restore_scalar(payload: Any, policy: TypePolicy) -> Any:
    import numpy as np

    tree, data = payload
    if tree == "U":
        return np.str_(data)
    if tree == "S":
        return np.bytes_(data)
    dtype = _dtype_of(tree)
    cell = np.empty((), dtype)
    if cell.nbytes:
        cell[...] = np.ndarray((), dtype, buffer=data)
    return cell[()]
