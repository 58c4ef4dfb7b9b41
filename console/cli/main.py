"""The commands of ``redrive`` with their options; each command calls a function of another module of this package.

Exit codes are in ``exit_codes.py``. An error for people is one sentence on stderr; a traceback is a bug. A command
imports its module when it runs: ``--help`` stays fast, and only commands that draw import Textual.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import click

from ...engine.errors import FlowImportError, RedriveError
from ...engine.version import VERSION
from .complete import complete_causes, complete_runs, complete_tasks, complete_topics
from .exit_codes import ExitCode, code_of_error
from .help import CommandGroup
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
    serving_options,
    simulating_options,
    ssh_options,
    state_option,
    target_argument,
)

if TYPE_CHECKING:
    from ...engine.json_types import Json
    from ..sessions.open import RemoteOptions


def main() -> None:
    """The ``redrive`` command."""
    _open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cron's locale may not encode names of tasks
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:  # Ctrl-C; click has ended the line of the ^C
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.BAD_USAGE)
    except KeyboardInterrupt:
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        sys.exit(ExitCode.SUCCESS)
    except RedriveError as error:
        _explain(error)
        sys.exit(code_of_error(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest of the buffer would fail again
        click.echo(f"redrive: the output cannot be written: {error.strerror}", err=True)
        sys.exit(ExitCode.FAILED)


def _open_standard_descriptors() -> None:
    """Open a closed stdin, stdout or stderr on /dev/null; otherwise the next opened file would get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def _explain(error: RedriveError) -> None:
    from ..text.printing import echo

    if isinstance(error, FlowImportError) and error.traceback:
        for line in error.traceback.rstrip().splitlines():
            echo(line.replace("\t", "    "), err=True)
    echo(f"redrive: {str(error).replace(chr(10), ' ')}", err=True)


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _target(target: str | None, state: str | None) -> str:
    from ..sessions.target import existing_target

    return existing_target(_named_once(target, state))


def _acting_target(target: str | None, state: str | None, remote: Mapping[str, Any] | None = None) -> str:
    """The state file of a command that changes a run. Of several candidates it prints the command for each.

    ``remote``: the options ``python`` and ``ssh_option``, to ask a host for its state files; None: do not ask.
    """
    from ..sessions.target import AmbiguousTargetError, acting_target, is_remote

    try:
        found = acting_target(_named_once(target, state))
    except AmbiguousTargetError as error:
        from ..text.printing import echo

        echo(f"redrive: {error}", err=True)
        for line in error.commands(sys.argv[1:]):
            echo(line, err=True)
        raise click.exceptions.Exit(ExitCode.BAD_USAGE) from None
    if remote is None or not is_remote(found):
        return found
    from .state_files import choose_file

    return choose_file(found, remote["python"], remote["ssh_option"], to_act=True)


def _named_once(target: str | None, state: str | None) -> str | None:
    if target and state and target != state:
        raise click.UsageError("name the state file once: as the argument or with --state")
    return state if target is None else target


# --- Running -------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("flow")
@click.option("--run-id", "run_id", metavar="ID", help="Name of the run; an existing run is resumed.")
@click.option(
    "--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of the flow; @FILE or - reads it."
)
@click.option("--accept-changes", is_flag=True, help="As for resume, if the run exists.")
@running_options
def run(flow: str, run_id: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Run FLOW: a Python file or a module, with :NAME if it makes several flows."""
    from .run import RunArguments, run_flow

    return run_flow(flow, run_id, params_of(param), RunArguments(**options))


@cli.command()
@target_argument
@run_option
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another value from now on.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although the flow changed: unfinished tasks that are gone are skipped, finished results stay.",
)
@click.option("--trust", is_flag=True, help="Run the flow file also if other users may have written it.")
@running_options
def resume(target: str | None, run_id: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Start an executor for an unfinished run."""
    from .executor import resume_run
    from .run import RunArguments

    state = _acting_target(target, options.pop("state"))
    return resume_run(state, run_id, params_of(param), RunArguments(state=state, **options))


@cli.command()
@click.argument("run_id", metavar="RUN")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another value than RUN had.")
@click.option("--trust", is_flag=True, help="Run the flow file also if other users may have written it.")
@running_options
def rerun(run_id: str, param: tuple[str, ...], **options: Any) -> int:
    """Start a new run with the parameters and the scheduled time of RUN, which has ended.

    To run tasks of RUN itself again: redrive requeue '*' --only success --run RUN.
    """
    from .executor import rerun_run
    from .run import RunArguments

    state = _acting_target(None, options.pop("state"))
    return rerun_run(state, run_id, params_of(param), RunArguments(state=state, **options))


@cli.command()
@running_options
def demo(**options: Any) -> int:
    """A built-in flow with every failure mode."""
    from .run import RunArguments, run_demo

    return run_demo(RunArguments(**options))


@cli.command()
@target_argument
@state_option
@run_option
@click.option("--read-only", is_flag=True, help="Send no commands.")
@ssh_options
def attach(target: str | None, state: str | None, run_id: str | None, **options: Any) -> int:
    """Open the console on a state file, here or over ssh.

    Without a TARGET, and with ssh://host alone, the console shows the list of all state files if there are several.
    """
    from .run import attach_console

    return attach_console(_named_once(target, state), run_id, **options)


@cli.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", "state", metavar="PATH", help="Compare timeouts and waits with earlier runs.")
@click.option("--verbose", is_flag=True, help="The checklist and the worst case of every task.")
@json_option
def check(flow: str, param: tuple[str, ...], **options: Any) -> int:
    """Validate FLOW without running it."""
    from .check import check_flow

    return check_flow(flow, params_of(param), **options)


# --- Reading -------------------------------------------------------------------------------------------------------


@cli.command()
@target_argument
@state_option
@json_option
@ssh_options
@follow_option
def runs(target: str | None, state: str | None, as_json: bool, follow: bool, **remote: Unpack[RemoteOptions]) -> int:
    """Every run of a state file."""
    from .listings import print_runs

    return print_runs(_target(target, state), as_json, follow=follow, **remote)


@cli.command()
@target_argument
@json_option
@ssh_options
def fleet(target: str | None, as_json: bool, **remote: Any) -> int:
    """All state files of this machine, or of TARGET, which is ssh://host: their latest runs, and what needs a human."""
    from .state_files import print_fleet

    return print_fleet(target, as_json, **remote)


@cli.command()
@reading_options
@follow_option
def tasks(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    follow: bool,
    **remote: Unpack[RemoteOptions],
) -> int:
    """The tasks of a run."""
    from .listings import print_tasks

    return print_tasks(_target(target, state), run_id, as_json, follow=follow, **remote)


@cli.command()
@reading_options
@follow_option
def inbox(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    follow: bool,
    **remote: Unpack[RemoteOptions],
) -> int:
    """Dead letters and failures, by cause."""
    from .listings import print_inbox

    return print_inbox(_target(target, state), run_id, as_json, follow=follow, **remote)


@cli.command()
@reading_options
def summary(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, **remote: Unpack[RemoteOptions]
) -> int:
    """A run in a few lines of Markdown, for an incident channel or the next shift."""
    from .listings import print_summary

    return print_summary(_target(target, state), run_id, as_json, **remote)


@cli.command()
@click.argument("run_id", required=False, metavar="[RUN]", shell_complete=complete_runs)
@state_option
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Default: print it.")
@click.option("--markdown", "is_markdown", is_flag=True, help="Markdown instead of HTML.")
@ssh_options
def report(
    run_id: str | None, state: str | None, path: str | None, is_markdown: bool, **remote: Unpack[RemoteOptions]
) -> int:
    """A run as one HTML file to post: the graph, the timeline with a slider, causes, acts, slow tasks.

    RUN: default the latest run. The file loads nothing from elsewhere and can be read on a phone.
    """
    from .report import write_report

    return write_report(_target(None, state), run_id, path, is_markdown=is_markdown, **remote)


@cli.command()
@reading_options
@follow_option
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
def events(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    follow: bool,
    since: int,
    **remote: Unpack[RemoteOptions],
) -> int:
    """All events, in order."""
    from .listings import print_events

    return print_events(_target(target, state), run_id, as_json, follow=follow, since=since, **remote)


@cli.command()
@click.argument("names", nargs=-1, metavar="[TASK]...")
@state_option
@run_option
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Default: the latest attempt of each task.")
@click.option("--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each task.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new output until the tasks have ended.")
@json_option
@ssh_options
def logs(names: tuple[str, ...], state: str | None, run_id: str | None, as_json: bool, **options: Any) -> int:
    """The output of tasks.

    TASK may be a glob, as 'load_*'; left out: every task that has started.
    """
    from .logs import print_logs

    return print_logs(_target(None, state), names, run_id, as_json, **options)


@cli.command()
@reading_options
@click.option("--all", "everything", is_flag=True, help="Also resolved pages.")
@click.option("--ack", "ack", type=int, multiple=True, metavar="ID", help="Acknowledge it: stop paging for its cause.")
@click.option("--snooze", type=(int, str), multiple=True, metavar="ID DURATION", help="Page again after this time.")
def pages(target: str | None, state: str | None, run_id: str | None, as_json: bool, **options: Any) -> int:
    """Pages: their causes, and whether they were sent."""
    from .pages import list_or_update_pages

    snooze = [(page, seconds_of(duration)) for page, duration in options.pop("snooze")]
    target = _acting_target(target, state, options) if snooze or options["ack"] else _target(target, state)
    return list_or_update_pages(target, run_id, as_json, snooze=snooze, **options)


@cli.command()
@reading_options
@click.option("--open", "open_", multiple=True, metavar="DOWNSTREAM", help="Let no call through until you close it.")
@click.option("--close", multiple=True, metavar="DOWNSTREAM", help="Let calls through, and forget failures.")
@click.option("--probe", multiple=True, metavar="DOWNSTREAM", help="Let one call through to test it.")
@click.option("--disable", multiple=True, metavar="DOWNSTREAM", help="Let every call through, also after failures.")
@reason_option
def breakers(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, reason: str, **options: Any
) -> int:
    """Circuit breakers and retry budgets: which tasks they hold, and until when."""
    from .breakers import list_or_set_breakers

    words = {"open_": "open", "close": "close", "probe": "probe", "disable": "disable"}
    acts = [(how, downstream) for option, how in words.items() for downstream in options.pop(option)]
    target = _acting_target(target, state, options) if acts else _target(target, state)
    return list_or_set_breakers(target, run_id, as_json, acts=acts, reason=reason, **options)


@cli.command()
@reading_options
@click.option("--at", "at", metavar="TIME", help="As of then: 03:12, 2026-04-25T03:12:00, or an event's number.")
@click.option("--what-if", metavar="CHANGES", help="Replay from there with another policy: jitter=full,max_attempts=5.")
@click.option(
    "--nights",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Replays, each with other random numbers.",
)
def replay(
    target: str | None,
    state: str | None,
    run_id: str | None,
    as_json: bool,
    at: str | None,
    what_if: str | None,
    nights: int,
    **remote: Unpack[RemoteOptions],
) -> int:
    """A run as it was at some time, or as it would have been under another policy."""
    if what_if is not None:
        from .analysis.what_if import print_what_if

        return print_what_if(_target(target, state), run_id, as_json, at=at, what_if=what_if, nights=nights, **remote)
    from .listings import print_replay

    return print_replay(_target(target, state), run_id, as_json, at, **remote)


@cli.command()
@reading_options
def costs(
    target: str | None, state: str | None, run_id: str | None, as_json: bool, **remote: Unpack[RemoteOptions]
) -> int:
    """Slot seconds of a run's attempts, and how many tasks its retries healed."""
    from .analysis.costs import print_costs

    return print_costs(_target(target, state), run_id, as_json, **remote)


@cli.command()
@reading_options
@click.option("--task", metavar="TASK", help="Only rows of this task.")
@click.option("--all", "everything", is_flag=True, help="Also rows that are past: resolved, dropped, discarded.")
@click.option("--requeue", multiple=True, metavar="ROW_KEY", help="Run its task again over this row, or 'all' rows.")
@click.option("--discard", multiple=True, metavar="ROW_KEY", help="Discard this row, or 'all' rows.")
@click.option("--cascade", is_flag=True, help="With --requeue: run the successful tasks below again, too.")
@reason_option
def quarantine(target: str | None, state: str | None, run_id: str | None, as_json: bool, **options: Any) -> int:
    """Bad rows that were set aside while their task continued."""
    from .quarantine import list_or_decide_rows

    if options["requeue"] and options["discard"]:
        raise click.UsageError("either --requeue or --discard")
    if options["cascade"] and not options["requeue"]:
        raise click.UsageError("--cascade belongs to --requeue")
    target = (
        _acting_target(target, state, options) if options["requeue"] or options["discard"] else _target(target, state)
    )
    return list_or_decide_rows(target, run_id, as_json, **options)


# --- Acting --------------------------------------------------------------------------------------------------------


@cli.command()
@acting_options
@requeue_options
def requeue(**options: object) -> int:
    """Run tasks again, with a fresh budget.

    TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only.
    """
    from .operate import REQUEUE_OPTIONS, requeue_options_of

    extra = requeue_options_of({name: options.pop(name) for name in REQUEUE_OPTIONS})
    return _act("requeue", extra, options)


@cli.command()
@acting_options
@click.option("--substitute", metavar="JSON", help="What the children get instead of the result.")
def skip(substitute: str | None, **options: object) -> int:
    """Accept failures: the children run without these tasks.

    TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only.
    """
    from .operate import json_of

    extra = {} if substitute is None else {"substitute": json_of("--substitute", substitute)}
    return _act("skip", extra, options)


@cli.command()
@acting_options
def cancel(**options: object) -> int:
    """Stop tasks: a running attempt is ended by SIGTERM, grace, SIGKILL.

    TASK may be a glob, as 'load_*': it means tasks that have not ended, or the states given with --only.
    """
    return _act("cancel", {}, options)


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks)
@click.argument("duration", metavar="DURATION")
@state_option
@run_option
@reason_option
@json_option
@ssh_options
def extend(duration: str, **options: object) -> int:
    """Give running tasks more time before their timeout, once: redrive extend load 10m."""
    return _act("extend", {"seconds": seconds_of(duration)}, {"fingerprint": None, "yes": True, **options})


@cli.command()
@click.argument("names", nargs=-1, metavar="RUN...")
@state_option
@click.option("--run", "run_ids", multiple=True, metavar="RUN", help="Another way to name a run.")
@click.option("--all", "everything", is_flag=True, help="Every unfinished run that no executor runs.")
@click.option("--older-than", metavar="DURATION", help="With --all: only runs that started so long ago, as 2d.")
@reason_option
@json_option
@ssh_options
def abandon(
    names: tuple[str, ...],
    state: str | None,
    run_ids: tuple[str, ...],
    everything: bool,
    older_than: str | None,
    **options: Any,
) -> int:
    """End unfinished runs for good: what has not ended is cancelled, and the run is ABANDONED."""
    from .abandon import abandon_runs

    if bool(names + run_ids) == everything:
        raise click.UsageError("name runs, or give --all")
    if older_than and not everything:
        raise click.UsageError("--older-than goes with --all")
    age_seconds = seconds_of(older_than) if older_than else 0.0
    target = _acting_target(None, state, options)
    return abandon_runs(target, names + run_ids, everything=everything, older_than_seconds=age_seconds, **options)


@cli.command()
@target_argument
@state_option
@run_option
@reason_option
@json_option
@ssh_options
def pause(**options: object) -> int:
    """Start no more tasks; running tasks continue."""
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


@cli.command()
@target_argument
@state_option
@click.option("--drain", is_flag=True, help="Let running tasks end first; else SIGTERM and their grace end them.")
@click.option("--wait", is_flag=True, help="Return when the executor is gone.")
@reason_option
@json_option
@ssh_options
def stop(target: str | None, state: str | None, **options: Any) -> int:
    """Stop the executor in order; its run stays unfinished, and resume goes on with it."""
    from .executor import stop_executor

    return stop_executor(_acting_target(target, state, options), **options)


@cli.command()
@target_argument
@state_option
@reason_option
@json_option
@ssh_options
def reload(target: str | None, state: str | None, **options: Any) -> int:
    """Load changed source files of the flow in a living executor; running attempts keep the old code."""
    from .executor import reload_code

    return reload_code(_acting_target(target, state, options), **options)


def _act(act: str, extra: Mapping[str, Json], options: dict[str, Any]) -> int:
    from .bulk_selection import BulkFilter
    from .operate import send_action

    target = _acting_target(None, options.pop("state"), options)
    names = options.pop("names")
    fingerprint = options.pop("fingerprint")
    filters = BulkFilter(options.pop("failure_class", None), options.pop("only", ()))
    if bool(names or filters) == bool(fingerprint):
        raise click.UsageError("name tasks, or give --fingerprint, --class or --only")
    if names and options.get("downstream"):
        raise click.UsageError("--downstream goes with --fingerprint")
    return send_action(act, target, names, fingerprint=fingerprint, filters=filters, extra=extra, **options)


def _act_on_run(act: str, options: dict[str, Any]) -> int:
    from .operate import send_action

    target = _acting_target(options.pop("target"), options.pop("state"), options)
    return send_action(act, target, (), fingerprint=None, extra={}, **options)


@cli.command()
@target_argument
@state_option
@click.option("--keep", required=True, metavar="DURATION|N", help="30d: ended since then. 20: the latest of each flow.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@json_option
@ssh_options
def prune(target: str | None, state: str | None, keep: str, **options: Any) -> int:
    """Delete ended runs with their output, and give the space back.

    Unfinished runs, the latest run of each flow, and runs with quarantined rows stay, and so do notes. A run stays
    while the inbox tells how it handled a cause that waits for a human now.
    """
    from .prune import prune_runs

    return prune_runs(_target(target, state), keep, **options)


# --- Checking ------------------------------------------------------------------------------------------------------


@cli.command()
@target_argument
@state_option
@json_option
def doctor(target: str | None, state: str | None, as_json: bool) -> int:
    """Check versions, locks, integrity, and the isolation of this machine."""
    from .doctor import run_checks

    return run_checks(target or state, as_json)


# --- Causes -------------------------------------------------------------------------------------------------------


fingerprint_option = click.option(
    "--fingerprint",
    required=True,
    metavar="FP",
    help="Of the cause, from `redrive inbox`.",
    shell_complete=complete_causes,
)


@cli.command()
@click.argument("text")
@fingerprint_option
@click.option("--downstream", metavar="NAME", help="Only for tasks that call this; default: all tasks.")
@state_option
@run_option
@json_option
@ssh_options
def note(text: str, state: str | None, **options: Any) -> int:
    """Write a note on a cause for the next operator who is paged, in this run and later ones."""
    from .causes import send_note

    return send_note(_acting_target(None, state, options), text, **options)


@cli.command()
@fingerprint_option
@click.option(
    "--as",
    "failure_class",
    required=True,
    type=click.Choice(["transient", "permanent", "ambiguous", "validation", "auth"]),
    help="The class of such failures.",
)
@click.option("--downstream", metavar="NAME", help="The rule's downstream; default: that of the failed tasks.")
@click.option(
    "--when",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="A condition instead of the proposed ones: status=409.",
)
@state_option
@run_option
@json_option
@ssh_options
def classify(state: str | None, **options: Any) -> int:
    """Propose a classification rule for a failure, and show its effect on the past; changes nothing."""
    from .causes import print_rule

    return print_rule(_target(None, state), **options)


# --- The manual ----------------------------------------------------------------------------------------------------


@cli.command("help")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.pass_context
def help_(context: click.Context, topic: str | None) -> None:
    """Print a page of the manual, or its topics."""
    from .help import print_topic

    print_topic(cli, context, topic)


@cli.command()
@click.argument("name", metavar="FILE", default="first_flow.py")
def new(name: str) -> None:
    """Write a first flow that runs, to a new file."""
    from .new_flow import write_new_flow

    write_new_flow(name)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, tasks, runs and causes: eval "$(redrive completion bash)"."""
    from .complete import print_script

    print_script(cli, shell)


# --- By a schedule ------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("flows", nargs=-1, required=True, metavar="FLOW...")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run, for one FLOW.")
@serving_options
@click.option("--wait", is_flag=True, help="Wait while another process serves the state file.")
def serve(flows: tuple[str, ...], param: tuple[str, ...], **options: Any) -> int:
    """Start the runs of FLOW when its schedule says so, until SIGTERM.

    Each of several flows gets its own process and state file, and its name before its lines. A process that dies is
    started again after a delay of at most 1 s, 2 s, 4 s, ... 60 s, drawn at random.
    """
    from .run import RunArguments
    from .schedule import serve_flow, serve_flows

    if len(flows) == 1:
        return serve_flow(flows[0], params_of(param), RunArguments(**options))
    if param:
        raise click.UsageError("--param goes with one flow; in several, write the default into the flow")
    return serve_flows(flows, RunArguments(**options))


@cli.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=click.IntRange(1, 1000), metavar="N")
@json_option
def schedule(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """The next runs of FLOW in its time zone and here, with changes of daylight saving time."""
    from .schedule import print_schedule

    return print_schedule(flow, params_of(param), count, as_json)


@cli.command()
@click.argument("flow")
@click.option("--from", "since", required=True, metavar="DATE", help="The first day, or time, in its zone.")
@click.option("--to", "until", required=True, metavar="DATE", help="The last day, or time.")
@click.option("--again", is_flag=True, help="Also those whose run has ended, once more.")
@click.option("--dry-run", is_flag=True, help="Only show what would run.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run.")
@serving_options
@json_option
def backfill(
    flow: str, since: str, until: str, param: tuple[str, ...], again: bool, dry_run: bool, as_json: bool, **o: Any
) -> int:
    """Run FLOW for scheduled times that have no run, the oldest first."""
    from .run import RunArguments
    from .schedule import backfill_flow

    return backfill_flow(
        flow, since, until, params_of(param), RunArguments(**o), again=again, dry_run=dry_run, as_json=as_json
    )


# --- Retry policies -----------------------------------------------------------------------------------------------


@cli.command()
@click.option("--base", default="2s", show_default=True, metavar="DURATION", help="The ceiling of the first wait.")
@click.option("--cap", default="10m", show_default=True, metavar="DURATION", help="The highest ceiling.")
@click.option("--factor", default=2.0, show_default=True, help="Multiplies each ceiling.")
@click.option("--attempts", default=10, show_default=True, type=click.IntRange(1, 1000), help="Attempts in all.")
@click.option("--jitter", default="full", show_default=True, help="none, full, equal, decorrelated, add50, or all.")
@click.option("--timeout", metavar="DURATION", help="Of one attempt: for the worst case.")
@click.option("--grace", default="0s", metavar="DURATION", help="Between SIGTERM and SIGKILL.")
@click.option("--deadline", metavar="DURATION", help="Compared with the worst case.")
@click.option(
    "--clients", default=0, type=click.IntRange(0, 1_000_000), metavar="N", help="Plot the retries of N clients."
)
@click.option("--seed", type=int, help="Of the random numbers.")
@json_option
def backoff(base: str, cap: str, factor: float, attempts: int, jitter: str, **options: Any) -> int:
    """Every wait of a retry policy, their sums, the worst case, and their spread."""
    from .analysis.policy_lab import BackoffExperiment, policy_of, print_backoff

    timeout, grace, deadline = (options.pop(name) for name in ("timeout", "grace", "deadline"))
    experiment = BackoffExperiment(
        timeout=seconds_of(timeout) if timeout else None,
        grace_seconds=seconds_of(grace),
        deadline=seconds_of(deadline) if deadline else None,
        **options,
    )
    policy = policy_of(max_attempts=attempts, base=seconds_of(base), cap=seconds_of(cap), factor=factor)
    return print_backoff(policy, jitter, experiment)


@cli.group()
def simulate() -> None:
    """Simulate the load of a retry policy: many tasks on one server, or clients that contend for a row."""


@simulate.command()
@click.option("--scenario", default="herd-5000", show_default=True, metavar="NAME", help="Or herd-500, -1000, -12000.")
@click.option("--attempts", default=3, show_default=True, type=click.IntRange(1, 1000), help="For the column 'lost'.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 1000), help="Simulations to average.")
@click.option("--base", metavar="DURATION", help="Instead of the scenario's.")
@click.option("--cap", metavar="DURATION", help="Instead of the scenario's.")
@simulating_options
def herd(base: str | None, cap: str | None, **options: Any) -> int:
    """Tasks that all call the same server when it comes back."""
    from .analysis.load_models import print_herd

    return print_herd(seconds_of(base) if base else None, seconds_of(cap) if cap else None, **options)


@simulate.command()
@click.option(
    "--clients", multiple=True, type=click.IntRange(1, 10_000), metavar="N", help="Number of clients; repeatable."
)
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1, 1000), help="Simulations to average.")
@simulating_options
def contention(**options: Any) -> int:
    """Clients that write one row, each until it succeeds once: the model of Brooker's post (AWS, 2015)."""
    from .analysis.load_models import print_contention

    return print_contention(**options)
