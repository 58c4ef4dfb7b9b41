"""The inbox in rows: what there is in one line, causes, their tasks, and what an act on the selected ones would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...engine.core.cause_history import REASON_CHARACTERS, Memory, day, last_time, noted, told
from ...engine.core.projection import TaskRow
from ...engine.domain.states import TaskState
from ..model.board import Board
from ..model.evidence import compare, failures_of, verdict
from ..model.inbox import Cause, Entry
from ..model.preview import Preview
from ..text.durations import HOUR, MINUTE, SECOND, number, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, width
from ..text.text import one_line, pad, pad_left, shorten, shorten_middle
from ..text.wrapping import folded
from .states import LOOKS, sign
from .tasks import Scene, tries

AGE_CELLS = 7
_COUNT_CELLS = 5
_HELD_CELLS = 11
_KIND_CELLS = 11
_NAME_CELLS_MAX = 32
_HELD_FROM = 60  # columns: narrower lists leave out what is held
_KIND_FROM = 76
_MESSAGE_FROM = 50
_COMPARED_MAX = 200  # tasks of one cause that are looked at for a verdict
_NAMED_MAX = 2
_REASON_CHARACTERS = (REASON_CHARACTERS, 24, 0)  # how it ended matters more than why somebody tried


def age(duration_us: int) -> str:
    """At most seven cells, and calm: ``41 s``, ``14 min``, ``3 h 05``, ``12 days``."""
    duration_us = max(duration_us, 0)
    if duration_us < MINUTE:
        return f"{duration_us // SECOND} s"
    if duration_us < HOUR:
        return f"{duration_us // MINUTE} min"
    if duration_us < 48 * HOUR:
        return f"{duration_us // HOUR} h {duration_us % HOUR // MINUTE:02}"
    return f"{min(duration_us // (24 * HOUR), 99)} days"


def tasks(count: int) -> str:
    """``1 task``, ``1,247 tasks``."""
    return f"{number(count)} task{'' if count == 1 else 's'}"


# --- The line above the list ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heading:
    """What the line above the list says. ``shown``: tasks that the filter leaves, of ``total``."""

    causes: int
    dead: int
    failed: int
    oldest: int | None
    shown: int
    marked: int
    filter_text: str
    sort: str


def heading_line(heading: Heading, now_us: int, columns: int, glyphs: Glyphs) -> tuple[Line, Line]:
    """Left and right side; where there is less room, less is said; of an empty inbox nothing."""
    if not heading.dead and not heading.failed:
        return [], []
    right = [Piece("sort: ", Role.DIM), Piece(f"{heading.sort} {glyphs.open} ")]
    dot: Line = [Piece(f" {glyphs.dot} ", Role.DIM)]
    marked: Line = [*dot, Piece(f"{number(heading.marked)} marked", Role.MARK)] if heading.marked else []
    parts = _heading_parts(heading, now_us)
    while True:
        left = [Piece(" "), *parts[0], *(piece for part in parts[1:] for piece in (*dot, *part)), *marked]
        if width(left) + width(right) < columns:
            return left, right
        if width(left) < columns or len(parts) == 1:
            return left, []
        parts.pop()


def _heading_parts(heading: Heading, now_us: int) -> list[Line]:
    """The most wanted first."""
    parts: list[Line] = [[Piece(f"{number(heading.causes)} cause{'' if heading.causes == 1 else 's'}", Role.STRONG)]]
    if heading.filter_text:
        found = f"/{one_line(heading.filter_text)}: {number(heading.shown)} of {number(heading.dead + heading.failed)}"
        return [*parts, [Piece(found, Role.MATCH)]]
    if heading.dead:
        parts.append([Piece(f"{number(heading.dead)} dead letter{'' if heading.dead == 1 else 's'}")])
    if heading.failed:
        parts.append([Piece(f"{number(heading.failed)} failed")])
    if heading.oldest is not None:
        parts.append([Piece(f"oldest {age(now_us - heading.oldest)}", Role.DIM)])
    return parts


def nothing_line(total: int, filter_text: str, glyphs: Glyphs) -> Line:
    """In place of an empty list."""
    if filter_text and total:
        return [Piece(f"   nothing matches /{one_line(filter_text)}; Esc shows all {number(total)}", Role.DIM)]
    return [Piece(f"   {glyphs.done} ", Role.DONE), Piece("nothing needs a human", Role.DIM)]


# --- Rows ----------------------------------------------------------------------------------------------------------


def cause_row(cause: Cause, is_open: bool, scene: Scene, columns: int) -> Line:
    """How many, what, what it holds, since when."""
    glyphs = scene.glyphs
    state = TaskState.DEAD_LETTER if cause.dead else TaskState.FAILED
    right = cause_age(cause, scene)
    if columns >= _HELD_FROM:
        held = f"holds {number(cause.held)}" if cause.held else ""
        right = [Piece(pad_left(held, _HELD_CELLS, glyphs.more), Role.DIM), *right]
    left = [
        Piece(f"{glyphs.open if is_open else glyphs.closed} "),
        Piece(sign(state, glyphs), LOOKS[state].role),
        Piece(f" {number(cause.count):>{_COUNT_CELLS}}  ", Role.STRONG),
        Piece(one_line(cause.title) or "unknown"),
    ]
    if cause.downstream:
        left.append(Piece(f" {glyphs.dot} {one_line(cause.downstream)}", Role.DIM))
    return [*fit(left, columns - width(right) - 1, glyphs.more), Piece(" "), *right]


def cause_age(cause: Cause, scene: Scene) -> Line:
    """The end of a row: since when the first of them waits. It changes with time, the rest of the row does not."""
    text = wall(cause.oldest, None) if scene.absolute else age(scene.now_us - cause.oldest)
    return [Piece(f" {pad_left(text, AGE_CELLS + 1)} ", Role.DIM)]


def task_row(entry: Entry, row: TaskRow, scene: Scene, columns: int) -> Line:
    """One task of a cause."""
    glyphs, look = scene.glyphs, LOOKS[TaskState(entry.state)]
    cells = min(scene.name_cells, _NAME_CELLS_MAX, columns - 14)
    name = shorten_middle(one_line(entry.name), cells, glyphs.more)
    line = [
        Piece("    "),
        Piece(glyphs.of(look.glyph), Role.DIM),  # the accent is on the cause
        Piece(f" {pad(name, cells, glyphs.more)} "),
        Piece(f"{tries(row):>5}  ", Role.DIM),
    ]
    if columns < _MESSAGE_FROM:
        return line
    if columns >= _KIND_FROM:
        line.append(Piece(f"{pad(one_line(entry.kind or 'failed'), _KIND_CELLS, glyphs.more)} ", Role.DIM))
    return fit([*line, Piece(one_line(entry.message))], columns - 1, glyphs.more)


def more_row(hidden: int, key: str, glyphs: Glyphs) -> Line:
    """Tasks of a cause that are not shown yet."""
    return [Piece(f"      {glyphs.more} {number(hidden)} more ({key})", Role.DIM)]


# --- What is selected, and what an act would do to it --------------------------------------------------------------


def who_lines(names: Sequence[str], scene: Scene) -> list[Line]:
    """Who, since when, the error, and what may be concluded: two rows."""
    rows = [scene.board.row(name) for name in names]
    state = next((row.state for row in rows if row.state is TaskState.DEAD_LETTER), rows[0].state)
    look = LOOKS[state]
    who = one_line(rows[0].name) if len(names) == 1 else tasks(len(names))
    kinds, errors = {row.dead_letter_kind or "" for row in rows}, {row.error or "" for row in rows}
    parts = [one_line(kinds.pop()) if len(kinds) == 1 else "", "", one_line(errors.pop())]
    ends = [row.ended_at for row in rows if row.ended_at is not None]
    if len(names) > 1 and ends:
        parts[1] = f"from {wall(min(ends), None)} to {wall(max(ends), None)}"
        parts[2] = f"{number(len(errors) + 1)} different errors" if errors else parts[2]
    head: Line = [Piece(" "), Piece(who, Role.TITLE), Piece(" ")]
    head.append(Piece(f"{sign(state, scene.glyphs)} {look.word}", look.role))
    head.append(Piece(f" {parts[0]}"))
    for part in filter(None, parts[1:]):
        head += [Piece(f" {scene.glyphs.dot} ", Role.DIM), Piece(part)]
    said = verdict_of(names, scene.board)
    return [head, [Piece(f"   {said[:1].upper()}{said[1:]}.", Role.STRONG)]]


def memory_line(memory: Memory | None, now_us: int, columns: int, glyphs: Glyphs) -> Line:
    """What people wrote on a cause, and how it went the last time, as far as there is room; nothing while unread."""
    if memory is None:
        return []
    if memory.is_new:
        return [Piece("   never seen before in this flow", Role.DIM)]
    line: Line = []
    said: list[Line] = [[Piece(one_line(noted(note, now_us)), Role.STRONG)] for note in memory.notes[:1]]
    for reason_characters in _REASON_CHARACTERS:
        before = last_time(memory, now_us, None, reason_characters) or _seen(memory, now_us)
        line = join([*said, [Piece(one_line(before))] if before else []], f" {glyphs.dot} ")
        if width(line) < columns - 3:
            break
    return fit([Piece("   "), *line], columns - 1, glyphs.more)


def memory_lines(memory: Memory | None, now_us: int, columns: int) -> Iterator[Line]:
    """All of it, folded: notes first, they are meant for the reader."""
    if memory is None or memory.is_new:
        return
    for note in memory.notes:
        yield from _told([Piece(one_line(noted(note, now_us)), Role.STRONG)], columns)
    for place, episode in enumerate(memory.episodes):
        when = Piece("before that " if place else "last time ", Role.DIM)
        yield from _told([when, Piece(one_line(told(episode, now_us)))], columns)
    seen = _seen(memory, now_us)
    if seen:
        yield from _told([Piece(seen, Role.DIM)], columns)
    yield []


def _told(line: Line, columns: int) -> list[Line]:
    return folded([Piece(" "), *line], columns - 1, 3)


def _seen(memory: Memory, now_us: int) -> str:
    if not memory.runs or memory.first_at is None:
        return ""
    others = "one other run" if memory.runs == 1 else f"{number(memory.runs)} other runs"
    return f"seen in {others} of this flow, first {day(memory.first_at, now_us)}"


def verdict_of(names: Sequence[str], board: Board) -> str:
    """What the attempts of one or of many tasks say, in one sentence."""
    if len(names) == 1:
        return verdict(compare(failures_of(board.row(names[0]))))
    looked_at = names[:_COMPARED_MAX]
    found = [compare(failures_of(board.row(name))) for name in looked_at]
    several = [one for one in found if len(one.attempts) > 1]
    where = "" if len(looked_at) == len(names) else f" (in the first {len(looked_at)})"
    if not several:
        return f"one failure each: nothing to compare them with{where}"
    same = sum(1 for one in several if one.deterministic)
    if same == len(several) == len(found):
        return f"same failure every time; nothing changed between attempts{where}"
    if same == len(several):
        again = f"{number(same)} of {number(len(found))} failed again the same way with nothing changed between"
        return f"{again}; the others failed once{where}"
    return f"{number(same)} of {number(len(several))} failed the same way with nothing changed between{where}"


def consequence_lines(requeue: Preview, skip: Preview, keys: Mapping[str, str]) -> list[Line]:
    """What the keys for requeue and skip would do: as much as a decision needs. The dialog has the exact lists."""
    return _by_key(keys, "; ".join(_of_requeue(requeue)), "; ".join(_of_skip(skip)))


def rough_lines(count: int, held: int, keys: Mapping[str, str]) -> list[Line]:
    """The same for more tasks than can be tried out at every move of the cursor."""
    below = f"; {number(held)} wait below" if held else ""
    return _by_key(keys, f"requeue: {tasks(count)} run again{below}", f"skip: go on without {tasks(count)}{below}")


def _by_key(keys: Mapping[str, str], requeue: str, skip: str) -> list[Line]:
    cells = max(map(len, keys.values()))
    said = (("requeue", requeue), ("skip", skip))
    return [[Piece(f" {pad(keys[action], cells)} ", Role.KEY), Piece(sentence)] for action, sentence in said]


def _of_requeue(preview: Preview) -> Iterator[str]:
    again = len(preview.run_again)
    yield f"requeue: {tasks(again)} {_verb(again, 'runs', 'run')} again"
    go_on = len(set(preview.may_go_on) | set(preview.unblocked))
    if go_on:
        yield f"{number(go_on)} below may go on after success"
    if preview.stale:
        yield f"{number(len(preview.stale))} ran before and {_verb(len(preview.stale), 'becomes', 'become')} stale"
    yield from _of_others(preview)


def _of_skip(preview: Preview) -> Iterator[str]:
    go_on = len(set(preview.may_go_on) | set(preview.unblocked))
    them = "it" if len(preview.skipped) == 1 else "them"
    yield f"skip: {number(go_on)} {_verb(go_on, 'goes', 'go')} on without {them}" if go_on else "skip: nothing goes on"
    if preview.stopped:
        yield f"{number(len(preview.stopped))} {_verb(len(preview.stopped), 'stops', 'stop')}, wanting its success"
    yield from _of_others(preview)


def _of_others(preview: Preview) -> Iterator[str]:
    if preview.still_held:
        holders = list(dict.fromkeys(holder for _, holder in preview.still_held))
        names = ", ".join(shorten(one_line(holder), 24) for holder in holders[:_NAMED_MAX])
        more = f" and {len(holders) - _NAMED_MAX} more" if len(holders) > _NAMED_MAX else ""
        count = len(preview.still_held)
        yield f"{number(count)} {_verb(count, 'stays', 'stay')} held by {names}{more}"
    if preview.stay_blocked:
        count = len(preview.stay_blocked)
        yield f"{number(count)} {_verb(count, 'stays', 'stay')} blocked"


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
