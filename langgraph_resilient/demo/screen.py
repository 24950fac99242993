"""A user's screen: what of a streamed answer was shown, kept outside the process that showed it.

The child writes each piece to a file before it goes on; the parent reads the file after the child's
death. Knows neither graphs nor savers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A piece of an answer that stood on the screen.

    Attributes:
        step: at which step of the graph; it is the same before and after a crash.
        message_id: of which message.
        text: the piece.
        attempt: number of the process that showed it.
        replayed: whether it came marked as one that was shown before a crash.
        reset: whether it came with "forget what was shown of this message".
    """

    step: int
    message_id: str
    text: str
    attempt: int
    replayed: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCase:
    """A kill in the middle of a streamed answer, and what came of it.

    Attributes:
        kill_instant: where the process died.
        kills: processes that ended by SIGKILL.
        seen_before: what the user had read before the crash.
        replayed: what was shown again after the restart, from the database: all that was seen,
            and what had been stored and not been shown yet.
        continued: what the model added then.
        final: the message as it is in the final state.
        prefix_kept: whether nothing that the user had read was taken back or shown twice.
        message_ids: under how many message ids the answer was shown.
        equal: whether the run ended as the undisturbed one, which was not streamed.
    """

    kill_instant: str
    kills: int
    seen_before: str
    replayed: str
    continued: str
    final: str
    prefix_kept: bool
    message_ids: int
    equal: bool


class Screen:
    """Shows pieces of answers; each is in the file, and synced, before the next one comes.

    Args:
        path: the file.
        attempt: number of this process.
    """

    def __init__(self, path: str, *, attempt: int):
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._attempt = attempt

    def show(self, step: int, message_id: str, text: str, *, replayed: bool, reset: bool) -> None:
        """Show a piece, durably."""
        fields = {
            "step": step,
            "message_id": message_id,
            "text": text,
            "attempt": self._attempt,
            "replayed": replayed,
            "reset": reset,
        }
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back; a process that ends does so without it."""
        os.close(self._descriptor)


def read_cut_answer(path: str) -> list[Shown]:
    """What was shown of the answer that the first process died in, oldest first."""
    with open(path, "rb") as lines:
        pieces = [Shown(**json.loads(line)) for line in lines]
    step = max((piece.step for piece in pieces if not piece.attempt), default=0)
    return [piece for piece in pieces if piece.step == step]


def stream_case(
    pieces: Iterable[Shown], *, final: str, kill_instant: str, kills: int, equal: bool
) -> StreamCase:
    """What came of a kill in mid-answer, from what was shown before it and after it."""
    shown = list(pieces)
    before = _text(piece for piece in shown if not piece.attempt)
    replayed = _text(piece for piece in shown if piece.attempt and piece.replayed)
    continued = _text(piece for piece in shown if piece.attempt and not piece.replayed)
    kept = (
        replayed.startswith(before)
        and replayed + continued == final
        and not any(piece.reset for piece in shown)
    )
    return StreamCase(
        kill_instant=kill_instant,
        kills=kills,
        seen_before=before,
        replayed=replayed,
        continued=continued,
        final=final,
        prefix_kept=kept,
        message_ids=len({piece.message_id for piece in shown}),
        equal=equal,
    )


def _text(pieces: Iterable[Shown]) -> str:
    return "".join(piece.text for piece in pieces)
