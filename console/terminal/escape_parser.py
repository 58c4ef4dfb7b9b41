"""Key presses and escape sequences told apart, also when the network cuts a sequence into pieces.

Left arrow is the three bytes ``ESC [ D``. On a bad line they arrive apart, and a reader that gives up waiting too early
sees the keys Escape, ``[`` and ``D``, which nobody pressed. So a sequence that has shown its introducer is waited for
until it is complete or given up as a whole; only a lone ESC is ever released, as the Escape key, and what follows it
late is still known for what it is and dropped. Pure: characters and instants in, tokens out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Seconds from its ESC in which an introduced sequence must be complete; else it is dropped as a whole.
SEQUENCE_SECONDS = 2.0
#: Seconds from an ESC that was released as the Escape key in which ``[`` or ``O`` is its late rest, not a key.
LATE_SECONDS = 0.6
#: Seconds of silence after which a paste whose end was lost counts as ended.
PASTE_SECONDS = 1.0

_ESC = "\x1b"
_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_PASTE_CHARACTERS_MAX = 1 << 20
_SEQUENCE_CHARACTERS_MAX = 256
_INTRODUCERS = "[O]P_^X"

_COMPLETE = re.compile(
    "\x1b(?:"
    r"\[M[\s\S]{3}"  # X10 mouse: three raw characters
    r"|\[\[[A-Z]"  # function keys of the Linux console
    r"|\[[0-?]*[ -/]*[@-LN-Z\\-~]|\[[0-?]+[ -/]*M"  # CSI
    r"|O[0-9;]*[@-~]"  # SS3
    "|[\\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # OSC, DCS and their kind: answers that nobody asked for
    f"|[^{re.escape(_INTRODUCERS)}\x1b]"  # Alt and a character
    ")"
)
_BEGUN = re.compile("\x1b(?:\\[(?:[0-?]*[ -/]*|\\[|M[\\s\\S]{0,2})|O[0-9;]*|[\\]P_^X][^\x07\x1b]*\x1b?)")


@dataclass(frozen=True, slots=True)
class Typed:
    """Characters outside of any sequence: keys, as many as came together."""

    text: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One complete escape sequence."""

    text: str


@dataclass(frozen=True, slots=True)
class EscapeKey:
    """A lone ESC. ``at`` is when it arrived (seconds), not when waiting for more was given up."""

    at: float


@dataclass(frozen=True, slots=True)
class Pasted:
    """What the terminal bracketed as a paste."""

    text: str


Token = Typed | Sequence | EscapeKey | Pasted


class SequenceReader:
    """Cuts what a terminal sends into tokens. ``feed`` and ``tick`` return what is certain by then.

    Instants are seconds of any monotonic clock.
    """

    def __init__(self, escape_seconds: float) -> None:
        self._escape_seconds = escape_seconds
        self._begun = ""  # an ESC and what of its sequence has come
        self._begun_at = 0.0
        self._disowned = False  # its ESC was released as a key: the rest is dropped
        self._escaped_at: float | None = None  # when that ESC came, while its rest may still follow
        self._paste: str | None = None
        self._paste_at = 0.0

    def feed(self, data: str, at: float) -> list[Token]:
        """Take ``data`` that arrived at ``at``, or earlier: while the loop was busy it waited, and nobody knows how
        long. So it belongs to what has begun unless ``tick`` has given that up."""
        tokens: list[Token] = []
        position = 0
        while position < len(data):
            if self._paste is not None:
                position = self._take_paste(data, position, at, tokens)
            elif self._begun:
                position = self._take_sequence(data, position, at, tokens)
            else:
                position = self._take_keys(data, position, at, tokens)
        return tokens

    def due(self) -> float | None:
        """When ``tick`` should be called if nothing arrives before."""
        if self._paste is not None:
            return self._paste_at + PASTE_SECONDS
        if not self._begun:
            return None
        return self._begun_at + (self._escape_seconds if self._begun == _ESC else SEQUENCE_SECONDS)

    def tick(self, at: float) -> list[Token]:
        """Give up what has waited long enough by ``at``."""
        due = self.due()
        if due is None or at < due:
            return []
        if self._paste is not None:
            text, self._paste = self._paste, None
            return [Pasted(text)]
        begun, self._begun = self._begun, ""
        if begun != _ESC:
            return []
        self._escaped_at = self._begun_at
        return [EscapeKey(self._begun_at)]

    def _take_keys(self, data: str, position: int, at: float, tokens: list[Token]) -> int:
        late, self._escaped_at = self._escaped_at, None
        if late is not None and at - late <= LATE_SECONDS and data[position] in "[O":
            self._begin(_ESC + data[position], at, disowned=True)
            return position + 1
        if data[position] == _ESC:
            self._begin(_ESC, at)
            return position + 1
        end = data.find(_ESC, position)
        end = len(data) if end < 0 else end
        tokens.append(Typed(data[position:end]))
        return end

    def _begin(self, begun: str, at: float, disowned: bool = False) -> None:
        self._begun, self._begun_at, self._disowned = begun, at, disowned

    def _take_sequence(self, data: str, position: int, at: float, tokens: list[Token]) -> int:
        character = data[position]
        if self._begun == _ESC:
            apart = position == 0  # came in a later read: with Alt, both come in one
            if character == _ESC or (apart and character not in "[O"):
                tokens.append(EscapeKey(self._begun_at))
                self._begun = ""
                return position
        sequence = self._begun + character
        if _COMPLETE.fullmatch(sequence):
            self._begun = ""
            self._finish(sequence, at, tokens)
        elif len(sequence) < _SEQUENCE_CHARACTERS_MAX and _BEGUN.fullmatch(sequence):
            self._begun = sequence
        else:
            self._begun = ""  # noise
            return position if character == _ESC else position + 1
        return position + 1

    def _finish(self, sequence: str, at: float, tokens: list[Token]) -> None:
        if self._disowned:
            return
        if sequence == _PASTE_START:
            self._paste, self._paste_at = "", at
        elif sequence != _PASTE_END:
            tokens.append(Sequence(sequence))

    def _take_paste(self, data: str, position: int, at: float, tokens: list[Token]) -> int:
        before = self._paste or ""
        text = before + data[position:]
        self._paste_at = at
        end = text.find(_PASTE_END, max(len(before) - len(_PASTE_END), 0))
        if end < 0:
            self._paste = text[-_PASTE_CHARACTERS_MAX:]
            return len(data)
        self._paste = None
        tokens.append(Pasted(text[:end]))
        return position + end + len(_PASTE_END) - len(before)
