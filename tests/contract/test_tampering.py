"""Edits of the file by somebody who can write it but has no key: each is refused on reading.

Two ways to ask. The at-rest attacks T1 to T9 of the package agent-memory-integrity run against
our tables. And every row of every table is deleted, doubled and altered, column by column: a
read gives the right state or refuses, and never anything else.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agmi.adapters.base import MemoryAdapter, Record
from agmi.attacks.at_rest import ALL_AT_REST_ATTACKS, SnapshotRollbackAttack
from agmi.attacks.base import Attack
from building import Thread, config, facts
from conftest import KEY, make_cipher, tried_now
from journaling import answered, streaming
from langchain_core.messages import AIMessageChunk, HumanMessage

from langgraph_resilient import ResilientSaver
from langgraph_resilient.errors import DataCorrupt, ResilientError, StorageError, TamperDetected

GUARDS: dict[str, Callable[[], dict[str, Any]]] = {
    "integrity_key": lambda: {"integrity_key": KEY},
    "cipher": lambda: {"cipher": make_cipher()},
    "both": lambda: {"cipher": make_cipher(), "integrity_key": KEY},
}
EDITED = tried_now(GUARDS, "integrity_key")
"""Each row edited in each column takes long."""
VICTIM, OTHER = "victim", "other"


class CheckpointTable(MemoryAdapter):
    """Lets the attacks at the rows of ``resilient_checkpoints``; knows nothing of any key."""

    name = "langgraph-resilient"
    supports_replay = supports_metadata = supports_snapshot = True
    COLUMNS = ("seq", "ns", "id", "parent", "frame")

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.folder: Path | None = None
        self.opened: Any = None

    # --- the saver's own side ---------------------------------------------------------------

    def setup(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="resilient-"))
        self.path = self.folder / "agent.db"
        self.reload()

    def _open(self) -> None:
        opened = ResilientSaver.from_conn_string(str(self.path), **self.options)
        self.saver = opened.__enter__()
        self.opened = opened

    def _close(self) -> None:
        if self.opened is not None:
            self.opened.__exit__(None, None, None)
            self.opened = None

    def teardown(self) -> None:
        self._close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def reload(self) -> None:
        self._close()
        self.refusal: Exception | None = None
        try:
            self._open()
        except (TamperDetected, DataCorrupt) as error:  # an open that refuses is an answer too
            self.refusal = error

    def _fill(self, thread_id: str, count: int) -> None:
        thread = Thread(self.saver, thread_id)
        for n in range(count):
            thread.put({"state": f"{thread_id} {n}", "m": [HumanMessage(f"{n}", id=f"{n}")]})

    def seed(self, n: int) -> None:
        self._fill(VICTIM, n)

    def seed_other(self, n: int) -> None:
        self._fill(OTHER, n)

    def append_genuine(self) -> None:
        self.reload()
        thread = Thread(self.saver, VICTIM)
        thread.where = self.saver.get_tuple(config(VICTIM)).config
        thread.put({"state": "late"})

    def verify(self) -> bool:
        """True when the thread is read without complaint; only our own refusals count."""
        self.verify_detail = None
        try:
            if self.refusal is not None:
                raise self.refusal
            assert self.saver.get_tuple(config(VICTIM)) is not None
            list(self.saver.list(config(VICTIM)))
        except (TamperDetected, DataCorrupt) as error:
            self.verify_detail = f"{type(error).__name__}: {error}"[:160]
            return False
        return True

    # --- the attacker's side ----------------------------------------------------------------

    def _sql(self, text: str, values: tuple = ()) -> list[tuple]:
        conn = sqlite3.connect(self.path)
        try:
            rows = conn.execute(text, values).fetchall()
            conn.commit()
            return rows
        finally:
            conn.close()

    def _rows(self, thread_id: str) -> list[Record]:
        rows = self._sql(
            "SELECT c.seq, c.ns, c.id, c.parent, c.frame FROM resilient_checkpoints AS c "
            "JOIN resilient_namespaces AS n ON n.ns = c.ns "
            "JOIN resilient_threads AS t ON t.thread = n.thread "
            "WHERE t.thread_id = ? ORDER BY c.seq",
            (thread_id,),
        )
        return [
            Record(seq=n, fields=dict(zip(self.COLUMNS, row, strict=True)))
            for n, row in enumerate(rows)
        ]

    def read_all_raw(self) -> list[Record]:
        return self._rows(VICTIM)

    def read_other_raw(self) -> list[Record]:
        return self._rows(OTHER)

    def write_raw(self, record: Record) -> None:
        rows, fields = self.read_all_raw(), record.fields
        if record.seq < len(rows):
            self._sql(
                "UPDATE resilient_checkpoints SET frame = ? WHERE seq = ?",
                (fields["frame"], rows[record.seq].fields["seq"]),
            )
        else:
            self._sql(
                "INSERT INTO resilient_checkpoints (seq, ns, id, parent, frame) "
                "VALUES (?, ?, ?, ?, ?)",
                tuple(fields[name] for name in self.COLUMNS),
            )
            self._sql(
                "UPDATE resilient_namespaces SET head = ?, checkpoints = checkpoints + 1 "
                "WHERE ns = ?",
                (fields["seq"], fields["ns"]),
            )

    def delete_raw(self, seq: int) -> None:
        row = self.read_all_raw()[seq].fields
        self._sql("DELETE FROM resilient_checkpoints WHERE seq = ?", (row["seq"],))
        left = self.read_all_raw()
        self._sql(
            "UPDATE resilient_namespaces SET head = ?, checkpoints = ? WHERE ns = ?",
            (left[-1].fields["seq"], len(left), row["ns"]),
        )

    def mutate_payload(self, record: Record) -> Record:
        frame = bytearray(record.fields["frame"])
        frame[len(frame) // 2] ^= 0x01
        record.fields["frame"] = bytes(frame)
        return record

    def forge_record(self, template: Record) -> Record:
        fields = dict(template.fields)
        fields["parent"], fields["id"] = fields["id"], self._next_id(fields["id"])
        fields["seq"] += 1
        return self.mutate_payload(Record(seq=template.seq + 1, fields=fields))

    @staticmethod
    def _next_id(name: bytes) -> bytes:
        return name[:-1] + bytes((name[-1] ^ 0x01,))

    def replay_onto(self, victim_seq: int, donor: Record) -> None:
        row = self.read_all_raw()[victim_seq].fields["seq"]
        frame = donor.fields["frame"]
        self._sql("UPDATE resilient_checkpoints SET frame = ? WHERE seq = ?", (frame, row))

    def read_meta(self, seq: int) -> dict:
        return {"parent": self.read_all_raw()[seq].fields["parent"]}

    def write_meta(self, seq: int, meta: dict) -> None:
        """The only label outside the frame: which checkpoint a row says it came from."""
        rows = self.read_all_raw()
        self._sql(
            "UPDATE resilient_checkpoints SET parent = ? WHERE seq = ?",
            (rows[0].fields["id"], rows[seq].fields["seq"]),
        )

    def identity_of(self, record: Record) -> str:
        return bytes(record.fields["id"]).hex()

    def payload_of(self, record: Record) -> str:
        return bytes(record.fields["frame"]).hex()

    def owner_of(self, record: Record) -> str:
        return str(record.fields["ns"])

    def snapshot_store(self) -> object:
        self._close()
        return self._copy_store(self.path)

    def restore_store(self, token: object) -> None:
        self._close()
        self._restore_store(token, self.path)


def refused(attack: Attack, adapter: CheckpointTable) -> None:
    result = attack.run(adapter)
    assert result.error is None, result
    assert not getattr(result, "guard", None), result
    assert result.detected, f"{attack.name}: {result.detail}"


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("attack", ALL_AT_REST_ATTACKS, ids=lambda kind: kind.name)
def test_an_edit_at_rest_is_refused_on_reading(attack: type[Attack], guard: str) -> None:
    refused(attack(), CheckpointTable(GUARDS[guard]()))


@pytest.mark.parametrize("guard", GUARDS)
def test_an_older_copy_of_the_whole_file_is_refused(tmp_path: Path, guard: str) -> None:
    options = {**GUARDS[guard](), "rollback_anchor": tmp_path / "anchor"}
    refused(SnapshotRollbackAttack(), CheckpointTable(options))


@pytest.mark.parametrize("guard", GUARDS)
def test_the_anchor_accepts_what_really_is_the_newest(tmp_path: Path, guard: str) -> None:
    options = {**GUARDS[guard](), "rollback_anchor": tmp_path / "anchor"}
    path = str(tmp_path / "agent.db")
    for n in range(3):
        with ResilientSaver.from_conn_string(path, **options) as saver:
            assert len(list(saver.list(config()))) == n
            thread = Thread(saver)
            thread.where = config() if not n else saver.get_tuple(config()).config
            thread.put({"x": n})
    with ResilientSaver.from_conn_string(path, **options) as saver:
        saver.delete_thread("t")
    with ResilientSaver.from_conn_string(path, **options) as saver:
        assert saver.get_tuple(config()) is None


# --- every row, every column ----------------------------------------------------------------

NAMES = ("a", "b")
CALL: Any = {"name": "pay", "args": "{}", "id": "c", "index": 0}


def build(path: str, options: dict[str, Any]) -> None:
    with ResilientSaver.from_conn_string(path, **options) as saver:
        for name in NAMES:
            thread, messages = Thread(saver, name), []
            for n in range(4):
                messages.append(HumanMessage(f"{name} message {n} " * 30, id=f"{name}{n}"))
                changed = {"m": list(messages), "n": n, "text": f"{name} {n} " * 300}
                where = thread.put(changed, metadata={"run_id": f"r{n}"})
                saver.put_writes(where, [("n", n), ("m", [messages[-1]])], f"task{n}", "~")
            answered(saver, f"{name} asks " * 90, name, where={"root": "2"})
            chunk = AIMessageChunk("", tool_call_chunks=[CALL])
            streaming(saver, [*(f"w{n} " for n in range(65)), "x ", chunk], f"{name} streams", name)
        Thread(saver, "gone").put({"x": 1})
        saver.delete_thread("gone")


def read(path: str, options: dict[str, Any]) -> dict[str, list[dict]]:
    with ResilientSaver.from_conn_string(path, **options) as saver:
        seen = {name: [facts(item) for item in saver.list(config(name))] for name in NAMES}
        for name in NAMES:
            head = saver.get_tuple(config(name))
            assert (facts(head) if head else None) == (seen[name][0] if seen[name] else None)
        for name in NAMES:
            seen[f"calls of {name}"] = [
                {"call": call.number, "state": call.state, "sent": call.sent, "said": call.answer}
                for call in saver.journal(name)
            ]
            seen[f"stream of {name}"] = [
                {"at": piece.offset, "text": piece.text, "chunk": piece.chunk}
                for piece in saver.stream(name)
            ]
        return seen


def edits(conn: sqlite3.Connection, dice: random.Random) -> Iterator[tuple[str, str, tuple]]:
    """One statement for each row deleted and each column altered or taken from its neighbour."""
    tables = conn.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'resilient_%'"
    ).fetchall()
    for (table,) in tables:
        info = conn.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [row[1] for row in info]
        keys = [row[1] for row in sorted(info, key=lambda row: row[5]) if row[5]]
        rows = conn.execute(f"SELECT * FROM {table}").fetchall()
        where = " AND ".join(f"{key} IS ?" for key in keys)
        for n, row in enumerate(rows):
            place = tuple(row[columns.index(key)] for key in keys)
            yield f"{table} row {n} deleted", f"DELETE FROM {table} WHERE {where}", place
            for k, column in enumerate(columns):
                for what, value in altered(row[k], rows[(n + 1) % len(rows)][k], dice):
                    text = f"UPDATE {table} SET {column} = ? WHERE {where}"
                    yield f"{table}.{column} row {n} {what}", text, (value, *place)


def altered(value: Any, neighbour: Any, dice: random.Random) -> Iterator[tuple[str, Any]]:
    if neighbour != value:
        yield "from its neighbour", neighbour
    if isinstance(value, int):
        yield "plus one", value + 1
        if value > 0:
            yield "minus one", value - 1
    elif isinstance(value, str):
        yield "renamed", value + "x"
    elif isinstance(value, bytes) and value:
        position = dice.randrange(len(value))
        yield (
            "bit flipped",
            value[:position] + bytes((value[position] ^ 4,)) + value[position + 1 :],
        )
        yield "cut", value[:-1]
        yield "emptied", b""


def apply_edit(source: Path, target: Path, text: str, values: tuple) -> bool:
    """The file with one statement applied; False where SQLite itself refuses the statement."""
    shutil.copyfile(source, target)
    conn = sqlite3.connect(target, isolation_level=None)
    try:
        conn.execute("PRAGMA journal_mode = DELETE")
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("PRAGMA ignore_check_constraints = ON")
        return conn.execute(text, values).rowcount == 1
    except sqlite3.IntegrityError:
        return False
    finally:
        conn.close()


JOURNAL = {"resilient_journal", "resilient_chunks"}
MAY_BE_MISSED = {"resilient_threads", "resilient_namespaces", "resilient_writes", *JOURNAL}
"""Nothing counts these rows: a thread, a task's pending writes, a model call with its stream, or
the end of a stream can be taken away whole."""


def judged(found: dict[str, list[dict]], truth: dict[str, list[dict]], table: str) -> str:
    """Whether a read is right; "absent" if all that is wrong is that something is missing."""
    if found == truth:
        return "right"
    if table not in MAY_BE_MISSED:
        return "believed"
    for name, items in found.items():
        if " of " in name:
            if [item for item in items if item not in truth[name]]:
                return "believed"
            continue
        if items and [without_writes(i) for i in items] != [without_writes(i) for i in truth[name]]:
            return "believed"
        if table in JOURNAL and items != truth[name]:
            return "believed"
        for item, whole in zip(items, truth[name], strict=False):
            if [write for write in item["writes"] if write not in whole["writes"]]:
                return "believed"
    return "absent"


def without_writes(item: dict) -> dict:
    return {key: value for key, value in item.items() if key != "writes"}


@pytest.mark.parametrize("guard", EDITED)
def test_no_single_edit_of_any_row_is_believed(tmp_path: Path, guard: str) -> None:
    """What is read is right or refused; only taking away a whole thread or writes is not seen."""
    options, dice, wrong, counts = GUARDS[guard](), random.Random(1), [], Counter()
    healthy, hurt = tmp_path / "healthy.db", tmp_path / "hurt.db"
    build(str(healthy), options)
    truth = read(str(healthy), options)
    conn = sqlite3.connect(healthy)
    everything = list(edits(conn, dice))
    conn.close()
    for what, text, values in everything:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{hurt}{suffix}").unlink(missing_ok=True)
        if not apply_edit(healthy, hurt, text, values):
            continue
        try:
            outcome = judged(read(str(hurt), options), truth, what.split(" ")[0].split(".")[0])
        except ResilientError as error:
            outcome = "refused" if isinstance(error, DataCorrupt | StorageError) else repr(error)
        except Exception as error:
            outcome = repr(error)
        counts[outcome] += 1
        if outcome not in ("right", "refused", "absent"):
            wrong.append(f"{what}: {outcome}")
    assert not wrong, "\n".join([*wrong[:40], str(counts)])
    assert counts["refused"] > 100


# --- keys -----------------------------------------------------------------------------------


def test_a_plaintext_row_is_refused_by_a_cipher(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with ResilientSaver.from_conn_string(path) as saver:
        Thread(saver, "plain").put({"x": "planted"})
    with pytest.raises(ResilientError):
        with ResilientSaver.from_conn_string(path, cipher=make_cipher()) as saver:
            saver.get_tuple(config("plain"))


@pytest.mark.parametrize("guard", GUARDS)
def test_another_key_is_refused(tmp_path: Path, guard: str) -> None:
    from langgraph_resilient import Cipher

    path = str(tmp_path / "agent.db")
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]()) as saver:
        Thread(saver).put({"x": 1})
    other = bytes(reversed(KEY))
    wrong = {"integrity_key": {"integrity_key": other}}.get(guard, {"cipher": Cipher(other)})
    for options in (wrong, {}):
        with pytest.raises(ResilientError):
            with ResilientSaver.from_conn_string(path, **options) as saver:
                saver.get_tuple(config())
    with ResilientSaver.from_conn_string(path, **GUARDS[guard]()) as saver:
        assert saver.get(config())["channel_values"] == {"x": 1}


def test_nothing_of_the_state_can_be_read_from_an_encrypted_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ResilientSaver.from_conn_string(path, cipher=make_cipher()) as saver:
        thread = Thread(saver)
        where = thread.put(
            {"m": [HumanMessage("canary-message", id="canary-id")], "x": "canary-text"},
            metadata={"note": "canary-metadata"},
        )
        saver.put_writes(where, [("canary-channel", "canary-write")], "canary-task")
        thread.put({"files": {"canary-name": "canary-content " * 400}})
    raw = path.read_bytes()
    for word in ("message", "id", "text", "metadata", "write", "content"):
        assert f"canary-{word}".encode() not in raw, word


def test_keys_can_be_rotated(tmp_path: Path) -> None:
    from langgraph_resilient import Cipher

    path, new = str(tmp_path / "agent.db"), bytes(reversed(KEY))
    with ResilientSaver.from_conn_string(path, cipher=Cipher(KEY)) as saver:
        Thread(saver, "old").put({"x": "old"})
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, KEY)) as saver:
        assert saver.get(config("old"))["channel_values"] == {"x": "old"}
        Thread(saver, "new").put({"x": "new"})
    with ResilientSaver.from_conn_string(path, cipher=Cipher(new, KEY)) as saver:
        assert saver.get(config("new"))["channel_values"] == {"x": "new"}
        assert saver.get(config("old"))["channel_values"] == {"x": "old"}
