"""A checkpoint without its values' content: versions, what nodes have seen, metadata, references.

Consecutive envelopes of a thread differ by a few bytes, so they are compressed against an
earlier one. Knows objects only as packed trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

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
METADATA, VALUES, EXTRA, FOLDED = 3, 7, 8, 9
"""Positions in the list; FOLDED is the history that a pruned delta channel is rebuilt from."""
WALKED: Final = 1 << 15
"""Set in the first part when the parts of `WALKABLE` are packed trees of their own."""
WALKABLE: Final = (1, 4, 5, 6)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def pack_time(text: Any) -> Any:
    """An ISO time as microseconds since 1970 where that gives back the same text, else as it is."""
    if type(text) is str and text.endswith("+00:00"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return text
        micros = (moment - _EPOCH) // (moment.resolution)
        if unpack_time(micros) == text:
            return micros
    return text


def unpack_time(stored: Any) -> Any:
    """The text again."""
    if type(stored) is int:
        seconds, micros = divmod(stored, 1_000_000)
        moment = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=micros)
        return moment.isoformat()
    return stored


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
        pack_time(ts),
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
        ("ts", unpack_time(ts)),
        ("id", checkpoint_id),
        ("channel_values", values),
        ("channel_versions", versions),
        ("versions_seen", seen),
        ("updated_channels", updated),
    )
    checkpoint = {key: item for key, item in parts if present >> _KNOWN.index(key) & 1}
    checkpoint.update(extra)
    return checkpoint
