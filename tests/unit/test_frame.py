"""Frames: what was compressed comes back, and whatever else stands there is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_resilient.codec.frame import (
    FRAME_VERSION,
    REFERENCES,
    FrameCodec,
    Method,
    Template,
    content_size,
    has_references,
    is_slice,
    read_varint,
    slice_frame,
    template_number,
    write_varint,
)
from langgraph_resilient.errors import DataCorrupt

LIMIT = 1 << 20
CODEC = FrameCodec(6, LIMIT)
WORDS = b"the quick brown fox jumps over the lazy dog; " * 8
TEMPLATE = Template(300, WORDS)
quick = settings(deadline=None, max_examples=200)


def varint(number: int) -> bytes:
    out = bytearray()
    write_varint(out, number)
    return bytes(out)


def frame_of(method: int, size: int, payload: bytes, *, number: bytes = b"") -> bytes:
    return bytes((FRAME_VERSION << 4 | method,)) + number + varint(size) + payload


# --- numbers ----------------------------------------------------------------------------------


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=5))
def test_a_number_comes_back_with_the_place_behind_it(number: int, rest: bytes) -> None:
    data = varint(number)
    assert read_varint(data + rest, 0) == (number, len(data))
    assert read_varint(rest + data, len(rest)) == (number, len(rest) + len(data))
    for cut in range(len(data)):
        with pytest.raises(DataCorrupt, match="cut off"):
            read_varint(data[:cut], 0)


def test_an_endless_number_is_refused() -> None:
    with pytest.raises(DataCorrupt):
        read_varint(b"\xff" * 100, 0)


# --- methods ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "template", "method"),
    [
        (b"", None, Method.RAW),
        (b"short", TEMPLATE, Method.RAW),
        (bytes(range(256)), None, Method.RAW),
        (WORDS, None, Method.DICTIONARY_1),
        (WORDS, TEMPLATE, Method.TEMPLATE),
        (WORDS * 500, None, Method.PLAIN),
        (WORDS * 500, TEMPLATE, Method.TEMPLATE),
    ],
    ids=["empty", "short", "random", "dictionary", "template", "large", "large with template"],
)
@pytest.mark.parametrize("references", [False, True])
def test_each_method_comes_back(
    raw: bytes, template: Template | None, method: Method, references: bool
) -> None:
    frame = CODEC.encode(raw, references=references, template=template)
    assert frame[0] & 0x07 == method
    assert frame[0] >> 4 == FRAME_VERSION
    assert has_references(frame) is references
    assert bool(frame[0] & REFERENCES) is references
    assert template_number(frame) == (300 if method is Method.TEMPLATE else None)
    assert CODEC.decode(frame, template if method is Method.TEMPLATE else None) == raw
    assert FrameCodec(1, LIMIT).decode(frame, template) == raw
    assert len(frame) <= len(raw) + 1


@quick
@given(st.binary(max_size=400), st.integers(1, 40), st.booleans(), st.integers(1, 19))
def test_any_content_comes_back_at_any_level(
    piece: bytes, times: int, templated: bool, level: int
) -> None:
    raw = piece * times
    template = Template(7, piece[: len(piece) // 2] or b"x") if templated else None
    frame = FrameCodec(level, LIMIT).encode(raw, template=template)
    assert CODEC.decode(frame, template) == raw


def test_a_template_makes_similar_contents_tiny() -> None:
    similar = WORDS.replace(b"lazy", b"busy")
    assert len(CODEC.encode(similar, template=TEMPLATE)) < 30
    assert len(CODEC.encode(similar)) > 40


def test_codecs_of_several_levels_live_side_by_side() -> None:
    """Preparing a shared dictionary for one level must not free what another one uses."""
    codecs = [FrameCodec(level, LIMIT) for level in (6, 1, 3, 19, 6)]
    for _ in range(3):
        for codec in codecs:
            for reader in codecs:
                assert reader.decode(codec.encode(WORDS)) == WORDS


def test_templates_of_threads_with_equal_numbers_are_not_confused() -> None:
    ours, theirs = Template(1, WORDS), Template(1, WORDS[::-1])
    for _ in range(3):
        for template in (ours, theirs):
            raw = template.content[3:-3]
            assert CODEC.decode(CODEC.encode(raw, template=template), template) == raw


def test_more_templates_than_are_kept_ready_still_work() -> None:
    templates = [Template(number, WORDS + str(number).encode()) for number in range(80)]
    frames = [CODEC.encode(WORDS[5:], template=template) for template in templates]
    for template, frame in zip(templates, frames, strict=True):
        assert CODEC.decode(frame, template) == WORDS[5:]


def test_several_threads_share_one_codec() -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        template = Template(seed % 3 + 1, WORDS + bytes((seed % 3,)))
        for index in range(200):
            raw = WORDS[index % 40 :] * (seed + 1)
            if CODEC.decode(CODEC.encode(raw, template=template), template) != raw:
                wrong.append((seed, index))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what is not a frame ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "empty"),
        (bytes((0x0 << 4,)) + b"x", "version 0 is unknown"),
        (bytes((0xF << 4,)) + b"x", "version 15 is unknown"),
        (bytes((0xE1,)) + b"encrypted", "version 14 is unknown"),
        (frame_of(5, 5, b"\0\0"), "method 5 is unknown"),
        (frame_of(7, 5, b"\0\0"), "method 7 is unknown"),
        (bytes((0x11,)), "cut off"),
        (bytes((0x13, 0x80)), "cut off"),
        (bytes((0x12,)), "cut off"),
        (bytes((0x12, 0xFF)), "cut off"),
        (frame_of(3, 5, b""), "does not decompress"),
        (frame_of(1, 5, b"\0"), "does not decompress"),
        (frame_of(3, LIMIT + 1, b"\0\x58\0"), "the limit is"),
        (frame_of(3, (1 << 64) - 1, b"\0\x58\0"), "the limit is"),
        (frame_of(2, 5, b"\0", number=varint(300)), "template 300 is missing"),
    ],
)
def test_what_is_no_frame_is_refused_and_says_why(frame: bytes, words: str) -> None:
    with pytest.raises(DataCorrupt, match=words):
        CODEC.decode(frame)


def test_a_frame_needs_its_own_template() -> None:
    frame = CODEC.encode(WORDS, template=TEMPLATE)
    for template in (None, Template(301, WORDS)):
        with pytest.raises(DataCorrupt, match="template 300 is missing"):
            CODEC.decode(frame, template)


def crafted(content: bytes, claimed: int, method: int = Method.PLAIN, **header: bool) -> bytes:
    """A frame as somebody who knows the format could make it."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        19, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_dict_id=False, **header
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    return frame_of(method, claimed, compressor.compress(content))


@pytest.mark.parametrize("with_size", [False, True])
@pytest.mark.parametrize("claimed", [0, 1, 1000, LIMIT])
def test_a_small_frame_cannot_become_more_than_it_claims(with_size: bool, claimed: int) -> None:
    bomb = crafted(bytes(64 * LIMIT), claimed, write_content_size=with_size)
    assert len(bomb) < 10_000
    with pytest.raises(DataCorrupt):
        CODEC.decode(bomb)


@pytest.mark.parametrize("size", [1 << 30, 1 << 40, 1 << 62, (1 << 64) - 3])
def test_a_size_in_the_compressed_bytes_is_not_believed(size: int) -> None:
    payload = bytes((0xE0,)) + size.to_bytes(8, "little") + b"\x01\x00\x00"
    for method in (Method.PLAIN, Method.DICTIONARY_1):
        with pytest.raises(DataCorrupt):
            CODEC.decode(frame_of(method, 5, payload))


def test_content_of_another_length_than_claimed_is_refused() -> None:
    for claimed in (len(WORDS) - 1, len(WORDS) + 1):
        with pytest.raises(DataCorrupt):
            CODEC.decode(crafted(WORDS, claimed, write_content_size=False))


def test_content_may_be_as_large_as_the_limit_and_no_larger() -> None:
    frame = CODEC.encode(bytes(LIMIT))
    assert CODEC.decode(frame) == bytes(LIMIT)
    with pytest.raises(DataCorrupt, match="the limit is"):
        CODEC.decode(FrameCodec(6, 2 * LIMIT).encode(bytes(LIMIT + 1)))


def read_or_refused(frame: bytes, template: Template | None = None) -> None:
    with suppress(DataCorrupt):
        assert len(CODEC.decode(frame, template)) <= max(LIMIT, len(frame))
    with suppress(DataCorrupt):
        template_number(frame)
    has_references(frame)


@quick
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    read_or_refused(frame)


@quick
@given(st.integers(0, 7), st.integers(0, 2 * LIMIT), st.binary(max_size=60))
def test_any_payload_behind_a_good_header_is_read_or_refused(
    method: int, size: int, payload: bytes
) -> None:
    number = varint(300) if method == Method.TEMPLATE else b""
    read_or_refused(frame_of(method, size, payload, number=number), TEMPLATE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CODEC.encode(WORDS),
        lambda: CODEC.encode(WORDS, template=TEMPLATE),
        lambda: CODEC.encode(WORDS * 300),
    ],
    ids=["dictionary", "template", "large"],
)
def test_a_cut_frame_is_refused(make: Callable[[], bytes]) -> None:
    frame = make()
    for cut in range(len(frame)):
        with pytest.raises(DataCorrupt):
            CODEC.decode(frame[:cut], TEMPLATE)


@quick
@given(st.data())
def test_a_frame_with_a_flipped_bit_is_read_or_refused(data: st.DataObject) -> None:
    template = data.draw(st.sampled_from([None, TEMPLATE]))
    frame = bytearray(CODEC.encode(WORDS, template=template))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    read_or_refused(bytes(frame), TEMPLATE)


# --- slices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("start", [0, 1, len(WORDS) - 4])
def test_a_slice_is_its_part_of_the_template(start: int, references: bool) -> None:
    frame = slice_frame(TEMPLATE.number, start, 4, references=references)
    assert CODEC.decode(frame, TEMPLATE) == TEMPLATE.content[start : start + 4]
    assert (template_number(frame), content_size(frame)) == (TEMPLATE.number, 4)
    assert (has_references(frame), is_slice(frame)) == (references, True)
    assert len(frame) <= 7


def test_a_slice_outside_of_its_template_is_refused() -> None:
    size = len(TEMPLATE.content)
    for start, length in ((size, 1), (0, size + 1), (1 << 40, 1), (0, 1 << 63)):
        frame = slice_frame(TEMPLATE.number, start, length, references=False)
        with pytest.raises(DataCorrupt, match="outside of its template"):
            CODEC.decode(frame, TEMPLATE)
    whole = slice_frame(TEMPLATE.number, 0, 4, references=False)
    for wrong in (whole + b"x", whole[:-1]):
        with pytest.raises(DataCorrupt):
            CODEC.decode(wrong, TEMPLATE)
    for template in (None, Template(TEMPLATE.number + 1, WORDS)):
        with pytest.raises(DataCorrupt, match="is missing"):
            CODEC.decode(whole, template)


@pytest.mark.parametrize("size", [1, 100, LIMIT])
def test_an_archive_is_a_frame_that_every_release_reads(size: int) -> None:
    raw = (WORDS * (size // len(WORDS) + 1))[:size]
    assert CODEC.decode(CODEC.encode_archive(raw)) == raw
