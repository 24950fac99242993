"""The tools of the demo's agent: two that only read, and one that sends a real e-mail.

What the readers find is made up from their arguments, the same everywhere. Each call of a body is
written to the call log; a call that the ledger answers has no body and so leaves no line.
"""

from __future__ import annotations

import json
import random
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage

from langchain_core.tools import BaseTool, tool

from langgraph_resilient.demo.calls import FINISHED, STARTED, CallLog
from langgraph_resilient.demo.process import die
from langgraph_resilient.ledger import effect

DEATHS = ("before", "after")
"""Where the process may die inside the e-mail tool: before the mail is sent, or after it."""

_MESSAGE_ID = "<tide-gauges@langgraph-resilient.example.org>"
_VOCABULARY = (
    "gauge harbour reading winter power cut battery sensor log page record disk crash restart "
    "cable storm level minute clock drift sample buffer flush block engineer station network "
    "report replaced stored kept lost measured observed northern coastal small large early late "
    "second third every only after before during under between the a of and in to for with was "
    "were had been that which when while because so again then still almost never always writes "
    "reads data value file ahead journal checkpoint pressure float tower line shift night ice "
    "wind signal relay charger spare team visit month week hour delay error repair check"
)
_WORDS = tuple(_VOCABULARY.split())


def prose(seed: str, size: int) -> str:
    """At least ``size`` characters of text that is the same for the same seed, everywhere."""
    source = random.Random(seed)
    sentences: list[str] = []
    length = 0
    while length < size:
        words = source.choices(_WORDS, k=source.randint(8, 18))
        if source.random() < 0.4:
            words.insert(source.randrange(len(words)), str(source.randint(2, 9999)))
        sentences.append(" ".join(words).capitalize() + ".")
        length += len(sentences[-1]) + 1
    return " ".join(sentences)


def receipt(to: str, subject: str, message_id: str) -> str:
    """What the e-mail tool says when the mail is out."""
    return f"Sent '{subject}' to {to} as {message_id}."


def make_tools(log: CallLog, *, smtp_port: int, death: str = "") -> list[BaseTool]:
    """The agent's tools.

    Args:
        log: gets every run of a tool's body.
        smtp_port: where the e-mail goes, on this machine.
        death: one of `DEATHS`: the process dies there; empty: nowhere.
    """

    @contextmanager
    def running(name: str) -> Iterator[None]:
        log.step()
        log.write("tool", name, STARTED)
        yield
        log.write("tool", name, FINISHED)

    @effect("pure")
    @tool
    def search(query: str) -> str:
        """Search the archive; returns the hits as JSON, each with url, title, score and text."""
        with running("search"):
            return json.dumps([_hit(query, number) for number in range(8)])

    @effect("pure")
    @tool
    def extract(url: str) -> str:
        """Read the page behind a url as plain text."""
        with running("extract"):
            return _page(url)

    @effect("external")
    @tool
    def send_email(to: str, subject: str, body: str) -> str:
        """Send an e-mail."""
        with running("send_email"):
            if death == "before":
                die()
            _send(smtp_port, to, subject, body)
            if death == "after":
                die()
            return receipt(to, subject, _MESSAGE_ID)

    return [search, extract, send_email]


def _hit(query: str, number: int) -> dict[str, str | float]:
    return {
        "url": f"https://archive.example.org/{number}",
        "title": prose(f"title {query} {number}", 20).rstrip("."),
        "score": round(1 / (1 + (number - 3) ** 2), 3),
        "text": prose(f"hit {query} {number}", 600),
    }


def _page(url: str) -> str:
    parts = []
    for number in range(4):
        parts.append(prose(f"page {url} {number}", 3000))
        parts.append("Finding: " + prose(f"finding {url} {number}", 120))
    return "\n".join(parts)


def _send(port: int, to: str, subject: str, body: str) -> None:
    """Hand the mail to the server; on return it has said that it keeps it."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "agent@example.org", to, subject
    message["Message-ID"] = _MESSAGE_ID
    message.set_content(body)
    with smtplib.SMTP("127.0.0.1", port, local_hostname="localhost", timeout=20) as server:
        server.send_message(message)
