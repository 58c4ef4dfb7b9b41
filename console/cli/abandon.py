"""``redrive abandon``: ends unfinished runs that will not be resumed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ...engine.domain.command import Answer
from ...engine.errors import RedriveError
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import RunSummary, Session
from ..sessions.ssh_options import Endpoint
from ..text.printing import echo
from .exit_codes import code_of_answers
from .operate import ActPlace, place_of, print_answer


def abandon_runs(
    endpoint: Endpoint, run_ids: Sequence[str], older_than_seconds: float | None, *, reason: str, as_json: bool
) -> int:
    """Abandon each unfinished run that is so old and that no executor runs; with None, the runs ``run_ids``."""

    async def use(session: Session) -> list[tuple[Answer, ActPlace]]:
        summaries = await session.runs()
        if older_than_seconds is None:
            chosen = _named(summaries, run_ids)
        else:
            own = session.status.executor_run_id if session.status.executor_alive else None
            chosen = _chosen(summaries, own, time.time_ns() // 1000 - round(older_than_seconds * 1e6))
        return [
            (await session.send(new_command("abandon", one.run.run_id, (), reason)), place_of(session, one.run))
            for one in chosen
        ]

    answers = with_session(endpoint, use)
    for answer, place in answers:
        print_answer(answer, as_json, place)
    if not answers and not as_json:
        echo("no run is unfinished without an executor")
    return code_of_answers(*(answer for answer, _ in answers))


def _chosen(summaries: Iterable[RunSummary], own_run_id: str | None, started_before: int) -> list[RunSummary]:
    return [
        one
        for one in summaries
        if one.run.ended_at is None and one.run.run_id != own_run_id and one.run.started_at <= started_before
    ]


def _named(summaries: Iterable[RunSummary], run_ids: Iterable[str]) -> list[RunSummary]:
    known = {one.run.run_id: one for one in summaries}
    for run_id in run_ids:
        if run_id not in known:
            raise RedriveError(f"there is no run {run_id!r} in this state file; see: redrive runs")
    return [known[run_id] for run_id in dict.fromkeys(run_ids)]
