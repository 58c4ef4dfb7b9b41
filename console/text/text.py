"""Makes untrusted text safe for a grid of cells.

Names, errors, logs and reasons come from tasks and people: they may hold escape sequences, characters that change the
reading order, and characters whose width differs between terminals. ``sanitize`` removes all of these, and is cheap
enough for every cell. Widths are those of rich and Textual.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import takewhile

import click
from rich.cells import cell_len, get_character_cell_size

from ...engine.domain.text import REMOTE

#: C0, DEL and C1, direction and zero-width characters, joiners, variation selectors, tags, surrogates; and two kinds
#: of emoji parts (flag letters, skin tones) that terminals draw in one, two or four cells.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)
_NOT_ASCII = re.compile("[^\x20-\x7e]")
_DELETE = "\x7f"
_SPACES = re.compile(r"\s+")
_REPLACEMENT = "\ufffd"
_MARKS_MAX = 2  # combining marks per character; more would reach into the neighbouring rows


def sanitize(text: str, limit: int = 4096) -> str:
    """Replace every character that is not plain and visible.

    The result has at most ``limit`` characters. C0 becomes its picture (ESC is ``␛``), the rest ``�``.
    """
    text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    text = _UNSAFE.sub(_visible_form, text)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else _replacement(character) for character in text)
    return _limit_combining_marks(text)


def sanitize_lines(text: str) -> str:
    """``sanitize`` each line of ``text``, of any length; the newlines stay."""
    if text.isascii() and text.replace("\n", " ").isprintable():
        return text
    return "\n".join(sanitize(line, len(line)) for line in text.split("\n"))


def escape_unsafe(json_text: str) -> str:
    """JSON with each character that ``sanitize`` would change as a ``\\u`` escape: its readers get the same values."""
    if json_text.isascii() and _DELETE not in json_text:
        return json_text  # fast: encoders escape every other control character
    return _NOT_ASCII.sub(_escape_if_unsafe, json_text)


def _escape_if_unsafe(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() and get_character_cell_size(character) and not _UNSAFE.match(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def _visible_form(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else _REPLACEMENT


def _replacement(character: str) -> str:
    """A space for white space of any width; ``�`` for private use and unassigned, whose width terminals disagree on."""
    return " " if character.isspace() else _REPLACEMENT


def _limit_combining_marks(text: str) -> str:
    """Drop combining marks beyond the limit, and those without a base character."""
    if not any(get_character_cell_size(character) == 0 for character in text):
        return text
    drawn: list[str] = []
    marks = _MARKS_MAX  # a mark at the start would combine with the text before it
    for character in text:
        if get_character_cell_size(character):
            marks = 0
            drawn.append(character)
        elif marks < _MARKS_MAX:
            marks += 1
            drawn.append(character)
        elif not drawn:
            drawn.append(_REPLACEMENT)
    return "".join(drawn)


def one_line(text: str, limit: int = 4096) -> str:
    """Collapse white space, newlines included, to single spaces; then ``sanitize``."""
    if len(text) <= limit and text.isascii() and "  " not in text and text.isprintable():
        return text.strip()  # fast: most names and sentences
    return sanitize(_SPACES.sub(" ", text[:limit]).strip(), limit)


def cells(text: str) -> int:
    """Width of sanitized text in cells."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, start: int, end: int) -> str:
    """The cells from ``start`` to before ``end``, exactly that many; half of a wide character becomes a space."""
    if start >= end or text.isascii():
        return text[start:end]
    inside: list[str] = []
    at = 0
    for character in text:
        size = get_character_cell_size(character)
        if at >= end and size:
            break
        if start <= at and at + size <= end and (size or at > start):
            inside.append(character)
        elif size == 2 and (at + 1 == start or at + 1 == end):
            inside.append(" ")
        at += size
    return "".join(inside)


def shorten(text: str, size: int, more: str = "…") -> str:
    """At most ``size`` cells; ``more`` replaces what is cut off."""
    if cells(text) <= size:
        return text
    if size <= cells(more):
        return more[: max(size, 0)]
    return before_number(cut(text, 0, size - cells(more)), text).rstrip() + more


_LINE_NUMBER = re.compile(r":\d+$")


def before_number(start: str, text: str) -> str:
    """The beginning ``start`` of ``text`` without a ``:13`` at its end that is part of ``:136``, another number."""
    found = _LINE_NUMBER.search(start) if text[len(start) :][:1].isdigit() else None
    return start if found is None or not text.startswith(start) else start[: found.start()]


def added_message(title: str, message: str) -> str:
    """The message of a failure beside its title; empty if that is, or begins with, the message or a class and it."""
    said = (title, title.partition(" ")[2])
    return "" if any(f"{text} ".startswith(f"{message} ") for text in said) else message


def is_remote(address: str) -> bool:
    """Whether a state file is on another host."""
    return address.startswith(REMOTE)


def split_address(address: str) -> tuple[str, str]:
    """Split ``ssh://ana@far:22/x.db`` into ``ana@far:22`` and ``/x.db``; a path of this machine has no first part."""
    if not is_remote(address):
        return "", address
    host, slash, path = address.removeprefix(REMOTE).partition("/")
    return host, slash + path


_WORDS_OF_NAME = re.compile(r"([-_.:/ ]+)")


def two_lines(text: str, size: int, more: str) -> tuple[str, str]:
    """A name on two lines of at most ``size`` cells, the second one empty if one is enough.

    It breaks behind the separator at which least is lost; a line that is too long loses its middle.
    """
    if cells(text) <= size:
        return text, ""
    words = _WORDS_OF_NAME.split(text)
    breaks = [("".join(words[:end]), "".join(words[end:])) for end in range(2, len(words), 2)]

    def lost(both: tuple[str, str]) -> tuple[int, int]:
        sizes = [*map(cells, both)]
        return sum(max(one - size, 0) for one in sizes), max(sizes)

    first, second = min(breaks, key=lost, default=(text, ""))
    return shorten_middle(first, size, more), shorten_middle(second, size, more)


def shorten_middle(text: str, size: int, more: str = "…") -> str:
    """At most ``size`` cells, with both ends: task names often differ in their last characters."""
    total = cells(text)
    if total <= size:
        return text
    room = size - cells(more)
    if room < 4:
        return shorten(text, size, more)
    tail = room // 2
    return cut(text, 0, room - tail) + more + cut(text, total - tail, total)


def pad(text: str, size: int, more: str = "…") -> str:
    """Exactly ``size`` cells, left-aligned."""
    text = shorten(text, size, more)
    return text + " " * (size - cells(text))


def pad_left(text: str, size: int, more: str = "…") -> str:
    """Exactly ``size`` cells, right-aligned."""
    text = shorten(text, size, more)
    return " " * (size - cells(text)) + text


# --- What the names of a run's tasks have in common, and rows leave out ----------------------------------------------


_SEPARATORS = ".:/"
_PREFIX_MIN = 6  # characters; a shorter prefix is part of the names
_PREFIXED_MIN = 3  # names


def common_start(names: Sequence[str]) -> str:
    """Return the characters that all names begin with."""
    pairs = zip(min(names), max(names), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_prefix(names: Sequence[str], least: int = _PREFIXED_MIN) -> str:
    """Return what all names begin with, up to a separator; "" if it is very short or a whole name.

    ``least``: of fewer names, nothing is taken off.
    """
    if len(names) < least:
        return ""
    shared = common_start(names)
    end = max(shared.rfind(separator) for separator in _SEPARATORS) + 1
    return shared[:end] if end >= _PREFIX_MIN and min(map(len, names)) > end else ""


# --- The one place where commands print: every line is made safe for terminals and other readers here ----------------
#
# Texts come from tasks, state files, other hosts and answers of executors. A caller may clean its texts earlier, to
# align them; ``echo`` and ``json_line`` do so for every caller.


def is_interactive() -> bool:
    """Whether a person can answer prompts on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on standard output, or on standard error. ``nl``: with a newline at the end.

    A reader of standard error that has left changes nothing: the exit code says how a command ended.
    """
    with suppress(BrokenPipeError) if err else nullcontext():
        click.echo(sanitize_lines(text), err=err, nl=nl)


class JsonLine(str):
    """A line of JSON that is safe to print as it stands."""

    __slots__ = ()


def json_line(value: object) -> JsonLine:
    """One line of JSON in which unsafe characters are ``\\u`` escapes."""
    import msgspec  # here, because the first frame of the console does without

    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    except (TypeError, ValueError, RecursionError):  # half of a surrogate pair, among others
        text = json.dumps(value, ensure_ascii=False, default=msgspec.to_builtins)
    return JsonLine(escape_unsafe(text))


def echo_json(value: object) -> None:
    """Print a value as one line of JSON."""
    echo(json_line(value))


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print each of several lines."""
    for line in lines:
        echo(line, err=err)


COLUMN_CELLS_MAX = 60  # of a table on a terminal


def table_lines(rows: Iterable[Sequence[str]], most: int | None = COLUMN_CELLS_MAX) -> Iterator[str]:
    """Rows with aligned columns; control characters are removed from the cells. ``most``: as for ``aligned``."""
    for row in aligned(rows, most):
        yield "  ".join(row).rstrip()


def aligned(rows: Iterable[Sequence[str]], most: int | None = COLUMN_CELLS_MAX) -> Iterator[list[str]]:
    """The cells of each row, cleaned and padded to the width of their column; the last of a row is not padded.

    ``most``: terminal cells of a column, of which a longer text loses its middle; None: texts stay whole.
    """
    cleaned = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(cells(row[column]) for row in cleaned) for column in range(len(cleaned[0]))]
    widths = widths if most is None else [min(width, most) for width in widths]
    for row in cleaned:
        padded = (pad(shorten_middle(cell, width), width) for cell, width in zip(row[:-1], widths, strict=False))
        yield [*padded, row[-1]]
