"""Errors of ssh and of the remote host: each as one sentence that names the host, with what to do."""

from __future__ import annotations

import re
from typing import Literal

from ...engine.errors import LinkError
from ..text.text import one_line
from .address import SshAddress, SshOptions

SILENCE_SECONDS = 15.0  # of a host, until a command gives it up; a console goes on waiting
TEXT_CHARACTERS_MAX = 500  # of a text of another host

#: "retry": waiting may help. "sign in": a person has to answer ssh. "fix": the configuration has to change first.
Remedy = Literal["retry", "sign in", "fix"]

#: A pattern in the output of ssh, the remedy, and the sentence; the first that matches applies.
_RULES: tuple[tuple[str, Remedy, str], ...] = (
    (
        "IDENTIFICATION HAS CHANGED",
        "fix",
        "the key of {host} is not the one known from before; ask who runs it before you trust the new one",
    ),
    ("Host key verification failed", "sign in", "the key of {host} is not known here; run `{login}` once"),
    ("Permission denied|Too many authentication", "sign in", "{host} does not let you in; run `{login}` once"),
    (
        "sudo: .*(password is|sorry|a terminal is)|not in the sudoers|not allowed to execute",
        "fix",
        "sudo on {host} needs a password, or a rule in sudoers that lets you become {become} without one",
    ),
    ("sudo: .*unknown user", "fix", "{host} has no user {become}"),
    ("sudo: .*command not found", "fix", "there is no {python} on {host} for sudo; name another: --python"),
    ("sudo: (command )?not found|command: sudo", "fix", "there is no sudo on {host}, which --become needs"),
    (
        "Bad configuration option|Bad owner|no argument after|command-line",
        "fix",
        "ssh to {host} does not take an option",
    ),
    ("invalid characters", "fix", "ssh refuses the host name {host}"),
    (
        "restricted",
        "fix",
        "{host} gives you a restricted shell, which starts no agent; log in there as another user: ssh://USER@HOST",
    ),
    ("Could not resolve", "retry", "there is no host {host}, or no name service to ask"),
    ("Connection refused", "retry", "no ssh server listens on {host}"),
    ("timed out|Timeout, server", "retry", "{host} does not answer"),
    ("No route to host|unreachable", "retry", "there is no way to {host} from here"),
    ("No module named '?_?sqlite3", "fix", "{python} on {host} was built without SQLite; name another: --python"),
    (
        "no attribute 'buffer'|[Uu]nknown option: -I|needs Python 3|SyntaxError",
        "fix",
        "{python} on {host} is not Python 3.6 or later; name another: --python",
    ),
)


def link_error(address: SshAddress, options: SshOptions, code: int | None, stderr: str) -> LinkError:
    """Return the error for an ssh that exited with ``code``, before or after the hello of the agent.

    Of ``stderr`` only printable characters reach a terminal.
    """
    host, python = address.place, options.python
    message = last_line(stderr)
    details = f" ({message})" if message else ""
    # these codes are of every shell for a program that it cannot run or find
    if code in (126, 127) and not re.search("restricted|sudo", stderr):
        return LinkError(f"there is no {python} on {host}; name another: --python{details}", final=True)
    for pattern, remedy, sentence in _RULES:
        if found := re.search(pattern, stderr):
            words = {"host": host, "python": python, "login": options.login(address), "become": options.become}
            said = last_line(stderr[: (stderr + "\n").index("\n", found.end())])  # others may follow
            return LinkError(f"{sentence.format(**words)} ({said})", final=remedy == "fix", locked=remedy == "sign in")
    if code == 0:
        why = f"{python} on {host} is not a Python (name another: --python), or sshd runs a command of its own there"
        return LinkError(f"{why}, as ForceCommand{details}", final=True)
    is_ours = "Traceback (most recent call last)" in stderr
    if code is not None and 0 < code < 126 and not is_ours:
        why = f"the command on {host} ended with {code}: a ForceCommand or a login shell runs something else there"
        return LinkError(f"{why}{details}")
    what = "the agent" if is_ours else "the connection"
    return LinkError(f"{what} on {host} ended{details}")


def silent_host(host: str, seconds: float) -> LinkError:
    """The error for a host that has answered ssh with nothing for ``seconds``."""
    return LinkError(f"{host} took the connection but started no agent for {seconds:g} s")


def last_line(text: str) -> str:
    """Return the last line that is not blank, safe for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else "", TEXT_CHARACTERS_MAX)
