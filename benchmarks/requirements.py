"""The promises on size and speed, one row each: what is compared, in which trial, and the limit.

Rows are data. Which trials must run follows from the rows that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ROUGHLY = 1.05  # "not slower", "not above": what two runs of the same code may differ by


@dataclass(frozen=True, slots=True, order=True)
class Bench:
    """A trial without its savers: kind, workload and `synchronous`."""

    kind: str
    workload: str
    synchronous: str = "FULL"

    def __str__(self) -> str:
        return f"{self.kind} {self.workload} {self.synchronous}"


@dataclass(frozen=True, slots=True)
class Probe:
    """One figure: of which trial, which saver, which metric."""

    bench: Bench
    saver: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """`ours` over `rival` may be at most `limit` (None: shown, not judged).

    `rival` may be a constant in the metric's unit. `scaled` rows hold for the full scale only.
    """

    area: str
    title: str
    ours: Probe
    rival: Probe | float
    limit: float | None
    scaled: bool = False

    @property
    def probes(self) -> list[Probe]:
        """The figures that the row needs."""
        return [self.ours] + ([self.rival] if isinstance(self.rival, Probe) else [])


CHAT = Bench("run", "chat")
SHORT = Bench("run", "short")
REAL = Bench("run", "real")
CROWD = Bench("together", "crowd")
CONTENT = {
    "picture": "a 1.4 MB picture in state",
    "files": "30 files of 4 KB, one edited a step",
    "document": "an unchanging 1 MB channel",
}


def _versus(
    area: str,
    title: str,
    bench: Bench,
    metric: str,
    limit: float | None,
    *,
    ours: str = "ours",
    rival: str = "sqlite",
    scaled: bool = True,
) -> Requirement:
    return Requirement(
        area=area,
        title=f"{title} [{bench.synchronous}] vs {rival}",
        ours=Probe(bench, ours, metric),
        rival=Probe(bench, rival, metric),
        limit=limit,
        scaled=scaled,
    )


def _both_sizes(
    area: str, title: str, bench: Bench, rival: Probe | float, limit: float | None, scaled: bool
) -> Iterator[Requirement]:
    for moment, metric in (("while open", "size_open"), ("after close", "size_closed")):
        yield Requirement(
            area=area,
            title=f"{title}, {moment}",
            ours=Probe(bench, "ours", metric),
            rival=rival,
            limit=limit,
            scaled=scaled,
        )


def _size() -> Iterator[Requirement]:
    yield from _both_sizes("size", "50 synthetic rounds ≤ 0.55 MB", SHORT, 0.55e6, 1.0, True)
    yield from _both_sizes("size", "200 synthetic rounds ≤ 2.0 MB", CHAT, 2.0e6, 1.0, True)
    other = Bench("run", "other")
    yield from _both_sizes("size", "the same with words of other sources", other, 2.0e6, None, True)
    yield _versus("size", "50 synthetic rounds", SHORT, "size_open", None)
    yield _versus("size", "200 synthetic rounds", CHAT, "size_open", None)
    floor = Probe(Bench("floor", "real"), "floor", "bytes")
    title = "real conversations ≤ 2.5 × one zstd-19 stream a thread"
    yield from _both_sizes("size", title, REAL, floor, 2.5, True)
    yield _versus("size", "real conversations", REAL, "size_open", None)
    for workload, what in CONTENT.items():
        floor = Probe(Bench("floor", workload), "floor", "bytes")
        bench = Bench("run", workload)
        title = f"{what}: once per distinct content"
        yield from _both_sizes("size", title, bench, floor, 1.25, False)


def _put() -> Iterator[Requirement]:
    for synchronous in ("FULL", "NORMAL"):
        for kind, how in (("run", "live"), ("replay", "replayed")):
            chat, real = Bench(kind, "chat", synchronous), Bench(kind, "real", synchronous)
            yield _versus("put", f"put p50, real conversations, {how}", real, "put_p50", 0.6)
            yield _versus("put", f"put p50, 200 rounds, {how}", chat, "put_p50", 0.12)
            yield Requirement(
                area="put",
                title=f"put, last 50 vs first 50 of 200 rounds, {how} [{synchronous}]",
                ours=Probe(chat, "ours", "put_last"),
                rival=Probe(chat, "ours", "put_first"),
                limit=2.0,
                scaled=True,
            )
            for bench, what in ((real, "real conversations"), (chat, "200 rounds")):
                title = f"put_writes p50, {what}, {how}"
                yield _versus("put", title, bench, "put_writes_p50", ROUGHLY)
    for workload, what in (("real", "real conversations"), ("chat", "200 rounds")):
        bench = Bench("replay", workload)
        yield _versus("put", f"put, processor time, {what}", bench, "put_cpu_p50", None)


def _run() -> Iterator[Requirement]:
    for synchronous in ("FULL", "NORMAL"):
        chat = Bench("run", "chat", synchronous)
        yield _versus("run", "whole run, 200 rounds", chat, "wall", 0.4)
        real = Bench("run", "real", synchronous)
        yield _versus("run", "whole run, real conversations", real, "wall", ROUGHLY)
        crowd = Bench("together", "crowd", synchronous)
        yield _versus("run", "16 threads × 20 rounds at once", crowd, "wall", 0.4)
    for bench, what in (
        (CHAT, "whole run, 200 rounds"),
        (REAL, "whole run, real conversations"),
        (CROWD, "16 threads × 20 rounds at once"),
    ):
        title = f"{what}: LangGraph alone"
        yield _versus("run", title, bench, "wall", None, ours="nothing")


def _read() -> Iterator[Requirement]:
    for bench, what in ((CHAT, "200 rounds"), (REAL, "real conversations")):
        yield _versus("get", f"get_tuple of the latest, {what}", bench, "get_latest", 0.8)
        yield _versus("get", f"get_tuple in a new process, {what}", bench, "get_first", 0.8)
        yield _versus("get", f"open and get_tuple, {what}", bench, "open_and_get", ROUGHLY)
        yield _versus("get", f"get_state, {what}", bench, "get_state", 0.8)
        yield _versus("list", f"list, limit 10, {what}", bench, "list_10", ROUGHLY)
        yield _versus("list", f"list by metadata, {what}", bench, "list_filter", ROUGHLY)
        yield _versus("other", f"delete_thread, {what}", bench, "delete_thread", ROUGHLY)
    yield _versus("list", "list of all 1,000 checkpoints", CHAT, "list_all", 0.1)
    yield _versus("list", "list of a whole real thread", REAL, "list_all", ROUGHLY)
    get = Bench("replay", "chat")
    yield _versus("get", "get_tuple while growing, replayed", get, "get_tuple_p50", 0.8)


def _memory() -> Iterator[Requirement]:
    for bench, what in (
        (CHAT, "200 rounds"),
        (REAL, "real conversations"),
        (CROWD, "16 threads at once"),
        (Bench("run", "picture"), "picture"),
        (Bench("run", "files"), "files"),
        (Bench("run", "document"), "document"),
    ):
        for metric, when in (("peak_run", "running"), ("peak", "and reading it all back")):
            title = f"peak memory, {what}, {when}"
            yield _versus("memory", title, bench, metric, ROUGHLY, scaled=False)


def _delta() -> Iterator[Requirement]:
    for frequency in (100, 1000):
        rival = f"sqlite+delta{frequency}"
        replayed = Bench("replay", "chat")
        for title, bench, metric, limit in (
            ("size while open, 200 rounds", CHAT, "size_open", 0.5),
            ("size after close, 200 rounds", CHAT, "size_closed", 0.5),
            ("put p50, 200 rounds, live", CHAT, "put_p50", 1.5),
            ("put p50, 200 rounds, replayed", replayed, "put_p50", 1.5),
            ("get_state, 200 rounds", CHAT, "get_state", 0.8),
        ):
            yield _versus("delta", title, bench, metric, limit, rival=rival)
        for title, bench, metric in (
            ("size while open", CHAT, "size_open"),
            ("size after close", CHAT, "size_closed"),
            ("put p50, live", CHAT, "put_p50"),
            ("put p50, replayed", replayed, "put_p50"),
            ("put_writes p50, live", CHAT, "put_writes_p50"),
            ("put_writes p50, replayed", replayed, "put_writes_p50"),
            ("whole run", CHAT, "wall"),
            ("get_tuple", CHAT, "get_latest"),
            ("get_state", CHAT, "get_state"),
            ("delta history", replayed, "get_delta_channel_history_p50"),
            ("open and get_tuple", CHAT, "open_and_get"),
            ("list of all", CHAT, "list_all"),
            ("list, limit 10", CHAT, "list_10"),
            ("peak memory", CHAT, "peak"),
        ):
            title = f"DeltaChannel on both: {title}"
            ours = f"ours+delta{frequency}"
            yield _versus("delta", title, bench, metric, ROUGHLY, ours=ours, rival=rival)


def _async() -> Iterator[Requirement]:
    ours, rival = "ours+async", "sqlite+async"
    for title, bench, metric, limit in (
        ("put p50, real conversations", REAL, "put_p50", 0.6),
        ("put p50, 200 rounds", CHAT, "put_p50", 0.12),
        ("put_writes p50, 200 rounds", CHAT, "put_writes_p50", ROUGHLY),
        ("whole run, 200 rounds", CHAT, "wall", 0.4),
        ("get_tuple of the latest, 200 rounds", CHAT, "get_latest", 0.8),
        ("list of all 1,000 checkpoints", CHAT, "list_all", 0.1),
        ("16 threads × 20 rounds at once", CROWD, "wall", 0.4),
        ("peak memory, 200 rounds", CHAT, "peak", ROUGHLY),
    ):
        yield _versus("async", title, bench, metric, limit, ours=ours, rival=rival)


REQUIREMENTS: tuple[Requirement, ...] = tuple(
    row for rows in (_size, _put, _run, _read, _memory, _delta, _async) for row in rows()
)
AREAS: tuple[str, ...] = tuple(dict.fromkeys(row.area for row in REQUIREMENTS))
