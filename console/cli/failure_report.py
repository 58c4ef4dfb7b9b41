"""The report of a run that nobody watches and that has not succeeded: each cause, and the commands to type."""

from __future__ import annotations

from collections import deque

from ...engine.core.projection import RunProjection
from ...engine.domain.text import advised
from ...engine.executor.run_end import RunResult
from ..model.inbox import Inbox
from ..present.runs import deadline_note
from ..sessions.address import Endpoint
from ..sessions.cause_histories import load_cause_histories
from ..sessions.once import read_once
from ..sessions.output_reader import OutputReader
from ..sessions.session import Session
from ..text.pieces import plain
from ..text.text import one_line
from .listings import act_lines, cause_lines, load_board

CAUSES_MAX = 10  # the others are counted
CAUSE_LINES_MAX = 12
OUTPUT_LINES = 20  # at the end of a task's output
REASONS = {
    "requeue": "after a fix",
    "skip": "accepted",
    "approve": "as it should be",
    "reject": "not as it should be",
}


def report_lines(path: str, result: RunResult, *, has_output: bool) -> list[str]:
    """The lines about a run. ``path``: whole, for its reader is in another folder."""
    return read_once(Endpoint(path), lambda session: _report(session, path, result, has_output=has_output))


async def _report(session: Session, state: str, result: RunResult, *, has_output: bool) -> list[str]:
    """The causes, and the commands that show the run and decide about it."""
    projection = await session.snapshot(result.run_id)
    causes = Inbox(await load_board(session, projection)).causes()
    known = await load_cause_histories(session, result.run_id, causes[:CAUSES_MAX])
    how = "interrupted" if result.interrupted else f"{result.state}{deadline_note(projection.run)}"
    lines = ["", f"run {one_line(result.run_id)} of {one_line(projection.run.dag_name)}: {how}, in {state}"]
    for cause in causes[:CAUSES_MAX]:
        about = [plain(line) for line in cause_lines(cause, projection, known.get(cause.key), session.now_us())]
        hidden = len(about) - CAUSE_LINES_MAX
        lines += ["", *about[:CAUSE_LINES_MAX], *([f"  ... {hidden} more lines"] if hidden > 0 else [])]
        if has_output:
            lines += [f"  {cause.tasks[0]} | {text}" for text in await _output_end(session, projection, cause.tasks[0])]
        if projection.tasks[cause.tasks[0]].attempts:
            lines.append(f"  {advised('logs', state, result.run_id, ['--', cause.tasks[0]])}")
        lines += act_lines(cause, projection, session, REASONS)
    if len(causes) > CAUSES_MAX:
        lines += ["", f"{len(causes) - CAUSES_MAX} more causes: {advised('inbox', state, result.run_id)}"]
    return [*lines, "", advised("attach", state, result.run_id)]


async def _output_end(session: Session, projection: RunProjection, name: str) -> list[str]:
    """The last lines of the latest attempt of a task."""
    attempt = max(projection.tasks[name].attempts, default=None)
    if attempt is None:
        return []
    lines: deque[str] = deque(maxlen=OUTPUT_LINES)
    async for line in OutputReader(session, projection.run.run_id, name, attempt).read_new(is_ended=True):
        if not line.dropped_bytes:
            lines.append(line.text)
    return list(lines)
