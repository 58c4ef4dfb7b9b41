"""The night once more: any moment of a run from its events, without keeping all of them.

Folding 100,000 events takes a second, which is too long for a key. A reel is folded once, from the first event to the
last, and keeps the run itself every so many events: the events since the frame before it are enough to show a moment.
Frames share the rows that did not change between them, so a frame costs a pointer a task and what moved since the last;
when there are too many, every second one is let go.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime, time, timedelta
from operator import attrgetter
from typing import NamedTuple

from ...engine.analysis.counters import Tally, is_act
from ...engine.core.explain import BreakerView
from ...engine.core.projection import AttemptRow, RunFold, RunRow, TaskRow
from ...engine.domain.event_payloads import BreakerChanged, RunChange, RunChanged, TaskChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from ...engine.errors import RedriveError
from ..text.durations import wall_day
from .run_snapshot import Moment

FRAME_EVENTS = 1_000  # from one frame to the next
FRAMES_MAX = 128  # more, and every second one goes: a run of a million events has a frame every 8,000
BURST_US = 5_000_000  # failures of one cause that come closer than this are one trouble
NUMBER_MAX = 2**40  # an instant in microseconds is larger than this, the number of an event is not

_DAY = timedelta(days=1)


class Stretch(NamedTuple):
    """The events that lead from a frame to a moment: at most ``limit`` of the run after the number ``after``."""

    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """The run as of ``seq``; nothing of it may be changed."""

    seq: int
    rows: tuple[TaskRow, ...]
    run: RunRow
    breakers: dict[str, BreakerView]
    page_notes: dict[str, str]


class Reel:
    """Every moment of one run, up to ``seq``. ``fold`` is any picture of it; ``extend`` takes its events in order."""

    def __init__(self, fold: RunFold, frame_events: int = FRAME_EVENTS, frames_max: int = FRAMES_MAX) -> None:
        self.run_id = fold.run.run_id
        self._of = fold
        self._frame_events = frame_events
        self._frames_max = frames_max
        self._frames = [_frame_of(Moment(blank(fold)))]
        self._end = _Folding(self._frames[0], fold)
        self._since_frame = 0
        self._numbers = array("q")  # of all its events
        self._instants = array("q")  # of each: the latest so far, where the clock went back
        self._steps = array("q")  # numbers of those that show on the board
        self._troubles = array("q")  # numbers of those that one looks for
        self._trouble: tuple[str, int] = ("", 0)  # the latest of them: its cause, and when
        self.tally = Tally()

    # --- Made ------------------------------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """The number of the last event that was taken; 0 before the first."""
        return self._end.moment.fold.seq

    @property
    def first(self) -> int:
        """The number of the event that began the run."""
        return self._steps[0]

    def extend(self, events: Iterable[Event]) -> None:
        """Take what comes next; events of other runs are passed over.

        Raises RedriveError where the beginning of the run is not in the file any more.
        """
        for event in events:
            if event.run_id == self.run_id and event.seq > self.seq:
                if not self._steps:
                    _demand_beginning(event)
                self._take(event)

    def _take(self, event: Event) -> None:
        if self._since_frame == self._frame_events:
            self._add_frame()
        self._end.apply(event)
        self.tally.take(event)
        self._since_frame += 1
        self._numbers.append(event.seq)
        self._instants.append(max(event.at, self._instants[-1] if self._instants else event.at))
        if is_step(event):
            self._steps.append(event.seq)
            self._note_trouble(event)

    def _note_trouble(self, event: Event) -> None:
        cause = trouble_of(event)
        if cause is not None:
            before, at = self._trouble
            if cause != before or event.at - at > BURST_US:
                self._troubles.append(event.seq)
            self._trouble = cause, event.at

    def _add_frame(self) -> None:
        if len(self._frames) == self._frames_max:
            del self._frames[1::2]
            self._frame_events *= 2
        self._frames.append(_frame_of(self._end.moment))
        self._end.share()
        self._since_frame = 0

    # --- Asked -----------------------------------------------------------------------------------------------------

    def stretch(self, seq: int) -> Stretch:
        """What has to be at hand to show the moment after the event ``seq``, and those about it."""
        return Stretch(self._frame_before(seq).seq, self._frame_events)

    def moment(self, seq: int, events: Iterable[Event]) -> Moment:
        """The moment after the event ``seq``; ``events``: those of its ``stretch``, or the first of them up to it."""
        folding = _Folding(self._frame_before(seq), self._of)
        for event in events:
            if event.seq > seq:
                break
            folding.apply(event)
        return folding.moment

    def _frame_before(self, seq: int) -> _Frame:
        return self._frames[max(bisect_left(self._frames, seq, key=attrgetter("seq")) - 1, 0)]

    def step(self, seq: int, count: int) -> int | None:
        """The step that many steps after ``seq``, or before it; at the beginning the first. None: beyond the last."""
        steps = self._steps
        if count < 0:
            return steps[max(bisect_left(steps, seq) + count, 0)]
        place = bisect_right(steps, seq) + count - 1
        return steps[place] if place < len(steps) else None

    def trouble(self, seq: int, direction: int) -> int | None:
        """The next trouble after ``seq``, or with ``direction`` -1 the one before it; None if there is none."""
        troubles = self._troubles
        place = bisect_left(troubles, seq) - 1 if direction < 0 else bisect_right(troubles, seq)
        return troubles[place] if 0 <= place < len(troubles) else None

    def at(self, instant: int) -> int:
        """The last event up to an instant, microseconds UTC; the first one if none had happened by then."""
        return self._numbers[max(bisect_right(self._instants, instant) - 1, 0)]

    def instant(self, seq: int) -> int:
        """When the event ``seq`` happened."""
        return self._instants[max(bisect_right(self._numbers, seq) - 1, 0)]

    def next_instant(self, seq: int) -> int | None:
        """When the next event after ``seq`` happened; None at the end."""
        place = bisect_right(self._numbers, seq)
        return self._instants[place] if place < len(self._instants) else None


class _Folding:
    """A moment that goes forward, and leaves the rows of the frame that it began with as they are."""

    def __init__(self, frame: _Frame, of: RunFold) -> None:
        tasks = dict(zip(of.tasks, frame.rows, strict=True))
        fold = RunFold(replace(frame.run), tasks, of.parents, of.children, frame.seq)
        self.moment = Moment(fold, dict(frame.breakers), dict(frame.page_notes), is_past=True)
        self._own: set[str] = set()

    def apply(self, event: Event) -> None:
        name, tasks = event.task, self.moment.fold.tasks
        if name is not None and name not in self._own and name in tasks:
            tasks[name] = _copied(tasks[name])
            self._own.add(name)
        self.moment.apply(event)

    def share(self) -> None:
        """A frame has the rows as they are now."""
        self._own.clear()


_task_columns = attrgetter(*(field.name for field in fields(TaskRow)))
_attempt_columns = attrgetter(*(field.name for field in fields(AttemptRow)))


def _copied(row: TaskRow) -> TaskRow:
    """Twice as fast as ``dataclasses.replace``: a reel does it for each task of each frame."""
    copy = TaskRow(*_task_columns(row))
    copy.attempts = {number: AttemptRow(*_attempt_columns(attempt)) for number, attempt in row.attempts.items()}
    return copy


def _frame_of(moment: Moment) -> _Frame:
    fold = moment.fold
    return _Frame(
        fold.seq, tuple(fold.tasks.values()), replace(fold.run), dict(moment.breakers), dict(moment.page_notes)
    )


def blank(fold: RunFold) -> RunFold:
    """The run before anything had happened."""
    run = RunRow(fold.run.run_id, dag_name=fold.run.dag_name)
    tasks = {
        name: TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
        for name, row in fold.tasks.items()
    }
    return RunFold(run, tasks, fold.parents, fold.children)


# --- What events mean for who goes through the night ----------------------------------------------------------------

_SHOWING = frozenset(
    [
        EventKind.TASK,
        EventKind.RUN,
        EventKind.ATTEMPT_DEADLINE,
        EventKind.ATTEMPT_STACK,
        EventKind.ATTEMPT_SIGTERM,
        EventKind.ATTEMPT_SIGKILL,
        EventKind.ATTEMPT_SILENT,
        EventKind.ATTEMPT_RECLAIMED,
        EventKind.BREAKER,
    ]
)
_QUIET_COLUMNS = frozenset(["progress_done", "progress_total", "last_heartbeat_at"])
_FAILED = NEEDS_HUMAN | {TaskState.RETRYING}


def is_step(event: Event) -> bool:
    """Whether the board is another one after it, by more than how far a task says it is; or somebody acted."""
    if isinstance(event.payload, TaskChanged):
        return not _QUIET_COLUMNS.issuperset(event.payload.set)
    return event.kind in _SHOWING or is_act(event)


def trouble_of(event: Event) -> str | None:
    """What one looks for in a night, by its cause: a failure, a hang, a breaker that opens, an act; None for others."""
    payload = event.payload
    if isinstance(payload, TaskMoved) and event.new in _FAILED:
        return f"{event.new} {payload.attempt_set.get('fingerprint_loose') or event.task}"
    if event.kind == EventKind.ATTEMPT_DEADLINE:
        return f"hang {event.task}"
    if isinstance(payload, BreakerChanged) and payload.state == "OPEN":
        return f"breaker {payload.downstream}"
    return f"act {event.seq}" if is_act(event) else None


def _demand_beginning(event: Event) -> None:
    """Raises RedriveError for an event that cannot be the first to show."""
    payload = event.payload
    is_beginning = isinstance(payload, RunChanged) and payload.what == RunChange.CREATED
    if is_step(event) and not is_beginning:
        raise RedriveError(
            f"what happened before {wall_day(event.at, None)} was removed from the file: the past cannot be shown"
        )


def parse_when(text: str, run: RunRow) -> int:
    """An instant in microseconds UTC, or the number of an event, which is below NUMBER_MAX.

    ``03:12`` is the first such time after the start of the run. Raises RedriveError for what is no time.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return min(int(text), NUMBER_MAX - 1)
    start = datetime.fromtimestamp(run.started_at / 1e6).astimezone()
    try:
        if "-" in text:
            instant = datetime.fromisoformat(text).astimezone()
        else:
            instant = datetime.combine(start, time.fromisoformat(text), start.tzinfo)
            instant += _DAY if instant < start.replace(microsecond=0) else timedelta()
    except (ValueError, OverflowError):
        why = f"{text!r} is no time; write 03:12, 03:12:30, 2026-04-25T03:12:00, or an event's number"
        raise RedriveError(why) from None
    return round(instant.timestamp() * 1e6)
