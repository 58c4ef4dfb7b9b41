"""``redrive import``: flow files from a crontab, with the proof that they start when the old lines do.

Each line becomes a file of its own, so that one that breaks stops one job. The old line is its comment.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path

import click

from ...engine.clock import SystemClock
from ...engine.core.schedule import local_time, to_microseconds
from ...engine.core.spec import FlowSpec
from ...engine.errors import FlowError, RedriveError
from ...engine.schedule.flow_files import read_flow_files
from ...engine.store.schedules import served_flow
from ..text.text import echo, one_line, print_table
from .main import ExitCode, cli, summary_of

_LINE_MAX = 100
DAYS = 30  # of start times that are compared
_SOURCES = {None: "crontab -l", "-": "the standard input"}
_SYSTEM_CRONTABS = ("/etc/crontab", "/etc/cron.d/")


into_option = click.option(
    "--into", "folder", default=".", metavar="FOLDER", help="Where the flow files go. Default: this folder."
)


@cli.group("import", help=summary_of("import"))
def import_flows() -> None:
    pass


@import_flows.command("crontab")
@click.argument("source", required=False, metavar="[FILE]")
@into_option
@click.option("--system", is_flag=True, help="The lines name a user, as those of /etc/crontab and /etc/cron.d do.")
@click.option("--timezone", "zone", metavar="ZONE", help="Of the machine that runs the crontab. Default: this one's.")
def import_crontab(source: str | None, folder: str, system: bool, zone: str | None) -> int:
    """Write a flow file for each line of a crontab, and compare when they start.

    FILE is a crontab, or - for stdin; without it `crontab -l` is read. No file is overwritten, and the crontab stays as
    it is. Exit code 3: a line was left out, or its flow starts at other times.
    """
    has_user = system or (source or "").startswith(_SYSTEM_CRONTABS)
    crontab = parse_crontab(_text_of(source), zone or local_zone(), has_user=has_user)
    files = flows_of_crontab(crontab.jobs, _SOURCES.get(source, source) or "")
    if not files and not crontab.left_out:
        raise RedriveError("there is no line in it that starts a command")
    write_new_files(folder, files)
    code = print_comparison(folder, crontab.jobs, files)
    for number, sentence in crontab.left_out:
        echo(one_line(f"line {number}: {sentence}"))
        code = ExitCode.PARTIAL_OR_BLOCKED
    if files:
        echo(one_line(f"next: take the lines out of the crontab, then: {shlex.join(['redrive', 'serve', folder])}"))
    return code


def _text_of(source: str | None) -> str:
    """The crontab: a file, stdin, or what ``crontab -l`` prints. Raises RedriveError."""
    if source is not None:
        try:
            with click.open_file(source, encoding="utf-8", errors="surrogateescape") as file:
                return str(file.read())
        except OSError as error:
            raise RedriveError(f"{source} cannot be read: {error.strerror}") from None
    try:
        done = subprocess.run(["crontab", "-l"], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise RedriveError(f"crontab -l cannot be started ({error.strerror}): name a file") from None
    if done.returncode:
        raise RedriveError(f"crontab -l: {os.fsdecode(done.stderr).strip()}")
    return os.fsdecode(done.stdout)


def local_zone() -> str:
    """The IANA name of the time zone of this machine; UTC if it has none."""
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return "UTC" if name in ("", "Etc/UTC") else name


# --- The lines of a crontab ------------------------------------------------------------------------------------------


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


#: The names of schedules, as ``crontab(5)`` has them.
NAMED_SCHEDULES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_VARIABLE = re.compile(r"""\s*("[^"]*"|'[^']*'|[^\s="']+)\s*=\s*(.*?)\s*$""")
_UNESCAPED_PERCENT = re.compile(r"(?<!\\)%")


def parse_crontab(text: str, zone: str, *, has_user: bool) -> Crontab:
    """Parse a crontab as ``crontab(5)`` describes it. ``zone``: of lines without a ``CRON_TZ`` above them."""
    environment: dict[str, str] = {}
    jobs: list[Job] = []
    left_out: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        variable = _VARIABLE.match(line)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if variable is not None:
            environment[_unquoted(variable[1])] = _unquoted(variable[2])
            continue
        try:
            job = _job_of(number, line.strip(), has_user)
        except ValueError as error:
            left_out.append((number, str(error)))
            continue
        jobs.append(replace(job, environment=dict(environment), zone=environment.get("CRON_TZ") or zone))
    return Crontab(jobs, left_out)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _job_of(number: int, line: str, has_user: bool) -> Job:
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
    shell_line, *inputs = (part.replace(r"\%", "%") for part in _UNESCAPED_PERCENT.split(rest[-1]))
    stdin = "\n".join(inputs) + "\n" if inputs else None
    user = rest[0] if has_user else None
    return Job(number, line, fields, shell_line.strip(), stdin, {}, "UTC", user)


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
_TO_NOWHERE = re.compile(r"\s*(?:&>\s*/dev/null|>\s*/dev/null(?:\s+2>\s*(?:&1|/dev/null))?)\s*$")
_LOG_FILE = re.compile(rf"\s(?:1?>>|&>>)\s*(?P<log>{_WORD})|\s(?:1?>|&>)\s*(?P<other>[^\s>;&|]+\.(?:log|out|err))\b")


def shape_of(line: str) -> Shape:
    """Take out of a line what a flow does itself. A line of several commands keeps all but its ``cd`` in front."""
    line = _TO_NOWHERE.sub("", line)
    shape = Shape(line)
    if (moved := _CHANGE_FOLDER.match(line)) is not None:
        shape = Shape(line[moved.end() :], cwd=_unquoted(moved["cwd"]))
    if _is_single(shape.line):
        while (found := next(filter(None, (one.match(shape.line) for one in _PREFIXES)), None)) is not None:
            fields = {name: _unquoted(value) for name, value in found.groupdict().items() if value}
            fields["prefix"] = shape.prefix + fields.get("prefix", "")
            shape = replace(shape, line=_line_of_words(shape.line[found.end() :]), **fields)
    log = _LOG_FILE.search(shape.line)
    return replace(shape, line=shape.prefix + shape.line, log=None if log is None else log["log"] or log["other"])


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


def flows_of_crontab(jobs: Sequence[Job], source: str) -> list[FlowText]:
    """The flow files of the lines, in their order."""
    shapes = [shape_of(job.line) for job in jobs]
    locks = [shape.lock for shape in shapes if shape.lock is not None]
    shared = {lock for lock in locks if locks.count(lock) > 1}
    names = _distinct(_name_of(shape.line) for shape in shapes)
    return [
        FlowText(name, _flow_text(name, job, shape, source, shared))
        for name, job, shape in zip(names, jobs, shapes, strict=True)
    ]


def _flow_text(name: str, job: Job, shape: Shape, source: str, shared: Collection[str | None]) -> str:
    environment = {key: value for key, value in job.environment.items() if key not in ("MAILTO", "CRON_TZ", "SHELL")}
    lock = os.path.splitext(os.path.basename(shape.lock or ""))[0]
    is_shared = shape.lock in shared
    shell = os.path.basename(job.environment.get("SHELL", "sh"))
    flow = {
        "schedule": job.fields,
        "timezone": job.zone,
        "misfire": "skip",
        "machine_pools": {lock: 1} if is_shared else None,
    }
    task = {
        "shell": "bash" if shell == "bash" else None,
        "cwd": _folder_of(job, shape),
        "env": environment or None,
        "stdin": job.stdin,
        "timeout": None if shape.timeout is None else _duration(shape.timeout),
        "grace_seconds": None if shape.grace is None else _duration(shape.grace),
        "pool": lock if is_shared else None,
        "max_attempts": 1,
    }
    line: object = shape.line if shell in ("sh", "bash", "dash") else [job.environment["SHELL"], "-c", shape.line]
    head = [f"Imported by `redrive import crontab` from {source}, line {job.number}:", f"    {job.text}"]
    lines = [f"# {one_line(text) if text[0] != ' ' else '    ' + one_line(text)}" for text in head]
    lines += [f"# {one_line(sentence)}" for sentence in _remarks(job, shape, is_shared)]
    lines += ["", "from redrive.engine import Flow", "", call_text("flow = Flow", [name], flow)]
    mail = job.environment.get("MAILTO", "")
    if mail and not mail.startswith("-"):
        page = f"mail -s {shlex.quote(f'redrive: {name}')} {shlex.quote(mail)}"
        lines.append(call_text("flow.page", ["command"], {"line": page}))
    lines.append(call_text("flow.command", [name, line], task))
    return "\n".join(lines) + "\n"


def _remarks(job: Job, shape: Shape, is_shared: bool) -> list[str]:
    """What an operator has to know that the flow does not say."""
    told = [
        (
            shape.lock is not None and not is_shared,
            f"flock {shape.lock} is left out: a flow has one run at a time. If others take this lock, put it back.",
        ),
        (
            is_shared,
            f"flock {shape.lock} is a pool of the machine: a run waits for the other flows of this lock. If others"
            " take it as well, put it back.",
        ),
        (
            shape.log is not None,
            f"Its output goes to {shape.log} as before; without this redirection `redrive logs` has it.",
        ),
        ("CRON_TZ" in job.environment, "CRON_TZ is read as cronie does; the cron of Debian ignores it."),
        (
            os.path.basename(job.environment.get("SHELL", "")) == "bash",
            "bash runs it with pipefail: a failure inside a pipe counts.",
        ),
        (
            job.user is not None and job.user != _own_name(),
            f"cron ran it as {job.user}: serve it as that user.",
        ),
    ]
    return [sentence for holds, sentence in told if holds]


def _own_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _folder_of(job: Job, shape: Shape) -> str:
    """The folder in which the command runs: that of its ``cd``, from the home folder of its user."""
    home = job.environment.get("HOME") or _home_of(job.user)
    folder = re.sub(r"^~(?=/|$)|\$HOME\b|\$\{HOME\}", lambda _: home, shape.cwd or "")
    return os.path.normpath(os.path.join(home, folder))


def _home_of(user: str | None) -> str:
    try:
        return os.path.expanduser("~") if user is None else pwd.getpwnam(user).pw_dir
    except KeyError:
        return "/"


def _duration(text: str) -> str:
    return f"{text}s" if text[-1].isdigit() else text


_INTERPRETERS = re.compile(r"(?:ba|da|z|k)?sh|(?:python|perl|ruby|php|node)[\d.]*")
_NO_NAMES = frozenset(
    [
        "[",
        "[[",
        "!",
        "{",
        "test",
        "if",
        "then",
        "exec",
        "env",
        "sudo",
        "command",
        "time",
        "nice",
        "ionice",
        "chronic",
        "flock",
        "timeout",
        "set",
    ]
)
_SUFFIXES = re.compile(r"\.(?:sh|py|pl|rb|php|js)$")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_]+")


def _name_of(line: str) -> str:
    """A name for the job of a line: that of its program or script."""
    for word in re.split(r"[\s;&|()]+", line):
        base = os.path.basename(word.strip("\"'"))
        if "=" in word or word.startswith("-") or base in _NO_NAMES or _INTERPRETERS.fullmatch(base):
            continue
        name = _NOT_PLAIN.sub("_", _SUFFIXES.sub("", base)).strip("_")
        if name and not name.isdigit():
            return f"{name}_job" if name in sys.stdlib_module_names or name == "redrive" else name
    return "job"


def _distinct(names: Iterable[str]) -> list[str]:
    """The names; the second of an equal name gets ``_2`` behind it."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def call_text(function: str, arguments: Sequence[object], options: Mapping[str, object]) -> str:
    """The text of a call in Python, in one line if it is short; options that are None are left out."""
    words = [repr(one) for one in arguments]
    words += [f"{name}={value!r}" for name, value in options.items() if value is not None]
    line = f"{function}({', '.join(words)})"
    return line if len(line) <= _LINE_MAX else f"{function}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def write_new_files(folder: str, files: Iterable[FlowText]) -> None:
    """Write the files that are not there. Raises RedriveError if the folder cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
        for file in files:
            path = Path(folder, f"{file.name}.py")
            if os.path.lexists(path):
                echo(one_line(f"{path} is there already and stays as it is"))
                continue
            with path.open("x", encoding="utf-8", errors="backslashreplace") as target:
                target.write(file.text)
    except OSError as error:
        raise RedriveError(f"{folder} cannot be written: {error.strerror}") from None


# --- The proof -------------------------------------------------------------------------------------------------------


def print_comparison(folder: str, jobs: Sequence[Job], files: Sequence[FlowText]) -> ExitCode:
    """Print the starts of the next DAYS days by the old lines and by the flow files, and whether they are the same."""
    paths = [os.path.abspath(os.path.join(folder, f"{file.name}.py")) for file in files]
    flows = asyncio.run(_read_flows(paths))
    now = SystemClock().now_us()
    rows: list[tuple[str, ...]] = [("LINE", "FLOW", "OLD LINE", "FLOW FILE", "FIRST", "LAST", "")]
    code = ExitCode.SUCCESS
    for job, file, path in zip(jobs, files, paths, strict=True):
        comparison = _compare(job, flows[path], now)
        rows.append((str(job.number), file.name, *comparison.cells()))
        if not comparison.agrees:
            code = ExitCode.PARTIAL_OR_BLOCKED
    if jobs:
        echo(f"starts in the next {DAYS} days:")
        print_table(rows)
    return code


async def _read_flows(paths: Sequence[str]) -> Mapping[str, FlowSpec | str]:
    """The flow in each file, or why it cannot be read."""
    found: dict[str, FlowSpec | str] = {}
    async for one in read_flow_files(paths):
        found[one.target] = one.error or next(iter(one.flows.values()), "there is no flow in it")
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """The starts of an old line and of its flow, as the clock of the line shows them; ``problem``: why there are none.

    ``old``: None if nobody could read the old line independently.
    """

    old: Sequence[datetime] | None = None
    new: Sequence[datetime] = field(default_factory=list)
    problem: str = ""

    @property
    def agrees(self) -> bool:
        return not self.problem and (self.old is None or self.old == self.new)

    def cells(self) -> tuple[str, ...]:
        first, last = (f"{self.new[at]:%Y-%m-%d %H:%M}" if self.new else "" for at in (0, -1))
        old = "" if self.old is None else f"{len(self.old):,}"
        return old, f"{len(self.new):,}", first, last, one_line(self._verdict())

    def _verdict(self) -> str:
        if self.problem or self.agrees:
            return self.problem or ("the same" if self.old is not None else "pip install 'redrive[import]' compares")
        at = min(set(self.old or ()) ^ set(self.new))
        return (
            f"DIFFERS: {at:%Y-%m-%d %H:%M} is a start of the {'old line' if at in (self.old or ()) else 'flow'} alone"
        )


def _compare(job: Job, flow: FlowSpec | str, now: int) -> Comparison:
    if isinstance(flow, str):
        return Comparison(problem=flow)
    try:
        served = served_flow(flow)
    except FlowError as error:
        return Comparison(problem=str(error))
    if served is None:
        return Comparison(problem="the flow has no schedule")
    zone = served.schedule.zone
    start = local_time(now, zone).replace(tzinfo=None)
    end = start + timedelta(days=DAYS)

    def is_compared(wall: datetime) -> bool:
        """The old reader does not know when the clocks change: a day with a change is left out."""
        midnight = datetime(wall.year, wall.month, wall.day, tzinfo=zone)
        return midnight.utcoffset() == (midnight + timedelta(days=1)).utcoffset()

    instants = takewhile(
        lambda at: at <= to_microseconds(end.replace(tzinfo=zone)), served.schedule.recurrence.after(now)
    )
    walls = (local_time(at, zone).replace(tzinfo=None) for at in instants)
    new = [wall for wall in walls if is_compared(wall)]
    try:
        old = _starts_of(job.fields, start, end, is_compared)
    except ValueError as error:
        return Comparison(new=new, problem=f"the old line cannot be read: {error}")
    return Comparison(old, new)


def _starts_of(
    fields: str, start: datetime, end: datetime, is_compared: Callable[[datetime], bool]
) -> list[datetime] | None:
    """The starts of a line by ``croniter``, another reader than that of the flows; None if it is not installed.

    ``implement_cron_bug``: a day field that begins with a star counts as a star, as in the cron of Debian.
    """
    try:
        from croniter import croniter
    except ModuleNotFoundError:
        return None
    reader = croniter(fields, start, ret_type=datetime, implement_cron_bug=True)
    found = takewhile(lambda at: at <= end, iter(reader.get_next, None))
    return [at for at in found if is_compared(at)]
