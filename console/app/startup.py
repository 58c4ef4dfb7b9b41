"""Opens the console: looks at the terminal, shows the first cells, then lets ``visit`` do what takes longer.

Only what is needed for the first cells is imported here: they come before Textual, the engine and asyncio do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..sessions.target import is_remote
from ..terminal.capabilities import Terminal, survey
from ..terminal.tty import Hold

if TYPE_CHECKING:
    from ...engine.executor.loop import RunOptions
    from .exit_summary import ConsoleEnd


@contextmanager
def first_cells(words: str) -> Iterator[Hold | None]:
    """Something on the screen at once; None where there can be no screen.

    ``words`` are ours. On the way out the terminal is as it was before, whatever has happened.
    """
    terminal = survey()
    if terminal.plain_because is not None:
        yield None
        return
    with Hold(terminal) as hold:
        hold.splash(f"redrive - {words}")
        yield hold


def show_target(
    terminal: Terminal,
    target: str,
    run_id: str | None,
    *,
    read_only: bool,
    python: str | None,
    ssh_option: Sequence[str],
) -> ConsoleEnd:
    """Attach to a state file that somebody else writes, here or behind ssh, on a terminal that can show a screen.

    Raises RedriveError with one sentence, on a terminal that is as it was before.
    """
    with Hold(terminal) as hold:
        if not is_remote(target):  # ssh may ask for a password, which the screen would hide
            hold.splash(f"redrive - {Path(target).name}")
        from .launch import Visit, attach

        return attach(hold, Visit(target, run_id), read_only, python, ssh_option)


def show_run(hold: Hold, flow: str | None, state: str, run_id: str | None, options: RunOptions) -> ConsoleEnd:
    """Start an executor for a new run (or, with ``options.resume``, an old one) and show it.

    ``hold``: of ``first_cells``. Raises what kept the executor from starting.
    """
    from .launch import start

    return start(hold, flow, state, run_id, options)
