"""Addresses and checksums: bytes in, short bytes out. Knows nothing of rows or objects."""

from __future__ import annotations

import hashlib

import xxhash

ADDRESS_BYTES = 16
KEY_BYTES = 32


def address(data: bytes, key: bytes) -> bytes:
    """Keyed BLAKE2b-128 of `data`: the content address of a stored value.

    The key is made per database, so that nobody can prepare two contents with one address
    (BLAKE2, RFC 7693, in its keyed mode).
    """
    return hashlib.blake2b(data, digest_size=ADDRESS_BYTES, key=key).digest()


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A 32-byte key for one purpose, derived from a secret of any length."""
    return hashlib.blake2b(
        secret if len(secret) <= 64 else hashlib.blake2b(secret).digest(),
        digest_size=KEY_BYTES,
        person=purpose[:16],
    ).digest()


def checksum(data: bytes) -> bytes:
    """Four bytes that notice accidental damage (XXH3); no protection against an editor."""
    return xxhash.xxh3_64_digest(data)[:4]


def name_hash(text: str) -> int:
    """A signed 63-bit number for a name: the second, independent way to find a thread's row."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) >> 1
