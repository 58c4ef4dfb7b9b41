"""``redrive quarantine``: lists, requeues and discards quarantined rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from ...engine.core.projection import RunProjection
from ...engine.domain.command import Answer, Command, Target
from ...engine.domain.event_changes import RowsChange
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.errors import RedriveError
from ...engine.statefile.changes.dry_run import ActPreview
from ...engine.statefile.list_rows import QUARANTINE, QuarantineRow
from ..present.runs import place_line
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.printing import echo, print_table
from ..text.text import one_line
from .exit_codes import ExitCode, code_of_answers
from .operate import ActPlace, place_of, print_answer, print_preview, print_resume_hint, require_reason
from .output.json_schemas import echo_values

EVERY_ROW = "all"
_ROWS_AT_ONCE = 1000


_RESULT_NOTE = (
    "the tasks below get what a task returns for these rows alone, unless it adds ctx.earlier_result"
    " (redrive help recipes)"
)


def list_rows(endpoint: Endpoint, run_id: str | None, as_json: bool, *, task: str | None, everything: bool) -> int:
    """List the rows of a run that wait for a decision; with ``everything``, all."""

    async def use(session: Session) -> tuple[list[QuarantineRow], str]:
        projection = await session.snapshot(run_id)
        rows = await _read(session, projection.run.run_id, task)
        return _shown(rows, projection, everything), place_line(projection.run, session.address)

    rows, place = with_session(endpoint, use)
    if not as_json:
        echo(place)
    _print(rows, as_json)
    return ExitCode.SUCCESS


def decide_rows(
    endpoint: Endpoint,
    run_id: str | None,
    as_json: bool,
    act: str,
    keys: Sequence[str],
    *,
    task: str | None,
    options: Mapping[str, bool],
    reason: str,
    dry_run: bool = False,
) -> int:
    """Requeue or discard the rows with the given keys. Exit code 1 if nothing was done.

    ``options``: of the act; ``dry_run``: print the changes without making them.
    """
    if dry_run:
        return _preview(endpoint, run_id, as_json, act, keys, task=task, options=options)
    require_reason(act, reason)

    async def use(session: Session) -> tuple[Answer, ActPlace, list[str]]:
        projection = await session.snapshot(run_id)
        rows = select_rows(await _read(session, projection.run.run_id, task), keys)
        answer = await session.send(_command(act, projection, rows, reason, options))
        now = await session.snapshot(projection.run.run_id)
        return answer, place_of(session, projection.run), [row.name for row in now.tasks.values() if row.stale]

    answer, place, stale = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    if answer.ok and act == "requeue-rows" and not as_json and (stale or options.get("cascade")):
        echo(_RESULT_NOTE)
    if answer.ok and stale and not as_json:
        echo(_stale_sentence(stale, place))
    print_resume_hint(act, answer, place)
    return code_of_answers(answer)


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


def _stale_sentence(names: Sequence[str], place: ActPlace) -> str:
    """What to do about tasks that ran with the result from before these rows."""
    run = [] if place.run is None else ["--run", place.run.run_id]
    command = shlex.join(["redrive", "requeue", "--state", place.address, *run, *names])
    return one_line(f"stale, for they ran without these rows: {command} runs them again")


async def _read(session: Session, run_id: str, task: str | None) -> list[QuarantineRow]:
    rows: list[QuarantineRow] = []
    while True:
        after = rows[-1].id if rows else 0
        found = await session.query(QUARANTINE, run_id=run_id, task=task, after=after, limit=_ROWS_AT_ONCE)
        rows += found
        if len(found) < _ROWS_AT_ONCE:
            return rows


def select_rows(rows: Iterable[QuarantineRow], keys: Sequence[str]) -> list[QuarantineRow]:
    """The held rows with these keys; later rows are not included. Raises RedriveError."""
    held = [row for row in rows if row.state == "held"]
    wanted = set(keys)
    unknown = wanted - {row.row_key for row in held} - {EVERY_ROW}
    if unknown:
        raise RedriveError(f"no row with the key {sorted(unknown)[0]!r} is held; see: redrive quarantine")
    if not held:
        raise RedriveError("no row is held in quarantine")
    return [row for row in held if EVERY_ROW in wanted or row.row_key in wanted]


def _preview(
    endpoint: Endpoint,
    run_id: str | None,
    as_json: bool,
    act: str,
    keys: Sequence[str],
    *,
    task: str | None,
    options: Mapping[str, bool],
) -> int:
    async def use(session: Session) -> tuple[ActPreview, ActPlace]:
        projection = await session.snapshot(run_id)
        rows = select_rows(await _read(session, projection.run.run_id, task), keys)
        command = _command(act, projection, rows, "", options)
        return await session.preview(command), place_of(session, projection.run)

    preview, place = with_session(endpoint, use)
    print_preview(preview, as_json, place)
    return ExitCode.SUCCESS if preview.ok else ExitCode.FAILED


def _command(
    act: str, projection: RunProjection, rows: Sequence[QuarantineRow], reason: str, given: Mapping[str, bool]
) -> Command:
    names = dict.fromkeys(row.name for row in rows)
    seen = (projection.tasks[name] for name in names)
    targets = [Target(row.name, str(row.state), row.generation) for row in seen]
    options = {"rows": [row.id for row in rows], **given}
    return new_command(act, projection.run.run_id, targets, reason, options)


def _print(rows: Sequence[QuarantineRow], as_json: bool) -> None:
    if as_json:
        echo_values("quarantine", (row._asdict() for row in rows))
        return
    if not rows:
        echo("no row is in quarantine")
        return
    lines: list[Sequence[str]] = [("TASK", "ROW", "STATE", "ATTEMPT", "ERROR")]
    lines += [(row.name, row.row_key, row.state, str(row.attempt), row.error or "") for row in rows]
    print_table(lines)
