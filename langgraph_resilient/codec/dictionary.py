"""The zstandard dictionaries that ship with the package, by version.

A chat message alone is too short to compress well: the dictionary gives zstandard the words,
keys and code idioms that agents' messages share, and ready-made entropy tables. Knows no frames.

A released dictionary never changes and is never removed, since the frames made with it could not
be read again: a better one gets the next number and a file of its own
(``benchmarks/make_dictionary.py`` makes them).
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final

import zstandard

from langgraph_resilient.errors import ConfigurationError, DataCorrupt

DICTIONARY_VERSION: Final = 1
"""The version that new frames use."""

DIGESTS: Final = {
    1: "bb016eaa740bc475eaaeb1acf387c93b0354d1817ee62bd04a81a348abfd37a9",
}
"""BLAKE2b-256 of every released file, in hexadecimal."""


@cache
def load(version: int) -> zstandard.ZstdCompressionDict:
    """The dictionary of a version, read once per process.

    It is immutable and may be shared between threads; compressors and decompressors made with it
    may not. Costs about half a millisecond the first time.

    Raises:
        DataCorrupt: no release up to this one has a dictionary of that version, so the number
            in a frame is damaged or the frame was written by a newer release.
        ConfigurationError: the installed file is missing or is not the released one. It is
            checked because frames written with an altered dictionary are lost.
    """
    digest = DIGESTS.get(version)
    if digest is None:
        raise DataCorrupt(
            f"it needs compression dictionary {version!r}; this release has {sorted(DIGESTS)}. "
            "It is damaged, or a newer release of langgraph-resilient wrote it"
        )
    return zstandard.ZstdCompressionDict(
        _released(f"dictionary_v{version}.zdict", digest), dict_type=zstandard.DICT_TYPE_FULLDICT
    )


def _released(name: str, digest: str) -> bytes:
    """The bytes of a released file.

    Raises:
        ConfigurationError: it is missing or altered.
    """
    try:
        data = resources.files("langgraph_resilient.codec").joinpath(name).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the installed package lacks {name} ({error}); install langgraph-resilient again"
        ) from error
    if hashlib.blake2b(data, digest_size=32).hexdigest() != digest:
        raise ConfigurationError(
            f"the installed {name} is not the released file; install langgraph-resilient again"
        )
    return data
