"""The options that all commands on a database share, and how a command comes by its saver.

They may stand before the command's name or after it; after it wins, and the environment counts
least.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from langgraph_resilient.cli.access import Access, opened
from langgraph_resilient.cli.output import exit_codes
from langgraph_resilient.errors import DataCorrupt, DecryptionFailed
from langgraph_resilient.saver import ResilientSaver

Own = ParamSpec("Own")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Threads = Annotated[
    list[str] | None,
    typer.Option("--thread", help="Only this thread; may be given again. Default: all."),
]

# name in `Access`: type, option, environment variable, help
_SHARED: dict[str, tuple[Any, str, str, str]] = {
    "db": (
        str | None,
        "--db",
        "LANGGRAPH_RESILIENT_DB",
        "The SQLite file, or postgresql://...; agent.db when none is named.",
    ),
    "cipher_key_files": (
        list[Path] | None,
        "--cipher-key-file",
        "LANGGRAPH_RESILIENT_CIPHER_KEY_FILE",
        "Key of an encrypted database, raw or hexadecimal; may be given again for earlier keys.",
    ),
    "integrity_key_file": (
        Path | None,
        "--integrity-key-file",
        "LANGGRAPH_RESILIENT_INTEGRITY_KEY_FILE",
        "Key of the seals of a database's rows, raw or hexadecimal.",
    ),
    "rollback_anchor": (
        Path | None,
        "--rollback-anchor",
        "LANGGRAPH_RESILIENT_ROLLBACK_ANCHOR",
        "File that remembers a database's newest commit.",
    ),
}

_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def program(**given: Any) -> None:
    """What stands before the command's name, or in the environment."""
    context: typer.Context = given.pop("context")
    context.obj = Access().with_options(given)


def on_database(
    command: Callable[Concatenate[ResilientSaver, Own], None],
    *,
    unreadable: Callable[[DataCorrupt, bool], None] | None = None,
) -> Callable[..., None]:
    """The command as typer takes it: with the shared options in place of the saver.

    What its work raises becomes a message and an exit code.

    Args:
        command: takes the open saver and options of its own.
        unreadable: gets the damage that keeps the file from being opened, and whether JSON is
            wanted, where that is a result and no failure.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        context: typer.Context = given.pop("context")
        access = context.obj.with_options({name: given.pop(name) for name in _SHARED})
        with exit_codes():
            try:
                with opened(access) as saver:
                    command(saver, **given)  # type: ignore[call-arg]
            except DataCorrupt as error:
                if unreadable is None or isinstance(error, DecryptionFailed):  # a key is missing
                    raise
                unreadable(error, given["as_json"])

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    own = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    return _declare(run, [*own, *_shared(environment=False)])


def _shared(*, environment: bool) -> list[inspect.Parameter]:
    """The shared options; only the program's read the environment, or it would beat them."""
    parameters = []
    for name, (kind, option, variable, text) in _SHARED.items():
        information = typer.Option(option, envvar=variable if environment else None, help=text)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind, information],
            )
        )
    return parameters


def _declare(
    function: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Give a function the parameters that typer shall see."""
    declared = [_CONTEXT, *parameters]
    function.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    function.__annotations__ = {item.name: item.annotation for item in declared}
    return function


_declare(program, _shared(environment=True))
