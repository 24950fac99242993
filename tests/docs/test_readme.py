"""The README tells the truth: its Python runs, its commands work, its links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import fresh_address

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PLUGIN = "langgraph_resilient.testing.plugin"
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "bash", "mermaid"}

SCRIPTED = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **more):
        return self


def init_chat_model(name):
    args = {"to": "Ann", "text": "at noon"}
    call = {"name": "send_email", "args": args, "id": "call_1", "type": "tool_call"}
    return Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Ann knows.")]))
"""
"""Stands in for a provider, which a test cannot ask; the rest of a block runs as it is."""


def text() -> str:
    return README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text()) if name == language]


def commands() -> list[list[str]]:
    lines = [line for body in blocks("bash") for line in body.splitlines()]
    words = [re.sub(r'"[^"]*"', "TEXT", line).split("#")[0].split() for line in lines]
    return [line for line in words if line and line[0] == "langgraph-resilient"]


def on_a_server(block: str) -> str:
    """A block that names a server, with the one that the tests have."""
    found = re.search(r'"(postgresql://[^"]+)"', block)
    return block if found is None else block.replace(found[1], fresh_address())


def named(block: str) -> str | None:
    """The file that a block says it is, in its first line."""
    found = re.match(r"# (\w+\.py)\n", block)
    return found and found[1]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(REPOSITORY))),
        "LANGSMITH_TRACING": "false",
        # Where the package is installed, pytest would find its plugin twice.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "200",
    }


def run(
    arguments: list[str], folder: Path, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=given,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_block_escapes_these_tests() -> None:
    assert {name for name, _ in BLOCK.findall(text())} == LANGUAGES
    assert text().count("```") == 2 * len(BLOCK.findall(text()))
    assert [body for body in blocks("python") if "..." in body] == []
    assert blocks("python")
    assert commands()
    assert 1 <= len(blocks("mermaid")) <= 5


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_each_python_block_runs(number: int, tmp_path: Path) -> None:
    block = blocks("python")[number]
    for other in blocks("python"):
        if (name := named(other)) is not None:
            (tmp_path / name).write_text(other)
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    script = tmp_path / (named(block) or "block.py")
    script.write_text(on_a_server(block.replace("from langchain.chat_models", "from scripted")))
    tests = "\ndef test_" in block
    pytest_run = ["-m", "pytest", "-p", "no:asyncio", "-p", PLUGIN, script.name]
    done = run(pytest_run if tests else [script.name], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not tests or " passed" in done.stdout


BANK = """
import sys
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_resilient import Cipher, ResilientSaver, durable, effect, tool_node
from scripted import init_chat_model


@tool
def send_email(to: str, text: str) -> str:
    "Send an e-mail."
    raise TimeoutError("no answer")


model = durable(init_chat_model(""))
builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
builder.add_node("tools", tool_node([send_email]))
builder.add_edge(START, "model")
builder.add_edge("model", "tools")
thread = {"configurable": {"thread_id": "42"}}
with ResilientSaver.from_conn_string("agent.db") as saver:
    builder.compile(checkpointer=saver).invoke({"messages": [("user", "hi")]}, thread)
    [entry] = saver.ledger.unknown()
    print(entry.key, entry.version)
key = bytes(range(32))
open("secret.key", "wb").write(key)
with ResilientSaver.from_conn_string("secret.db", cipher=Cipher(key)) as saver:
    saver.setup()
"""


AGENTS = """
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {})
builder.add_node("tools", lambda state: {})
builder.add_edge(START, "model")
builder.add_edge("model", "tools")
graph = builder.compile()
"""


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with a database whose thread 42 has a model call and an unknown tool call."""
    folder = tmp_path_factory.mktemp("bank")
    (folder / "scripted.py").write_text(SCRIPTED)
    (folder / "agents.py").write_text(AGENTS)
    done = run(["-c", BANK], folder)
    assert done.returncode == 0, done.stderr
    key, version = done.stdout.split()
    shutil.copy(folder / "agent.db", folder / "mail.db")
    return folder, key, version


ALL = """
import contextlib, io, json, os, sys
from langgraph_resilient.cli import main

for folder, words in json.load(sys.stdin):
    os.chdir(folder)
    sys.argv = ["langgraph-resilient", *words]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([words, code, said.getvalue()]))
"""


def test_each_command_works(bank: tuple[Path, str, str], tmp_path: Path) -> None:
    """All in one process, each on a copy of its own; the demo has tests elsewhere."""
    pytest.importorskip("typer")
    source, key, version = bank
    todo = []
    for number, (_, *words) in enumerate(commands()):
        fitting = [key if word == "KEY" else word for word in words]
        if "--version" in fitting:
            fitting[fitting.index("--version") + 1] = version
        if "demo" not in words:
            todo.append((str(shutil.copytree(source, tmp_path / str(number))), fitting))
    done = run(["-c", ALL], tmp_path, json.dumps(todo))
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(todo), done.stderr
    assert [result for result in results if result[1] != 0] == []


def anchors() -> set[str]:
    """The places that GitHub makes of headings."""
    prose = BLOCK.sub("", text())
    found = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_within_lead_to_headings() -> None:
    assert [name for name in re.findall(r"\]\(#([^)]+)\)", text()) if name not in anchors()] == []


def test_relative_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_reference_links_and_their_targets_match() -> None:
    prose = BLOCK.sub("", text())
    used = set(re.findall(r"\]\[([\w-]+)\]", prose))
    assert used == set(re.findall(r"^\[([\w-]+)\]: https://\S+$", prose, re.MULTILINE))


def test_files_and_modules_that_are_named_exist() -> None:
    """Of the tour: paths in the package, tests, and what ``python -m`` starts."""
    names = set(re.findall(r"`((?:[\w]+/)*[\w*]+\.(?:py|sql))`", text()))
    package = REPOSITORY / "langgraph_resilient"
    places = (
        REPOSITORY,
        package,
        package / "guard",
        package / "ledger",
        package / "testing",
        package / "integrations",
    )
    own = {name for name in names if not any(list(place.glob(name)) for place in places)}
    assert own - {named(block) for block in blocks("python")} == set()
    modules = set(re.findall(r"python -m ((?:benchmarks|langgraph_resilient)[\w.]*)", text()))
    paths = [REPOSITORY / module.replace(".", "/") for module in modules]
    assert [p for p in paths if not p.with_suffix(".py").exists() and not p.is_dir()] == []


def test_scripts_and_extras_that_are_named_exist() -> None:
    scripts = set(re.findall(r"bash (\.ci/\w+)", text()))
    assert [script for script in scripts if not (REPOSITORY / script).exists()] == []
    extras = ",".join(re.findall(r'pip install "\.\[([\w,]+)\]"', text())).split(",")
    declared = (REPOSITORY / "pyproject.toml").read_text().partition("optional-dependencies")[2]
    assert [extra for extra in extras if not re.search(rf"^{extra} = \[", declared, re.M)] == []
