"""Why a flow of the machine needs a look: one sentence, with the keys that mend it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...engine.core.views import PAUSED
from ...engine.core.waiting import pause_author
from ...engine.domain.text import counted, format_duration
from ...engine.statefile.durations import quantile
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ..keys.actions import BY_NAME
from ..model.runs import FleetEntry, pace_of
from ..text.figures import age
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, join, width
from ..text.text import cells, is_remote, one_line, shorten, shorten_middle
from .needs import error_of, loss_of, need_sentence
from .next_start import awaited_text
from .schedules import paused_text
from .states import RowContext

_NAME_CELLS_MIN = 8  # of a task beside its error
_WHOLE_TIMES = 2  # from so many times its usual duration on, a run that goes on is worth a word


def now_us_of(entry: FleetEntry, context: RowContext) -> int:
    """The time by the clock of the host that has the file."""
    return context.now_us + entry.file_row.clock_offset_us


#: The failures of tasks: the list says the first one, for the columns beside it have how many there are.
_WITH_ERROR = frozenset([NeedKind.DEAD_LETTERS, NeedKind.FAILED_TASKS, NeedKind.FAILED])
#: What the list says shorter than a line alone.
_SHORT: Mapping[NeedKind, Callable[[Need], str]] = {
    NeedKind.APPROVAL: lambda need: f"{need.subject} waits for your yes or no",
    NeedKind.BLOCKED: lambda need: "nothing of it can start",
}
#: What can be done about a need from here: actions, the first that is best.
MENDS: Mapping[NeedKind, tuple[str, ...]] = {
    NeedKind.FAILED_START: ("schedule",),
    NeedKind.ASKED_START: ("schedule",),
    NeedKind.STUCK: ("resume_here",),
    NeedKind.WARNING: ("schedule",),
    NeedKind.NOT_STARTED: ("schedule",),
    NeedKind.DEAD_LETTERS: ("requeue", "skip"),
    NeedKind.APPROVAL: ("open",),
    NeedKind.BLOCKED: ("open",),
    NeedKind.LOST: ("resume_here",),
    NeedKind.LATE: ("postpone", "ack_run"),
    NeedKind.FAILED_TASKS: ("requeue",),
    NeedKind.FAILED: ("requeue", "ack_run"),
    NeedKind.PARTIAL: ("requeue", "ack_run"),
    NeedKind.BREAKER: ("view_systems",),
    NeedKind.PAGER: ("view_systems",),
    NeedKind.HELD_ROWS: ("view_systems",),
}
_FAILURES = frozenset([NeedKind.DEAD_LETTERS, NeedKind.FAILED_TASKS])
#: What one looks for above the rows: it is of the machine, not of one flow.
OF_MACHINE = frozenset([NeedKind.UNREACHABLE, NeedKind.STORAGE, NeedKind.SCHEDULER_DEAD, NeedKind.PAGER])


class Why(NamedTuple):
    """Why a row needs a look, the actions that mend it, and its role.

    ``task``: which has failed, ``text`` is its error then; ``brief``: the sentence where it has no room.
    """

    text: str = ""
    mends: tuple[str, ...] = ()
    role: Role = Role.DIM
    brief: str = ""
    task: str = ""

    @property
    def sentence(self) -> str:
        """``load: no route``."""
        return f"{self.task}: {self.text}" if self.task else self.text


def why_of(entry: FleetEntry, now_us: int) -> Why:
    """Return why a row needs a look; without a sentence if it needs none."""
    run, needs = entry.run, [one for one in entry.needs if one.kind is not NeedKind.UNREACHABLE]
    alarm = next(iter(alarms_of(entry)), None)
    paused = next((one for one in entry.file_row.runs if one.paused_since is not None and one.ended_at is None), None)
    if alarm is not None and not (alarm.kind in (NeedKind.BLOCKED, NeedKind.LOST) and paused is not None):
        where = place_of_need(alarm, run and run.run_id)
        return _why_of_alarm(alarm, where, now_us)._replace(mends=_mends_now(entry, alarm), role=Role.TEXT)
    if paused is not None and paused.paused_since is not None:
        since, why = age(now_us - paused.paused_since), one_line(pause_author(paused))
        mends = ("pause",) if entry.executor.alive else ("pause", "resume_here")
        role = Role.WAITING if alarm is None else Role.TEXT
        return Why(f"paused for {since} {why}", mends, role, f"{PAUSED.word} {why}")  # SINCE says for how long
    if entry.schedule is not None and (pause := paused_text(entry.schedule, now_us)):
        return Why(f"schedule {pause}", ("schedule",))
    if awaited := awaited_text([one for row in entry.file_row.supervised for one in row.after]):
        return Why(awaited, ("schedule",))
    if slow := _slowness(entry, now_us):
        return Why(slow, ("open",), Role.WARNING)
    if needs:
        return Why(need_sentence(needs[0], now_us), _mends_now(entry, needs[0]))
    return Why()


def _why_of_alarm(need: Need, where: str, now_us: int) -> Why:
    if need.kind in _WITH_ERROR and (need.subject or need.error):
        error, is_several = error_of(need), need.counted > 1 and need.kind is not NeedKind.FAILED
        if error and not is_several:
            return Why(one_line(f"{error}{where}"), task=one_line(need.subject))
        return Why(one_line((f"{counted(need.counted, 'task')}: {error}" if error else need.subject) + where))
    short = _SHORT.get(need.kind)
    words = need_sentence(need, now_us) if short is None else short(need)
    brief = loss_of(need, now_us).why if need.kind is NeedKind.LOST else ""
    return Why(one_line(f"{words}{where}"), brief=brief)


def place_of_need(need: Need, run_id: str | None) -> str:
    """The run of a need, unless that is the one which is shown."""
    return "" if run_id is None or need.run_id in (None, run_id) else f", in run {need.run_id}"


def _mends_now(entry: FleetEntry, need: Need) -> tuple[str, ...]:
    """Actions that mend a need; a run that goes on has a deadline, one that has ended is acknowledged. Nothing is
    resumed whose executor may live, here or beside the file of which this one is a copy."""
    ended = {one.run_id for one in entry.file_row.runs if one.ended_at is not None}
    useless = ["postpone" if need.run_id in ended else "ack_run"]
    if entry.executor.may_live:
        useless.append("resume_here")
    return tuple(name for name in MENDS.get(need.kind, ()) if name not in useless)


def alarms_of(entry: FleetEntry) -> list[Need]:
    """Needs that wait for a human, first of the run that the row shows; of its failures the cause of most tasks."""
    found = [one for one in entry.needs if not one.is_notice and one.kind is not NeedKind.UNREACHABLE]
    run_id = entry.run and entry.run.run_id
    found.sort(key=lambda one: one.run_id not in (None, run_id or one.run_id))
    if found and found[0].kind is NeedKind.DEAD_LETTERS:
        alike = [one for one in found if one.kind in _FAILURES and one.run_id == found[0].run_id]
        widest = max(alike, key=lambda one: one.counted)
        found.sort(key=lambda one: one is not widest)
    return found


def _slowness(entry: FleetEntry, now_us: int) -> str:
    """One clause: a run has taken far longer than usual; empty if it has not."""
    run = entry.run
    if run is None or run.ended_at is not None or run.blocked_since is not None or not entry.runner.is_alive:
        return ""
    known = sorted(one.lasts_us for one in entry.file_row.nights if one.lasts_us is not None)
    pace = pace_of(max(now_us - run.started_at - run.waited_us, 0), known)
    if pace is None or not pace.is_slow or pace.times < _WHOLE_TIMES:
        return ""
    return f"{pace.times:.0f} times its usual {format_duration(quantile(known, 0.5))}"


def why_line(entry: FleetEntry, context: RowContext, size: int) -> Line:
    """The sentence, cut where there is no room, and the keys that mend it, with their words behind a whole one.

    A sentence that is whole without its keys has none: the last line of the screen shows those of the row.
    """
    why = why_of(entry, now_us_of(entry, context))
    mends = [name for name in why.mends if name != "resume_here" or is_here(entry)]
    keys = [(key, name) for name in mends if (key := context.label(name))]
    named = [[Piece(key, Role.KEY), Piece(f" {_label_of(name)}", Role.DIM)] for key, name in keys]
    shown = join(named)
    if cells(why.sentence) + 2 + width(shown) > size:
        shown = join(([Piece(key, Role.KEY)] for key, _ in keys), " ")
    room = size - (width(shown) + 2 if shown else 0)
    if not why.sentence or room < 1:
        return []
    said, brief = (_error_first(why, one, context.glyphs) for one in (room, size))
    if cells(said) > room and cells(brief) <= size:
        said, shown, room = brief, [], size
    text = [Piece(shorten(said, room, context.glyphs.more), why.role)]
    return [*text, Piece("  "), *shown] if shown else text


def is_here(entry: FleetEntry) -> bool:
    """Whether the file is on this machine: an executor starts beside its file."""
    return not is_remote(entry.file_row.path)


def _error_first(why: Why, room: int, glyphs: Glyphs) -> str:
    """Return the sentence; of a failure without room what the error leaves for the name of the task, else a third."""
    if cells(why.sentence) <= room or not why.task:
        return why.sentence if cells(why.sentence) <= room else why.brief or why.sentence
    left = room - cells(why.text) - 2
    left = left if left > _NAME_CELLS_MIN else room // 3
    return f"{shorten_middle(why.task, left, glyphs.more)}: {why.text}" if left > _NAME_CELLS_MIN else why.text


def _label_of(action: str) -> str:
    """The label of a key; the key that pauses ends the pause of a paused run."""
    return "unpause" if action == "pause" else BY_NAME[action].label
