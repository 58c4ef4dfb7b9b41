"""``redrive attach``, and the splash screen of every console, which appears before Textual and the engine are imported.

The first frame waits for what this module imports: the rest is imported where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..sessions.target import is_host, is_one_file
from ..terminal.capabilities import TerminalCapabilities, detect_capabilities
from ..terminal.tty import Tty
from ..text.text import echo, is_remote
from .group import code_of_run, command
from .options import TargetWords

if TYPE_CHECKING:
    from ..app.app import ConsoleEnd
    from ..sessions.address import Endpoint
    from .options import NamedFile


@command("attach")
@TargetWords(hosts=True).declare
@click.option("--read-only", is_flag=True, help="Send no commands.")
def attach_console(file: NamedFile, read_only: bool) -> int:
    """Without a FLOW, and with ssh://host alone, the console shows the list of all state files if there are
    several.
    """
    terminal = detect_capabilities()
    reason = terminal.unsupported_reason
    fleet = endpoint = None
    if reason is None and file.run is None and (file.hosts or not is_one_file(file.name)):
        from .hosts import fleet_of  # imports asyncio, and would delay the first frame

        fleet, endpoint = fleet_of(file.name, file.ssh, file.hosts)
    if fleet is not None:
        with _screen(terminal, "state files") as tty:
            from ..app.launch import attach_fleet

            return code_of_console(attach_fleet(tty, fleet, read_only, file.ssh))
    endpoint = endpoint or file.to_read()
    if is_host(endpoint.target):
        from .hosts import choose_file

        endpoint = choose_file(endpoint)
    if reason is not None:
        return _attach_plain(endpoint, reason)
    # ssh may ask for a password, which a splash screen would hide
    with _screen(terminal, "" if is_remote(endpoint.target) else Path(endpoint.target).name) as tty:
        from ..app.launch import attach

        return code_of_console(attach(tty, endpoint, read_only))


def _attach_plain(endpoint: Endpoint, because: str) -> int:
    from ...engine.domain.text import advised
    from .listings import print_tasks

    code = print_tasks(endpoint, (), False)
    follow = advised("events", endpoint.target, endpoint.run, [*endpoint.ssh.arguments, "--follow"])
    echo(f"redrive: {because}: the tasks as they are now; `{follow}` goes on", err=True)
    return code


def code_of_console(end: ConsoleEnd) -> int:
    """The exit code of a console: that of the run that it started; 0 if it started none."""
    from ...engine.domain.states import RunState

    run = end.started_run
    if end.return_code or run is None:
        return end.return_code
    goes_on = run.state == RunState.RUNNING
    blocked = goes_on and run.blocked_since is not None
    return code_of_run(run.state, interrupted=goes_on and end.is_stopping, blocked=blocked)


@contextmanager
def splash_screen(words: str) -> Iterator[Tty | None]:
    """Show ``words`` (trusted text) on the screen at once; None if the terminal can show no screen."""
    terminal = detect_capabilities()
    if terminal.unsupported_reason is not None:
        yield None
        return
    with _screen(terminal, words) as tty:
        yield tty


@contextmanager
def _screen(terminal: TerminalCapabilities, words: str) -> Iterator[Tty]:
    """The terminal, which is restored on exit, also after an error. ``words``: shown at once, if there are any."""
    with Tty(terminal) as tty:
        if words:
            tty.splash(f"redrive - {words}")
        leave_out_openssl()
        yield tty


def leave_out_openssl() -> None:
    """Make later imports of OpenSSL fail, as in a Python that is built without it; one that is loaded stays.

    The console opens no TLS connection: 5 MB and 10 ms of its start. asyncio imports ``ssl``, and hashlib and hmac the
    digests of OpenSSL, where they are there; each does without.
    """
    modules: dict[str, Any] = sys.modules
    for name in ("_ssl", "_hashlib"):
        modules.setdefault(name, None)
