"""A checkpoint without its values' content: versions, what nodes have seen, metadata, references.

Consecutive envelopes of a thread differ by a few bytes, so they are compressed against an
earlier one. Knows objects only as packed trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from langgraph_resilient.errors import DataCorrupt

_KNOWN: Final = (
    "v",
    "ts",
    "channel_versions",
    "versions_seen",
    "updated_channels",
    "channel_values",
    "id",
)
PARTS: Final = 10
METADATA, VERSIONS, SEEN, VALUES, EXTRA, FOLDED = 3, 4, 5, 7, 8, 9
"""Positions in the list; FOLDED is the history that a pruned delta channel is rebuilt from."""
WALKED: Final = 1 << 15
"""Set in the first part when the parts of `WALKABLE` are packed trees of their own."""
WALKABLE: Final = (1, 4, 5, 6)
_GREGORIAN: Final = 0x01B21DD213814000
"""Ticks of 100 ns between the start of a UUID's clock, in 1582, and 1970."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def pack_time(text: Any, checkpoint_id: str = "") -> Any:
    """An ISO time in fewer bytes where that gives back the same text, else as it is.

    Microseconds since 1970; or, next to a checkpoint id that is a UUID of version 6 and so tells
    the time itself, a list of one number: the microseconds between the two.
    """
    if type(text) is str and text.endswith("+00:00"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return text
        micros = (moment - _EPOCH) // (moment.resolution)
        if unpack_time(micros) == text:
            named = time_of(checkpoint_id)
            return micros if named is None or abs(micros - named) > 1 << 31 else [micros - named]
    return text


def unpack_time(stored: Any, checkpoint_id: str = "") -> Any:
    """The text again.

    Raises:
        DataCorrupt: it counts from the time of a checkpoint id that tells none.
    """
    if type(stored) is list:
        named = time_of(checkpoint_id)
        if named is None or len(stored) != 1 or type(stored[0]) is not int:
            raise DataCorrupt("its time is damaged")
        stored = named + stored[0]
    if type(stored) is int:
        seconds, micros = divmod(stored, 1_000_000)
        try:
            moment = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=micros)
        except (ValueError, OverflowError, OSError):
            raise DataCorrupt("its time is damaged") from None
        return moment.isoformat()
    return stored


def time_of(checkpoint_id: str) -> int | None:
    """Microseconds since 1970 of a UUID of version 6 (RFC 9562), None for any other name."""
    if len(checkpoint_id) != 36 or checkpoint_id[14] != "6":
        return None
    try:
        ticks = int(checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18], 16)
    except ValueError:
        return None
    return (ticks - _GREGORIAN) // 10


def envelope_tree(
    checkpoint: Mapping[str, Any], values: dict[str, Any], metadata: Any, extra: Any
) -> list[Any]:
    """The tree of an envelope: a list, stable parts next to each other.

    Args:
        checkpoint: the checkpoint as LangGraph gives it.
        values: channel to the tree that stands for its value.
        metadata: the tree of the metadata.
        extra: the tree of keys of the checkpoint that this release does not know.
    """
    ts = checkpoint.get("ts")
    present = sum(1 << index for index, key in enumerate(_KNOWN) if key in checkpoint)
    if not _is_time(ts):
        present &= ~(1 << _KNOWN.index("ts"))
        ts = None
    return [
        present,
        checkpoint.get("v"),
        pack_time(ts, checkpoint.get("id", "")),
        metadata,
        checkpoint.get("channel_versions"),
        checkpoint.get("versions_seen"),
        checkpoint.get("updated_channels"),
        values,
        extra,
        None,
    ]


def unknown_keys(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint holds besides the keys, and the kind of time, that LangGraph documents."""
    unknown = {key: item for key, item in checkpoint.items() if key not in _KNOWN}
    if not _is_time(checkpoint.get("ts")):
        unknown["ts"] = checkpoint["ts"]
    return unknown


def _is_time(ts: Any) -> bool:
    return ts is None or type(ts) is str


def checkpoint_from(
    envelope: list[Any], checkpoint_id: str, values: dict[str, Any]
) -> dict[str, Any]:
    """The checkpoint again, keys in LangGraph's order."""
    present, v, ts, _metadata, versions, seen, updated, _values, extra = envelope[:9]
    parts = (
        ("v", v),
        ("ts", unpack_time(ts, checkpoint_id)),
        ("id", checkpoint_id),
        ("channel_values", values),
        ("channel_versions", versions),
        ("versions_seen", seen),
        ("updated_channels", updated),
    )
    checkpoint = {key: item for key, item in parts if present >> _KNOWN.index(key) & 1}
    checkpoint.update(extra)
    return checkpoint
