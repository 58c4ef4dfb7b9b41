"""Deletes old runs after a run, while this executor still owns the state file (``Flow(retention=...)``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..core.spec import FlowSpec
from ..domain.command import Answer, Author
from ..domain.counting import counted
from ..domain.event_payloads import OperatorActed
from ..errors import StorageError
from ..statefile.changes.pruning import PruneStep, RetentionRule, prune_step
from ..statefile.changes.transitions import Transaction
from ..store.writer import Writer

APPLY_SECONDS = 10.0  # after each run; the next run goes on with what is left
RETENTION = Author("retention")


async def apply_retention(writer: Writer, flow: FlowSpec, run_id: str, is_stopping: Callable[[], bool]) -> None:
    """Delete what the flow's retention does not keep, in steps, until a stop is requested or APPLY_SECONDS are over."""
    keep = RetentionRule(flow.retention_runs, flow.retention_seconds)
    if keep == RetentionRule():
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + APPLY_SECONDS
    while loop.time() < end and not is_stopping():
        try:
            step = await writer.submit(lambda transaction: _step(transaction, keep, run_id))
        except StorageError:  # the run has ended; the next one goes on here
            return
        if step.is_last:
            return


def _step(transaction: Transaction, keep: RetentionRule, run_id: str) -> PruneStep:
    """One step, with an event if it deletes runs."""
    step = prune_step(transaction, keep, run_id)
    if step.runs:
        transaction.author = RETENTION
        count = len(step.runs)
        answer = Answer(True, f"{counted(count, 'run')} deleted")
        transaction.emit(OperatorActed("prune", dict(keep._asdict()), answer.as_json()))
    return step
