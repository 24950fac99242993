"""Seals: what was sealed at a place opens there, and nothing else opens anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_resilient.codec.cipher import ENCRYPTED, KEY_ID_BYTES, NONCE_BYTES, Cipher
from langgraph_resilient.codec.seal import ChecksumSealer, CipherSealer, KeyedSealer, Sealer
from langgraph_resilient.errors import (
    ConfigurationError,
    DataCorrupt,
    DecryptionFailed,
    TamperDetected,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
SCOPE, OTHER_SCOPE = b"s" * 16, b"o" * 16
SEALERS: dict[str, Sealer] = {
    "checksum": ChecksumSealer(),
    "keyed": KeyedSealer(KEY, SCOPE),
    "cipher": CipherSealer(Cipher(KEY), SCOPE),
}
PROTECTING = {
    "keyed": (SEALERS["keyed"], KeyedSealer(OTHER_KEY, SCOPE), KeyedSealer(KEY, OTHER_SCOPE)),
    "cipher": (
        SEALERS["cipher"],
        CipherSealer(Cipher(OTHER_KEY), SCOPE),
        CipherSealer(Cipher(KEY), OTHER_SCOPE),
    ),
}
every_sealer = pytest.mark.parametrize("sealer", SEALERS.values(), ids=SEALERS.keys())
relaxed = settings(deadline=None)


@every_sealer
@relaxed
@given(st.binary(max_size=40), st.binary(max_size=200))
def test_what_was_sealed_opens_at_its_place(sealer: Sealer, place: bytes, frame: bytes) -> None:
    stored = sealer.seal(place, frame)
    assert sealer.open(place, stored) == frame
    assert len(stored) == len(frame) + sealer.overhead


@every_sealer
@relaxed
@given(st.data())
def test_a_changed_byte_is_noticed(sealer: Sealer, data: st.DataObject) -> None:
    stored = bytearray(sealer.seal(b"place", b"some frame"))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataCorrupt):
        sealer.open(b"place", bytes(stored))


@every_sealer
def test_a_cut_or_longer_row_is_noticed(sealer: Sealer) -> None:
    stored = sealer.seal(b"place", b"some frame")
    for cut in range(len(stored)):
        with pytest.raises(DataCorrupt):
            sealer.open(b"place", stored[:cut])
        with pytest.raises(DataCorrupt):
            sealer.open(b"place", stored[cut + 1 :])
    with pytest.raises(DataCorrupt):
        sealer.open(b"place", stored + b"\0")


@every_sealer
@pytest.mark.parametrize("place", [b"", b"plac", b"placf", b"place\0", b"Place"])
def test_a_row_moved_to_another_place_is_noticed(sealer: Sealer, place: bytes) -> None:
    with pytest.raises(DataCorrupt):
        sealer.open(place, sealer.seal(b"place", b"some frame"))


@every_sealer
def test_two_rows_that_changed_places_are_noticed(sealer: Sealer) -> None:
    first, second = sealer.seal(b"1", b"frame one"), sealer.seal(b"2", b"frame two")
    for place, stored in ((b"1", second), (b"2", first)):
        with pytest.raises(DataCorrupt):
            sealer.open(place, stored)


@pytest.mark.parametrize("sealers", PROTECTING.values(), ids=PROTECTING.keys())
def test_only_the_same_key_and_database_open_a_row(sealers: tuple[Sealer, Sealer, Sealer]) -> None:
    sealer, other_key, other_database = sealers
    stored = sealer.seal(b"place", b"some frame")
    for stranger in (other_key, other_database):
        with pytest.raises((TamperDetected, DecryptionFailed)):
            stranger.open(b"place", stored)
        with pytest.raises((TamperDetected, DecryptionFailed)):
            sealer.open(b"place", stranger.seal(b"place", b"some frame"))


def test_the_seal_of_a_key_covers_where_place_ends_and_frame_begins() -> None:
    sealer = SEALERS["keyed"]
    stored = sealer.seal(b"place", b"frame")
    with pytest.raises(TamperDetected):
        sealer.open(b"plac", b"e" + stored)
    with pytest.raises(TamperDetected):
        sealer.open(b"placef", stored[1:])


def test_weaker_seals_are_refused_where_stronger_ones_are_demanded() -> None:
    for weak in ("checksum", "keyed"):
        stored = SEALERS[weak].seal(b"place", b"\x10 plaintext frame")
        with pytest.raises(DecryptionFailed, match="plaintext row"):
            SEALERS["cipher"].open(b"place", stored)
    stored = SEALERS["checksum"].seal(b"place", b"frame")
    with pytest.raises(TamperDetected):
        SEALERS["keyed"].open(b"place", stored)


def test_a_keyed_row_stays_readable_and_an_encrypted_one_does_not() -> None:
    assert b"secret words" in SEALERS["keyed"].seal(b"p", b"secret words")
    assert b"secret" not in SEALERS["cipher"].seal(b"p", b"secret words")


# --- keys of the cipher -----------------------------------------------------------------------


def test_old_keys_still_open_what_they_encrypted_and_encrypt_nothing_new() -> None:
    old, new = Cipher(OTHER_KEY), Cipher(KEY, OTHER_KEY)
    stored = old.encrypt(b"frame", b"place")
    assert new.decrypt(stored, b"place") == b"frame"
    assert Cipher(KEY).decrypt(new.encrypt(b"frame", b"place"), b"place") == b"frame"
    with pytest.raises(DecryptionFailed, match=r"Cipher\(new, old\)"):
        Cipher(KEY).decrypt(stored, b"place")
    with pytest.raises(DecryptionFailed, match=old.key_id.hex()):
        Cipher(KEY).decrypt(stored, b"place")


def test_equal_frames_are_encrypted_differently_each_time() -> None:
    cipher = Cipher(KEY)
    made = {cipher.encrypt(b"frame", b"place") for _ in range(50)}
    nonces = {stored[1 + KEY_ID_BYTES :][:NONCE_BYTES] for stored in made}
    assert len(made) == len(nonces) == 50
    assert {stored[0] for stored in made} == {ENCRYPTED}


@pytest.mark.parametrize("size", [0, 8, 15, 17, 31, 33, 64])
def test_a_key_of_a_wrong_length_is_refused(size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{size} bytes"):
        Cipher(bytes(size))
    with pytest.raises(ConfigurationError, match=f"{size} bytes"):
        Cipher(KEY, bytes(size))


@pytest.mark.parametrize("size", [16, 24, 32])
def test_every_length_of_an_aes_key_works(size: int) -> None:
    cipher = Cipher(bytes(size))
    assert cipher.decrypt(cipher.encrypt(b"frame", b""), b"") == b"frame"


def test_the_key_is_not_shown() -> None:
    shown = repr(Cipher(KEY, OTHER_KEY))
    assert KEY.hex() not in shown
    assert repr(KEY) not in shown
    assert "keys=2" in shown
