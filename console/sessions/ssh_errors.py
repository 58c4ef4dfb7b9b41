"""Errors of ssh and of the remote host, each as one sentence with what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ...engine.errors import LinkError

_CHARACTERS = 500

#: "retry": waiting may help. "sign in": a person has to answer ssh. "fix": the configuration has to change first.
Remedy = Literal["retry", "sign in", "fix"]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Applies when ``pattern`` matches the output of ssh."""

    pattern: str
    remedy: Remedy
    sentence: str


_RULES = (
    _Rule(
        "IDENTIFICATION HAS CHANGED",
        "fix",
        "the key of {host} is not the one known from before; ask who runs it before you trust the new one",
    ),
    _Rule("Host key verification failed", "sign in", "the key of {host} is not known here; run `{login}` once"),
    _Rule("Permission denied|Too many authentication", "sign in", "{host} does not let you in; run `{login}` once"),
    _Rule("Bad configuration option|Bad owner|no argument after|command-line", "fix", "ssh does not take an option"),
    _Rule("invalid characters", "fix", "ssh refuses the host name {host}"),
    _Rule("Could not resolve", "retry", "there is no host {host}, or no name service to ask"),
    _Rule("Connection refused", "retry", "no ssh server listens on {host}"),
    _Rule("timed out|Timeout, server", "retry", "{host} does not answer"),
    _Rule("No route to host|unreachable", "retry", "there is no way to {host} from here"),
    _Rule("No module named '?_?sqlite3", "fix", "{python} on {host} was built without SQLite; name another: --python"),
    _Rule(
        "no attribute 'buffer'|[Uu]nknown option: -I|needs Python 3|SyntaxError",
        "fix",
        "{python} on {host} is not Python 3.6 or later; name another: --python",
    ),
)


def link_error(host: str, python: str, code: int | None, stderr: str, login: str = "") -> LinkError:
    """Return the error for an ssh that exited with ``code``, before or after the hello of the agent.

    ``login``: the command that a person types to log in. Of ``stderr`` only printable characters reach a terminal.
    """
    message = last_line(stderr)
    details = f" ({message})" if message else ""
    if code in (126, 127):  # the exit codes of every shell for a program that it cannot run or find
        return LinkError(f"there is no {python} on {host}; name another: --python{details}", final=True)
    for rule in _RULES:
        if re.search(rule.pattern, stderr):
            sentence = rule.sentence.format(host=host, python=python, login=login or f"ssh {host}") + details
            return LinkError(sentence, final=rule.remedy == "fix", locked=rule.remedy == "sign in")
    if code == 0:
        return LinkError(f"{python} on {host} is not a Python; name another: --python{details}", final=True)
    what = "the agent" if "Traceback (most recent call last)" in stderr else "the connection"
    return LinkError(f"{what} on {host} ended{details}")


def last_line(text: str) -> str:
    """Return the last line that is not blank, safe for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1] if lines else "")


def printable(text: str) -> str:
    """Return at most 500 characters of a remote text, without control characters."""
    return "".join(character if character.isprintable() else "·" for character in text[:_CHARACTERS])
