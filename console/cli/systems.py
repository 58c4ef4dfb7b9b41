"""``redrive systems``: breakers, pages, rows and pools: what stands around downstreams, and acts on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import click

from ...engine.core.projection import RunProjection
from ...engine.domain.acts import Command, Target
from ...engine.domain.event_payloads import RowsChange
from ...engine.domain.rows import PageRow
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.domain.text import advised, format_duration, shell_command
from ...engine.errors import RedriveError
from ...engine.notifications.machine_pages import flows_notified
from ...engine.statefile.lists import BREAKERS, PAGES, QUARANTINE, QuarantineRow
from ...engine.statefile.paths import default_folder
from ...engine.store.machine import PoolEntry, read_pools
from ..model.board import Board
from ..model.systems import callers_of, counted_breakers
from ..present.runs import place_line
from ..present.systems import BREAKER_COLUMNS, PAGE_COLUMNS, ROW_COLUMNS
from ..sessions.address import Endpoint
from ..sessions.once import read_once, with_session
from ..sessions.session import Session, board_query, machine_now_us, new_command, rows_query
from ..sessions.target import MACHINE, name_run, run_in
from ..text.columns import Columns, field
from ..text.system_events import UNSENT_UNTIL
from ..text.text import echo, is_remote, one_line
from . import operate
from .group import CommandWithCommands, ExitCode, code_of_answers, command_with_commands
from .options import NamedFile, TargetWords, dry_run_option, json_option, of_run, reason_option, rows_like, seconds_of
from .output import print_list, shell_context

_NO_BREAKER, _NO_ROW = "no task of this run names a downstream", "no row is in quarantine"


class SystemsGroup(CommandWithCommands):
    """``redrive systems FLOW`` is short for ``redrive systems all FLOW``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of a line; one that names no list is of all."""
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if not is_named and (listing := next((word for word in args if word in self.commands), None)) is not None:
            line = shell_command(["redrive", "systems", listing, *(word for word in args if word != listing)])
            raise click.UsageError(f"the name of the list comes first: {line}")
        if args and not is_named and not args[0].startswith("-") and not _is_flow(args[0]):
            self.refuse_mistyped(ctx, args[0], f"there is no flow or list {args[0]!r}")
        return super().parse_args(ctx, args if is_named else ["all", *args])


def _is_flow(word: str) -> bool:
    named = name_run(word, MACHINE)
    return named.state is None or MACHINE.is_place(named.state)


@command_with_commands("systems", SystemsGroup)
def systems() -> None:
    """Without the name of a list, all of them: redrive systems [FLOW[@RUN]]."""


@systems.command("all", hidden=True)
@of_run
@json_option
def print_all(file: NamedFile, as_json: bool) -> int:
    """Breakers, pages and rows of a run, and the pools of this machine."""
    endpoint = file.to_read()

    async def use(session: Session) -> None:
        board = Board(await session.snapshot(session.run_id))
        board.update_lists(await session.rows(BREAKERS))
        if not as_json:
            echo(place_line(board.projection.run, session.address))
        _print_breakers(board, as_json, session.now_us())
        await _print_pages(session, endpoint, None, as_json=as_json)
        await _print_rows(session, board.projection, (), as_json=as_json)

    read_once(endpoint, use, [board_query(), rows_query(BREAKERS), rows_query(PAGES)])
    return ExitCode.SUCCESS if is_remote(endpoint.target) else _print_pools(as_json)


# --- ``redrive systems breakers``: lists circuit breakers, and sets them by hand -------------------------------------


@systems.command("breakers")
@of_run
@json_option
@click.option("--open", multiple=True, metavar="DOWNSTREAM", help="Let no call through until you close it.")
@click.option("--close", multiple=True, metavar="DOWNSTREAM", help="Let calls through, and forget failures.")
@click.option("--probe", multiple=True, metavar="DOWNSTREAM", help="Let one call through to test it.")
@click.option("--disable", multiple=True, metavar="DOWNSTREAM", help="Let every call through, also after failures.")
@reason_option
def list_or_set_breakers(file: NamedFile, as_json: bool, reason: str, **named: Sequence[str]) -> int:
    """Circuit breakers and retry budgets: which tasks they hold, and until when."""
    acts = [(how, downstream) for how in ("open", "close", "probe", "disable") for downstream in named[how]]
    endpoint = file.to_change() if acts else file.to_read()

    async def use(session: Session) -> int:
        board = Board(await session.snapshot(session.run_id))
        run = board.projection.run
        answers = []
        for how, name in acts:
            command = new_command("breaker", run.run_id, (), reason, {"downstream": name, "how": how})
            answers.append(await session.send(command))
            operate.print_answer(answers[-1], as_json, operate.place_of(session, run))
        if not acts:
            board.update_lists(await session.rows(BREAKERS))
            if not as_json:
                echo(place_line(run, session.address))
            _print_breakers(board, as_json, session.now_us())
        return code_of_answers(*answers)

    reach = with_session if acts else read_once
    return reach(endpoint, use, [board_query(), rows_query(BREAKERS)])


def _print_breakers(board: Board, as_json: bool, now_us: int) -> None:
    breakers = [*counted_breakers(board, callers_of(board), now_us).values()]
    print_list("breakers", BREAKER_COLUMNS, breakers, shell_context(now_us), as_json=as_json, empty=_NO_BREAKER)


# --- ``redrive systems pages``: lists, acknowledges and snoozes pages ------------------------------------------------


@systems.command("pages")
@of_run
@json_option
@click.option("--all", "everything", is_flag=True, help="Also resolved pages.")
@click.option("--ack", type=int, multiple=True, metavar="ID", help="Acknowledge it: stop paging for its cause.")
@click.option("--snooze", type=(int, str), multiple=True, metavar="ID DURATION", help="Page again after this time.")
@click.option("--test", "is_test", is_flag=True, help="Send a test message by each sender of the flow.")
def list_or_update_pages(
    file: NamedFile,
    as_json: bool,
    everything: bool,
    ack: Sequence[int],
    snooze: Sequence[tuple[int, str]],
    is_test: bool,
) -> int:
    """Pages: their causes, and whether they were sent."""
    if is_test:
        if ack or snooze or everything or as_json:
            raise click.UsageError("--test sends a message: leave the other options out")
        return _test_senders(file.to_read())
    acts: list[tuple[str, int, dict[str, object]]] = [("ack", page, {}) for page in ack]
    acts += [("snooze", page, {"seconds": seconds_of(duration, "--snooze")}) for page, duration in snooze]
    endpoint = file.to_change() if acts else file.to_read()

    async def use(session: Session) -> int:
        run = None if session.run_id is None else (await session.part(session.run_id, ())).run
        commands = [new_command(act, None, options={"pages": [page], **more}) for act, page, more in acts]
        answers = [await session.send(command) for command in commands]
        if not as_json:
            echo(place_line(run, session.address))
        if as_json or not acts:
            await _print_pages(session, endpoint, run and run.run_id, as_json=as_json, everything=everything)
        for (act, page, _), answer in zip(acts, answers, strict=True):
            echo(f"{act} {page}: {answer.message}", err=as_json)
        return code_of_answers(*answers)

    reach = with_session if acts else read_once
    return reach(endpoint, use, [rows_query(PAGES)])


def _test_senders(endpoint: Endpoint) -> int:
    """Send a test message by each sender of the flow file of a run; exit code 1 if one of them does not take it."""
    from ...engine.asyncio_log import run_with_log  # here: both import the event loop
    from ...engine.executor.page_test import try_senders

    if is_remote(endpoint.target):
        raise click.UsageError("--test reads the flow file: run it on that host")
    run_id = None if endpoint.run is None else run_in(endpoint.target, endpoint.run)
    flow, results = run_with_log(try_senders(os.path.abspath(endpoint.target), run_id))
    if not results:
        echo(f"{one_line(flow)} names no sender of pages (flow.page)")
    for one in results:
        echo(one_line(f"{one.sender}: {one.error or one.note or 'accepted'}"))
    return ExitCode.FAILED if any(one.error for one in results) or not results else ExitCode.SUCCESS


def _with_others(row: PageRow, endpoint: Endpoint) -> PageRow:
    """A page with the other flows of this machine that have its cause."""
    fingerprint = row.body.get("fingerprint")
    if is_remote(endpoint.target) or row.state == "resolved" or not fingerprint:
        return row
    folder = os.path.join(default_folder(), "pages")
    others = flows_notified(folder, str(fingerprint), os.path.abspath(endpoint.target))
    return row._replace(title=f"{row.title} (also in flows {', '.join(others)})") if others else row


async def _print_pages(
    session: Session, endpoint: Endpoint, run_id: str | None, *, as_json: bool, everything: bool = False
) -> None:
    """Print the pages of a run, or of all; with ``everything``, also those that are resolved."""
    found = [row for row in await session.rows(PAGES) if everything or row.state != "resolved"]
    rows = [_with_others(row, endpoint) for row in found if run_id in (None, row.run_id)]
    context = shell_context(session.now_us())
    print_list("pages", PAGE_COLUMNS, rows, context, as_json=as_json, empty="no pages are open")
    if not as_json and any(row.is_unsent for row in rows):
        echo(f"unsent: {'the executor goes on trying' if session.status.executor.alive else UNSENT_UNTIL}")


# --- ``redrive systems rows``: lists, requeues and discards quarantined rows -----------------------------------------


EVERY_ROW = "all"
_ROWS_AT_ONCE = 1000


_RESULT_NOTE = (
    "the tasks below get what a task returns for these rows alone, unless it adds ctx.earlier_result"
    " (redrive help recipes)"
)


@systems.command("rows")
@TargetWords(tasks=True, acts=("requeue", "discard")).declare
@json_option
@click.option("--task", hidden=True)
@click.option("--all", "everything", is_flag=True, help="Also rows that were resolved, dropped or discarded.")
@click.option("--requeue", multiple=True, metavar="ROW_KEY", help="Run its task again over this row, or 'all' rows.")
@click.option("--discard", multiple=True, metavar="ROW_KEY", help="Discard this row, or 'all' rows.")
@click.option("--cascade", is_flag=True, help="With --requeue: run the successful tasks below again, too.")
@click.option("--same-key", is_flag=True, help="With --cascade: also effects that have happened, with their keys.")
@click.option("--new-key", is_flag=True, help="With --cascade: also effects that have happened, with new keys.")
@dry_run_option
@reason_option
def quarantine(
    file: NamedFile,
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
    if requeue and discard:
        raise click.UsageError("either --requeue or --discard")
    options = {name: True for name, is_given in flags.items() if is_given}  # cascade, same_key, new_key
    if flags["cascade"] and not requeue:
        raise click.UsageError("--cascade belongs to --requeue")
    if options and not flags["cascade"]:
        raise click.UsageError("--same-key and --new-key belong to --cascade")
    tasks = (*file.tasks, *filter(None, [task]))
    if not (requeue or discard):
        return _list_rows(file.to_read(), tasks, as_json=as_json, everything=everything)
    act, keys = ("requeue-rows", requeue) if requeue else ("discard-rows", discard)
    endpoint = file.to_change()

    async def build(session: Session) -> operate.BuiltCommand:
        projection = await session.snapshot(session.run_id)
        listing = advised("systems rows", session.address, projection.run.run_id, session.ssh_arguments)
        rows = select_rows(await _read(session, projection, tasks), keys, listing)
        return operate.BuiltCommand(_command(act, projection, rows, reason, options), projection.run)

    request = operate.ActRequest(act, tasks, reason, options=None, as_json=as_json, dry_run=dry_run)
    code = operate.send_action(endpoint, request, build)
    if requeue and not as_json and not dry_run and code != ExitCode.FAILED:
        read_once(endpoint, partial(_print_stale, has_cascade=flags["cascade"]))
    return code


async def _print_stale(session: Session, *, has_cascade: bool) -> None:
    """Say what the tasks below get, and what to do about those that ran with the result from before the rows."""
    run = (projection := await session.snapshot(session.run_id)).run
    stale = [row.name for row in projection.tasks.values() if row.stale]
    if stale or has_cascade:
        echo(_RESULT_NOTE)
    if stale:
        command = advised("requeue", session.address, run.run_id, [*session.ssh_arguments, *stale])
        echo(one_line(f"stale, for they ran without these rows: {command} runs them again"))


def _list_rows(endpoint: Endpoint, tasks: Sequence[str], *, as_json: bool, everything: bool) -> int:
    """List the rows of a run that wait for a decision; with ``everything``, all."""

    async def use(session: Session) -> None:
        projection = await session.snapshot(session.run_id)
        if not as_json:
            echo(place_line(projection.run, session.address))
        await _print_rows(session, projection, tasks, as_json=as_json, everything=everything)

    read_once(endpoint, use, [board_query()])
    return ExitCode.SUCCESS


async def _print_rows(
    session: Session, projection: RunProjection, tasks: Sequence[str], *, as_json: bool, everything: bool = False
) -> None:
    rows = _shown(await _read(session, projection, tasks), projection, everything)
    print_list("quarantine", ROW_COLUMNS, rows, shell_context(session.now_us()), as_json=as_json, empty=_NO_ROW)


def _shown(rows: Iterable[QuarantineRow], projection: RunProjection, everything: bool) -> list[QuarantineRow]:
    """The rows that wait for a decision, and those for which their task failed: by default without what is past."""
    failed = {(task.name, task.attempt) for task in projection.tasks.values() if task.state in NEEDS_HUMAN}
    return [
        row
        for row in rows
        if everything
        or row.state in (RowsChange.HELD, RowsChange.REQUEUED)
        or (row.state == RowsChange.DROPPED and (row.name, row.attempt) in failed)
    ]


async def _read(session: Session, projection: RunProjection, tasks: Sequence[str]) -> list[QuarantineRow]:
    """The rows of a run, of the tasks of these names and globs."""
    names = [row.name for row in rows_like(projection, tasks)] if tasks else []
    task = names[0] if len(names) == 1 else None
    rows: list[QuarantineRow] = []
    while True:
        after = rows[-1].id if rows else 0
        found = await session.rows(
            QUARANTINE, run_id=projection.run.run_id, task=task, after=after, limit=_ROWS_AT_ONCE
        )
        rows += found
        if len(found) < _ROWS_AT_ONCE:
            return [row for row in rows if not names or row.name in names]


def select_rows(rows: Iterable[QuarantineRow], keys: Sequence[str], listing: str) -> list[QuarantineRow]:
    """The held rows with these keys; later rows are not included. Raises RedriveError.

    ``listing``: the command that shows the rows of the run.
    """
    held = [row for row in rows if row.state == "held"]
    wanted = set(keys)
    unknown = wanted - {row.row_key for row in held} - {EVERY_ROW}
    if unknown:
        raise RedriveError(f"no row with the key {sorted(unknown)[0]!r} is held; see: {listing}")
    if not held:
        raise RedriveError("no row is held in quarantine")
    return [row for row in held if EVERY_ROW in wanted or row.row_key in wanted]


def _command(
    act: str, projection: RunProjection, rows: Sequence[QuarantineRow], reason: str, given: Mapping[str, bool]
) -> Command:
    names = dict.fromkeys(row.name for row in rows)
    seen = (projection.tasks[name] for name in names)
    targets = [Target(row.name, str(row.state), row.generation) for row in seen]
    options = {"rows": [row.id for row in rows], **given}
    return new_command(act, projection.run.run_id, targets, reason, options)


# --- ``redrive systems pools``: who holds slots in the pools of this machine, and who waits for them -----------------


POOL_COLUMNS: Columns[PoolEntry, int] = (
    field("pool", "POOL"),
    field("slot", "SLOT", lambda entry, now_us: "waits" if entry.slot is None else str(entry.slot + 1)),
    field("task", "TASK"),
    field("flow", "FLOW"),
    field("run_id", "RUN"),
    field("state_file"),
    field("pid", "PID"),
    field("since", "FOR", lambda entry, now_us: format_duration(max(0, now_us - entry.since))),
)


@systems.command("pools")
@json_option
def list_pools(as_json: bool) -> int:
    """Slots in the pools of this machine: who holds them, and who waits."""
    return _print_pools(as_json)


def _print_pools(as_json: bool) -> int:
    empty = "no pool of this machine is in use: flows declare them by Flow(machine_pools={...})"
    print_list("pools", POOL_COLUMNS, read_pools(), machine_now_us(), as_json=as_json, empty=empty)
    return ExitCode.SUCCESS
