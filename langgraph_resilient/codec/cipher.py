"""AES-GCM encryption of frames, with key rotation. Knows nothing of rows or objects."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from langgraph_resilient.errors import ConfigurationError, DecryptionFailed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
KEY_ID_BYTES = 4
ENCRYPTED = 0xE1
"""First byte of every encrypted frame; no plaintext frame starts with it."""


class Cipher:
    """AES-GCM with a current key and, for rotation, the keys used before.

    Args:
        key: 16, 24 or 32 bytes, for example ``AESGCM.generate_key(256)`` or
            ``secrets.token_bytes(32)``. New frames are encrypted with it.
        previous: keys that older frames may still carry; they are only used to read.

    Every frame carries four bytes that name its key, a random 96-bit nonce and a 128-bit tag.
    The associated data binds a frame to its database and its place (NIST SP 800-38D).

    Raises:
        ConfigurationError: a key has a wrong length, or the extra `cipher` is not installed.
    """

    def __init__(self, key: bytes, *previous: bytes):
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigurationError(
                "cipher= needs the package cryptography: pip install 'langgraph-resilient[cipher]'"
            ) from None
        self._keys: dict[bytes, AESGCM] = {}
        for candidate in (key, *previous):
            if len(candidate) not in (16, 24, 32):
                raise ConfigurationError(
                    f"a cipher key has {len(candidate)} bytes; AES takes 16, 24 or 32"
                )
            self._keys.setdefault(_key_id(candidate), AESGCM(candidate))
        self._current = _key_id(key)

    @property
    def key_id(self) -> bytes:
        """Four bytes that name the current key inside frames (no secret)."""
        return self._current

    def encrypt(self, plain: bytes, associated: bytes) -> bytes:
        """An encrypted frame that only opens together with the same `associated` data."""
        nonce = os.urandom(NONCE_BYTES)
        body = self._keys[self._current].encrypt(nonce, plain, associated)
        return bytes((ENCRYPTED,)) + self._current + nonce + body

    def decrypt(self, frame: bytes, associated: bytes) -> bytes:
        """The plain bytes of a frame made by `encrypt`.

        Raises:
            DecryptionFailed: the frame is plaintext, its key is unknown, or it was altered or
                moved to another place.
        """
        from cryptography.exceptions import InvalidTag

        if frame[:1] != bytes((ENCRYPTED,)):
            raise DecryptionFailed("a plaintext row stands where only encrypted rows may be")
        key_id = bytes(frame[1 : 1 + KEY_ID_BYTES])
        aead = self._keys.get(key_id)
        if aead is None:
            raise DecryptionFailed(
                f"no key for key id {key_id.hex()}; pass the old key as well: Cipher(new, old)"
            )
        nonce = frame[1 + KEY_ID_BYTES : 1 + KEY_ID_BYTES + NONCE_BYTES]
        if len(nonce) < NONCE_BYTES:
            raise DecryptionFailed("an encrypted row was cut off")
        try:
            return aead.decrypt(nonce, frame[1 + KEY_ID_BYTES + NONCE_BYTES :], associated)
        except InvalidTag:
            raise DecryptionFailed(
                "an encrypted row was altered, or moved from another place"
            ) from None

    def __repr__(self) -> str:
        return f"Cipher(key_id={self._current.hex()}, keys={len(self._keys)})"


def _key_id(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=KEY_ID_BYTES, person=b"lgr-key-id").digest()
