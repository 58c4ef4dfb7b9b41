"""``redrive prune``: deletes old runs step by step, and says what that freed."""

from __future__ import annotations

import click

from ...engine.core.durations import parse_retention
from ...engine.domain.counting import counted
from ...engine.errors import RedriveError
from ...engine.statefile.changes.pruning import PrunePreview
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.durations import format_bytes
from ..text.printing import echo, echo_json
from ..text.text import one_line
from .exit_codes import ExitCode
from .output.json_schemas import with_schema


def prune_runs(endpoint: Endpoint, keep: str, *, dry_run: bool, as_json: bool) -> int:
    """Delete the runs that ``keep`` does not keep. Each step is an act, so that a running executor goes on between."""
    try:
        options = parse_retention(keep)
    except ValueError as error:
        raise click.UsageError(f"--keep: {error}") from None

    async def use(session: Session) -> tuple[PrunePreview, list[str], int]:
        before = await session.preview_prune(options)
        now, deleted = before, list[str]()
        while now.is_work_left and not dry_run:
            answer = await session.send(new_command("prune", None, options=options))
            deleted += [result.task for result in answer.results]
            if not answer.ok and not deleted:
                raise RedriveError(answer.message)
            if not answer.ok:
                break
            now = await session.preview_prune(options)
        return before, deleted, before.file_bytes - now.file_bytes

    before, deleted, freed_bytes = with_session(endpoint, use)
    if as_json:
        names = {"would_delete": before.runs} if dry_run else {"deleted": deleted, "freed_bytes": freed_bytes}
        kept = {"with_rows": before.with_rows, "with_causes": before.with_causes}
        echo_json(with_schema("prune", {"dry_run": dry_run, **names, **kept}))
        return ExitCode.SUCCESS
    if dry_run:
        for run_id in before.runs:
            echo(one_line(f"would delete {run_id}"))
        found = counted(len(before.runs), "run")
        echo(f"dry run: {found} to delete, the file has {format_bytes(before.file_bytes)}")
    else:
        echo(f"{counted(len(deleted), 'run')} deleted, {format_bytes(max(freed_bytes, 0))} freed")
    if before.with_rows:
        runs = counted(len(before.with_rows), "run")
        echo(f"kept: {runs} with quarantined rows or dead letters to decide (redrive quarantine, redrive inbox)")
    if before.with_causes:
        echo(f"kept: {counted(len(before.with_causes), 'run')} with an earlier failure of a cause in the inbox")
    return ExitCode.SUCCESS
