"""Makes the zstandard dictionary that the package ships, and measures what it is worth.

    python benchmarks/make_dictionary.py names      # write dictionary_corpus/python_names.txt
    python benchmarks/make_dictionary.py build      # write dictionary_v1.zdict (or --output F)
    python benchmarks/make_dictionary.py evaluate   # ratios and times, with and without it

The content is put together by hand rather than trained: zstandard codes a match by its distance
from the end, so the corpus files are laid out with the most useful text last, and each word
stands once. What is trained are the entropy tables, over messages that a small grammar makes
from the same files; they save the tables that a small frame would otherwise carry.

Everything in ``dictionary_corpus`` was written for this package, apart from ``python_names.txt``,
which lists names that Python itself reports (``keyword.kwlist``, ``dir()``). The build depends on
those files and the seed alone, not on the Python version; another release of zstandard may give
other entropy tables, which is why the result is committed. A released dictionary never changes:
a better one gets a new number and a new file.

``build`` needs ``compression.zstd`` (Python 3.14) or the ``backports.zstd`` package: python-zstandard
has no way to give one's own content entropy tables.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import inspect
import itertools
import json
import keyword
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import zstandard

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "dictionary_corpus"
TARGET = HERE.parent / "langgraph_resilient" / "codec" / "dictionary_v1.zdict"
RECORDED = HERE.parent.parent / "shared" / "trajectories"
SEED = 1
SAMPLES = 3000
SAMPLE_LEVEL = 9
MAX_BYTES = 128 * 1024
MESSAGE_EXT = 44
"""Extension code of a message in the codec's MessagePack."""

_SHORTEST_WORD = 5
"""A match costs about three bytes, so shorter words save nothing by themselves."""


# --- names ----------------------------------------------------------------------------------


def count_names() -> Counter[str]:
    """How many standard modules and classes have each name."""
    counts: Counter[str] = Counter(dict.fromkeys((*keyword.kwlist, *dir(builtins)), 1))
    # First line: the modules that agents write most; their names count twice.
    often, seldom = map(str.split, corpus("python_modules.txt").splitlines())
    for module_name in (*often, *seldom):
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # some are missing on some systems
            continue
        counts.update(module_name.split("."))
        for name in dir(module):
            counts[name] += 2 if module_name in often else 1
            value = getattr(module, name, None)
            if (
                inspect.isclass(value)
                and value.__module__.split(".")[0] == module_name.split(".")[0]
            ):
                counts.update(vars(value).keys())
    return counts


def write_names(path: Path) -> None:
    """Write the names that are common enough, the most common last."""
    counts = count_names()
    chosen = [
        name
        for name, count in counts.items()
        if len(name) >= _SHORTEST_WORD
        and name.isascii()
        and count >= (3 if name.startswith("__") else 2)
        and (name.startswith("__") or not name.startswith("_"))
    ]
    chosen.sort(key=lambda name: (counts[name], name))
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")


# --- content --------------------------------------------------------------------------------


def corpus(name: str) -> str:
    """One corpus file as text."""
    return (CORPUS / name).read_text(encoding="utf-8")


def distinct(words: Iterable[str], elsewhere: str) -> list[str]:
    """Words in their order, without those that stand elsewhere or begin a longer one."""
    unique = [word for word in dict.fromkeys(words) if len(word) >= _SHORTEST_WORD]
    ordered = sorted(unique)
    beginnings = {a for a, b in itertools.pairwise(ordered) if b.startswith(a)}
    return [w for w in unique if w not in beginnings and " " + w not in elsewhere]


def skeletons() -> list[tuple[int | str, dict[str, Any]]]:
    """Messages and envelopes without text: (message class number or "envelope", fields)."""
    return [(kind, fields) for kind, fields in json.loads(corpus("skeletons.json"))]


def packed(kind: int | str, fields: dict[str, Any], mask: int = 0) -> bytes:
    """Fields as the codec packs them."""
    if kind == "envelope":
        return msgpack.packb(fields)  # type: ignore[no-any-return]
    body = msgpack.packb([kind, fields, mask])
    return msgpack.packb(msgpack.ExtType(MESSAGE_EXT, body))  # type: ignore[no-any-return]


def sections() -> dict[str, str]:
    """The texts of the dictionary in their order, the most useful last."""
    flowing = corpus("prose.txt").replace("\n", "") + corpus("phrases.txt").replace("\n", "")
    code, shell, data = corpus("python.txt"), corpus("shell.txt"), corpus("data.txt")
    technical = distinct(corpus("technical.txt").split(), flowing + code + shell + data)
    # Rare words first, so that the frequent ones have the shorter distances.
    english = distinct(
        corpus("english_words.txt").split(),
        flowing + code + shell + data + " " + " ".join(technical),
    )[::-1]
    known = flowing + code + shell + data + " " + " ".join((*technical, *english))
    return {
        "words": " ".join(english),
        "names": " ".join(distinct(corpus("python_names.txt").split(), known)),
        "technical": " ".join(technical),
        "other_code": corpus("other_code.txt"),
        "data": data,
        "shell": shell,
        "python": code,
        "flowing": flowing,
        "keys": corpus("messages.txt"),
    }


def content() -> bytes:
    """The dictionary's content, without entropy tables."""
    frames = b"".join(packed(kind, fields, 1) for kind, fields in skeletons())
    return "\n".join((*sections().values(), "")).encode() + frames


# --- samples --------------------------------------------------------------------------------


class Grammar:
    """Makes messages that look like an agent's, from the corpus files; the same for a seed."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._words = corpus("english_words.txt").split()
        self._weights = [1 / (rank + 20) for rank in range(len(self._words))]
        phrases = corpus("phrases.txt")
        self._glue = " ".join(phrases.split("\n")[:6]).split()
        flowing = (corpus("prose.txt") + phrases).replace("\n", " ")
        self._phrases = re.split(r"(?<=[.?!:]) +", flowing)
        self._technical = corpus("technical.txt").split()
        self._messages = [entry for entry in skeletons() if entry[0] != "envelope"]
        self._names = corpus("python_names.txt").split() + self._words[:1500]
        self._lines = [
            corpus(name).split("\n")
            for name in ("python.txt", "shell.txt", "data.txt", "other_code.txt")
        ]

    def prose(self, size: int) -> str:
        """Words and phrases, at least `size` characters."""
        parts: list[str] = []
        length = 0
        while length < size:
            kind = self._random.random()
            if kind < 0.4:
                parts.append(" ".join(self._random.choices(self._words, self._weights, k=2)))
            elif kind < 0.75:
                parts.append(self._random.choice(self._glue))
            elif kind < 0.85:
                parts.append(self._random.choice(self._technical))
            else:
                parts.append(self._random.choice(self._phrases))
            length += len(parts[-1]) + 1
        return " ".join(parts)

    def lines(self, size: int) -> str:
        """Lines of code or output with names of their own, at least `size` characters."""
        source = self._random.choices(self._lines, (30, 30, 25, 15))[0]
        parts: list[str] = []
        length = 0
        while length < size:
            at = self._random.randrange(len(source))
            indent = " " * 4 * self._random.choice((0, 0, 0, 1, 2, 3))
            for line in source[at : at + self._random.randint(1, 3)]:
                line = re.sub(r"\b(name|value|path|data|items|result)\b", self._rename, line)
                if self._random.random() < 0.3:
                    line += f" {self._word()}_{self._word()}({self._random.randint(0, 999)})"
                parts.append(indent + line)
                length += len(parts[-1]) + 1
        return "\n".join(parts)

    def message(self) -> bytes:
        """One packed message, usually some hundred bytes, at most about 6 kB."""
        size = int(min(6000, max(60, self._random.lognormvariate(6.2, 1.2))))
        text = self.prose(size) if self._random.random() < 0.45 else self.lines(size)
        kind, fields = self._random.choice(self._messages)
        fields = self._fill(fields)
        fields["content"] = text if not fields.get("tool_calls") else text[: size // 2]
        return packed(kind, fields, self._random.choice((1, 7, 0x1F, 0x21, 0x41, 0x23F)))

    def _fill(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: self._fill(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [self._fill(item) for item in value]
        if isinstance(value, int):
            return self._random.randint(0, 50_000) if value else 0
        if not isinstance(value, str):
            return value
        if key in ("id", "tool_call_id"):
            return value.replace("0", "") + "".join(self._random.choices("0123456789abcdef", k=24))
        if key in ("path", "file_path", "command"):
            return value + f"/{self._word()}/{self._word()}.py"
        return value or f"{self._word()}_{self._word()}"

    def _word(self) -> str:
        return self._random.choice(self._words)

    def _rename(self, found: re.Match[str]) -> str:
        return self._random.choice(self._names) if self._random.random() < 0.7 else found[0]


def build() -> bytes:
    """The whole dictionary file: header, entropy tables, content."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from backports import zstd  # type: ignore[import-not-found, no-redef, unused-ignore]
    grammar = Grammar(SEED)
    samples = [grammar.message() for _ in range(SAMPLES)]
    # The number only has to be stable: frames do not carry it.
    raw = zstd.ZstdDict(content(), is_raw=True)
    made = zstd.finalize_dict(raw, samples, MAX_BYTES, SAMPLE_LEVEL)
    return bytes(made.dict_content)


# --- evaluation -----------------------------------------------------------------------------


def recorded_conversations() -> Iterator[list[bytes]]:
    """The distinct packed messages of each recorded conversation of 20 to 320 messages."""
    sys.path.insert(0, str(RECORDED))
    from load import load  # type: ignore[import-not-found, unused-ignore]

    order = ("human", "ai", "system", "tool")
    for _, messages in load(RECORDED / "conversations.jsonl.zst"):
        if 20 <= len(messages) <= 320:
            rows = [(order.index(m.type), m.model_dump(exclude_defaults=True)) for m in messages]
            yield list(dict.fromkeys(packed(k, _without_type(fields), 1) for k, fields in rows))


def _without_type(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "type"}


def random_words(seed: int = 0) -> list[bytes]:
    """Fifty rounds of messages made of words from three standard modules."""
    words = [
        word
        for name in ("argparse", "typing", "subprocess")
        for word in inspect.getsource(importlib.import_module(name)).split()
    ]
    chance = random.Random(seed)
    messages = []
    for _ in range(50):
        sizes = (200, 400, *(chance.randint(2000, 6000) for _ in range(3)), 1200)
        for size in sizes:
            parts: list[str] = []
            length = 0
            while length < size:
                parts.append(chance.choice(words))
                length += len(parts[-1]) + 1
            messages.append(" ".join(parts).encode())
    return messages


def compressor(dictionary: bytes | None, level: int) -> zstandard.ZstdCompressor:
    """A compressor with the settings of the package's small frames."""
    words = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=1 << 16 if words else 0,
        dict_size=len(words) if words else 0,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=words)


def total(dictionary: bytes | None, level: int, messages: Iterable[bytes]) -> int:
    """Bytes of the messages, each compressed alone."""
    compress = compressor(dictionary, level).compress
    return sum(len(compress(message)) for message in messages)


def microseconds(work: Callable[[], object], count: int) -> float:
    """Best of five runs, per item."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best / count * 1e6


def time_level(dictionary: bytes | None, level: int, messages: list[bytes], size: int) -> str:
    """Microseconds to compress and to decompress a message of about `size` bytes."""
    near = [m for m in messages if abs(len(m) - size) <= size // 6][:300]
    deflate = compressor(dictionary, level)
    inflate = zstandard.ZstdDecompressor(
        dict_data=None if dictionary is None else zstandard.ZstdCompressionDict(dictionary),
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
    )
    frames = [deflate.compress(m) for m in near]
    pairs = list(zip(near, frames, strict=True))
    there = microseconds(lambda: [deflate.compress(m) for m in near], len(near))
    back = microseconds(
        lambda: [inflate.decompress(f, max_output_size=len(m)) for m, f in pairs], len(near)
    )
    ratio = sum(map(len, frames)) / sum(map(len, near))
    return f"{size} B: {there:.1f}/{back:.1f} us, to {ratio:.2f}"


def evaluate(dictionary: bytes, levels: Iterable[int]) -> None:
    """Print sizes relative to one zstd-19 stream per conversation, and times."""
    conversations: list[list[bytes]] = []
    if (RECORDED / "load.py").exists():
        conversations = list(recorded_conversations())
    messages = [message for conversation in conversations for message in conversation]
    streams = sum(len(zstandard.compress(b"".join(c), 19)) for c in conversations)
    words = random_words()
    timed = messages or [m[:s] for m in words for s in (300, 3000)]
    small = [m for m in messages if len(m) <= 1024]
    for name, used in (("alone", None), ("dictionary", dictionary)):
        for level in levels:
            real = total(used, level, messages) / streams if streams else float("nan")
            print(
                f"{name:10} level {level:2}: {real:.3f} x stream; up to 1 KiB "
                f"{total(used, level, small) / 1e3:.0f} kB; random words "
                f"{total(used, level, words) / 1e3:.1f} kB; "
                + "; ".join(time_level(used, level, timed, size) for size in (300, 3000))
            )


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("command", choices=("names", "build", "evaluate"))
    parser.add_argument("--output", type=Path, default=TARGET, help="dictionary file")
    parser.add_argument("--levels", type=int, nargs="+", default=[3, 6, 9, 12])
    options = parser.parse_args()
    if options.command == "names":
        write_names(CORPUS / "python_names.txt")
    elif options.command == "build":
        made = build()
        options.output.write_bytes(made)
        print(f"{options.output}: {len(made)} bytes")
    else:
        evaluate(options.output.read_bytes(), options.levels)


if __name__ == "__main__":
    main()
