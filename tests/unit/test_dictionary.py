"""The shipped compression dictionary: frozen, found, and worth its size."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import msgpack
import pytest
import zstandard

from langgraph_resilient.codec import dictionary
from langgraph_resilient.errors import ConfigurationError, DataCorrupt

# Written out here on purpose: whoever changes a released file has to change this line as well,
# and must not, because every stored frame needs the file as it was.
RELEASED = {1: "bb016eaa740bc475eaaeb1acf387c93b0354d1817ee62bd04a81a348abfd37a9"}


def _compressor(words: zstandard.ZstdCompressionDict | None) -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        6, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=False, write_dict_id=False
    )
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=words)


def _message(text: str) -> bytes:
    fields = {
        "content": text,
        "tool_calls": [
            {"name": "read_file", "args": {"path": "/srv/x"}, "id": "call_7", "type": "tool_call"}
        ],
        "usage_metadata": {"input_tokens": 91, "output_tokens": 17, "total_tokens": 108},
    }
    return bytes(msgpack.packb([1, fields, 65]))


@pytest.mark.parametrize("version", sorted(dictionary.DIGESTS))
def test_a_released_dictionary_never_changes(version: int) -> None:
    file = resources.files("langgraph_resilient.codec") / f"dictionary_v{version}.zdict"
    digest = hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest()
    assert digest == RELEASED[version] == dictionary.DIGESTS[version]


def test_every_released_version_still_ships() -> None:
    assert dictionary.DIGESTS.keys() == RELEASED.keys()
    assert dictionary.DICTIONARY_VERSION in RELEASED


@pytest.mark.parametrize("version", sorted(dictionary.DIGESTS))
def test_it_is_small_enough_for_a_wheel(version: int) -> None:
    assert len(dictionary.load(version)) <= 128 * 1024


def test_it_is_read_once() -> None:
    assert dictionary.load(1) is dictionary.load(1)


@pytest.mark.parametrize("version", [0, -1, 2, 255])
def test_an_unknown_version_is_damage_and_says_what_to_do(version: int) -> None:
    with pytest.raises(DataCorrupt, match=f"dictionary {version}.*newer release"):
        dictionary.load(version)


def test_an_altered_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="install langgraph-resilient again"):
        dictionary._released("dictionary_v1.zdict", "00" * 32)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lacks dictionary_v0"):
        dictionary._released("dictionary_v0.zdict", "00" * 32)


def test_threads_may_share_it() -> None:
    words = dictionary.load(1)
    messages = [_message(f"Let me check the file number {n}.") for n in range(200)]

    def round_trip(message: bytes) -> bytes:
        reader = zstandard.ZstdDecompressor(
            dict_data=words, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        frame = _compressor(words).compress(message)
        return bytes(reader.decompress(frame, max_output_size=len(message)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, messages)) == messages


def test_a_short_message_takes_far_less_than_without_it() -> None:
    message = _message("I have read the configuration file, but the tests still fail.")
    alone = len(_compressor(None).compress(message))
    assert len(_compressor(dictionary.load(1)).compress(message)) < alone * 0.6
