"""The report of a run that nobody watches and that has not succeeded: each cause, and the commands to type."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ...engine.core.projection import RunProjection
from ...engine.core.waiting import waits_for_approval
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.domain.text import advised
from ...engine.executor.run_end import RunResult
from ..keys.actions import shell_line
from ..model.inbox import Inbox, InboxCause
from ..present.runs import deadline_note
from ..sessions.address import Endpoint
from ..sessions.once import read_once
from ..sessions.reads import OutputReader, load_memories
from ..sessions.session import Session
from ..text.pieces import plain
from ..text.text import one_line
from .listings import cause_lines, load_board

CAUSES_MAX = 10  # the others are counted
CAUSE_LINES_MAX = 12
OUTPUT_LINES = 20  # at the end of a task's output


def report_lines(path: str, result: RunResult, *, has_output: bool) -> list[str]:
    """The lines about a run. ``path``: whole, for its reader is in another folder."""
    return read_once(Endpoint(path), lambda session: _report(session, path, result, has_output=has_output))


async def _report(session: Session, state: str, result: RunResult, *, has_output: bool) -> list[str]:
    """The causes, and the commands that show the run and decide about it."""
    projection = await session.snapshot(result.run_id)
    causes = Inbox(await load_board(session, projection)).causes()
    known = await load_memories(session, result.run_id, causes[:CAUSES_MAX])
    how = "interrupted" if result.interrupted else f"{result.state}{deadline_note(projection.run)}"
    lines = ["", f"run {one_line(result.run_id)} of {one_line(projection.run.dag_name)}: {how}, in {state}"]
    for cause in causes[:CAUSES_MAX]:
        about = [plain(line) for line in cause_lines(cause, projection, known.get(cause.key), session.now_us())]
        hidden = len(about) - CAUSE_LINES_MAX
        lines += ["", *about[:CAUSE_LINES_MAX], *([f"  ... {hidden} more lines"] if hidden > 0 else [])]
        if has_output:
            lines += [f"  {cause.tasks[0]} | {text}" for text in await _output_end(session, projection, cause.tasks[0])]
        lines += [f"  {line}" for line in _commands(cause, projection, state, result.run_id)]
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


def _commands(cause: InboxCause, projection: RunProjection, state: str, run_id: str) -> Iterator[str]:
    """The commands that decide about a cause; of another wait, as of a pause, its message names the command."""
    row = projection.tasks[cause.tasks[0]]
    if row.attempts:
        yield advised("logs", state, run_id, ["--", row.name])
    decided = (("requeue", "after a fix"), ("skip", "accepted")) if row.state in NEEDS_HUMAN else ()
    answers = (("approve", "as it should be"), ("reject", "not as it should be")) if waits_for_approval(row) else ()
    for act, reason in (*decided, *answers):
        line = shell_line(act, state, run_id, cause.tasks, reason, {"resume": True})  # nobody runs it now
        if line is not None:
            yield line
