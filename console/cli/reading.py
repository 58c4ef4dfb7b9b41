"""Commands that read a state file and change nothing, and those about its lists."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .main import cli
from .options import (
    NamedFile,
    complete_runs,
    complete_tasks,
    file_options,
    follow_option,
    json_option,
    reading_options,
    reason_option,
    run_options,
    seconds_of,
    ssh_options,
    state_option,
    target_argument,
)


@cli.command()
@follow_option
@file_options
def runs(file: NamedFile, as_json: bool, follow: bool) -> int:
    """Every run of a state file."""
    from .listings import print_runs

    return print_runs(file.to_read(), as_json, follow=follow)


@cli.command()
@click.option("--flow", metavar="NAME", help="Default: the flow of the latest run.")
@click.option(
    "--sort",
    type=click.Choice(["flow", "problems", "duration", "name"]),
    default="flow",
    show_default=True,
    help="The order of the tasks.",
)
@file_options
def history(file: NamedFile, as_json: bool, flow: str | None, sort: str) -> int:
    """Every task in the last 14 runs of a flow: state, duration, trend, what was slower than usual."""
    from .listings import print_history

    return print_history(file.to_read(), as_json, flow=flow, sort=sort)


@cli.command()
@target_argument
@json_option
@ssh_options
def fleet(file: NamedFile, as_json: bool) -> int:
    """All state files of this machine, or of TARGET, which is ssh://host: their latest runs, and what needs a human."""
    from .state_files import print_fleet

    return print_fleet(file.name, file.ssh, as_json)


@cli.command()
@reading_options
@follow_option
def tasks(file: NamedFile, run_id: str | None, as_json: bool, follow: bool) -> int:
    """The tasks of a run."""
    from .listings import print_tasks

    return print_tasks(file.to_read(), run_id, as_json, follow=follow)


@cli.command()
@reading_options
@follow_option
def inbox(file: NamedFile, run_id: str | None, as_json: bool, follow: bool) -> int:
    """Dead letters and failures, by cause."""
    from .listings import print_inbox

    return print_inbox(file.to_read(), run_id, as_json, follow=follow)


@cli.command()
@reading_options
def summary(file: NamedFile, run_id: str | None, as_json: bool) -> int:
    """A run in a few lines of Markdown, for an incident channel or the next shift."""
    from .listings import print_summary

    return print_summary(file.to_read(), run_id, as_json)


@cli.command()
@click.argument("run_id", required=False, metavar="[RUN]", shell_complete=complete_runs)
@state_option
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Default: print it.")
@click.option("--markdown", "is_markdown", is_flag=True, help="Markdown instead of HTML.")
@ssh_options
def report(file: NamedFile, run_id: str | None, path: str | None, is_markdown: bool) -> int:
    """A run as one HTML file to post: the graph, the timeline with a slider, causes, acts, slow tasks.

    RUN: default the latest run. The file loads nothing from elsewhere and can be read on a phone.
    """
    from .report import write_report

    return write_report(file.to_read(), run_id, path, is_markdown=is_markdown)


@cli.command()
@reading_options
@follow_option
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
def events(file: NamedFile, run_id: str | None, as_json: bool, follow: bool, since: int) -> int:
    """All events, in order."""
    from .listings import print_events

    return print_events(file.to_read(), run_id, as_json, follow=follow, since=since)


@cli.command()
@click.argument("names", nargs=-1, metavar="[TARGET] [TASK]...", shell_complete=complete_tasks)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Default: the latest attempt of each task.")
@click.option("--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each task.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new output until the tasks have ended.")
@run_options
def logs(
    file: NamedFile,
    names: Sequence[str],
    run_id: str | None,
    as_json: bool,
    attempt: int | None,
    lines: int | None,
    follow: bool,
) -> int:
    """The output of tasks.

    TASK may be a glob, as 'load_*'; left out: every task that has started. A TARGET may stand before the tasks.
    """
    from .logs import print_logs, target_and_tasks

    endpoint, tasks = target_and_tasks(file, names, run_id)
    return print_logs(endpoint, tasks, run_id, as_json, attempt=attempt, lines=lines, follow=follow)


@cli.command()
@reading_options
@click.option("--all", "everything", is_flag=True, help="Also resolved pages.")
@click.option("--ack", "ack", type=int, multiple=True, metavar="ID", help="Acknowledge it: stop paging for its cause.")
@click.option("--snooze", type=(int, str), multiple=True, metavar="ID DURATION", help="Page again after this time.")
def pages(
    file: NamedFile,
    run_id: str | None,
    as_json: bool,
    everything: bool,
    ack: Sequence[int],
    snooze: Sequence[tuple[int, str]],
) -> int:
    """Pages: their causes, and whether they were sent."""
    from .downstreams import list_or_update_pages

    snoozed = [(page, seconds_of(duration)) for page, duration in snooze]
    endpoint = file.to_change() if snooze or ack else file.to_read()
    return list_or_update_pages(endpoint, run_id, as_json, everything=everything, ack=ack, snooze=snoozed)


@cli.command()
@reading_options
@click.option("--open", multiple=True, metavar="DOWNSTREAM", help="Let no call through until you close it.")
@click.option("--close", multiple=True, metavar="DOWNSTREAM", help="Let calls through, and forget failures.")
@click.option("--probe", multiple=True, metavar="DOWNSTREAM", help="Let one call through to test it.")
@click.option("--disable", multiple=True, metavar="DOWNSTREAM", help="Let every call through, also after failures.")
@reason_option
def breakers(file: NamedFile, run_id: str | None, as_json: bool, reason: str, **named: Sequence[str]) -> int:
    """Circuit breakers and retry budgets: which tasks they hold, and until when."""
    from .downstreams import list_or_set_breakers

    acts = [(how, downstream) for how in ("open", "close", "probe", "disable") for downstream in named[how]]
    endpoint = file.to_change() if acts else file.to_read()
    return list_or_set_breakers(endpoint, run_id, as_json, acts=acts, reason=reason)


@cli.command()
@reading_options
@click.option("--at", "at", metavar="TIME", help="Show this moment: 03:12, 2026-04-25T03:12:00, or an event's number.")
@click.option("--what-if", metavar="CHANGES", help="Replay from there with another policy: jitter=full,max_attempts=5.")
@click.option(
    "--replays",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Replays, each with other random numbers.",
)
def replay(
    file: NamedFile, run_id: str | None, as_json: bool, at: str | None, what_if: str | None, replays: int
) -> int:
    """A run as it was at some time, or as it would have been under another policy."""
    if what_if is not None:
        from .lab import print_what_if

        return print_what_if(file.to_read(), run_id, as_json, at=at, what_if=what_if, replays=replays)
    from .listings import print_replay

    return print_replay(file.to_read(), run_id, as_json, at)


@cli.command()
@reading_options
def costs(file: NamedFile, run_id: str | None, as_json: bool) -> int:
    """Slot seconds of a run's attempts, and how many tasks its retries healed."""
    from .lab import print_costs

    return print_costs(file.to_read(), run_id, as_json)


@cli.command()
@reading_options
@click.option("--task", metavar="TASK", help="Only rows of this task.")
@click.option("--all", "everything", is_flag=True, help="Also rows that were resolved, dropped or discarded.")
@click.option("--requeue", multiple=True, metavar="ROW_KEY", help="Run its task again over this row, or 'all' rows.")
@click.option("--discard", multiple=True, metavar="ROW_KEY", help="Discard this row, or 'all' rows.")
@click.option("--cascade", is_flag=True, help="With --requeue: run the successful tasks below again, too.")
@click.option("--same-key", is_flag=True, help="With --cascade: also effects that have happened, with their keys.")
@click.option("--new-key", is_flag=True, help="With --cascade: also effects that have happened, with new keys.")
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@reason_option
def quarantine(
    file: NamedFile,
    run_id: str | None,
    as_json: bool,
    task: str | None,
    everything: bool,
    requeue: Sequence[str],
    discard: Sequence[str],
    reason: str,
    dry_run: bool,
    **flags: bool,
) -> int:
    """Bad rows that were set aside while their task continued."""
    from .downstreams import decide_rows, list_rows

    if requeue and discard:
        raise click.UsageError("either --requeue or --discard")
    options = {name: True for name, is_given in flags.items() if is_given}  # cascade, same_key, new_key
    if flags["cascade"] and not requeue:
        raise click.UsageError("--cascade belongs to --requeue")
    if options and not flags["cascade"]:
        raise click.UsageError("--same-key and --new-key belong to --cascade")
    if not (requeue or discard):
        return list_rows(file.to_read(), run_id, as_json, task=task, everything=everything)
    act, keys = ("requeue-rows", requeue) if requeue else ("discard-rows", discard)
    endpoint = file.to_change()
    return decide_rows(endpoint, run_id, as_json, act, keys, task=task, options=options, reason=reason, dry_run=dry_run)


@cli.command()
@json_option
def pools(as_json: bool) -> int:
    """Slots in the pools of this machine: who holds them, and who waits."""
    from .maintenance import print_pools

    return print_pools(as_json)


@cli.command()
@target_argument
@state_option
@json_option
def doctor(target: str | None, state: str | None, as_json: bool) -> int:
    """Check versions, locks, integrity, and the isolation of this machine."""
    from .maintenance import run_checks

    return run_checks(target or state, as_json)
