"""Separate key presses from escape sequences, also if the network splits a sequence.

Left arrow is the three bytes ``ESC [ D``. On a bad line they arrive apart, and a reader that gives up waiting too early
sees the keys Escape, ``[`` and ``D``, which the user did not press. So a sequence that has shown its introducer is
waited for until it is complete or given up as a whole; only a lone ESC is ever released, as the Escape key, and what
follows it late is still known for what it is and dropped. Pure: characters and instants in, tokens out.
"""

from __future__ import annotations

import re

import msgspec

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
    "|[\\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # OSC, DCS and their kind: unrequested answers
    f"|[^{re.escape(_INTRODUCERS)}\x1b]"  # Alt and a character
    ")"
)
_INCOMPLETE = re.compile("\x1b(?:\\[(?:[0-?]*[ -/]*|\\[|M[\\s\\S]{0,2})|O[0-9;]*|[\\]P_^X][^\x07\x1b]*\x1b?)")


class TypedText(msgspec.Struct, frozen=True):
    """Characters outside of any sequence: keys, as many as came together."""

    text: str


class EscapeSequence(msgspec.Struct, frozen=True):
    """A complete escape sequence."""

    text: str


class EscapeKey(msgspec.Struct, frozen=True):
    """A lone ESC. ``at`` is when it arrived (seconds), not when waiting for more was given up."""

    at: float


class PastedText(msgspec.Struct, frozen=True):
    """Text that the terminal marked as a paste."""

    text: str


InputToken = TypedText | EscapeSequence | EscapeKey | PastedText


class EscapeParser:
    """Splits terminal input into tokens. ``feed`` and ``expire`` return the tokens that are complete.

    Instants are seconds of any monotonic clock.
    """

    def __init__(self, escape_seconds: float) -> None:
        self._escape_seconds = escape_seconds
        self._partial = ""  # an ESC and what of its sequence has come
        self._partial_at = 0.0
        self._is_late_rest = False  # its ESC was released as a key: the rest is dropped
        self._escaped_at: float | None = None  # when that ESC came, while its rest may still follow
        self._paste: str | None = None
        self._paste_at = 0.0

    def feed(self, data: str, at: float) -> list[InputToken]:
        """Parse ``data`` that arrived at ``at`` or, while the loop was busy, earlier. It continues an incomplete
        sequence unless ``expire`` has dropped that."""
        tokens: list[InputToken] = []
        position = 0
        while position < len(data):
            if self._paste is not None:
                position = self._parse_paste(data, position, at, tokens)
            elif self._partial:
                position = self._parse_sequence(data, position, at, tokens)
            else:
                position = self._parse_text(data, position, at, tokens)
        return tokens

    def expires_at(self) -> float | None:
        """Return when to call ``expire`` if no input arrives first."""
        if self._paste is not None:
            return self._paste_at + PASTE_SECONDS
        if not self._partial:
            return None
        return self._partial_at + (self._escape_seconds if self._partial == _ESC else SEQUENCE_SECONDS)

    def expire(self, at: float) -> list[InputToken]:
        """End the incomplete sequence or paste if its time is over at ``at``."""
        due = self.expires_at()
        if due is None or at < due:
            return []
        if self._paste is not None:
            text, self._paste = self._paste, None
            return [PastedText(text)]
        begun, self._partial = self._partial, ""
        if begun != _ESC:
            return []
        self._escaped_at = self._partial_at
        return [EscapeKey(self._partial_at)]

    def _parse_text(self, data: str, position: int, at: float, tokens: list[InputToken]) -> int:
        late, self._escaped_at = self._escaped_at, None
        if late is not None and at - late <= LATE_SECONDS and data[position] in "[O":
            self._start_sequence(_ESC + data[position], at, disowned=True)
            return position + 1
        if data[position] == _ESC:
            self._start_sequence(_ESC, at)
            return position + 1
        end = data.find(_ESC, position)
        end = len(data) if end < 0 else end
        tokens.append(TypedText(data[position:end]))
        return end

    def _start_sequence(self, begun: str, at: float, disowned: bool = False) -> None:
        self._partial, self._partial_at, self._is_late_rest = begun, at, disowned

    def _parse_sequence(self, data: str, position: int, at: float, tokens: list[InputToken]) -> int:
        character = data[position]
        if self._partial == _ESC:
            apart = position == 0  # came in a later read: with Alt, both come in one
            if character == _ESC or (apart and character not in "[O"):
                tokens.append(EscapeKey(self._partial_at))
                self._partial = ""
                return position
        sequence = self._partial + character
        if _COMPLETE.fullmatch(sequence):
            self._partial = ""
            self._emit_sequence(sequence, at, tokens)
        elif len(sequence) < _SEQUENCE_CHARACTERS_MAX and _INCOMPLETE.fullmatch(sequence):
            self._partial = sequence
        else:
            self._partial = ""  # noise
            return position if character == _ESC else position + 1
        return position + 1

    def _emit_sequence(self, sequence: str, at: float, tokens: list[InputToken]) -> None:
        if self._is_late_rest:
            return
        if sequence == _PASTE_START:
            self._paste, self._paste_at = "", at
        elif sequence != _PASTE_END:
            tokens.append(EscapeSequence(sequence))

    def _parse_paste(self, data: str, position: int, at: float, tokens: list[InputToken]) -> int:
        before = self._paste or ""
        text = before + data[position:]
        self._paste_at = at
        end = text.find(_PASTE_END, max(len(before) - len(_PASTE_END), 0))
        if end < 0:
            self._paste = text[-_PASTE_CHARACTERS_MAX:]
            return len(data)
        self._paste = None
        tokens.append(PastedText(text[:end]))
        return position + end + len(_PASTE_END) - len(before)
