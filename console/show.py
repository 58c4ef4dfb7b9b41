"""Opens the console: looks at the terminal, shows the first cells, then lets ``visit`` do what takes longer.

Only what is needed for the first cells is imported here: they come before Textual, the engine and asyncio do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .target import is_remote
from .terminal.abilities import survey
from .terminal.hold import Hold

if TYPE_CHECKING:
    from ..engine.executor.loop import RunOptions


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
    target: str, run_id: str | None, *, read_only: bool, python: str | None, ssh_option: Sequence[str]
) -> int:
    """Attach to a state file that somebody else writes, here or behind ssh. Returns the exit code.

    Raises RedriveError with one sentence, on a terminal that is as it was before.
    """
    terminal = survey()
    if terminal.plain_because is not None:
        return _show_plain(target, run_id, terminal.plain_because, python, ssh_option)
    with Hold(terminal) as hold:
        if not is_remote(target):  # ssh may ask for a password, which the screen would hide
            hold.splash(f"redrive - {Path(target).name}")
        from .visit import Visit, attach

        return attach(hold, Visit(target, run_id), read_only, python, ssh_option)


def show_run(flow: str | None, state: str, run_id: str | None, options: RunOptions, hold: Hold | None = None) -> int:
    """Start an executor for a new run (or, with ``options.resume``, an old one) and show it. Returns the exit code.

    ``hold``: of ``first_cells``. Raises what kept the executor from starting.
    """
    if hold is None:
        from .shell.running import run_plain

        return run_plain(flow, state, run_id, options)
    from .visit import start

    return start(hold, flow, state, run_id, options)


def _show_plain(target: str, run_id: str | None, because: str, python: str | None, ssh_option: Sequence[str]) -> int:
    """One picture as text."""
    from .shell.listing import show_tasks

    options: dict[str, Any] = {"python": python, "ssh_option": ssh_option}
    code = show_tasks(target, run_id, False, **options)
    print(f"redrive: {because}: the tasks as they are now; `redrive events --follow` goes on", file=sys.stderr)
    return code
