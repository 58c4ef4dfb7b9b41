"""The ``ctx`` argument of a task function."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from datetime import date, datetime
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from ..core.outcome import Failure, FailureClass
from ..core.result_codec import UnstorableError, dump_result, load_result
from ..core.spec import LOGICAL_TIME, ROWS_LIMIT, ItemSpec
from ..errors import NotReady, PermanentError, SkipTask, TaskTerminated, TooManyBadRows
from . import protocol

RowValue = TypeVar("RowValue")

PROGRESS_SECONDS = 0.1  # between two reports: a task may call ``progress`` for each row
HEARTBEAT_SECONDS = 1.0
PAYLOAD_LIMIT = 16 * 1024  # characters of a quarantined row
KEY_LIMIT = 500
ERROR_LIMIT = 2000
RATIO_ROWS_MIN = 1000  # rows before the ratio is checked, if their total is unknown

#: Errors of an outside system rather than of the row: the whole attempt fails.
_ATTEMPT_ERRORS = frozenset(
    [FailureClass.TRANSIENT, FailureClass.AUTH, FailureClass.TIMEOUT, FailureClass.OUT_OF_MEMORY]
)

#: SQLSTATEs that every row would have: of a transaction that an earlier error has ended; no such database, schema,
#: table, column, type or function; no right to use it; a wrong statement.
_TRANSACTION_STATE = "25"
_STATEMENT_STATES = (_TRANSACTION_STATE, "3D", "3F", "42P01", "42703", "42704", "42883", "42501", "42601")
_STATEMENT_ERRORS = frozenset(["sqlite3.OperationalError"])  # which has no SQLSTATE
_KINDS_MAX = 20  # of errors whose first exception is kept

#: So many rows that fail alike, and none that is good: the code is the cause, and not the rows.
ALIKE_MIN = 3
_ALIKE_ADVICE = "the code is the cause, and not the rows: mend it, then requeue (max_bad_ratio=1 accepts it)"


class Missing:
    """Stands in ``Context.inputs`` for the result of a parent that did not succeed. It is false.

    Attributes:
        task: the name of the parent.
        why: text: the state that let the task start without the result ("skipped by operator", "failed", ...).

    Example:
        >>> bool(Missing("extract", "failed")), Missing("extract", "failed")
        (False, <no result of 'extract': failed>)
    """

    __slots__ = ("task", "why")

    def __init__(self, task: str, why: str) -> None:
        self.task = task
        self.why = why

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no result of {self.task!r}: {self.why}>"


class _Place:
    """A place of the code that calls ``rows``, with all rows that it has given out, in one call or in many."""

    __slots__ = ("good", "kinds")

    def __init__(self) -> None:
        self.good = 0
        self.kinds: Counter[str] = Counter()  # of errors, as in ``Context``

    def count(self, error_kind: str | None) -> None:
        """Count a row that has ended; None: it was good."""
        if error_kind is None:
            self.good += 1
        else:
            self.kinds[error_kind] += 1

    @property
    def poison(self) -> str | None:
        """The kind of error that rows have alike, if none is good."""
        kind, count = next(iter(self.kinds.most_common(1)), ("", 0))
        return kind if count >= ALIKE_MIN and not self.good else None


class Context:
    """The attempt as its task sees it: the parameter ``ctx`` of a task function. The engine makes it.

    Attributes:
        run_id, task: text: the names of the run and of the task.
        attempt: which start of the task this is, from 1.
        generation: which life of the task this is, from 0: every requeue by an operator begins the next one.
        idempotency_key: text that stays the same for all attempts of the task in the run, also after a requeue, unless
            the operator asks for another. Give it to a system that refuses the second request with the same key (as
            the header Idempotency-Key of draft-ietf-httpapi-idempotency-key-header).
        params: the parameters of the flow by name, with their values in this run.
        item: in a function of ``Flow.map``, the element of the list for which it is called; else None.
        inputs: the results of the parents by name, or ``Missing`` where there is none.
        checkpointed: what an earlier attempt of this generation gave to ``checkpoint`` last, or None.
        only_rows: None, or the quarantined rows that an operator sent back, by their key: the attempt is about these
            alone, ``rows`` gives out no others, and what the task returns replaces its earlier result.
        earlier_result: with ``only_rows``, what the task returned before, for a task that adds to it; else None.

    Example:
        >>> from redrive.engine import Executor, Flow
        >>> flow = Flow("orders")
        >>> @flow.task(max_attempts=1)
        ... def settle(ctx):
        ...     orders = [{"id": 1, "amount": 5}, {"id": 2}]
        ...     for number, row in enumerate(ctx.rows(orders, key="id"), 1):
        ...         with row as order:
        ...             print(order["amount"])  # the second order raises KeyError: it is set aside
        ...         ctx.progress(number, len(orders))
        ...     ctx.checkpoint({"settled": number})
        >>> Executor(flow=flow).run()
        'SUCCESS'
    """

    def __init__(
        self,
        order: protocol.AttemptOrder,
        params: Mapping[str, Any],
        inputs: Mapping[str, object],
        *,
        send: Callable[[protocol.AttemptFrame], None],
        is_cancelled: Callable[[], bool],
        make_failure: Callable[[BaseException], Failure],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id = order.run_id
        self.task = order.task
        self.attempt = order.attempt
        self.generation = order.generation
        self.idempotency_key = order.idempotency_key
        self.params = params
        self.inputs = {**inputs, **{name: Missing(name, why) for name, why in order.missing}}
        self.item: Any = None if order.spec.item is None else _element(order.spec.item, self.inputs)
        self._run_date = date.fromisoformat(order.date) if order.date else None
        self._spec = order.spec
        self._send = send
        self._is_cancelled = is_cancelled
        self._make_failure = make_failure
        self._monotonic = monotonic
        self._progress: tuple[float, float | None] | None = None
        self._progress_due = 0.0
        self._heartbeat_due = 0.0
        self.checkpointed: Any = None if order.checkpoint is None else load_result(order.checkpoint)
        self.earlier_result: Any = None if order.earlier_result is None else load_result(order.earlier_result)
        self.only_rows: Mapping[str, Any] | None = _requeued_rows(order.only_rows)
        self._rows = 0
        self._bad_rows = 0
        self._row_errors: Counter[str] = Counter()  # by loose fingerprint, else by text
        self._first_errors: dict[str, tuple[str, BaseException | None]] = {}  # the first error of each kind
        self._row_limit_error: TooManyBadRows | None = None
        self._places: dict[object, _Place] = {}
        self._open_rows: list[Row[Any]] = []  # whose block runs now, the innermost last

    @property
    def is_mapped(self) -> bool:
        """True in a function of ``Flow.map``."""
        return self._spec.item is not None

    @property
    def logical_time(self) -> datetime | None:
        """The instant of the schedule that this run stands for, in the time zone of the flow; None without one."""
        text = self.params.get(LOGICAL_TIME)
        return datetime.fromisoformat(text) if text else None

    @property
    def date(self) -> date | None:
        """The day of ``logical_time`` in the time zone of the flow, else that of the start; None outside of a run.

        ``logical_time`` is when the run was due, and so the end of the interval whose data it processes, not its start:
        a run of "0 2 * * *" on the 26th has the 26th, and yesterday's data are of ``ctx.date - timedelta(days=1)``.
        """
        instant = self.logical_time
        return self._run_date if instant is None else instant.date()

    # --- Cancellation -------------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """True once the timeout has passed or an operator has cancelled the task.

        A task with ``isolation="thread"`` has to ask: nothing else ends it.
        """
        return self._is_cancelled()

    def check(self) -> None:
        """Raise TaskTerminated if the task should end: for the loops of a task with ``isolation="thread"``.

        Raises:
            TaskTerminated: ``cancelled`` is true.
        """
        if self._is_cancelled():
            raise TaskTerminated(f"task {self.task!r} was asked to end")

    # --- Progress and checkpoints -------------------------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None) -> None:
        """Report how far the task is. Cheap enough to be called for each row: it sends ten reports a second at most.

        Parameters:
            done: a number of 0 or more, kept as a whole number.
            total: the number at which the task is done, or None where that is not known.

        Raises:
            TypeError, ValueError: for what is not a number, when the report is sent.
        """
        self._progress = done, total
        now = self._monotonic()
        if now >= self._progress_due or done == total:
            self._progress_due = now + PROGRESS_SECONDS
            self._flush()

    def heartbeat(self) -> None:
        """Report that the task is alive, where there is no number to report: once a second at most."""
        now = self._monotonic()
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + HEARTBEAT_SECONDS
            self._send(protocol.Heartbeat())

    def checkpoint(self, value: object) -> None:
        """Leave a value for the next attempt of this generation, which reads it from ``checkpointed``.

        Each call replaces the value before. A requeue by an operator begins without one.

        Parameters:
            value: what a task can return, at most 64 KiB of it as JSON.

        Raises:
            ValueError: the value cannot be stored, or is too large.
        """
        try:
            text = dump_result(value)
        except UnstorableError as error:
            raise ValueError(f"a checkpoint is what a task can return: {error}") from None
        if len(text) > protocol.SMALL_LIMIT:
            limit = protocol.SMALL_LIMIT
            raise ValueError(f"a checkpoint of {len(text)} bytes is over {limit}: keep the data elsewhere")
        self._send(protocol.Checkpointed(text))

    def finish(self) -> None:
        """Send the progress that was held back, and check the limits of bad rows. The engine calls it after the task.

        Raises:
            TooManyBadRows: a limit is passed, also where the task has caught this error before.
        """
        self._flush()
        if self._row_limit_error is not None:
            raise self._row_limit_error
        self._check_ratio(self._rows)
        self._check_alike()

    def _flush(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            done, total = progress
            self._send(protocol.Progressed(_count(done), None if total is None else _count(total)))

    # --- Quarantine of rows -------------------------------------------------------------------------------------------

    def rows(
        self, rows: Iterable[RowValue], *, key: Callable[[RowValue], object] | str | None = None
    ) -> Iterator[Row[RowValue]]:
        """Yield a scope for each row: ``with scope as row:`` sets a row aside whose block raises, and goes on.

        Errors that another row would have as well (transient, refused credential, timeout, out of memory) still fail
        the attempt. An operator requeues or discards what was set aside.

        Parameters:
            rows: any iterable.
            key: what names a row: a function of it, the name of a column or attribute, or None for its position.

        Raises:
            TooManyBadRows: more rows are set aside than ``max_bad_rows`` of the task allows, or a larger share than
                ``max_bad_ratio`` (where ``rows`` has no length: asked from the 1000th row on). At the end of the task:
                three rows or more fail alike, and none that this line has given out is good.
        """
        caller = sys._getframe(1)
        above = caller.f_back  # the same line of a helper may serve several lists
        marks = (caller.f_code, caller.f_lasti, above and above.f_code, above and above.f_lasti)
        return self._scopes(rows, key, self._places.setdefault(marks, _Place()))

    def _scopes(
        self, rows: Iterable[RowValue], key: Callable[[RowValue], object] | str | None, place: _Place
    ) -> Iterator[Row[RowValue]]:
        total = len(rows) if isinstance(rows, Sized) else None
        for position, value in enumerate(rows):
            row = Row(self, value, position, key, place)
            if self.only_rows is not None and row.key not in self.only_rows:
                continue
            self._rows += 1
            yield row
            if total is not None or self._rows >= RATIO_ROWS_MIN:
                self._check_ratio(total or self._rows)

    def quarantine(self, row_key: object, payload: object, error: BaseException | str) -> None:
        """Set one row aside without ``rows``. It is shown to operators once this attempt has succeeded.

        Inside the block of a row of ``rows``, this row is not a good one. Elsewhere nothing says which rows were good,
        so that ``max_bad_rows`` is the only bound.

        Parameters:
            row_key: what names the row; its text is kept, at most 500 characters.
            payload: the row; kept as JSON, or as its repr, at most 16 Ki characters.
            error: why: an exception or a text.

        Raises:
            TooManyBadRows: as ``rows`` does.
        """
        fingerprint, raised = None, error if isinstance(error, BaseException) else None
        if raised is not None:
            failure = self._make_failure(raised)
            error = f"{failure.error_type}: {failure.message}"
            fingerprint = failure.fingerprint.loose
        text = _dump_payload(payload)
        error = protocol.clean_text(str(error), ERROR_LIMIT)
        row = protocol.BadRow(row_key=_key_text(row_key), payload=text, error=error, fingerprint=fingerprint)
        self._send(protocol.Quarantined(row))
        self._bad_rows += 1
        self._count_error(fingerprint or error, error, raised)
        if self._open_rows:
            self._open_rows[-1].error_kind = fingerprint or error
        self._check_count()

    def open_row(self, row: Row[Any]) -> None:
        """Note that the block of a row begins."""
        self._open_rows.append(row)

    def close_row(self, row: Row[Any]) -> None:
        """Note that it has ended."""
        with suppress(ValueError):  # opened by another thread
            self._open_rows.remove(row)

    def _count_error(self, kind: str, text: str, raised: BaseException | None) -> None:
        self._row_errors[kind] += 1
        if len(self._first_errors) < _KINDS_MAX:
            self._first_errors.setdefault(kind, (text, raised))

    def _check_count(self) -> None:
        named = self._spec.max_bad_rows
        limit = ROWS_LIMIT if named is None else named
        if self._bad_rows > limit and self.only_rows is None:
            default = "" if named is not None else ", unless the task names another"
            self._fail(f"{self._bad_rows} rows are quarantined, max_bad_rows is {limit}{default}")

    def _check_ratio(self, rows: int) -> None:
        limit = self._spec.max_bad_ratio
        if limit is not None and rows and self._bad_rows / rows > limit and self.only_rows is None:
            self._fail(f"{self._bad_rows} of {rows} rows are quarantined, max_bad_ratio is {limit:g}")

    def _check_alike(self) -> None:
        if self.only_rows is not None or self._spec.max_bad_ratio == 1:
            return
        for place in self._places.values():
            if kind := place.poison:
                text, _ = self._first_errors.get(kind, (kind, None))
                count, rows = place.kinds[kind], place.kinds.total()
                which = f"all {rows} rows" if count == rows else f"{count} of {rows} rows"
                self._fail(f"{which} failed alike and none was good ({text}): {_ALIKE_ADVICE}", kind)

    def _fail(self, why: str, kind: str | None = None) -> NoReturn:
        """Raise TooManyBadRows because of an error of a row: the most frequent kind, of several the first."""
        kind = kind or max(self._first_errors, key=self._row_errors.__getitem__, default=None)
        text, raised = (None, None) if kind is None else self._first_errors.get(kind, (None, None))
        self._row_limit_error = TooManyBadRows(why, diagnostic=text)
        raise self._row_limit_error from raised

    def is_row_error(self, error: BaseException) -> bool:
        """Return whether an error says something about the row at hand: another row would not have it."""
        if not isinstance(error, Exception) or isinstance(error, NotReady | SkipTask | TooManyBadRows):
            return False
        failure = self._make_failure(error)
        state = str(failure.facts.get("sqlstate") or "")
        if state.startswith(_TRANSACTION_STATE) and self._first_errors:
            _, error.__cause__ = next(iter(self._first_errors.values()))  # the row that has ended the transaction
        if state.startswith(_STATEMENT_STATES) or failure.error_type in _STATEMENT_ERRORS:
            return False
        return failure.failure_class not in _ATTEMPT_ERRORS


class Row(Generic[RowValue]):
    """The scope of one row. Gives the row to its ``with`` block and quarantines it if the block raises."""

    def __init__(
        self,
        context: Context,
        value: RowValue,
        position: int,
        key: Callable[[RowValue], object] | str | None,
        place: _Place,
    ) -> None:
        self.error_kind: str | None = None  # of the error for which this row was set aside
        self._place = place
        self._context = context
        self._value = value
        self._position = position
        self._key = key

    @property
    def key(self) -> str:
        """The text that names the row in the quarantine."""
        return _key_text(self._name())

    def __enter__(self) -> RowValue:
        self._context.open_row(self)
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if error is not None and not self._context.is_row_error(error):
                return False
            if error is not None:
                self._context.quarantine(self.key, self._value, error)
            self._place.count(self.error_kind)
            return error is not None
        finally:
            self._context.close_row(self)

    def _name(self) -> object:
        """Return the key of the row; its position if the key cannot be read."""
        key, value = self._key, self._value
        if key is None:
            return self._position
        try:
            if callable(key):
                return key(value)
            return value[key] if isinstance(value, Mapping) else getattr(value, key)
        except Exception:
            return self._position


def _count(number: float) -> int:
    """Return a whole number that the state file can hold."""
    return int(min(max(number, 0), protocol.COUNT_MAX))


def _key_text(key: object) -> str:
    return protocol.clean_text(str(key), KEY_LIMIT)


def _element(item: ItemSpec, inputs: Mapping[str, object]) -> object:
    """Return the element of a child of a map task. Raises PermanentError if the list has no such element any more."""
    items = inputs.get(item.over)
    if not isinstance(items, list | tuple) or not 0 <= item.index < len(items):
        raise PermanentError(f"the list of {item.over!r} has no such element any more: skip this task")
    return items[item.index]


def _requeued_rows(rows: Iterable[tuple[str, str | None]]) -> dict[str, object] | None:
    """Return payloads as values if they are JSON, else (a repr, or cut) as text."""
    return {key: _load_payload(text) for key, text in rows} or None


def _load_payload(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _dump_payload(payload: object) -> str:
    try:
        text = json.dumps(payload, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(payload)
    return protocol.clean_text(text, PAYLOAD_LIMIT)
