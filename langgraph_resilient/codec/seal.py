"""Seals bind a frame to its place, so that a damaged, edited or moved row is never read as good.

One interface, three strengths: a checksum (accidents), a keyed digest (edits by somebody without
the key), encryption (edits and reading). Knows nothing of rows: a place is just bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

import xxhash

from langgraph_resilient.codec.cipher import Cipher
from langgraph_resilient.errors import DataCorrupt, DecryptionFailed, TamperDetected

CHECKSUM_BYTES = 4
KEYED_BYTES = 16


class Sealer(Protocol):
    """Makes and opens seals. `place` names where the frame belongs; it is not stored."""

    mode: str
    overhead: int

    def seal(self, place: bytes, frame: bytes) -> bytes:
        """The bytes to store for `frame` at `place`."""
        ...

    def open(self, place: bytes, stored: bytes) -> bytes:
        """The frame again.

        Raises:
            DataCorrupt: the stored bytes are not what was sealed at this place.
        """
        ...


class ChecksumSealer:
    """Four bytes of XXH3 at the end: finds accidents, protects from nobody."""

    mode = "checksum"
    overhead = CHECKSUM_BYTES

    def seal(self, place: bytes, frame: bytes) -> bytes:
        return frame + xxhash.xxh3_64_digest(place + frame)[:CHECKSUM_BYTES]

    def open(self, place: bytes, stored: bytes) -> bytes:
        frame = stored[:-CHECKSUM_BYTES]
        if xxhash.xxh3_64_digest(place + frame)[:CHECKSUM_BYTES] != stored[-CHECKSUM_BYTES:]:
            raise DataCorrupt("its checksum does not fit")
        return frame


class KeyedSealer:
    """Sixteen bytes of keyed BLAKE2b: whoever lacks the key cannot make or move a row."""

    mode = "keyed"
    overhead = KEYED_BYTES

    def __init__(self, key: bytes, scope: bytes):
        self._base = hashlib.blake2b(scope, digest_size=KEYED_BYTES, key=key)

    def _tag(self, place: bytes, frame: bytes) -> bytes:
        mac = self._base.copy()
        mac.update(len(place).to_bytes(4, "big"))
        mac.update(place)
        mac.update(frame)
        return mac.digest()

    def seal(self, place: bytes, frame: bytes) -> bytes:
        return frame + self._tag(place, frame)

    def open(self, place: bytes, stored: bytes) -> bytes:
        frame = stored[:-KEYED_BYTES]
        if not hmac.compare_digest(self._tag(place, frame), stored[-KEYED_BYTES:]):
            raise TamperDetected("its seal does not fit: it was edited without the integrity key")
        return frame


class CipherSealer:
    """AES-GCM; the associated data binds the frame to its database and place."""

    mode = "cipher"
    overhead = 33

    def __init__(self, cipher: Cipher, scope: bytes):
        self.cipher = cipher
        self._scope = scope

    def seal(self, place: bytes, frame: bytes) -> bytes:
        return self.cipher.encrypt(frame, self._scope + place)

    def open(self, place: bytes, stored: bytes) -> bytes:
        try:
            return self.cipher.decrypt(stored, self._scope + place)
        except DecryptionFailed as error:
            raise DecryptionFailed(f"it cannot be decrypted: {error}") from None
