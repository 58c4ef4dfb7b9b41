"""Pieces of sentences, counted and timed, and digests of texts.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import re
import shlex
from datetime import datetime, timezone
from functools import lru_cache
from importlib import import_module
from typing import Any, Callable, Collection, Iterable, List, NewType, Optional, Sequence, TypeVar

Named = TypeVar("Named")

# --- Counted nouns in sentences --------------------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return a number and a regular noun: ``1 task``, ``1,248 tasks``."""
    return "{:,} {}{}".format(count, noun, "" if count == 1 else "s")


def first_names(names: Sequence[Named], most: int = 5, show: Callable[[Named], str] = str) -> str:
    """Return the first ``most`` names, and the number of the others: ``load, clean and 3 more``.

    ``show``: makes what is shown of a name; called for these names alone, because there may be 100,000.
    """
    shown = ", ".join(map(show, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def percent_encoded(character: str) -> str:
    """A character as the percent escapes of its UTF-8."""
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def format_bytes(count: int) -> str:
    """Bytes in at most six cells: ``0 B``, ``999 B``, ``1.5 kB``, ``12 MB``."""
    amount = float(max(count, 0))
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            small = unit != "B" and amount < 9.95
            return "{:.{}f} {}".format(amount, int(small), unit)
        amount /= 1000
    raise AssertionError("unreachable")


# --- What a mistyped name probably means -----------------------------------------------------------------------------


_COMPARED_MAX = 5000  # names that are compared letter by letter, in a fifth of a second


def did_you_mean(wrong: str, names: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the likeliest of the known ones; empty if none is like it."""
    from difflib import get_close_matches  # here: a name is mistyped in few commands

    plain = {_without_separators(name): name for name in names}
    close = [name for name in names if name.endswith("." + wrong)]
    if not close and _without_separators(wrong) in plain:
        close = [plain[_without_separators(wrong)]]
    elif not close and len(plain) <= _COMPARED_MAX:
        close = [plain[one] for one in get_close_matches(_without_separators(wrong), plain, n=1)]
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_parameter(owner: str, name: str, known: Collection[str]) -> str:
    """The sentence that refuses a parameter. ``owner``: ``flow 'etl'``."""
    declared = ", ".join(sorted(known)) or "none"
    return f"{owner} has no parameter {name!r}{did_you_mean(name, known) or f'; it declares: {declared}'}"


def _without_separators(name: str) -> str:
    return re.sub("[-_ ]", "", name.casefold())


# --- The one format of durations and of times of day, in sentences, columns and clocks -------------------------------
#
# Runs on Python 3.6.


SECOND = 1000000
REMOTE = "ssh://"  # with which the address of a state file on another host begins


def format_seconds(seconds: float) -> str:
    """``format_duration`` of seconds."""
    return format_duration(round(seconds * SECOND))


def format_duration(duration_us: int) -> str:
    """Format microseconds: ``<1ms``, ``40ms``, ``0.4s``, ``12s``, ``1m43``, ``2h00``, ``1d03h``, ``123d``.

    At most five cells below 10,000 days; cut, never rounded up; ``0s`` for nothing and below.
    """
    duration_us = max(duration_us, 0)
    if 0 < duration_us < 1000:
        return "<1ms"
    seconds = duration_us // SECOND
    if seconds < 10 and duration_us % SECOND // 100000:
        return f"{seconds}.{duration_us % SECOND // 100000}s"
    if 0 < duration_us // 1000 < 100:
        return f"{duration_us // 1000}ms"
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}"
    hours = seconds // 3600
    if hours < 24:
        return f"{hours}h{seconds % 3600 // 60:02}"
    return f"{hours // 24}d{hours % 24:02}h" if hours < 240 else f"{hours // 24}d"


def format_left(left_us: int) -> str:
    """``format_duration`` in whole seconds, rounded up, for what counts down: it is over when this is."""
    return format_duration(-(-left_us // SECOND) * SECOND)


def format_clock(at: int) -> str:
    """Format an instant (microseconds UTC) as the time of day on this machine: ``02:00``, ``02:00:30``."""
    clock = datetime.fromtimestamp(at // SECOND, timezone.utc).astimezone()
    return clock.strftime("%H:%M:%S" if clock.second else "%H:%M")


# --- Text for a terminal and for a page ------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Replace what does not print, newlines aside, by blanks: control sequences, marks of direction, surrogates."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


# --- Words of a shell ------------------------------------------------------------------------------------------------
#
# Names of tasks, runs and files in commands that people paste. No other module quotes them.


#: What a POSIX shell reads as the words that it was made of. It has one line and no control characters.
ShellText = NewType("ShellText", str)

_NOT_LITERAL = re.compile("[^A-Za-z0-9_./:@+,=]")


def shell_word(text: str) -> ShellText:
    """Quote one word. What cannot be printed becomes an octal escape, by which the shell makes the same word.

    Except for NUL and halves of surrogate pairs, which no word has, and for newlines at the end.
    """
    if text.isprintable():
        return ShellText(shlex.quote(text))
    data = text.replace("\0", "?").encode("utf-8", "replace").decode("latin-1")
    return ShellText(f"\"$(printf '{_NOT_LITERAL.sub(_octal, data)}')\"")


def _octal(match: Any) -> str:
    return "%%" if match.group() == "%" else f"\\{ord(match.group()):03o}"


def shell_command(words: Iterable[str]) -> ShellText:
    """Return the command line of which a shell makes these words."""
    return ShellText(" ".join(map(shell_word, words)))


def place_words(state: str, run_id: Optional[str] = None) -> List[str]:
    """Return the words that name a state file, and one of its runs, on a command line of redrive."""
    if run_id is None:
        return [state]
    return [state + "@" + run_id] if "@" not in run_id else [state] * bool(state) + ["--run", run_id]


def advised(act: str, state: str, run_id: Optional[str] = None, more: Sequence[str] = ()) -> ShellText:
    """Return the command that a text advises: pasted anywhere on its machine, it means the same."""
    return shell_command(["redrive"] + act.split(" ") + [*filter(None, place_words(state, run_id)), *more])


# --- SHA-1 and SHA-256 without OpenSSL, which ``hashlib`` loads: the fork of each attempt would copy its mappings ----
#
# Runs on Python 3.6.


_MODULES = {"sha1": ("_sha1", "hashlib"), "sha256": ("_sha2", "_sha256", "hashlib")}  # _sha2: since Python 3.12


def sha1_hex(data: bytes) -> str:
    """Return the SHA-1 as hexadecimal digits."""
    return str(_constructor("sha1")(data).hexdigest())


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 as hexadecimal digits."""
    return str(_constructor("sha256")(data).hexdigest())


@lru_cache(maxsize=None)
def _constructor(name: str) -> Callable[[bytes], Any]:
    """Return the first that this Python was built with."""
    for module in _MODULES[name]:
        try:
            found: Callable[[bytes], Any] = getattr(import_module(module), name)
        except ImportError:
            continue
        return found
    raise ImportError(name)
