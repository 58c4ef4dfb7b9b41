"""The lines of a crontab, and the flow files that stand for them."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import count

from ...engine.core.schedule import NAMED_SCHEDULES, parse_recurrence
from ...engine.domain.text import shell_word
from ..text.text import one_line

_LINE_MAX = 100


def local_zone() -> str:
    """The IANA name of the time zone of this machine; UTC if it has none."""
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return "UTC" if name in ("", "Etc/UTC") else name


@dataclass(frozen=True, slots=True)
class Job:
    """A line of a crontab that starts a command.

    Attributes:
        number: of the line, from 1; ``text``: the line as it is.
        fields: the five fields of its schedule.
        line: what cron gives to the shell; ``stdin``: what follows the first ``%``.
        environment: the variables of the lines above it.
        user: of a system crontab.
    """

    number: int
    text: str
    fields: str
    line: str
    stdin: str | None
    environment: Mapping[str, str]
    zone: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Crontab:
    """``left_out``: lines that no flow can stand for: their numbers, and why."""

    jobs: Sequence[Job]
    left_out: Sequence[tuple[int, str]]


_VARIABLE = re.compile(r"""\s*("[^"]*"|'[^']*'|[^\s="']+)\s*=\s*(.*?)\s*$""")


_UNESCAPED_PERCENT = re.compile(r"(?<!\\)%")


def parse_crontab(text: str, zone: str, *, has_user: bool) -> Crontab:
    """Parse a crontab as ``crontab(5)`` describes it. ``zone``: of lines without a ``CRON_TZ`` above them."""
    environment: dict[str, str] = {}
    jobs: list[Job] = []
    left_out: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (variable := _VARIABLE.match(line)) is not None:
            environment[_unquoted(variable[1])] = _unquoted(variable[2])
            continue
        try:
            jobs.append(_job_of(number, line.strip(), dict(environment), zone, has_user))
        except ValueError as error:
            left_out.append((number, str(error)))
    return Crontab(jobs, left_out)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _job_of(number: int, line: str, environment: Mapping[str, str], zone: str, has_user: bool) -> Job:
    """Parse a line. Raises ValueError with a sentence."""
    if line.startswith("@reboot"):
        raise ValueError("@reboot is not a time: start it by a systemd unit")
    words = line.split(None, (1 if line.startswith("@") else 5) + has_user)
    schedule = words[:1] if line.startswith("@") else words[:5]
    rest = words[len(schedule) :]
    if len(rest) != 1 + has_user:
        raise ValueError(f"it is no line of a crontab: {line}")
    fields = NAMED_SCHEDULES.get(schedule[0].lower()) if line.startswith("@") else " ".join(schedule)
    if fields is None:
        raise ValueError(f"there is no schedule {schedule[0]}")
    if not line.startswith("@"):
        _require_schedule(fields)
    shell_line, *inputs = (part.replace(r"\%", "%") for part in _UNESCAPED_PERCENT.split(rest[-1]))
    stdin = "\n".join(inputs) + "\n" if inputs else None
    zone = environment.get("CRON_TZ") or zone
    return Job(number, line, fields, shell_line.strip(), stdin, environment, zone, rest[0] if has_user else None)


def _require_schedule(fields: str) -> None:
    """Raise ValueError for five words that are no schedule, as of a text between the lines."""
    try:
        parse_recurrence(fields, UTC)
    except ValueError as error:
        raise ValueError(f"no flow is written: {error}") from None


# --- The flow of a line ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """A line of the shell without what a flow does itself.

    Attributes:
        prefix: programs in front that stay, as ``nice``.
        lock: the file of a ``flock`` that is taken out.
        log: the file that its output goes to.
    """

    line: str
    prefix: str = ""
    cwd: str | None = None
    timeout: str | None = None
    grace: str | None = None
    lock: str | None = None
    log: str | None = None


_WORD = r"""(?:"[^"$`\\]*"|'[^']*'|(?:\$HOME\b|\$\{HOME\}|[\w./~@%+,:=-])+)"""


_DURATION = r"[\d.]+[smhd]?"


#: What may stand in front of a command; each group is a field of ``Shape``.
_CHANGE_FOLDER = re.compile(rf"cd\s+(?P<cwd>{_WORD})\s*&&\s*")


_PREFIXES = (
    re.compile(
        r"(?P<prefix>(?:\S*/)?(?:nice(?:\s+-n\s*-?\d+|\s+--?\d+|\s+--adjustment=-?\d+)?"
        r"|ionice(?:\s+-[cn]\s*\d+)*|chronic)\s+)(?=[^\s-])"
    ),
    re.compile(
        r"(?:\S*/)?timeout\s+(?:--preserve-status\s+|--foreground\s+|(?:-s\s*|--signal=)(?:SIG)?TERM\s+"
        rf"|(?:-k\s*|--kill-after=)(?P<grace>{_DURATION})\s+)*(?P<timeout>{_DURATION})\s+"
    ),
    re.compile(
        r"(?:\S*/)?flock\s+(?:-[nxe]+\s+|--(?:nb|nonblock|exclusive)\s+|(?:-[wE]\s*|--(?:timeout|wait)[= ])[\d.]+\s+)*"
        rf"(?P<lock>(?!-){_WORD})\s+(?:-c\s+)?"
    ),
)


#: The end of a line that sends its stdout, or both, to nowhere: the whole of it, so that what is left is a command. One
#: for stderr alone stays, as does each that a digit, a sign of another redirection or no blank stands before.
_NOWHERE = r">>?\s*/dev/null(?:\s+2>>?\s*(?:&1|/dev/null))?\s*$"
_TO_NOWHERE = re.compile(rf"(?<=[^\s\d<>&|\\;])(?:\s+1?)?{_NOWHERE}|(?<=\d)\s+1?{_NOWHERE}")
_BOTH_TO_NOWHERE = re.compile(r"(?<=[^\s<>&|\\;])\s+&>>?\s*/dev/null\s*$")  # of bash: to other shells it is a "&"

#: Where the end of a line may be no part of its command: quotes of other kinds, inputs, comments.
_NOT_PLAIN_SHELL = re.compile(r"\$\(|`|\$\{|<<|#")


_LOG_FILE = re.compile(rf"\s(?:1?>>|&>>)\s*(?P<log>{_WORD})|\s(?:1?>|&>)\s*(?P<other>[^\s>;&|]+\.(?:log|out|err))\b")


def shape_of(line: str, shell: str = "sh") -> Shape:
    """Take out of a line what a flow does itself. A line of several commands keeps all but its ``cd`` in front."""
    if _NOT_PLAIN_SHELL.search(line) is None and _has_whole_quotes(line):
        line = (_BOTH_TO_NOWHERE if shell == "bash" else _TO_NOWHERE).sub("", _TO_NOWHERE.sub("", line))
    shape = Shape(line)
    if (moved := _CHANGE_FOLDER.match(line)) is not None and _is_known_folder(_unquoted(moved["cwd"])):
        shape = Shape(line[moved.end() :], cwd=_unquoted(moved["cwd"]))
    if _is_single(shape.line):
        while (found := next(filter(None, (one.match(shape.line) for one in _PREFIXES)), None)) is not None:
            fields = {name: _unquoted(value) for name, value in found.groupdict().items() if value}
            fields["prefix"] = shape.prefix + fields.get("prefix", "")
            shape = replace(shape, line=_line_of_words(shape.line[found.end() :]), **fields)
    log = _LOG_FILE.search(shape.line)
    return replace(shape, line=shape.prefix + shape.line, log=None if log is None else log["log"] or log["other"])


def _has_whole_quotes(line: str) -> bool:
    try:
        return bool(shlex.split(line))
    except ValueError:
        return False


def _is_known_folder(folder: str) -> bool:
    """Whether the shell would change to what the flow says: the home of another user must exist."""
    return not folder.startswith("~") or os.path.expanduser(folder.partition("/")[0]) != folder.partition("/")[0]


def _line_of_words(line: str) -> str:
    """The line itself; that of ``flock FILE -c 'LINE'`` without its quotes."""
    is_quoted = line[:1] in ("'", '"') and len(words := shlex.split(line)) == 1
    return words[0] if is_quoted else line


def _is_single(line: str) -> bool:
    """Whether the line is one command, so that what stands in front of it holds for all of it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    try:
        return "\n" not in line and not any(set(token) <= set(";&|()") for token in lexer if token)
    except ValueError:  # a quote without its end
        return False


@dataclass(frozen=True, slots=True)
class FlowText:
    """A flow file to write: its name without suffix, and its text."""

    name: str
    text: str


def flows_of_crontab(jobs: Sequence[Job], source: str, text_of: Callable[[str], str | None]) -> list[FlowText]:
    """The flow files of the lines, in their order.

    ``text_of``: returns the file of a name that is there already. If it is of another line, the name gets a number.
    """
    shapes = [shape_of(job.line, _shell_of(job)) for job in jobs]
    locks = [shape.lock for shape in shapes if shape.lock is not None]
    shared = {lock for lock in locks if locks.count(lock) > 1}
    found: dict[str, FlowText] = {}
    for job, shape in zip(jobs, shapes, strict=True):
        for name in _numbered(name_of_line(shape.line) or "job"):
            file = FlowText(name, _flow_text(name, job, shape, source, shared))
            if name not in found and _is_free(text_of(name), file.text):
                found[name] = file
                break
    return list(found.values())


_HEAD = re.compile(r"\A# Imported by `redrive import crontab` from (.*), line (\d+):\n#     (.*)\n")


def is_of_line(earlier: str, text: str) -> bool:
    """Whether a file stands for the line of ``text``: it says the same, or was imported from the line and edited."""
    before, now = _HEAD.match(earlier), _HEAD.match(text)
    if before is None or now is None:
        return False
    return (before[1], before[3]) == (now[1], now[3]) or earlier[before.end() :] == text[now.end() :]


def _is_free(earlier: str | None, text: str) -> bool:
    """Whether a name may be that of a line: no file has it, or one that no other line of a crontab has made.

    A file that somebody has changed so that nothing says what it is of keeps the name: a second one would run as well.
    """
    before, now = _HEAD.match(earlier or ""), _HEAD.match(text)
    if earlier is None or before is None or now is None:
        return True
    return is_of_line(earlier, text) or before.groups()[:2] == now.groups()[:2]


def _flow_text(name: str, job: Job, shape: Shape, source: str, shared: Collection[str | None]) -> str:
    environment = {key: value for key, value in job.environment.items() if key not in ("MAILTO", "CRON_TZ", "SHELL")}
    pool = shape.lock if shape.lock in shared else None
    shell = _shell_of(job)
    flow = {"schedule": job.fields, "timezone": job.zone, "misfire": "skip", "machine_pools": pool and {pool: 1}}
    task = {
        "shell": "bash" if shell == "bash" else None,
        "cwd": _folder_of(job, shape),
        "env": environment or None,
        "stdin": job.stdin,
        "timeout": shell_duration(shape.timeout),
        "grace_seconds": shell_duration(shape.grace),
        "pool": pool,
        "max_attempts": 1,
    }
    line: object = shape.line if shell in ("sh", "bash", "dash") else [job.environment["SHELL"], "-c", shape.line]
    lines = [f"# Imported by `redrive import crontab` from {one_line(source)}, line {job.number}:"]
    lines.append(f"#     {one_line(job.text)}")
    lines += [f"# {one_line(sentence)}" for sentence in _remarks(job, shape, pool is not None)]
    lines += ["", "from redrive.engine import Flow", "", call_text("flow = Flow", [name], flow)]
    mail = job.environment.get("MAILTO", "")
    if mail and not mail.startswith("-"):
        page = f"mail -s {shell_word(f'redrive: {name}')} {shell_word(mail)}"
        lines.append(call_text("flow.page", ["command"], {"line": page}))
    lines.append(call_text("flow.command", [name, line], task))
    return "\n".join(lines) + "\n"


def _remarks(job: Job, shape: Shape, is_shared: bool) -> list[str]:
    """What an operator has to know that the flow does not say."""
    lock, log, user = shape.lock, shape.log, job.user
    remarks = {
        f"flock {lock} is left out: a flow has one run at a time. Put it back if others take it.": lock
        and not is_shared,
        f"flock {lock} is a pool, for which the flows of this lock wait. Put it back if others take it.": is_shared,
        f"Its output goes to {log} as before; without this redirection `redrive logs` has it.": log,
        "CRON_TZ is read as cronie does; the cron of Debian ignores it.": "CRON_TZ" in job.environment,
        "bash runs it with pipefail: a failure inside a pipe counts.": _shell_of(job) == "bash",
        f"cron ran it as {user}: serve it as that user.": user not in (None, pwd.getpwuid(os.getuid()).pw_name),
    }
    return [sentence for sentence, holds in remarks.items() if holds]


def _shell_of(job: Job) -> str:
    return os.path.basename(job.environment.get("SHELL", "sh"))


def _folder_of(job: Job, shape: Shape) -> str:
    """The folder in which the command runs: that of its ``cd``, from the home folder of its user."""
    home = job.environment.get("HOME") or _home_of(job.user)
    folder = re.sub(r"^~(?=/|$)|\$HOME\b|\$\{HOME\}", lambda _: home, shape.cwd or "")
    folder = os.path.expanduser(folder)  # ~user
    return os.path.normpath(os.path.join(home, folder))


def _home_of(user: str | None) -> str:
    try:
        return os.path.expanduser("~") if user is None else pwd.getpwnam(user).pw_dir
    except KeyError:
        return "/"


def shell_duration(text: object) -> str | None:
    """A duration as ``90s``, of what is in seconds without a unit; None if there is none."""
    return f"{text}s" if text and str(text)[-1].isdigit() else str(text) if text else None


#: Words in front of the program or script that names a job.
_NO_NAME = re.compile(
    r"\[\[?|[!{]|test|if|then|exec|env|export|exit|set|command|sudo|time|nice|ionice|chronic|flock|timeout"
    rf"|(?:ba|da|z|k)?sh|(?:python|perl|ruby|php|node)[\d.]*|{_DURATION}"
)


#: The options of such a word that have their value as a word of its own.
_OPTIONS_WITH_VALUE = {
    "sudo": ("-u", "--user", "-g", "--group", "-D", "--chdir"),
    "env": ("-u", "--unset", "-C", "--chdir"),
    "timeout": ("-s", "--signal", "-k", "--kill-after"),
}


_CHANGES_OF_FOLDER = re.compile(r"(?<![^\s;&|()'\"])cd\s[^;&|()]*(?:&&|\|\||;)")


_SUFFIXES = re.compile(r"\.(?:sh|py|pl|rb|php|js)$")


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
NAME_CHARACTERS = 60


def name_of_line(line: str) -> str:
    """A name for the job of a line: that of its program or script; empty if the line names none."""
    return _name_of_program(program_of_line(line))


def program_of_line(line: str) -> str:
    """The program or script that a line starts, as the line writes it; empty if the line names none."""
    values: Collection[str] = ()
    is_value = False
    for word in re.split(r"[\s;&|()]+", _CHANGES_OF_FOLDER.sub("", line)):
        program = word.strip("\"'")
        base = os.path.basename(program)
        if is_value or word[:1] == "-":
            is_value = not is_value and word in values
        elif _NO_NAME.fullmatch(base):
            values = _OPTIONS_WITH_VALUE.get(base, ())
        elif _name_of_program(program) and "=" not in word:
            return program
    return ""


def _name_of_program(program: str) -> str:
    return plain_name(_SUFFIXES.sub("", os.path.basename(program)))


def plain_name(text: str) -> str:
    """A name of a flow and its file, which hides no module of Python; empty if nothing is left of it.

    It has at most ``NAME_CHARACTERS``, as a file has a name of at most 255 bytes.
    """
    name = _NOT_PLAIN.sub("_", text)[:NAME_CHARACTERS].strip("_")
    return f"{name}_job" if name in sys.stdlib_module_names or name == "redrive" else name


def _numbered(name: str) -> Iterator[str]:
    """Yield the name, then ``name_2``, ``name_3`` and so on."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


class Expression(str):
    """A value that a call has as it is, and not as a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def call_text(function: str, arguments: Sequence[object], options: Mapping[str, object]) -> str:
    """The text of a call in Python, in one line if it is short; options that are None are left out."""
    words = [repr(one) for one in arguments]
    words += [f"{name}={value!r}" for name, value in options.items() if value is not None]
    line = f"{function}({', '.join(words)})"
    return line if len(line) <= _LINE_MAX else f"{function}(\n" + "".join(f"    {word},\n" for word in words) + ")"
