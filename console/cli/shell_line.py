"""Reads a line of the shell: its program, the name of its job, and what of it a flow does itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .flow_text import plain_name
from .shell_text import NOWHERE, ShellToken, TokenKind, as_condition, is_single, tokens_of, unquoted, without_null


@dataclass(frozen=True, slots=True)
class ShellLine:
    """A line of the shell without what a flow does itself.

    Attributes:
        text: the line that is left.
        prefix: programs in front that stay, as ``nice``.
        lock: the file of a ``flock`` that is taken out.
        log: the file that its output goes to.
        is_background: whether a ``&`` at its end is taken out.
        is_guarded: whether it runs on a condition.
        is_silent: whether its output goes nowhere.
    """

    text: str
    prefix: str = ""
    cwd: str | None = None
    timeout: str | None = None
    grace: str | None = None
    lock: str | None = None
    log: str | None = None
    is_background: bool = False
    is_guarded: bool = False
    is_silent: bool = False


def parse_shell_line(line: str, shell: str = "sh") -> ShellLine:
    """Take out of a line what a flow does itself. A line of several commands keeps all but its ``cd`` in front.

    A line that is more than words, operators and redirections stays as it is.
    """
    found = tokens_of(line, shell)
    if not found:
        return ShellLine(line)
    parsed = ShellLine(line, is_background=len(found) > 1 and found[-1].text == "&")
    tokens = without_null(line, found[:-1] if parsed.is_background else found)
    parsed = replace(parsed, is_silent=tokens[-1] is not found[-1 - parsed.is_background])
    cwd = _leading_cd_folder(tokens)
    if cwd is not None:
        parsed, tokens = replace(parsed, cwd=cwd), tokens[3:]
    parsed = replace(parsed, text=line[tokens[0].start : tokens[-1].end], log=_log_of(tokens))
    if is_single(tokens):
        return _without_prefixes(parsed)
    guarded = as_condition(line, tokens)
    return replace(parsed, text=guarded, is_guarded=True) if guarded != line else parsed


_WORD = r"""(?:"[^"$`\\]*"|'[^']*'|(?:\$HOME\b|\$\{HOME\}|[\w./~@%+,:=-])+)"""


_DURATION = r"[\d.]+[smhd]?"


_FLOCK = re.compile(
    r"(?<![^\s;&|(])(?:\S*/)?flock\s+"
    r"(?:-[nxe]+\s+|--(?:nb|nonblock|exclusive)\s+|(?:-[wE]\s*|--(?:timeout|wait)[= ])[\d.]+\s+)*"
    rf"(?P<lock>(?!-){_WORD})\s+(?:-c\s+)?"
)


#: What may stand in front of a command; each group is a field of ``ShellLine``.
_PREFIXES = (
    re.compile(
        r"(?P<prefix>(?:\S*/)?(?:nice(?:\s+-n\s*-?\d+|\s+--?\d+|\s+--adjustment=-?\d+)?"
        r"|ionice(?:\s+-[cn]\s*\d+)*|chronic)\s+)(?=[^\s-])"
    ),
    re.compile(
        r"(?:\S*/)?timeout\s+(?:--preserve-status\s+|--foreground\s+|(?:-s\s*|--signal=)(?:SIG)?TERM\s+"
        rf"|(?:-k\s*|--kill-after=)(?P<grace>{_DURATION})\s+)*(?P<timeout>{_DURATION})\s+"
    ),
    _FLOCK,
)


def _leading_cd_folder(tokens: Sequence[ShellToken]) -> str | None:
    """The folder of ``cd FOLDER &&`` in front of a command; None without one that is known."""
    if len(tokens) < 4 or [tokens[0].text, tokens[2].text] != ["cd", "&&"] or not re.fullmatch(_WORD, tokens[1].text):
        return None
    folder = unquoted(tokens[1].text)
    return folder if is_known_folder(folder) else None


def _log_of(tokens: Iterable[ShellToken]) -> str | None:
    """The file that gets the output: one that is appended to, or that has a name of a log."""
    outputs = (one for one in tokens if one.kind is TokenKind.REDIRECTION and one.is_output and one.target != NOWHERE)
    return next((one.target for one in outputs if ">>" in one.text or one.target.endswith(_LOG_SUFFIXES)), None)


_LOG_SUFFIXES = (".log", ".out", ".err")


def _without_prefixes(parsed: ShellLine) -> ShellLine:
    while (found := next(filter(None, (one.match(parsed.text) for one in _PREFIXES)), None)) is not None:
        fields = {name: unquoted(value) for name, value in found.groupdict().items() if value}
        parsed = replace(
            parsed,
            text=_line_of_words(parsed.text[found.end() :]),
            prefix=parsed.prefix + fields.get("prefix", ""),
            timeout=fields.get("timeout", parsed.timeout),
            grace=fields.get("grace", parsed.grace),
            lock=fields.get("lock", parsed.lock),
        )
    return replace(parsed, text=parsed.prefix + parsed.text)


def is_known_folder(folder: str) -> bool:
    """Whether the shell would change to what the flow says: the home of another user must exist."""
    return not folder.startswith("~") or os.path.expanduser(folder.partition("/")[0]) != folder.partition("/")[0]


def _line_of_words(line: str) -> str:
    """The line itself; that of ``flock FILE -c 'LINE'`` without its quotes."""
    is_quoted = line[:1] in ("'", '"') and len(words := shlex.split(line)) == 1
    return words[0] if is_quoted else line


_INTERPRETER = re.compile(r"(?:ba|da|z|k)?sh|(?:python|perl|ruby|php|node)[\d.]*|source|\.")


#: Words in front of the program or script that names a job.
_NO_NAME = re.compile(
    r"\[\[?|[!{]|test|if|then|exec|env|export|exit|set|command|sudo|time|nice|ionice|chronic|flock|timeout"
    rf"|{_INTERPRETER.pattern}|{_DURATION}"
)


#: The options of such a word that have their value as a word of its own.
_OPTIONS_WITH_VALUE: Mapping[str, tuple[str, ...]] = {
    "sudo": ("-u", "--user", "-g", "--group", "-D", "--chdir"),
    "env": ("-u", "--unset", "-C", "--chdir"),
    "timeout": ("-s", "--signal", "-k", "--kill-after"),
}


#: Commands in front of the one that does the job: they change a folder or variables, wait, or ask for something.
_PREPARATION = re.compile(
    r"""(?<![^\s;&|()'"])(?:(?:cd|export|source|\.|sleep|ulimit|umask)\s[^;&|()]*|(?:test|\[\[?)\s[^;&|]*)(?:&&|\|\||;)"""
)
_ASSIGNMENT = re.compile(rf"(?<!\S)[A-Za-z_]\w*={_WORD}(?=\s)")
_IS_NO_FILE = ("-c", "-e", "-m", "-r")  # what follows such an option of an interpreter


_SUFFIXES = re.compile(r"\.(?:sh|py|pl|rb|php|js)$")


@dataclass(frozen=True, slots=True)
class LineProgram:
    """The program or script that a line starts, as the line writes it; empty if the line names none.

    ``is_script``: an interpreter reads it, so that it need not be executable; ``is_file``: not a module or code.
    """

    text: str = ""
    is_script: bool = False
    is_file: bool = True


def is_before_program(word: str) -> bool:
    """Whether a word stands in front of a program, as ``env`` and ``nice`` do."""
    return _NO_NAME.fullmatch(word) is not None


def name_of_line(line: str) -> str:
    """A name for the job of a line: that of its program or script; empty if the line names none."""
    return _name_of_program(program_of_line(line).text)


def program_of_line(line: str) -> LineProgram:
    """The program or script that a line starts."""
    found, is_value = LineProgram(), False
    values: tuple[str, ...] = ()
    line = _FLOCK.sub("", _ASSIGNMENT.sub("", _PREPARATION.sub("", line)))
    for word in re.split(r"[\s;&|()]+", line):
        program = word.strip("\"'")
        base = os.path.basename(program)
        if is_value or word[:1] == "-":
            is_value = not is_value and word in values
            found = replace(found, is_file=found.is_file and word not in _IS_NO_FILE)
        elif is_before_program(base):
            values = _OPTIONS_WITH_VALUE.get(base, ())
            found = LineProgram(is_script=bool(_INTERPRETER.fullmatch(base)))
        elif _name_of_program(program) and "=" not in word:
            return replace(found, text=program)
    return LineProgram()


def _name_of_program(program: str) -> str:
    return plain_name(_SUFFIXES.sub("", os.path.basename(program)))
