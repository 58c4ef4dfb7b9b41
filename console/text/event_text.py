"""The words of each kind of event: a sentence for the journal, and the lines of ``--plain`` and ``redrive events``.

The sentence does not name the task, which is shown beside it. SPEC 000 defines some of the lines; others have the
sentence. ``task_events.py``, ``run_events.py`` and ``system_events.py`` have both for each payload.
Values come from tasks and people: a caller that shows a sentence passes it through ``text/text.py`` first. Lines are
safe to print.

::

    [03:11:00] settle_M_000042 RUNNING
    [03:11:00] settle_M_000042 FAILED ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero
    [03:11:00] settle_M_000042 RETRYING attempt=1 next_retry_at=03:11:01.34
    [03:11:01] settle_M_000042 DEAD_LETTER ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero; the same ...
    [03:11:01] PAGED on-call: poison-pill on settle_M_000042 (4a7c1d)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...engine.core.views import BLOCKED, OUTCOME_STYLES, RUN_STYLES, STATE_STYLES
from ...engine.domain import event_payloads as payloads
from ...engine.domain.event_payloads import RunChange, RunChanged
from ...engine.domain.events import Event, EventKind
from ...engine.domain.text import advised, place_words, shell_command
from .event_words import EventWords, Lines, StateLine, by, texts
from .figures import wall, wall_date
from .pieces import Line, Piece, Role, plain
from .run_events import RUN_EVENTS, blocked_line
from .system_events import SYSTEM_EVENTS
from .task_events import TASK_EVENTS, UNDO
from .text import one_line

_WORDS = dict([*TASK_EVENTS, *RUN_EVENTS, *SYSTEM_EVENTS])


def _words_of(event: Event) -> EventWords:
    payload = event.payload
    key = getattr(payload, "what", None)
    if isinstance(payload, payloads.TaskMoved):
        key = UNDO if payload.act == UNDO else event.new
    return _WORDS.get((type(payload), key)) or _WORDS.get((type(payload), None), EventWords())


def describe_event(event: Event) -> str:
    """The sentence of an event, without task, actor and reason."""
    found = next(iter(texts(_words_of(event).sentence, event)), "")
    return str(found) or _default_text(event)


def lines_of_event(event: Event, *, has_date: bool = False, target: str = "") -> Iterator[str]:
    """The lines of an event as plain text: see ``pieces_of_event``."""
    return map(plain, pieces_of_event(event, has_date=has_date, target=target))


def pieces_of_event(event: Event, *, has_date: bool = False, label: str = "", target: str = "") -> Iterator[Line]:
    """The lines of an event, with ``label`` before each text; none for events that only the console shows.

    ``target``: the state file that commands in the lines name; empty: the default one.
    """
    lines = _words_of(event).lines
    for found in [_named_sentence(event)] if isinstance(lines, Lines) else texts(lines, event):
        clock = wall_date(event.at) if has_date else wall(event.at)
        yield [Piece(f"[{clock}] ", Role.DIM), Piece(label), *_pieces(found, _advice(event, target))]


def _pieces(found: str | StateLine, advice: str) -> Line:
    """The text of a line; where a task or a run moves, the word after its name in the role of the state."""
    if isinstance(found, str):
        return [Piece(one_line(found + advice))]
    name, role = f"{one_line(found.name or '')} ", _ROLES_OF_WORDS.get(found.word, Role.TEXT)
    body = one_line(f"{name}{found.word}{found.rest}{advice}")
    return [Piece(name), Piece(found.word, role), Piece(body[len(name) + len(found.word) :])]


#: The words of states in lines, and of what is shown before a retry.
_ROLES_OF_WORDS: Mapping[str, str] = {
    **{str(state): style.role for state, style in RUN_STYLES.items()},
    BLOCKED.word: BLOCKED.role,
    **{style.word.upper().replace(" ", "_"): style.role for style in OUTCOME_STYLES.values()},
    **{str(state): style.role for state, style in STATE_STYLES.items()},
}


def _named_sentence(event: Event) -> str:
    """The subject of the event, the sentence of the journal, and who has acted."""
    about = event.task or (f"run {event.run_id}" if event.run_id and isinstance(event.payload, _OF_RUNS) else "")
    return f"{f'{about}: ' if about else ''}{describe_event(event)}{by(event)}"


_OF_RUNS = (RunChanged, payloads.ScheduleChanged)


def event_subject(event: Event) -> str:
    """The subject of an event: a task, the number of tasks, or a part of the engine."""
    if event.task is not None:
        return event.task
    names = target_tasks(event)
    if names:
        return names[0] if len(names) == 1 else f"{len(names):,} tasks"
    if isinstance(event.payload, payloads.BreakerChanged):
        return event.payload.downstream or event.kind
    return "run" if event.kind == EventKind.OPERATOR else event.kind


def target_tasks(event: Event) -> list[str]:
    """The tasks that an operator's act named."""
    return [task for task, _, _ in target_results(event)]


def target_results(event: Event) -> list[list[str]]:
    """The result of an operator's act: task, word and sentence for each target."""
    payload = event.payload
    return (payload.answer.get("results") or []) if isinstance(payload, payloads.OperatorActed) else []


def _default_text(event: Event) -> str:
    """The text for an event without words of its own."""
    what = getattr(event.payload, "what", None)
    if event.kind == EventKind.TASK:
        return str(event.new).lower()
    return f"{event.kind}: {what}" if what else event.kind.replace(".", " ")


# --- The commands that end the wait of a run, as they are typed ------------------------------------------------------


_ASKED_MAX = 3  # approvals that a command names


def _unblocking_commands(asked: Sequence[str], place: Sequence[str]) -> str:
    """The commands that end the wait of a blocked run, in brackets. ``place``: the words that name it."""
    approve = ["redrive", "approve", *place, "--reason", "...", "--", *asked]
    commands = [*([approve] if 0 < len(asked) <= _ASKED_MAX else []), ["redrive", "inbox", *place]]
    return f" ({'; '.join(map(shell_command, commands))})"


def line_of_blocked_run(run_id: str, why: str, asked: Sequence[str], target: str) -> str:
    """The line of a run that was blocked before, as that of the event; it may not be the latest run of ``target``."""
    commands = _unblocking_commands(asked, place_words(target, run_id))
    return plain(_pieces(blocked_line(run_id, why), commands))


#: The list that has more of what an event names.
_LISTINGS: Mapping[str, str] = {payloads.PageChange.UNSENT: "systems pages", payloads.RowsChange.HELD: "systems rows"}


def _advice(event: Event, target: str) -> str:
    """The commands that end the wait of a run, as they are typed."""
    payload = event.payload
    if isinstance(payload, (payloads.PageChanged, payloads.RowsChanged)):
        listing = _LISTINGS.get(payload.what)
        return f" ({advised(listing, target, event.run_id)})" if listing and target else ""
    if not isinstance(payload, RunChanged):
        return ""
    if payload.what == RunChange.BLOCKED:
        return _unblocking_commands(payload.asked, [target] if target else [])
    if payload.what != RunChange.CUT_OFF:
        return ""
    resume, abandon = (advised(act, target, event.run_id) for act in ("resume", "abandon"))
    return f"; {resume} goes on with it, {abandon} ends it"
