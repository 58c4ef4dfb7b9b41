"""What a task may ask of the engine while it runs: the ``ctx`` argument of a task function."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from .core.outcome import Failure, FailureClass
from .errors import NotReady, PermanentError, SkipTask, TaskTerminated
from .runner import protocol

RowValue = TypeVar("RowValue")

PROGRESS_INTERVAL = 0.1  # seconds: a task may report each row, the executor hears of it ten times a second
BEAT_INTERVAL = 1.0
PAYLOAD_LIMIT = 16 * 1024  # characters of a quarantined row
KEY_LIMIT = 500
ERROR_LIMIT = 2000

#: These say something about the world, not about the row at hand: the attempt fails and is judged as a whole.
_NOT_OF_THE_ROW = frozenset(
    [FailureClass.TRANSIENT, FailureClass.AUTH, FailureClass.TIMEOUT, FailureClass.OUT_OF_MEMORY]
)


class TooManyBadRows(PermanentError):
    """More rows were quarantined than ``max_bad_rows`` or ``max_bad_ratio`` allows."""


class Context:
    """One attempt as its task sees it.

    ``inputs`` maps the names of parents to their results; ``idempotency_key`` stays the same for all attempts of one
    generation of the task (document 000, idempotency).
    """

    def __init__(
        self,
        order: protocol.AttemptOrder,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        *,
        send: Callable[[protocol.Frame], None],
        is_cancelled: Callable[[], bool],
        describe: Callable[[BaseException], Failure],
    ) -> None:
        self.run_id = order.run_id
        self.task = order.task
        self.attempt = order.attempt
        self.generation = order.generation
        self.idempotency_key = order.idempotency_key
        self.params = params
        self.inputs = inputs
        self._spec = order.spec
        self._send = send
        self._is_cancelled = is_cancelled
        self._describe = describe
        self._progress: protocol.Progressed | None = None
        self._progress_due = 0.0
        self._beat_due = 0.0
        self._rows = 0
        self._bad_rows = 0

    # --- Being cancelled ----------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """True once the deadline passed or an operator cancelled. A task in a thread is asked to look at this."""
        return self._is_cancelled()

    def check(self) -> None:
        """Raise TaskTerminated if the task should end. For loops and I/O boundaries of tasks that run in threads."""
        if self._is_cancelled():
            raise TaskTerminated(f"task {self.task!r} was asked to end")

    # --- Being alive --------------------------------------------------------------------------------------------------

    def progress(self, done: int, total: int | None = None) -> None:
        """Say how far the task is. Cheap enough to be called for each row."""
        self._progress = protocol.Progressed(done, total)
        now = time.monotonic()
        if now >= self._progress_due or done == total:
            self._progress_due = now + PROGRESS_INTERVAL
            self.flush()

    def heartbeat(self) -> None:
        """Say that the task is alive, when there is no number to tell."""
        now = time.monotonic()
        if now >= self._beat_due:
            self._beat_due = now + BEAT_INTERVAL
            self._send(protocol.Beat())

    def flush(self) -> None:
        """Send the latest progress that was held back."""
        progress, self._progress = self._progress, None
        if progress is not None:
            self._send(progress)

    # --- Rows that are bad while the task is good ---------------------------------------------------------------------

    def rows(
        self, rows: Iterable[RowValue], *, key: Callable[[RowValue], object] | str | None = None
    ) -> Iterator[Row[RowValue]]:
        """Give each row a scope of its own, so that a bad one is set aside and the others go on.

        ::

            for scope in ctx.rows(orders, key="id"):
                with scope as order:
                    settle(order)

        ``key`` names a row: a function, the name of a column or attribute, or None for its position. Errors that say
        something about the world (transient, credentials) still fail the attempt. Raises TooManyBadRows as soon as
        ``max_bad_rows`` is passed, and at the end for ``max_bad_ratio``.
        """
        for position, value in enumerate(rows):
            self._rows += 1
            yield Row(self, value, position, key)
        self._check_ratio()

    def quarantine(self, row_key: object, payload: object, error: BaseException | str) -> None:
        """Set one row aside. It counts once this attempt succeeds, and can be requeued or discarded by an operator."""
        fingerprint = None
        if isinstance(error, BaseException):
            failure = self._describe(error)
            error = f"{failure.error_type}: {failure.message}"
            fingerprint = failure.fingerprint.loose
        text = _payload_text(payload)
        key = protocol.clean_text(str(row_key), KEY_LIMIT)
        self._send(protocol.Quarantined(key, text, protocol.clean_text(error, ERROR_LIMIT), fingerprint))
        self._bad_rows += 1
        limit = self._spec.max_bad_rows
        if limit is not None and self._bad_rows > limit:
            raise TooManyBadRows(f"{self._bad_rows} rows are quarantined, max_bad_rows is {limit}", diagnostic=error)

    def _check_ratio(self) -> None:
        limit = self._spec.max_bad_ratio
        if limit is not None and self._rows and self._bad_rows / self._rows > limit:
            raise TooManyBadRows(f"{self._bad_rows} of {self._rows} rows are quarantined, max_bad_ratio is {limit:g}")

    def is_of_the_row(self, error: BaseException) -> bool:
        """True for an error that another row would not have."""
        if not isinstance(error, Exception) or isinstance(error, NotReady | SkipTask | TooManyBadRows):
            return False
        return self._describe(error).failure_class not in _NOT_OF_THE_ROW


class Row(Generic[RowValue]):
    """The scope of one row. Gives the row to its ``with`` block and quarantines it if the block raises."""

    def __init__(
        self, context: Context, value: RowValue, position: int, key: Callable[[RowValue], object] | str | None
    ) -> None:
        self._context = context
        self._value = value
        self._position = position
        self._key = key

    def __enter__(self) -> RowValue:
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not self._context.is_of_the_row(error):
            return False
        self._context.quarantine(self._name(), self._value, error)
        return True

    def _name(self) -> object:
        """By its key; by its position where the row is too bad to have one."""
        key, value = self._key, self._value
        if key is None:
            return self._position
        try:
            if callable(key):
                return key(value)
            return value[key] if isinstance(value, Mapping) else getattr(value, key)
        except Exception:
            return self._position


def _payload_text(payload: object) -> str:
    try:
        text = json.dumps(payload, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(payload)
    return protocol.clean_text(text, PAYLOAD_LIMIT)
