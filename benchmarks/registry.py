"""Every saver that `python -m benchmarks` can measure, one `Entry` each, and those that it cannot.

To add a saver, write one entry here (or in `rivals.py`, for a package that is not ours): how it is
opened and closed, what it leaves on disk, which workloads it takes part in, and which packages
must be installed. An entry that cannot run here is listed in the report with its reason.

For notebooks: `entry(name)` gives an entry, `entries()` all of them, `why_not(entry)` the reason
why one cannot run here ("" if it can).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from benchmarks import payloads
from benchmarks.savers import Plugin, open_async_sqlite, open_nothing, open_sqlite
from langgraph_resilient import AfterTools, EveryRounds, EveryStep, ResilientSaver, maintenance

SHORT, CHAT, REAL, CROWD, FILES, PICTURE = "short", "chat", "real", "crowd", "files", "picture"
EVERYWHERE = frozenset({SHORT, CHAT, REAL, CROWD, FILES, PICTURE})
CONVERSATIONS = frozenset({SHORT, CHAT, REAL})
SHORTEST = frozenset({SHORT})
"""For savers that take minutes on anything longer."""
POLICIES: dict[str, Any] = {
    "every": EveryStep(),
    "rounds3": EveryRounds(3),
    "aftertools": AfterTools(),
}
DURABILITIES = ("async", "sync", "exit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A saver that takes part.

    Attributes:
        plugin: its name, and how it is opened and closed (a context manager).
        about: what it is, in one line.
        leaves: what it leaves on disk, and when that is flushed.
        packages: distributions that must be installed; the first one's version is reported.
        workloads: those it takes part in.
        synchronous: handed to `plugin.open`.
        baseline: the entry that its figures are divided by.
        sparse: whether it may leave out checkpoints that are not the last of a run.
        reopens: whether another process can go on with what it leaves.
        weigh: the bytes of what it holds now, called as ``weigh(saver, path)``.
        shrink: makes an open saver's files smaller; None where there is no such thing.
        server: whether another program holds the data; an empty one's bytes do not count then.
        refused: why it never runs; empty for one that does.
        variant: whether it is another entry with other settings, named by its traits.
    """

    plugin: Plugin
    about: str
    leaves: str
    packages: tuple[str, ...] = ()
    workloads: frozenset[str] = EVERYWHERE
    synchronous: str = "FULL"
    baseline: str = "sqlite"
    sparse: bool = False
    reopens: bool = True
    weigh: Callable[[Any, str], int] | None = payloads.of_folder
    shrink: Callable[[Any], Any] | None = None
    server: bool = False
    refused: str = ""
    variant: bool = False

    @property
    def name(self) -> str:
        """The name by which reports and options know it."""
        return self.plugin.name


def why_not(entry: Entry) -> str:
    """Return why an entry cannot run here; empty if it can."""
    if entry.refused:
        return entry.refused
    absent = [package for package in entry.packages if installed(package) is None]
    return f"not installed: {', '.join(absent)} (extra `bench`)" if absent else ""


def installed(package: str) -> str | None:
    """Return the installed version of a distribution, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---- ours ------------------------------------------------------------------------------------


def _open_ours(path: str, *, synchronous: str, policy: Any = None) -> ResilientSaver:
    options: dict[str, Any] = {"synchronous": synchronous, "policy": policy}
    return ResilientSaver.from_conn_string(path, **options)


def _ours(policy: str, durability: str, synchronous: str) -> Entry:
    traits = [policy, durability, synchronous]
    usual = ["every", "async", "FULL"]
    said = [trait.lower() for trait, default in zip(traits, usual, strict=True) if trait != default]
    beside = [
        trait for trait in (durability, synchronous.lower()) if trait not in ("async", "full")
    ]
    plain = durability == "async" and synchronous == "FULL"
    workloads = EVERYWHERE if not said else frozenset({SHORT, CHAT} if plain else {SHORT})
    return Entry(
        plugin=Plugin(
            name="+".join(["ours", *said]),
            open=partial(_open_ours, policy=None if policy == "every" else POLICIES[policy]),
            durability=durability,
        ),
        about="`ResilientSaver`; `ours+POLICY+DURABILITY+normal`: other settings",
        leaves=f"one SQLite file and its WAL, synchronous={synchronous}",
        workloads=workloads,
        synchronous=synchronous,
        baseline="+".join(["sqlite", *beside]),
        sparse=policy != "every" or durability == "exit",
        variant=bool(said),
        weigh=payloads.of_sqlite,
        shrink=maintenance.compact if plain else None,
    )


def _own() -> Iterator[Entry]:
    for synchronous, durability, policy in itertools.product(
        ("FULL", "NORMAL"), DURABILITIES, POLICIES
    ):
        yield _ours(policy, durability, synchronous)
    yield Entry(
        plugin=Plugin(name="ours+asyncio", open=_open_ours, asynchronous=True),
        about="`ResilientSaver` under `ainvoke`",
        leaves="one SQLite file and its WAL, synchronous=FULL",
        workloads=frozenset({SHORT, CHAT, CROWD}),
        baseline="sqlite+asyncio",
        weigh=payloads.of_sqlite,
    )


# ---- LangGraph's own -------------------------------------------------------------------------


@contextmanager
def _open_memory(path: str, *, synchronous: str) -> Iterator[InMemorySaver]:
    with InMemorySaver() as saver:
        yield saver


def _sqlite(durability: str, synchronous: str) -> Entry:
    traits = [
        trait for trait in (durability, synchronous.lower()) if trait not in ("async", "full")
    ]
    return Entry(
        plugin=Plugin(name="+".join(["sqlite", *traits]), open=open_sqlite, durability=durability),
        about="`SqliteSaver`; `sqlite+DURABILITY+normal`: other settings",
        leaves=f"one SQLite file and its WAL, synchronous={synchronous}",
        packages=("langgraph-checkpoint-sqlite",),
        workloads=frozenset({SHORT}) if traits else EVERYWHERE,
        synchronous=synchronous,
        sparse=durability == "exit",
        variant=bool(traits),
        weigh=payloads.of_sqlite,
    )


def _delta(frequency: int) -> Entry:
    return Entry(
        plugin=Plugin(
            name=f"sqlite+delta{frequency}",
            open=partial(open_sqlite, zstd=True),
            snapshot_frequency=frequency,
        ),
        about=f"`SqliteSaver`, `DeltaChannel(snapshot_frequency={frequency})`, zstd-3 serializer",
        leaves="one SQLite file and its WAL, synchronous=FULL",
        packages=("langgraph-checkpoint-sqlite",),
        workloads=CONVERSATIONS,
        weigh=payloads.of_sqlite,
    )


def _langgraphs() -> Iterator[Entry]:
    for synchronous, durability in itertools.product(("FULL", "NORMAL"), DURABILITIES):
        yield _sqlite(durability, synchronous)
    yield Entry(
        plugin=Plugin(name="sqlite+asyncio", open=open_async_sqlite, asynchronous=True),
        about="`AsyncSqliteSaver` under `ainvoke`",
        leaves="one SQLite file and its WAL, synchronous=FULL",
        packages=("langgraph-checkpoint-sqlite", "aiosqlite"),
        workloads=frozenset({SHORT, CHAT, CROWD}),
        weigh=payloads.of_sqlite,
    )
    yield from map(_delta, (100, 1000))
    yield Entry(
        plugin=Plugin(name="memory", open=_open_memory),
        about="`InMemorySaver`",
        leaves="nothing",
        packages=("langgraph-checkpoint",),
        reopens=False,
        weigh=None,
    )
    yield Entry(
        plugin=Plugin(name="nothing", open=open_nothing),
        about="keeps references only: no saver can make a run shorter than this",
        leaves="nothing",
        reopens=False,
        weigh=None,
    )


# ---- all -------------------------------------------------------------------------------------


def entries() -> list[Entry]:
    """Return every entry: `SqliteSaver` first, then ours, LangGraph's own, and rivals."""
    from benchmarks.rivals import rivals  # it makes entries of the class above

    first, *others = _langgraphs()
    return [first, *_own(), *others, *rivals()]


def entry(name: str) -> Entry:
    """Return the entry of that name.

    Raises:
        KeyError: there is none; the message lists those that there are.
    """
    known = {found.name: found for found in entries()}
    if name not in known:
        raise KeyError(f"no saver {name!r}; known: {', '.join(known)}")
    return known[name]
