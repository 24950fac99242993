"""Checkpoint and task names as short bytes: a UUID takes 16, any other text a little more."""

from __future__ import annotations

from langgraph_resilient.errors import DataCorrupt


def pack_name(name: str) -> bytes:
    """The stored form of a name; different names never share one."""
    if len(name) == 36 and name[8] == name[13] == name[18] == name[23] == "-":
        digits = name.replace("-", "")
        try:
            packed = bytes.fromhex(digits)
        except ValueError:
            pass
        else:
            if packed.hex() == digits:  # lower case, no spaces
                return packed
    text = name.encode("utf-8", "surrogatepass")
    return b"T\x00" + text if len(text) == 15 else b"t" + text


def unpack_name(stored: bytes) -> str:
    """The name again.

    Raises:
        DataCorrupt: the bytes are no stored name.
    """
    if len(stored) == 16:
        hexed = stored.hex()
        return f"{hexed[:8]}-{hexed[8:12]}-{hexed[12:16]}-{hexed[16:20]}-{hexed[20:]}"
    text = stored[2:] if stored[:2] == b"T\x00" else stored[1:]
    if stored[:1] not in (b"t", b"T"):
        raise DataCorrupt("a name in it is damaged")
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise DataCorrupt("a name in it is damaged") from None
