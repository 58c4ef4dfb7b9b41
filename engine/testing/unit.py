"""One body of a task in a plain unit test: the context that the engine would give it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..core.outcome import Failure
from ..core.result_codec import dump_result, load_result
from ..core.spec import LOGICAL_TIME, TaskSpec
from ..runner import protocol
from ..runner.call import describe_safely
from ..runner.context import Context
from ..runner.protocol import AttemptOrder


class PlayedContext(Context):
    """The ``ctx`` of a unit test: the real one, which keeps what the body reports.

    Attributes:
        progress_reports: (done, total) of each ``progress``, in order.
        checkpoints: the values given to ``checkpoint``, in order.
        bad_rows: the rows set aside, as (key, error).
    """

    def __init__(self, order: AttemptOrder, params: Mapping[str, Any], inputs: Mapping[str, object], item: Any) -> None:
        self.progress_reports: list[tuple[int, int | None]] = []
        self.checkpoints: list[Any] = []
        self.bad_rows: list[tuple[str, str]] = []
        self.is_cancelled = False
        super().__init__(
            order,
            params,
            inputs,
            send=self._keep,
            is_cancelled=lambda: self.is_cancelled,
            describe=lambda error: describe_safely(_describe, error),
            monotonic=_Ticks().monotonic,
        )
        self.item = item

    def cancel(self) -> None:
        """Cancel the attempt: ``cancelled`` is true, and ``check`` raises."""
        self.is_cancelled = True

    def _keep(self, frame: protocol.AttemptFrame) -> None:
        if isinstance(frame, protocol.Progressed):
            self.progress_reports.append((frame.done, frame.total))
        elif isinstance(frame, protocol.Checkpointed):
            self.checkpoints.append(load_result(frame.value))
        elif isinstance(frame, protocol.Quarantined):
            self.bad_rows.append((frame.row_key, frame.error))


class _Ticks:
    """A clock on which no report comes too soon after the one before."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 10.0
        return self._seconds


def _describe(error: BaseException) -> Failure:
    from ..core.failures.failure import describe_error

    return describe_error(error)


def context(
    *,
    task: str = "task",
    run_id: str = "test",
    attempt: int = 1,
    generation: int = 0,
    params: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    item: Any = None,
    checkpointed: Any = None,
    only_rows: Mapping[str, Any] | None = None,
    earlier_result: Any = None,
    logical_time: datetime | None = None,
    max_bad_rows: int | None = None,
    max_bad_ratio: float | None = None,
) -> PlayedContext:
    """Return the ``ctx`` of one attempt, for a call of the body of a task in a unit test.

    Parameters:
        inputs: the results of the parents, by name.
        item: in a function of ``Flow.map``, the element of the list.
        checkpointed: what the attempt before has left.
        only_rows: the payloads of requeued rows, by their key; ``earlier_result``: what the task returned before.
        logical_time: the instant of the schedule, with its time zone.
        The others are attributes of ``Context`` and options of the task.

    Example:
        >>> def settle(ctx):
        ...     for number in range(ctx.checkpointed or 0, 3):
        ...         ctx.checkpoint(number + 1)
        ...     return ctx.params["day"]
        >>> ctx = context(attempt=2, params={"day": "monday"}, checkpointed=1)
        >>> settle(ctx), ctx.checkpoints
        ('monday', [2, 3])
    """
    given = dict(params or {})
    if logical_time is not None:
        given[LOGICAL_TIME] = logical_time.isoformat()
    order = AttemptOrder(
        run_id=run_id,
        task=task,
        attempt=attempt,
        generation=generation,
        token="played",
        spec=TaskSpec(task, max_bad_rows=max_bad_rows, max_bad_ratio=max_bad_ratio),
        idempotency_key=f"{run_id}/{task}/{generation}",
        only_rows=tuple((key, json.dumps(row)) for key, row in (only_rows or {}).items()),
        checkpoint=None if checkpointed is None else dump_result(checkpointed),
        earlier_result=None if earlier_result is None else dump_result(earlier_result),
    )
    return PlayedContext(order, given, dict(inputs or {}), item)
