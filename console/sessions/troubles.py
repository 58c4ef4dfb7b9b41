"""What ssh and the far side say when it does not work, in one sentence that says what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...engine.errors import LinkError

_EXPECTED_LENGTH = 300


@dataclass(frozen=True, slots=True)
class _Rule:
    """Applies when ``pattern`` is in what was said. ``final``: only a person can help."""

    pattern: str
    sentence: str
    final: bool


_NEEDS_PYTHON = "{python} on {host} is not Python 3.6 or later; name another one with --python"

_RULES = (
    _Rule(
        "IDENTIFICATION HAS CHANGED",
        "the key of {host} is not the one known from before: ask who runs it before you trust it",
        True,
    ),
    _Rule("Host key verification failed", "the key of {host} is not known here: run `ssh {host}` once, check it", True),
    _Rule("Permission denied|Too many authentication", "{host} does not let you in: run `ssh {host}` once", True),
    _Rule("Bad configuration option|no argument after keyword|Bad owner|command-line", "ssh: {said}", True),
    _Rule("invalid characters|hostname contains", "ssh refuses the host name {host}", True),
    _Rule("Could not resolve", "there is no host {host}, or no name service to ask", False),
    _Rule("Connection refused", "{host} refuses the connection: no ssh server listens there", False),
    _Rule("timed out|Timeout, server", "{host} does not answer", False),
    _Rule("No route to host|unreachable", "there is no way to {host} from here", False),
    _Rule(
        "No module named '?_?sqlite3", "{python} on {host} was built without SQLite; name another with --python", True
    ),
    _Rule("no attribute 'buffer'|[Uu]nknown option: -I|needs Python 3|SyntaxError", _NEEDS_PYTHON, True),
    _Rule(
        "[Nn]o such file or directory|not found|cannot execute", "there is no {python} on {host}; try --python", True
    ),
)


def explain(host: str, python: str, code: int | None, stderr: str) -> LinkError:
    """The error for an ssh that ended with ``code`` before the agent said hello, or in the middle of its work.

    ``stderr`` is data: nothing in it reaches the terminal but printable characters.
    """
    said = last_line(stderr)
    facts = {"host": host, "python": python, "said": said}
    for rule in _RULES:
        if re.search(rule.pattern, stderr):
            return LinkError(_with_details(rule.sentence.format(**facts), rule.sentence, said), final=rule.final)
    if code == 127:
        return LinkError(f"there is no {python} on {host}; name an interpreter with --python", final=True)
    if code == 0 and not said:
        return LinkError(f"{python} on {host} is not a Python; name an interpreter with --python", final=True)
    return LinkError(f"the connection to {host} ended" + (f": {said}" if said else ""))


def last_line(text: str) -> str:
    """The last line with something in it, fit for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else ""
    return "".join(character if character.isprintable() else "·" for character in line)[:_EXPECTED_LENGTH]


def _with_details(sentence: str, template: str, said: str) -> str:
    return sentence if "{said}" in template or not said else f"{sentence} ({said})"
