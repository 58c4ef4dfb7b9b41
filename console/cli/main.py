"""The command line: arguments -> a session -> the app, or plain text when there is no terminal.

Every command's exit code is in ``cli/exit_codes.py``. Errors meant for people are one sentence on stderr; a traceback
is a bug. Textual is imported only by the commands that draw.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import click

from ...engine.errors import FlowImportError, RedriveError
from ...engine.version import VERSION
from .cause_commands import classify, note
from .exit_codes import ExitCode, code_of_error
from .help import Commands
from .lab_commands import backoff, simulate
from .options import (
    acting_options,
    follow_option,
    json_option,
    params_of,
    reading_options,
    reason_option,
    requeue_options,
    run_option,
    running_options,
    seconds_of,
    ssh_options,
    state_option,
    target_argument,
)
from .schedule_commands import backfill, schedule, serve

if TYPE_CHECKING:
    from ..sessions.open import DoorOptions


def main() -> None:
    """The ``redrive`` command."""
    _open_standard_descriptors()
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:  # Ctrl-C; its ^C has a line of its own by now
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.BAD_USAGE)
    except KeyboardInterrupt:
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough
        sys.exit(ExitCode.SUCCESS)
    except RedriveError as error:
        _explain(error)
        sys.exit(code_of_error(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer would be refused once more
        click.echo(f"redrive: the output cannot be written: {error.strerror}", err=True)
        sys.exit(ExitCode.FAILED)


def _open_standard_descriptors() -> None:
    """Where one of the three is closed, the next file that is opened would be taken for it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def _explain(error: RedriveError) -> None:
    from ..text.text import sanitize

    if isinstance(error, FlowImportError) and error.traceback:
        for line in error.traceback.rstrip().splitlines():
            click.echo(sanitize(line.replace("\t", "    ")), err=True)
    click.echo(f"redrive: {sanitize(str(error).replace(chr(10), ' '))}", err=True)


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# --- What the words mean --------------------------------------------------------------------------------------------


def _target(target: str | None, state: str | None) -> str:
    from ..sessions.target import existing_target

    if target and state and target != state:
        raise click.UsageError("name the state file once: as the argument or with --state")
    return existing_target(state if target is None else target)


# --- Running -------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("flow")
@click.option("--run-id", "run_id", metavar="ID", help="Name of the run; an existing one is taken up where it stopped.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@running_options
def run(flow: str, run_id: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Run FLOW: a Python file, or local.py:name."""
    from . import run as run_module

    return run_module.run_flow(flow, run_id, params_of(param), run_module.Manner(**options))


@cli.command()
@target_argument
@run_option
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another value, from now on.")
@running_options
def resume(target: str | None, run_id: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Start an executor for an unfinished run."""
    from . import run as run_module

    state = _target(target, options.pop("state"))
    return run_module.resume_run(state, run_id, params_of(param), run_module.Manner(state=state, **options))


@cli.command()
@running_options
def demo(**options: Any) -> int:
    """A built-in flow with every failure mode."""
    from . import run as run_module

    return run_module.run_demo(run_module.Manner(**options))


@cli.command()
@target_argument
@state_option
@run_option
@click.option("--read-only", is_flag=True, help="Look, and send nothing.")
@ssh_options
def attach(target: str | None, state: str | None, run_id: str | None, **options: Any) -> int:
    """Open the console on a state file, here or over ssh."""
    from . import run as run_module

    return run_module.attach(_target(target, state), run_id, **options)


@cli.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", "state", metavar="PATH", help="Hold timeouts and waits against what earlier runs took.")
@click.option("--verbose", is_flag=True, help="The checklist and the worst case of every task.")
@json_option
def check(flow: str, param: tuple[str, ...], **options: Any) -> int:
    """Validate FLOW without running it."""
    from . import check as check_module

    return check_module.check_flow(flow, params_of(param), **options)


# --- Reading -------------------------------------------------------------------------------------------------------


@cli.command()
@target_argument
@state_option
@json_option
@ssh_options
@follow_option
def runs(target: str | None, state: str | None, as_json: bool, follow: bool, **door: Unpack[DoorOptions]) -> int:
    """Every run of a state file."""
    from . import listings

    return listings.show_runs(_target(target, state), as_json, follow=follow, **door)


@cli.command()
@reading_options
@follow_option
def tasks(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, follow: bool, **door: Unpack[DoorOptions]
) -> int:
    """The tasks of a run."""
    from . import listings

    return listings.show_tasks(_target(target, state), run_id, as_json, follow=follow, **door)


@cli.command()
@reading_options
@follow_option
def inbox(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, follow: bool, **door: Unpack[DoorOptions]
) -> int:
    """Dead letters and failures, by cause."""
    from . import listings

    return listings.show_inbox(_target(target, state), run_id, as_json, follow=follow, **door)


@cli.command()
@reading_options
@follow_option
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only what came after this event.")
def events(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    follow: bool,
    since: int,
    **door: Unpack[DoorOptions],
) -> int:
    """Everything that happened, in order."""
    from . import listings

    return listings.show_events(_target(target, state), run_id, as_json, follow=follow, since=since, **door)


@cli.command()
@reading_options
@click.option("--all", "everything", is_flag=True, help="Also those that are resolved.")
@click.option("--ack", "ack", type=int, multiple=True, metavar="ID", help="Somebody looks after it: no more of this.")
@click.option("--snooze", type=(int, str), multiple=True, metavar="ID DURATION", help="Page again after so long.")
def pages(target: str | None, state: str | None, run_id: str | None, as_json: bool, **options: Any) -> int:
    """Who was called, for which cause, and whether the page went out."""
    from . import pages as pages_module

    snooze = [(page, seconds_of(duration)) for page, duration in options.pop("snooze")]
    return pages_module.pages(_target(target, state), run_id, as_json, snooze=snooze, **options)


@cli.command()
@reading_options
@click.option("--open", "open_", multiple=True, metavar="DOWNSTREAM", help="Let no call through until it is closed.")
@click.option("--close", multiple=True, metavar="DOWNSTREAM", help="Let calls through, and forget what failed.")
@click.option("--probe", multiple=True, metavar="DOWNSTREAM", help="Let one call through, and go by its answer.")
@click.option("--disable", multiple=True, metavar="DOWNSTREAM", help="Let every call through, whatever comes.")
@reason_option
def breakers(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, reason: str, **options: Any
) -> int:
    """Circuit breakers and retry budgets: whom they hold, and until when."""
    from . import breakers as breakers_module

    words = {"open_": "open", "close": "close", "probe": "probe", "disable": "disable"}
    acts = [(how, downstream) for option, how in words.items() for downstream in options.pop(option)]
    return breakers_module.breakers(_target(target, state), run_id, as_json, acts=acts, reason=reason, **options)


@cli.command()
@reading_options
@click.option("--at", "at", metavar="TIME", help="As of then: 03:12, 2026-04-25T03:12:00, or an event's number.")
@click.option("--what-if", metavar="CHANGES", help="Go on from there under another policy: jitter=full,max_attempts=5.")
@click.option("--nights", type=click.IntRange(1, 100), default=5, show_default=True, help="Replays with other dice.")
def replay(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    at: str | None,
    what_if: str | None,
    nights: int,
    **door: Unpack[DoorOptions],
) -> int:
    """A run as it was at some instant, told by its events; or as it would have been under another policy."""
    if what_if is not None:
        from .what_if import show_what_if

        return show_what_if(_target(target, state), run_id, as_json, at=at, what_if=what_if, nights=nights, **door)
    from . import listings

    return listings.show_replay(_target(target, state), run_id, as_json, at, **door)


@cli.command()
@reading_options
def costs(target: str | None, state: str | None, run_id: str | None, as_json: bool, **door: Unpack[DoorOptions]) -> int:
    """What the attempts of a run cost, and what its retries were worth."""
    from . import costs as ledger

    return ledger.show_costs(_target(target, state), run_id, as_json, **door)


@cli.command()
@reading_options
@click.option("--task", metavar="TASK", help="Only rows of this task.")
@click.option("--all", "everything", is_flag=True, help="Also those that are dealt with.")
@click.option("--requeue", multiple=True, metavar="ROW_KEY", help="Run its task again over this row; 'all' for all.")
@click.option("--discard", multiple=True, metavar="ROW_KEY", help="Nobody wants it any more; 'all' for all.")
@reason_option
def quarantine(target: str | None, state: str | None, run_id: str | None, as_json: bool, **options: Any) -> int:
    """Rows that were set aside while their task went on."""
    from . import quarantine as quarantine_module

    if options["requeue"] and options["discard"]:
        raise click.UsageError("either --requeue or --discard")
    return quarantine_module.quarantine(_target(target, state), run_id, as_json, **options)


# --- Acting --------------------------------------------------------------------------------------------------------


@cli.command()
@acting_options
@requeue_options
def requeue(**options: object) -> int:
    """Run tasks again, with a fresh budget."""
    from . import operate, requeue_arguments

    extra = requeue_arguments.changes({name: options.pop(name) for name in requeue_arguments.NAMES})
    return _act("requeue", extra, operate.act, options)


@cli.command()
@acting_options
@click.option("--substitute", metavar="JSON", help="What the children get instead of its result.")
def skip(substitute: str | None, **options: object) -> int:
    """Permit failures: the children go on without these tasks."""
    from . import operate

    extra = {} if substitute is None else {"substitute": operate.json_of("--substitute", substitute)}
    return _act("skip", extra, operate.act, options)


@cli.command()
@acting_options
def cancel(**options: object) -> int:
    """Stop tasks: a running attempt is ended by SIGTERM, grace, SIGKILL."""
    from . import operate

    return _act("cancel", {}, operate.act, options)


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK...")
@click.argument("duration", metavar="DURATION")
@state_option
@run_option
@reason_option
@json_option
@ssh_options
def extend(duration: str, **options: object) -> int:
    """Give running tasks more time before their timeout, once: redrive extend load 10m."""
    from . import operate

    return _act("extend", {"seconds": seconds_of(duration)}, operate.act, {"fingerprint": None, **options})


@cli.command()
@target_argument
@state_option
@run_option
@reason_option
@json_option
@ssh_options
def pause(**options: object) -> int:
    """Start nothing more; what runs goes on."""
    return _act_on_run("pause", options)


@cli.command()
@target_argument
@state_option
@run_option
@reason_option
@json_option
@ssh_options
def unpause(**options: object) -> int:
    """Start tasks again."""
    return _act_on_run("unpause", options)


def _act(act: str, extra: dict[str, Any], send: Callable[..., int], options: dict[str, Any]) -> int:
    target = _target(None, options.pop("state"))
    names = options.pop("names")
    fingerprint = options.pop("fingerprint")
    if bool(names) == bool(fingerprint):
        raise click.UsageError("name tasks, or give --fingerprint")
    if names and options.get("downstream"):
        raise click.UsageError("--downstream goes with --fingerprint")
    return send(act, target, names, fingerprint=fingerprint, extra=extra, **options)


def _act_on_run(act: str, options: dict[str, Any]) -> int:
    from . import operate

    target = _target(options.pop("target"), options.pop("state"))
    return operate.act(act, target, (), fingerprint=None, extra={}, **options)


# --- Knowing -------------------------------------------------------------------------------------------------------


@cli.command()
@target_argument
@state_option
@json_option
def doctor(target: str | None, state: str | None, as_json: bool) -> int:
    """Versions, locks, integrity, and what isolation this machine offers."""
    from . import doctor as examination

    return examination.examine(target or state, as_json)


# --- Elsewhere -----------------------------------------------------------------------------------------------------


for command in (serve, schedule, backfill, note, classify, backoff, simulate):
    cli.add_command(command)
