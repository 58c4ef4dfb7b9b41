"""``redrive demo`` without a terminal: runs the flow with a scripted operator, and checks the result.

The script sends commands to the executor, as a person would: it requeues the poisoned task and the quarantined rows,
whose data is fixed by then, and skips the task without access.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from ...engine.agent.command_client import send_blocking
from ...engine.domain.acts import Target
from ...engine.domain.event_payloads import RunChange, RunChanged
from ...engine.domain.events import Event
from ...engine.domain.states import RunState
from ...engine.executor.executor import Executor
from ...engine.executor.run_options import RunOptions
from ...engine.statefile.lists import QUARANTINE, query
from ...engine.store import database
from ..sessions.session import new_command
from .event_lines import EventPrinter

#: The acts when the run is blocked: act, task, expected state, reason.
SCRIPT = (
    ("requeue-rows", "import_customers", "SUCCESS", "the countries are filled in now"),
    ("requeue", "settle", "DEAD_LETTER", "the payments of today are loaded"),
    ("skip", "fetch_invoices", "DEAD_LETTER", "partner gives no access before Monday"),
)


def run_scripted(flow: str, state: str, options: RunOptions) -> int:
    """Run the demo with a scripted operator. Exit code 0 if the run ends as expected."""
    operator = ScriptedOperator(state)
    executor = Executor(flow=flow, state=state, options=options, on_events=operator.on_events, handle_signals=True)
    result = executor.run_result()
    return 0 if result.run_state is RunState.PARTIAL and not operator.refused else 1


class ScriptedOperator:
    """Prints like ``--plain``, and acts once the run is blocked."""

    def __init__(self, state: str) -> None:
        self.refused: list[str] = []
        self._state = state
        self._printer = EventPrinter(sys.stdout)
        self._acting: asyncio.Task[None] | None = None

    def on_events(self, events: Sequence[Event]) -> None:
        """Print events, and start to act when the run is blocked."""
        self._printer.print_events(events)
        for event in events:
            is_blocked = isinstance(event.payload, RunChanged) and event.payload.what == RunChange.BLOCKED
            if is_blocked and self._acting is None:
                self._acting = asyncio.get_running_loop().create_task(self._act(str(event.run_id)))

    async def _act(self, run_id: str) -> None:
        for act, task, state, reason in SCRIPT:
            options = {"rows": self._held_rows(run_id)} if act == "requeue-rows" else {}
            seen = (Target(task, state, 0),)
            command = new_command(act, run_id, seen, reason, options)
            answer = await asyncio.to_thread(send_blocking, self._state, command)
            if not answer.ok:
                self.refused.append(answer.message)

    def _held_rows(self, run_id: str) -> list[int]:
        """The ids of held rows, read from the state file."""
        with database.reading(self._state) as connection:
            rows = query(connection, QUARANTINE, {"run_id": run_id})
        return [row.id for row in rows if row.state == "held"]
