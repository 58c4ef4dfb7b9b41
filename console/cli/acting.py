"""Commands that change a run: what operators do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ...engine.core.outcome import FailureClass
from ...engine.domain.states import TaskState
from .main import cli
from .options import (
    NamedFile,
    complete_causes,
    complete_runs,
    complete_tasks,
    file_options,
    fingerprint_option,
    json_option,
    options,
    reading_options,
    reason_option,
    run_option,
    run_options,
    seconds_of,
    ssh_options,
    state_option,
)

if TYPE_CHECKING:
    from ...engine.domain.events import Json

acting_options = options(
    click.argument("names", nargs=-1, metavar="TASK...", shell_complete=complete_tasks),
    state_option,
    run_option,
    click.option(
        "--fingerprint",
        metavar="FP",
        help="All tasks that failed with this fingerprint.",
        shell_complete=complete_causes,
    ),
    click.option("--downstream", metavar="NAME", help="With --fingerprint: only tasks that call this."),
    click.option(
        "--class",
        "failure_class",
        type=click.Choice([str(one) for one in FailureClass]),
        help="Only tasks whose latest failure has this class.",
    ),
    click.option(
        "--only",
        multiple=True,
        type=click.Choice([str(one) for one in TaskState], case_sensitive=False),
        help="Only tasks in this state; repeatable.",
    ),
    click.option("--yes", is_flag=True, help="Several tasks by glob, --class or --only: do not ask."),
    reason_option,
    click.option("--dry-run", is_flag=True, help="Print the changes without making them."),
    json_option,
    ssh_options,
)
requeue_options = options(
    click.option("--canary", is_flag=True, help="One task first; the others when it has succeeded, at the rate."),
    click.option("--rate", metavar="N/s", help="At most N starts per second."),
    click.option("--not-before", metavar="DURATION", help="Start after this time."),
    click.option("--at", metavar="TIME", help="Not before this time: 06:00, or 2026-04-25T06:00."),
    click.option("--timeout", metavar="DURATION", help="A timeout for this generation alone."),
    click.option(
        "--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter for this generation alone."
    ),
    click.option("--single-shot", is_flag=True, help="One attempt only."),
    click.option("--keep-count", is_flag=True, help="Keep the failure count: no fresh budget."),
    click.option("--new-key", is_flag=True, help="A new idempotency key: repeat effects of earlier attempts."),
    click.option("--same-key", is_flag=True, help="Repeat an effect that has happened, with its idempotency key."),
    click.option("--cascade", is_flag=True, help="Also run successful descendants again."),
)


@cli.command()
@acting_options
@requeue_options
def requeue(file: NamedFile, **options: object) -> int:
    """Run tasks again, with a fresh budget.

    TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only.
    """
    from .operate import REQUEUE_OPTIONS, requeue_options_of

    extra = requeue_options_of({name: options.pop(name) for name in REQUEUE_OPTIONS})
    return _act("requeue", file, extra, options)


@cli.command()
@acting_options
@click.option("--substitute", metavar="JSON", help="What the children get instead of the result.")
def skip(file: NamedFile, substitute: str | None, **options: object) -> int:
    """Accept failures: the children run without these tasks.

    TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only.
    """
    from .operate import json_of

    extra = {} if substitute is None else {"substitute": json_of("--substitute", substitute)}
    return _act("skip", file, extra, options)


@cli.command()
@acting_options
def cancel(file: NamedFile, **options: object) -> int:
    """Stop tasks: a running attempt is ended by SIGTERM, grace, SIGKILL.

    TASK may be a glob, as 'load_*': it means tasks that have not ended, or the states given with --only.
    """
    return _act("cancel", file, {}, options)


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks)
@click.argument("duration", metavar="DURATION")
@reason_option
@run_options
def extend(file: NamedFile, duration: str, **options: object) -> int:
    """Give running tasks more time before their timeout, once: redrive extend load 10m."""
    return _act("extend", file, {"seconds": seconds_of(duration)}, {"fingerprint": None, "yes": True, **options})


@cli.command()
@click.argument("names", nargs=-1, metavar="RUN...")
@state_option
@click.option("--run", "run_ids", multiple=True, metavar="RUN", help="A run to end, as the argument.")
@click.option("--all", "everything", is_flag=True, help="Every unfinished run that no executor runs.")
@click.option(
    "--older-than", metavar="DURATION", help="With --all: only runs that started longer ago than this, as 2d."
)
@reason_option
@json_option
@ssh_options
def abandon(
    file: NamedFile,
    names: tuple[str, ...],
    run_ids: tuple[str, ...],
    everything: bool,
    older_than: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """End unfinished runs for good: what has not ended is cancelled, and the run is ABANDONED."""
    from .operate import abandon_runs

    if bool(names + run_ids) == everything:
        raise click.UsageError("name runs, or give --all")
    if older_than and not everything:
        raise click.UsageError("--older-than goes with --all")
    age_seconds = (seconds_of(older_than) if older_than else 0.0) if everything else None
    return abandon_runs(file.to_change(), names + run_ids, age_seconds, reason=reason, as_json=as_json)


@cli.command()
@click.argument("names", nargs=-1, metavar="[RUN|FLOW]...", shell_complete=complete_runs)
@state_option
@click.option("--all", "everything", is_flag=True, help="All runs of the flows; without a name, of all flows.")
@reason_option
@json_option
@ssh_options
def ack(file: NamedFile, names: tuple[str, ...], everything: bool, reason: str, as_json: bool) -> int:
    """Acknowledge runs that ended badly or late: `redrive inbox` no longer lists them."""
    from .needs import acknowledge_runs

    if not names and not everything:
        raise click.UsageError("name a run or a flow, or give --all")
    return acknowledge_runs(file, names, everything=everything, reason=reason, as_json=as_json)


@cli.command()
@reading_options
@click.option("--dry-run", is_flag=True, help="Only say which act it would be.")
@reason_option
def undo(file: NamedFile, run_id: str | None, as_json: bool, dry_run: bool, reason: str) -> int:
    """Take back the last act that can be taken back, of RUN or of any run.

    Tasks that have moved since stay as they are.
    """
    from .operate import undo_last

    return undo_last(file.to_change(), run_id, reason=reason, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("when", metavar="DURATION|TIME|never")
@reason_option
@run_options
def postpone(file: NamedFile, when: str, run_id: str | None, reason: str, as_json: bool) -> int:
    """Give a run another deadline: in 1h, at 06:00, or never.

    What the old one has cancelled runs again.
    """
    from .operate import postpone_options_of

    return _act_on_run("postpone", file, run_id, reason, as_json, postpone_options_of(when))


@cli.command()
@reading_options
@reason_option
def pause(file: NamedFile, run_id: str | None, reason: str, as_json: bool) -> int:
    """Start no more tasks; running tasks continue."""
    return _act_on_run("pause", file, run_id, reason, as_json)


@cli.command()
@reading_options
@reason_option
def unpause(file: NamedFile, run_id: str | None, reason: str, as_json: bool) -> int:
    """Start tasks again."""
    return _act_on_run("unpause", file, run_id, reason, as_json)


@cli.command()
@click.option("--drain", is_flag=True, help="Let running tasks end first, instead of sending SIGTERM.")
@click.option("--wait", is_flag=True, help="Return when the executor is gone.")
@reason_option
@file_options
def stop(file: NamedFile, drain: bool, wait: bool, reason: str, as_json: bool) -> int:
    """Stop the executor in order; its run stays unfinished, and resume goes on with it."""
    from .run import stop_executor

    return stop_executor(file.to_change(), drain=drain, wait=wait, reason=reason, as_json=as_json)


@cli.command()
@reason_option
@file_options
def reload(file: NamedFile, reason: str, as_json: bool) -> int:
    """Load changed source files of the flow in a living executor; running attempts keep the old code."""
    from .run import reload_code

    return reload_code(file.to_change(), reason=reason, as_json=as_json)


def _act(act: str, file: NamedFile, extra: Mapping[str, Json], options: dict[str, Any]) -> int:
    from .operate import ActRequest, BulkFilter, send_action

    endpoint = file.to_change()
    printed = {name: options.pop(name) for name in ("as_json", "dry_run", "yes") if name in options}
    filters = BulkFilter(options.pop("failure_class", None), options.pop("only", ()))
    request = ActRequest(act, filters=filters, options=extra, **options)
    if bool(request.names or filters) == bool(request.fingerprint):
        raise click.UsageError("name tasks, or give --fingerprint, --class or --only")
    if request.names and request.downstream:
        raise click.UsageError("--downstream goes with --fingerprint")
    return send_action(endpoint, request, **printed)


def _act_on_run(
    act: str,
    file: NamedFile,
    run_id: str | None,
    reason: str,
    as_json: bool,
    options: Mapping[str, Json] | None = None,
) -> int:
    from .operate import ActRequest, send_action

    request = ActRequest(act, run_id=run_id, reason=reason, options=options or {})
    return send_action(file.to_change(), request, as_json=as_json)


@cli.command()
@click.option(
    "--keep",
    required=True,
    metavar="DURATION|N",
    help="The runs to keep: of the last 30d, or the latest 20 of each flow.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@file_options
def prune(file: NamedFile, keep: str, dry_run: bool, as_json: bool) -> int:
    """Delete ended runs with their output, and give the space back.

    Unfinished runs, the latest run of each flow, runs with quarantined rows or dead letters, and notes stay. A run
    stays while the inbox tells how it handled a cause that waits for a human now.
    """
    from .maintenance import prune_runs

    return prune_runs(file.to_read(), keep, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("text")
@fingerprint_option
@click.option("--downstream", metavar="NAME", help="Only for tasks that call this; default: all tasks.")
@run_options
def note(
    file: NamedFile, text: str, fingerprint: str, downstream: str | None, run_id: str | None, as_json: bool
) -> int:
    """Write a note on a cause for the next operator who is paged, in this run and later ones."""
    from .operate import send_note

    return send_note(
        file.to_change(), text, run_id=run_id, fingerprint=fingerprint, downstream=downstream, as_json=as_json
    )
