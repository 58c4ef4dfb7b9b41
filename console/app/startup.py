"""Opens the console: checks the terminal, shows a splash screen, and leaves the slow part to ``launch``.

This module imports only what the splash screen needs: it appears before Textual, the engine and asyncio are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sessions.target import is_remote
from ..terminal.capabilities import TerminalCapabilities, detect_capabilities
from ..terminal.tty import Tty

if TYPE_CHECKING:
    from ..sessions.address import Endpoint, SshOptions
    from ..sessions.open import FleetTarget
    from .app import ConsoleEnd


@contextmanager
def splash_screen(words: str) -> Iterator[Tty | None]:
    """Show ``words`` (trusted text) on the screen at once; None if the terminal can show no screen.

    The terminal is restored on exit, also after an error.
    """
    terminal = detect_capabilities()
    if terminal.unsupported_reason is not None:
        yield None
        return
    with Tty(terminal) as tty:
        tty.splash(f"redrive - {words}")
        leave_out_openssl()
        yield tty


def show_target(
    terminal: TerminalCapabilities, endpoint: Endpoint, run_id: str | None, *, read_only: bool
) -> ConsoleEnd:
    """Open the console on a state file of another process, here or over ssh; the terminal must support a screen.

    Raises RedriveError with one sentence, after the terminal was restored.
    """
    with Tty(terminal) as tty:
        if not is_remote(endpoint.target):  # ssh may ask for a password, which the screen would hide
            tty.splash(f"redrive - {Path(endpoint.target).name}")
        leave_out_openssl()
        from .launch import attach

        return attach(tty, endpoint.target, run_id, read_only, endpoint.ssh)


def show_fleet(terminal: TerminalCapabilities, fleet: FleetTarget, ssh: SshOptions, *, read_only: bool) -> ConsoleEnd:
    """Open the console on the list of state files; the terminal must support a screen."""
    with Tty(terminal) as tty:
        tty.splash("redrive - state files")
        leave_out_openssl()
        from .launch import attach_fleet

        return attach_fleet(tty, fleet, read_only, ssh)


def leave_out_openssl() -> None:
    """Make later imports of OpenSSL fail, as in a Python that is built without it; one that is loaded stays.

    The console opens no TLS connection: 5 MB and 10 ms of its start. asyncio imports ``ssl``, and hashlib and hmac the
    digests of OpenSSL, where they are there; each does without.
    """
    modules: dict[str, Any] = sys.modules
    for name in ("_ssl", "_hashlib"):
        modules.setdefault(name, None)
