"""A file outside the database that remembers how far it had come.

Whoever can replace the whole database by an older copy of itself replaces every seal in it, too;
only something kept elsewhere can tell (attack T9 of the package agent-memory-integrity).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from pathlib import Path

from langgraph_resilient.errors import ConfigurationError, TamperDetected

_TAG = 16


class Anchor:
    """The newest commit that was seen, in a small file of its own.

    It is written after each commit, without fsync: a power cut may leave it behind the database,
    which is allowed; a database that is behind its anchor is refused.

    Args:
        path: the file; keep it where the database's folder cannot be restored along with it.
        scope: the database's identity.
        key: seals the file's content.
    """

    def __init__(self, path: Path, scope: bytes, key: bytes):
        self._path = path
        self._scope = scope
        self._key = key
        self._newest = -1
        self._lock = threading.Lock()

    def _tag(self, commits: int) -> bytes:
        text = self._scope + commits.to_bytes(8, "big")
        return hashlib.blake2b(text, digest_size=_TAG, key=self._key).digest()

    def _read(self) -> int:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return -1
        if len(data) != 24 + _TAG:
            raise TamperDetected(
                f"the rollback anchor {self._path} has a wrong size; it was edited"
            )
        commits = int.from_bytes(data[16:24], "big")
        if data[:16] != self._scope or not hmac.compare_digest(data[24:], self._tag(commits)):
            raise TamperDetected(
                f"the rollback anchor {self._path} was edited, or belongs to another database"
            )
        return commits

    def newest(self) -> int:
        """How many commits were seen.

        Raises:
            TamperDetected: the anchor was edited.
        """
        return max(self._read(), self._newest)

    def check(self, commits: int, where: str, newest: int | None = None) -> None:
        """Refuse a database that has fewer commits than were seen before.

        Args:
            commits: how many it has.
            where: the database.
            newest: what `newest` gave before the look at the database: a commit may have come since.

        Raises:
            TamperDetected: the database is older than its anchor, or the anchor was edited.
        """
        newest = self.newest() if newest is None else newest
        if commits < newest:
            raise TamperDetected(
                f"{where} is older than it was: {commits} commits, the rollback anchor "
                f"{self._path} has seen {newest}; an older copy was put in its place"
            )
        self._newest = max(self._newest, commits)

    def note(self, commits: int) -> None:
        """Remember a commit.

        Raises:
            ConfigurationError: the anchor cannot be written.
        """
        with self._lock:  # protects the order of writes to the file
            if commits <= self._newest and self._path.exists():
                return
            self._newest = max(self._newest, commits)
            data = self._scope + self._newest.to_bytes(8, "big") + self._tag(self._newest)
            beside = self._path.with_name(self._path.name + ".new")
            try:
                descriptor = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(beside, self._path)
            except OSError as error:
                raise ConfigurationError(
                    f"the rollback anchor {self._path} cannot be written: {error}; "
                    "the change itself is stored"
                ) from error
