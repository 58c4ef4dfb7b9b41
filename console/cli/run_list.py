"""``redrive runs``: the runs of a state file and its next scheduled ones."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence

import msgspec

from ...engine.domain.states import TaskState
from ...engine.statefile import list_rows
from ..model.waiting_runs import waiting_runs
from ..present.executor_status import executor_advice, executor_json, run_status_text
from ..present.runs import place_line
from ..present.schedules import describe_missed_starts, describe_next_runs, late_us
from ..sessions.session import RunSummary, Session
from ..sessions.ssh_options import Endpoint
from ..text.durations import format_duration
from ..text.printing import json_line, table_lines
from ..text.text import one_line
from .output.follow import print_view
from .output.json_schemas import with_schema

_LATE_RUNS_MAX = 100


def print_runs(endpoint: Endpoint, as_json: bool, *, follow: bool = False) -> int:
    """Print one line per run, the latest first."""

    async def read(session: Session) -> list[str]:
        schedule_lines, summaries = await _schedule_lines(session), await session.runs()
        status, address, now_us = session.status, session.address, _now_us()
        if as_json:
            return [
                json_line(_run_value(one, executor_json(one.run, status, address, now_us), address))
                for one in summaries
            ]
        rows: list[Sequence[str]] = [("RUN", "FLOW", "STATE", "TASKS", "OK", "DEAD", "ELAPSED", "")]
        rows += [(*_run_row(one), executor_advice(one.run, status, address, now_us)) for one in summaries]
        waiting = len(waiting_runs(summaries, session.status))
        needs = [f"{waiting} run{' needs' if waiting == 1 else 's need'} a human: {_inbox_command(address)}"]
        return [place_line(None, address), *table_lines(rows), *(needs if waiting else []), *schedule_lines]

    return print_view(endpoint, read, follow=follow, as_json=as_json)


def _inbox_command(address: str) -> str:
    return one_line(shlex.join(["redrive", "inbox", address]))


def _run_value(summary: RunSummary, executor: Mapping[str, object], address: str) -> dict[str, object]:
    counts = {"counts": summary.counts, "dead_letters": summary.dead_letters}
    place = {"executor": executor, "state_file": address}
    return with_schema(
        "runs", {**msgspec.to_builtins(summary.run), "state": run_status_text(summary.run), **counts, **place}
    )


async def _schedule_lines(session: Session) -> list[str]:
    """Lines about the next scheduled runs, whether a process serves them, and runs that started late."""
    unserved = "; no process serves it" if session.status.service_pid is None else ""
    coming = [f"{words}{unserved}" for words in describe_next_runs(await session.query(list_rows.SCHEDULES), _now_us())]
    return coming + describe_missed_starts(await session.query(list_rows.SLA, limit=_LATE_RUNS_MAX), _now_us())


def _run_row(summary: RunSummary) -> tuple[str, ...]:
    run, counts = summary.run, summary.counts
    elapsed_us = (run.ended_at or _now_us()) - run.started_at
    total, done = sum(counts.values()), counts.get(TaskState.SUCCESS, 0)
    late = late_us(run, _now_us())
    elapsed = f"{format_duration(elapsed_us)}, late {format_duration(late)}" if late else format_duration(elapsed_us)
    return (run.run_id, run.dag_name, run_status_text(run), str(total), str(done), str(summary.dead_letters), elapsed)


def _now_us() -> int:
    return time.time_ns() // 1000
