"""``redrive attach``: shows a run of another process.

The first frame waits for what this module imports: the rest is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..sessions.target import is_remote
from ..text.text import echo
from .main import code_of_run, command
from .options import hosts_argument, run_option, ssh_options, state_option, target_argument

if TYPE_CHECKING:
    from ..app.app import ConsoleEnd
    from ..sessions.address import Endpoint
    from .options import NamedFile


@command("attach")
@target_argument
@hosts_argument
@state_option
@run_option
@click.option("--read-only", is_flag=True, help="Send no commands.")
@ssh_options
def attach_console(file: NamedFile, run_id: str | None, read_only: bool) -> int:
    """Without a TARGET, and with ssh://host alone, the console shows the list of all state files if there are
    several.
    """
    from ..app.startup import show_fleet, show_target
    from ..sessions.target import is_one_file
    from ..terminal.capabilities import detect_capabilities

    terminal = detect_capabilities()
    reason = terminal.unsupported_reason
    fleet = None
    if reason is None and run_id is None and (file.hosts or not is_one_file(file.name)):
        from .state_files import fleet_of  # imports asyncio, and would delay the first frame

        fleet = fleet_of(file.name, file.ssh, file.hosts)
    if fleet is not None:
        return code_of_console(show_fleet(terminal, fleet, file.ssh, read_only=read_only))
    endpoint = file.to_read()
    if is_remote(endpoint.target):
        from .state_files import choose_file

        endpoint = endpoint._replace(target=choose_file(endpoint))
    if reason is not None:
        return _attach_plain(endpoint, run_id, reason)
    return code_of_console(show_target(terminal, endpoint, run_id, read_only=read_only))


def _attach_plain(endpoint: Endpoint, run_id: str | None, because: str) -> int:
    from .listings import print_tasks

    code = print_tasks(endpoint, run_id, False)
    echo(f"redrive: {because}: the tasks as they are now; `redrive events --follow` goes on", err=True)
    return code


def code_of_console(end: ConsoleEnd) -> int:
    """The exit code of a console: that of the run that it started; 0 if it started none."""
    from ...engine.domain.states import RunState

    run = end.started_run
    if end.return_code or run is None:
        return end.return_code
    goes_on = run.state is RunState.RUNNING
    blocked = goes_on and run.blocked_since is not None
    return code_of_run(run.state, interrupted=goes_on and end.is_stopping, blocked=blocked)
