"""The text of a shell line in parts with positions, so that one part is changed and all others stay as they are.

The grammar is the plain part of POSIX "Shell Command Language", section 2.3, with the redirections of bash. A line that
holds more (a substitution, an input in its place, a comment, a quote without its end) has no parts: nothing in it may
be changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

NOWHERE = "/dev/null"


class TokenKind(Enum):
    WORD = "word"
    OPERATOR = "operator"  # what stands between commands, or around them
    REDIRECTION = "redirection"


@dataclass(frozen=True, slots=True)
class ShellToken:
    """A part of a line, from ``start`` to before ``end``.

    Attributes:
        text: as the line has it.
        descriptor: of a redirection: 0, 1 or 2, and more; "&" for both outputs.
        target: of a redirection: the file, or the descriptor that it copies, without quotes.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    descriptor: str = ""
    target: str = ""

    @property
    def is_output(self) -> bool:
        """Whether stdout goes to a file by it."""
        return self.descriptor in ("1", "&") and not self.target.startswith("&")


_QUOTED = r'"(?:[^"\\`$]|\\.|\$(?![({]))*"' + r"|'[^']*'"
_WORD = rf"(?:[^\s;&|()<>\"'\\$`]|\\.|\$(?![({{'\"])|{_QUOTED})"
_WHOLE_WORD = rf"(?!#){_WORD}+"
_TOKEN = re.compile(
    rf"[^\S\n]*(?:(?P<redirection>(?P<descriptor>\d*)(?P<sign>>>|>\||>&|<>|<&|>|<(?!<))[ \t]*(?P<target>{_WHOLE_WORD}))"
    rf"|(?P<both>&>>?[ \t]*(?P<both_target>{_WHOLE_WORD}))"
    rf"|(?P<operator>&&|\|\||;;|[;&|()\n])|(?P<word>{_WHOLE_WORD}))"
)


def tokens_of(line: str, shell: str = "sh") -> list[ShellToken] | None:
    """Cut a line into its parts; None if it holds more than they are. ``shell``: "bash" has redirections of its own."""
    found: list[ShellToken] = []
    at = 0
    while line[at:].strip(" \t"):
        match = _TOKEN.match(line, at)
        if match is not None and match["both"] and shell != "bash":
            match = re.compile(r"[^\S\n]*(?P<operator>&)").match(line, at)
        if match is None:
            return None
        found.append(_token(match))
        at = match.end()
    return found


def _token(match: re.Match[str]) -> ShellToken:
    groups = match.groupdict()
    name = next(name for name in ("redirection", "both", "operator", "word") if groups.get(name))
    place = match[name], match.start(name), match.end(name)
    if name == "redirection":
        is_copy = groups["sign"].endswith("&")
        given = groups["descriptor"] or ("0" if groups["sign"].startswith("<") else "1")
        return ShellToken(TokenKind.REDIRECTION, *place, given, "&" * is_copy + unquoted(groups["target"]))
    if name == "both":
        return ShellToken(TokenKind.REDIRECTION, *place, "&", unquoted(groups["both_target"]))
    return ShellToken(TokenKind(name), *place)


def unquoted(text: str) -> str:
    """A word without the quotes around the whole of it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


#: The redirections at the end of a line by which its stdout, or both outputs, go nowhere, and how many of them stay.
#: ``2>&1`` in front sends stderr to where stdout went before.
_ENDS = {
    (("1", NOWHERE),): 0,
    (("1", NOWHERE), ("2", "&1")): 0,
    (("1", NOWHERE), ("2", NOWHERE)): 0,
    (("2", NOWHERE), ("1", NOWHERE)): 0,
    (("2", "&1"), ("1", NOWHERE)): 1,
    (("&", NOWHERE),): 0,
}


def without_null(line: str, tokens: Sequence[ShellToken]) -> Sequence[ShellToken]:
    """The parts of a line without the redirections at its end that send its output nowhere, if they are all of them."""
    count = next((n for n, one in enumerate(reversed(tokens)) if one.kind is not TokenKind.REDIRECTION), len(tokens))
    at = len(tokens) - count
    command, end = tokens[:at], tokens[at:]
    staying = _ENDS.get(tuple((one.descriptor, one.target) for one in end))
    if staying is None or not command or (command[-1].kind is TokenKind.OPERATOR and command[-1].text != ")"):
        return tokens
    if command[-1].text[-1].isspace():  # a blank that is part of a word
        return tokens
    return tokens[: at + staying]


def is_single(tokens: Sequence[ShellToken]) -> bool:
    """Whether they are one command, so that what stands in front of it holds for all of it."""
    return not any(one.kind is TokenKind.OPERATOR for one in tokens)


def as_condition(line: str, tokens: Sequence[ShellToken]) -> str:
    """``[ -x a ] && a`` as ``if [ -x a ]; then a; fi``: a condition that does not hold is no failure of a job."""
    ands: list[int] = []
    depth = 0
    for number, one in enumerate(tokens):
        if one.kind is not TokenKind.OPERATOR:
            continue
        depth += {"(": 1, ")": -1}.get(one.text, 0)
        if not depth and one.text not in ("&&", "|", ")"):
            return line
        if not depth and one.text == "&&":
            ands.append(number)
    starts = [0, *(number + 1 for number in ands)]
    conditions = 0
    for start, end in zip(starts, ands, strict=False):
        if not _is_condition([one.text for one in tokens[start:end]]):
            break
        conditions += 1
    if not conditions:
        return line
    last = tokens[ands[conditions - 1] - 1]
    rest = line[tokens[starts[conditions]].start : tokens[-1].end]
    return f"if {line[tokens[0].start : last.end]}; then {rest}; fi"


def _is_condition(words: Sequence[str]) -> bool:
    """Whether a command only asks for something."""
    words = words[words[0] == "!" :]
    return "|" not in words and (words[0] in ("[", "test", "which") or words[:2] == ["command", "-v"])
