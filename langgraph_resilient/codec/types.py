"""Objects to plain data and back: what the walker calls.

`reduce` takes one object apart, one level deep; `restore` puts it together. The walker handles
plain ``None``, ``bool``, 64-bit ``int``, ``float``, ``str``, ``bytes``, ``list`` and ``dict``
itself, and walks what `reduce` returns. What each type looks like when stored is said in the
``types_*`` modules; names of classes and strict mode in `registry`.
"""

from __future__ import annotations

from langgraph_resilient.codec import (
    types_arrays,
    types_classes,
    types_errors,
    types_frames,
    types_langgraph,
    types_messages,
    types_models,
    types_std,
)
from langgraph_resilient.codec.clone import (
    MessagePrototype,
    clone_message,
    freeze,
    message_prototype,
)
from langgraph_resilient.codec.naming import TypePolicy, Unresolved, Unsupported, type_name
from langgraph_resilient.codec.registry import (
    Code,
    Reduced,
    Unrestored,
    reduce,
    register_families,
    restore,
)
from langgraph_resilient.codec.types_errors import DEGRADED, StandInError, degrade_exception
from langgraph_resilient.codec.types_models import SECRET_CODES

__all__ = [
    "DEGRADED",
    "SECRET_CODES",
    "Code",
    "MessagePrototype",
    "Reduced",
    "StandInError",
    "TypePolicy",
    "Unresolved",
    "Unrestored",
    "Unsupported",
    "clone_message",
    "degrade_exception",
    "freeze",
    "message_prototype",
    "reduce",
    "restore",
    "type_name",
]

# The order decides for classes that are several things at once: a str enum is an enum, an
# exception that is a dataclass is an exception, numpy.float64 is no plain subclass of float.
register_families(
    types_errors.exception_family,
    types_classes.enum_family,
    types_arrays.numpy_family,
    types_frames.pandas_family,
    types_messages.message_family,
    types_models.model_family,
    types_models.model_v1_family,
    types_models.secret_family,
    types_models.url_family,
    types_langgraph.slotted_family,
    types_classes.namedtuple_family,
    types_std.tz_family,
    types_std.path_family,
    types_classes.type_family,
    types_classes.subclass_family,
    types_classes.dataclass_family,
    types_classes.refuse_family,
)
