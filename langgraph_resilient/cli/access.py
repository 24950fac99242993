"""Which database a command works on, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langgraph_resilient.errors import ConfigurationError, DatabaseUnreachable
from langgraph_resilient.saver import ResilientSaver


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the options say about the database.

    Attributes:
        db: the SQLite file, or the address of a database on a PostgreSQL server.
        cipher_key_files: the current key and, for rotation, earlier ones.
        integrity_key_file: the key of the seals.
        rollback_anchor: the file that remembers the newest commit.
    """

    db: str | Path = "agent.db"
    cipher_key_files: tuple[Path, ...] = ()
    integrity_key_file: Path | None = None
    rollback_anchor: Path | None = None

    def with_options(self, given: Mapping[str, Any]) -> Access:
        """This access, with whatever was given in place of what it had."""
        chosen = {name: value for name, value in given.items() if value}
        if "cipher_key_files" in chosen:
            chosen["cipher_key_files"] = tuple(chosen["cipher_key_files"])
        return replace(self, **chosen)


@contextmanager
def opened(access: Access) -> Iterator[ResilientSaver]:
    """The saver on an existing database.

    Raises:
        DatabaseUnreachable: there is no such file, or the server has no tables of ours; none are made
            by looking for them.
        ConfigurationError: a key file cannot be used.
    """
    is_file = "://" not in str(access.db)
    if is_file and not Path(access.db).is_file():
        raise DatabaseUnreachable(
            f"there is no database {access.db}; name it with --db FILE or LANGGRAPH_RESILIENT_DB"
        )
    options: dict[str, Any] = {}
    if access.cipher_key_files:
        from langgraph_resilient.codec.cipher import Cipher

        options["cipher"] = Cipher(*map(read_key, access.cipher_key_files))
    if access.integrity_key_file:
        options["integrity_key"] = read_key(access.integrity_key_file)
    if access.rollback_anchor:
        options["rollback_anchor"] = access.rollback_anchor
    saver = ResilientSaver.from_conn_string(access.db, **options)
    if not is_file:
        _check_tables(saver)
    with saver:
        yield saver


def _check_tables(saver: ResilientSaver) -> None:
    db = saver._engine.db
    with db.read() as session:
        if "resilient_meta" not in session.relations():
            saver.close()
            raise DatabaseUnreachable(
                f"there are no threads in {db.where}, schema by schema of its search_path; name "
                "another one in --db with ?options=-csearch_path=SCHEMA"
            )


def read_key(path: Path) -> bytes:
    """The key in a file: hexadecimal digits (white space around them is ignored), or raw bytes.

    Raises:
        ConfigurationError: the file cannot be read or is empty.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}") from error
    if not content:
        raise ConfigurationError(f"the key file {path} is empty")
    try:
        return bytes.fromhex(content.decode("ascii").strip())
    except ValueError:  # UnicodeDecodeError is one
        return content
