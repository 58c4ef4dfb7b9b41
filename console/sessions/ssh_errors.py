"""What ssh and the far side say when it does not work, in one sentence that says what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ...engine.errors import LinkError

_CHARACTERS = 500

#: "again": time may help. "answer": a person at ssh's questions does. "mend": something has to be changed first.
Help = Literal["again", "answer", "mend"]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Applies when ``pattern`` is in what was said."""

    pattern: str
    help: Help
    sentence: str


_RULES = (
    _Rule(
        "IDENTIFICATION HAS CHANGED",
        "mend",
        "the key of {host} is not the one known from before; ask who runs it before you trust the new one",
    ),
    _Rule("Host key verification failed", "answer", "the key of {host} is not known here; run `{login}` once"),
    _Rule("Permission denied|Too many authentication", "answer", "{host} does not let you in; run `{login}` once"),
    _Rule("Bad configuration option|Bad owner|no argument after|command-line", "mend", "ssh does not take an option"),
    _Rule("invalid characters", "mend", "ssh refuses the host name {host}"),
    _Rule("Could not resolve", "again", "there is no host {host}, or no name service to ask"),
    _Rule("Connection refused", "again", "no ssh server listens on {host}"),
    _Rule("timed out|Timeout, server", "again", "{host} does not answer"),
    _Rule("No route to host|unreachable", "again", "there is no way to {host} from here"),
    _Rule("No module named '?_?sqlite3", "mend", "{python} on {host} was built without SQLite; name another: --python"),
    _Rule(
        "no attribute 'buffer'|[Uu]nknown option: -I|needs Python 3|SyntaxError",
        "mend",
        "{python} on {host} is not Python 3.6 or later; name another: --python",
    ),
)


def explain(host: str, python: str, code: int | None, stderr: str, login: str = "") -> LinkError:
    """The error for an ssh that ended with ``code``, before the agent said hello or in the middle of its work.

    ``login``: what a person types to get there. ``stderr`` is data: nothing of it reaches a terminal but printable
    characters.
    """
    said = last_line(stderr)
    details = f" ({said})" if said else ""
    if code in (126, 127):  # what every shell answers for a program that it cannot run, or find
        return LinkError(f"there is no {python} on {host}; name another: --python{details}", final=True)
    for rule in _RULES:
        if re.search(rule.pattern, stderr):
            sentence = rule.sentence.format(host=host, python=python, login=login or f"ssh {host}") + details
            return LinkError(sentence, final=rule.help == "mend", locked=rule.help == "answer")
    if code == 0:
        return LinkError(f"{python} on {host} is not a Python; name another: --python{details}", final=True)
    what = "the agent" if "Traceback (most recent call last)" in stderr else "the connection"
    return LinkError(f"{what} on {host} ended{details}")


def last_line(text: str) -> str:
    """The last line with something in it, fit for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1] if lines else "")


def printable(text: str) -> str:
    """A text of the far side as data: no control sequence reaches the terminal, and not more than a few lines."""
    return "".join(character if character.isprintable() else "·" for character in text[:_CHARACTERS])
