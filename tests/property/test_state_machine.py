"""ResilientSaver and InMemorySaver side by side, through random histories.

Documented differences, kept out of the way here: the saver orders by what was written last and
InMemorySaver by the greatest id (ids grow here); a parent that was pruned away may be named or
not (it counts as none here); InMemorySaver lacks ``prune``, ``copy_thread`` and
``delete_for_runs`` (``reference.py`` adds them) and lets a late write bring a deleted thread
back (writers go on from the newest checkpoint here, as a graph does).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from building import Thread, config, observe
from conftest import KEY, make_cipher
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from property.reference import Reference
from serving import fresh_address

from langgraph_resilient import ResilientSaver
from langgraph_resilient.maintenance import verify

THREADS = ["a", "b", "ü'\"; --", "7"]
SPACES = ["", "child:1"]
RUNS = ["r0", "r1", "r2"]
CHANNELS = ["messages", "n", "document", "__start__"]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False), st.text()
)
messages = st.builds(
    lambda kind, text, id: kind(text, id=id),
    st.sampled_from(
        [HumanMessage, AIMessage, lambda t, id: ToolMessage(t, tool_call_id="c", id=id)]
    ),
    st.text(max_size=30),
    st.sampled_from("abcdef"),
)
leaves = st.one_of(scalars, st.binary(max_size=20), messages, st.just("big " * 700))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
changes = st.dictionaries(st.sampled_from(CHANNELS), values, min_size=1, max_size=3)
metadata_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["x", "José", ""]),
    st.just({"k": [1, {"z": "é"}]}),
    st.just([1, "two"]),
)
metadata = st.dictionaries(
    st.sampled_from(["k", "a.b", "it's", 'quo"te', "ключ"]), metadata_values, max_size=2
)
FLAVOURS: dict[str, Any] = {
    "plain": dict,
    "cipher": lambda: {"cipher": make_cipher()},
    "sealed": lambda: {"integrity_key": KEY},
}


class SideBySide(RuleBasedStateMachine):
    """Every rule does the same to both; after each, both must look the same."""

    @initialize(flavour=st.sampled_from(list(FLAVOURS)))
    def start(self, flavour: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="resilient-")
        self.place = self.new_place()
        self.options = FLAVOURS[flavour]
        self.model = Reference()
        self.stack = ExitStack()
        self.clock = 0
        self.dirty = set(THREADS)
        self._open()

    def new_place(self) -> Any:
        """Where a database may be made."""
        return Path(self.folder) / "agent.db"

    def _open(self) -> None:
        opened = ResilientSaver.from_conn_string(self.place, **self.options())
        self.saver = self.stack.enter_context(opened)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()
            shutil.rmtree(self.folder)

    def both(self, name: str, *arguments: Any, sync: bool = True) -> None:
        if sync:
            getattr(self.saver, name)(*arguments)
        else:
            asyncio.run(getattr(self.saver, "a" + name)(*arguments))
        getattr(self.model, name)(*arguments)

    def thread(self, name: str, ns: str) -> Thread:
        """The thread as an application finds it that looks at its newest checkpoint."""
        thread = Thread(self.model, name, ns=ns)
        head = self.model.get_tuple(config(name, ns=ns))
        if head is not None:
            thread.where = head.config
            thread.values = dict(head.checkpoint["channel_values"])
            thread.versions = dict(head.checkpoint["channel_versions"])
            thread.step = head.metadata["step"]
        return thread

    # --- rules ------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(THREADS),
        ns=st.sampled_from(SPACES),
        changed=changes,
        extra=metadata,
        run=st.sampled_from(RUNS),
        sync=st.booleans(),
    )
    def put(self, name: str, ns: str, changed: dict, extra: dict, run: str, sync: bool) -> None:
        self.clock += 1
        meta = {**extra, "run_id": run}
        arguments = self.thread(name, ns).prepare(changed, meta, f"{self.clock:06}")
        self.both("put", *arguments, sync=sync)
        self.dirty.add(name)

    @rule(name=st.sampled_from(THREADS), changed=changes, back=st.integers(1, 3))
    def branch(self, name: str, changed: dict, back: int) -> None:
        """A fork: the parent is an older checkpoint."""
        listed = list(self.model.list(config(name)))
        if len(listed) > back:
            self.clock += 1
            thread = self.thread(name, "")
            arguments = thread.prepare(changed, {"source": "fork"}, f"{self.clock:06}")
            self.both("put", listed[back].config, *arguments[1:])
            self.dirty.add(name)

    @rule(name=st.sampled_from(THREADS), changed=changes)
    def put_again(self, name: str, changed: dict) -> None:
        """The newest checkpoint is stored anew, under the same id, with other content."""
        head = self.model.get_tuple(config(name))
        if head is not None:
            thread = self.thread(name, "")
            where = head.parent_config or config(name)
            arguments = thread.prepare(changed, None, head.checkpoint["id"])
            self.both("put", where, *arguments[1:])
            self.dirty.add(name)

    @rule(
        name=st.sampled_from(THREADS),
        ns=st.sampled_from(SPACES),
        written=st.lists(
            st.tuples(st.sampled_from([*CHANNELS, "__error__", "__interrupt__"]), values),
            max_size=3,
        ),
        task=st.sampled_from(["t1", "t2", "t3"]),
        path=st.sampled_from(["", "~1", "~10", "~2"]),
        back=st.integers(0, 2),
        sync=st.booleans(),
    )
    def put_writes(
        self, name: str, ns: str, written: list, task: str, path: str, back: int, sync: bool
    ) -> None:
        listed = list(self.model.list(config(name, ns=ns)))
        if listed:
            where = listed[min(back, len(listed) - 1)].config
            known = self.model.writes.get((name, ns, where["configurable"]["checkpoint_id"]), {})
            path = next((w[3] for key, w in known.items() if key[0] == task), path)
            self.both("put_writes", where, written, task, path, sync=sync)
            self.dirty.add(name)

    @rule(names=st.lists(st.sampled_from(THREADS), max_size=2), sync=st.booleans())
    def prune(self, names: list[str], sync: bool) -> None:
        self.both("prune", names, sync=sync)
        self.dirty.update(names)

    @rule(name=st.sampled_from(THREADS))
    def prune_all(self, name: str) -> None:
        self.saver.prune([name], strategy="delete")
        self.model.prune([name], strategy="delete")
        self.dirty.add(name)

    @rule(source=st.sampled_from(THREADS), onto=st.sampled_from(THREADS), sync=st.booleans())
    def copy(self, source: str, onto: str, sync: bool) -> None:
        taken = list(self.model.list({"configurable": {"thread_id": onto}}))
        if source != onto and not taken:
            self.both("copy_thread", source, onto, sync=sync)
            self.dirty.add(onto)

    @rule(name=st.sampled_from(THREADS), sync=st.booleans())
    def delete(self, name: str, sync: bool) -> None:
        self.both("delete_thread", name, sync=sync)
        self.dirty.add(name)

    @rule(runs=st.lists(st.sampled_from(RUNS), max_size=2, unique=True), sync=st.booleans())
    def delete_for_runs(self, runs: list[str], sync: bool) -> None:
        self.both("delete_for_runs", runs, sync=sync)
        self.dirty.update(THREADS)

    @precondition(lambda self: self.clock > 0)
    @rule()
    def reopen(self) -> None:
        self.stack.close()
        self._open()
        self.dirty.update(THREADS)

    @rule(
        name=st.sampled_from([None, *THREADS]),
        key=st.sampled_from(["k", "a.b", "it's", "run_id", "step"]),
        value=st.one_of(metadata_values, st.sampled_from(RUNS)),
        limit=st.one_of(st.none(), st.integers(0, 4)),
        before=st.one_of(st.none(), st.integers(0, 30)),
    )
    def search(self, name: Any, key: str, value: Any, limit: Any, before: Any) -> None:
        """A filtered listing; without a thread the order between threads is the saver's own."""
        where = None if name is None else config(name)
        bound = None if before is None else config(name or "a", f"{before:06}")
        asked = {"filter": {key: value}, "before": bound}
        found = list(self.saver.list(where, limit=limit, **asked))
        wanted = list(self.model.list(where, **asked))
        names = [self._name(item) for item in wanted]
        if name is None:
            assert set(map(self._name, found)) <= set(names)
            assert len(found) == len(names if limit is None else names[:limit])
        else:
            assert list(map(self._name, found)) == (names if limit is None else names[:limit])

    @staticmethod
    def _name(item: Any) -> tuple:
        where = item.config["configurable"]
        return where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"]

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def both_look_the_same(self) -> None:
        if hasattr(self, "saver") and self.dirty:
            names, self.dirty = sorted(self.dirty), set()
            assert self._visible(self.saver, names) == self._visible(self.model, names)

    @staticmethod
    def _visible(saver: Any, names: list[str]) -> dict:
        seen = observe(saver, names)
        for items in seen.values():
            known = {item["id"] for item in items}
            for item in items:
                item["parent"] = item["parent"] if item["parent"] in known else None
        return seen

    @precondition(lambda self: self.clock > 3)
    @rule()
    def sound(self) -> None:
        report = verify(self.saver)
        assert report.ok, report


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(max_examples=25, stateful_step_count=25, **COMMON)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
class TestSideBySideAtLength(SideBySide.TestCase):
    settings = settings(max_examples=600, stateful_step_count=50, **COMMON)


class OnServer(SideBySide):
    """The same on a PostgreSQL server."""

    def new_place(self) -> Any:
        return fresh_address()


@pytest.mark.campaign
@pytest.mark.timeout(3000)
class TestSideBySideOnServer(OnServer.TestCase):
    settings = settings(max_examples=100, stateful_step_count=30, **COMMON)
