"""``redrive import``: flow files from a crontab, timers of systemd, DAGs of dagu; with the proof of their times.

Each line becomes a file of its own, so that one that breaks stops one job. The old line is its comment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path

import click

from ...engine.asyncio_log import run_with_log
from ...engine.clock import SystemClock
from ...engine.core.schedule import local_time, to_microseconds
from ...engine.core.spec import FlowSpec
from ...engine.domain.text import shell_command
from ...engine.errors import RedriveError
from ...engine.schedule.flow_files import read_flow_files
from ...engine.store.schedules import served_flow
from ..text.text import echo, one_line
from . import crontab as crontabs
from .dagu import DaguDag, parse_dag
from .flow_text import FlowText, text_of
from .group import ExitCode, command_with_commands
from .output import print_table, write_new_file
from .systemd_units import calendar_starts, timer_flows, units_of_lines

SOURCE_CHARACTERS_MAX = 1_000_000
DAYS = 30  # of start times that are compared
_SOURCES = {None: "crontab -l", "-": "the standard input"}
_SYSTEM_CRONTABS = ("/etc/crontab", "/etc/cron.d/")


into_option = click.option(
    "--into", "folder", default=".", metavar="FOLDER", help="Where the flow files go. Default: this folder."
)


@command_with_commands("import")
def import_flows() -> None:
    """Imported flows start when the old jobs do, with the proof of it."""


@import_flows.command("crontab")
@click.argument("source", required=False, metavar="[FILE]")
@into_option
@click.option("--system", is_flag=True, help="The lines name a user, as those of /etc/crontab and /etc/cron.d do.")
@click.option("--timezone", "zone", metavar="ZONE", help="Of the machine that runs the crontab. Default: this one's.")
def import_crontab(source: str | None, folder: str, system: bool, zone: str | None) -> int:
    """Write a flow file for each line of a crontab, and compare when they start.

    FILE is a crontab, or - for stdin; without it `crontab -l` is read. No file is overwritten, and the crontab stays as
    it is. Exit code 3: a line was left out, names a user perhaps, or starts at other times as a flow; without FILE,
    also: its program is missing.
    """
    has_user = system or os.path.abspath(source or "").startswith(_SYSTEM_CRONTABS)
    crontab = crontabs.parse_crontab(_text_of(source), zone or crontabs.local_zone(), has_user=has_user)
    with_user = [] if has_user else crontabs.lines_with_user(crontab.jobs)
    left_out = [(job.number, f"it names a user, {job.line.split()[0]}: --system") for job in with_user]
    left_out += crontab.left_out
    jobs, at_boot = (
        [job for job in crontab.jobs if job not in with_user and (job.fields == crontabs.AT_BOOT) is is_boot]
        for is_boot in (False, True)
    )
    text_of = partial(_text_of_file, folder)
    units = units_of_lines(at_boot, text_of)
    files = crontabs.flows_of_crontab(jobs, _SOURCES.get(source, source) or "", text_of)
    if not files and not left_out and not units:
        raise RedriveError("there is no line in it that starts a command")
    write_new_files(folder, [*files, *units])
    old = [OriginalSchedule(str(job.number), partial(cron_starts, job.fields)) for job in jobs]
    code = print_comparison(folder, old, files, "the old lines are not compared: pip install 'redrive[import]'")
    _print_changes(jobs, files)
    missing = _print_remarks(jobs, files, is_of_host=source is None)
    for number, sentence in sorted(left_out):
        echo(one_line(f"line {number}: {sentence}"))
    for job, unit in zip(at_boot, units, strict=True):
        echo(one_line(f"line {job.number}: @reboot is no time: {unit.name} is a unit of systemd for it"))
    if left_out or units or missing:
        code = ExitCode.PARTIAL_OR_BLOCKED
    if files:
        echo(one_line(f"next: take the lines out of the crontab, then: {shell_command(['redrive', 'serve', folder])}"))
    return code


def _print_changes(jobs: Sequence[crontabs.Job], files: Sequence[FlowText]) -> None:
    """Print each line that a flow has in another form, old and new."""
    changed = [(job, file.changed) for job, file in zip(jobs, files, strict=True) if file.changed]
    if changed:
        echo("lines that are changed:")
    for job, line in changed:
        echo(f"{job.number:>5} - {one_line(job.line)}")
        echo(f"      + {one_line(line)}")


def _print_remarks(jobs: Sequence[crontabs.Job], files: Sequence[FlowText], *, is_of_host: bool) -> bool:
    """Print what an operator has to know, with the lines of which it is true.

    Return whether a program is missing on the machine of the crontab, or is a user perhaps.
    """
    found: dict[str, list[int]] = {}
    missing = False
    for job, file in zip(jobs, files, strict=True):
        sentences = list(file.remarks)
        if program := crontabs.missing_program(job):
            may_be_user = job.user is None and job.line.startswith(f"{program} /")
            missing |= is_of_host or may_be_user
            hint = " If it is a user: --system." if may_be_user else ""
            sentences.append(f"{program} is no program that is found on this machine by the PATH of the line.{hint}")
        for sentence in sentences:
            found.setdefault(sentence, []).append(job.number)
    for sentence, numbers in found.items():
        echo(one_line(f"{'lines' if numbers[1:] else 'line'} {', '.join(map(str, numbers))}: {sentence}"))
    return missing


def _text_of(source: str | None) -> str:
    """The crontab: a file, stdin, or what ``crontab -l`` prints. Raises RedriveError."""
    if source is not None:
        try:
            with click.open_file(source, encoding="utf-8", errors="surrogateescape") as file:
                text = str(file.read(SOURCE_CHARACTERS_MAX + 1))
        except OSError as error:
            raise RedriveError(f"{source} cannot be read: {error.strerror}") from None
        if len(text) > SOURCE_CHARACTERS_MAX:
            raise RedriveError(f"{source} is too large: over {SOURCE_CHARACTERS_MAX:,} characters")
        return text
    try:
        done = subprocess.run(["crontab", "-l"], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise RedriveError(f"crontab -l cannot be started ({error.strerror}): name a file") from None
    if done.returncode:
        raise RedriveError(f"crontab -l: {os.fsdecode(done.stderr).strip()}")
    return os.fsdecode(done.stdout)


def _text_of_file(folder: str, name: str) -> str | None:
    """The text of a flow file; None without one, and empty if it cannot be read."""
    path = Path(folder, _path_of(name))
    found = text_of(path)
    return "" if found is None and os.path.lexists(path) else found


def _path_of(name: str) -> str:
    return name if name.endswith((".env", ".service")) else f"{name}.py"


def write_new_files(folder: str, files: Iterable[FlowText]) -> None:
    """Write the files that are not there. Raises RedriveError if the folder cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
        for file in files:
            path = Path(folder, _path_of(file.name))
            if os.path.lexists(path):
                echo(one_line(f"{path} is there already and stays as it is"))
                continue
            write_new_file(path, file.text, mode=0o600)  # its variables may be secret, as in a crontab
            if file.env is not None and not os.path.lexists(env := Path(folder, file.env.name)):
                write_new_file(env, file.env.text, mode=0o600)
    except OSError as error:
        raise RedriveError(f"{folder} cannot be written: {error.strerror}") from None


# --- The proof -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OriginalSchedule:
    """The start times that a job had until now.

    Attributes:
        label: of the line or timer that says so.
        starts: of another reader than that of the flows, between two instants by the clock of a zone, at most as many;
            None if no such reader is installed. It raises ValueError for times that the reader refuses.
    """

    label: str
    starts: Callable[[str, datetime, datetime, int], list[datetime] | None]


def print_comparison(
    folder: str, old: Sequence[OriginalSchedule], files: Sequence[FlowText], without_reader: str
) -> ExitCode:
    """Print the starts of the next DAYS days by the old times and by the flow files, and whether they are the same.

    ``without_reader``: what is said if no other reader is installed.
    """
    paths = [os.path.abspath(os.path.join(folder, f"{file.name}.py")) for file in files]
    flows = run_with_log(_read_flows(paths))
    now = SystemClock().now_us()
    rows: list[tuple[str, ...]] = [("OLD", "FLOW", "OLD STARTS", "FLOW STARTS", "FIRST", "LAST", "")]
    code, is_compared = ExitCode.SUCCESS, True
    for times, file, path in zip(old, files, paths, strict=True):
        comparison = compare_starts(times, flows[path], now)
        earlier = _text_of_file(folder, file.name) or ""
        if comparison.agrees and earlier != file.text and not crontabs.is_of_line(earlier, file.text):
            comparison = replace(comparison, problem="NOT IMPORTED: the file holds something else")
        is_compared &= comparison.old is not None or bool(comparison.problem)
        rows.append((times.label, file.name, *comparison.cells()))
        if not comparison.agrees:
            code = ExitCode.PARTIAL_OR_BLOCKED
    if old:
        echo(f"starts in the next {DAYS} days:")
        print_table(rows)
    if not is_compared:
        echo(f"{without_reader}, then the same command again")
    return code


async def _read_flows(paths: Sequence[str]) -> Mapping[str, FlowSpec | str]:
    """The flow in each file, or why it cannot be read."""
    found: dict[str, FlowSpec | str] = {}
    async for one in read_flow_files(sys.executable, paths):
        specs = [flow.spec for flow in one.flows.values()]
        found[one.target] = one.error or (specs[0] if specs else "there is no flow in it")
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """The starts of an old line and of its flow, by the clock of its zone; ``problem``: why they are not compared.

    ``old``: None if no other reader is installed.
    """

    old: Sequence[datetime] | None = None
    new: Sequence[datetime] = ()
    problem: str = ""

    @property
    def agrees(self) -> bool:
        return not self.problem and self.old in (None, self.new)

    def cells(self) -> tuple[str, ...]:
        first, last = (f"{self.new[at]:%Y-%m-%d %H:%M}" if self.new else "" for at in (0, -1))
        verdict = "the same" if self.old is not None else "not compared"
        if not self.agrees and not self.problem:
            at = min(set(self.old or ()) ^ set(self.new))
            alone = "flow" if at in self.new else "old times"
            verdict = f"DIFFERS: {at:%Y-%m-%d %H:%M} is a start of the {alone} alone"
        old = "" if self.old is None else f"{len(self.old):,}"
        return old, f"{len(self.new):,}", first, last, one_line(self.problem or verdict)


def compare_starts(times: OriginalSchedule, flow: FlowSpec | str, now: int) -> Comparison:
    """Compare the old starts of a job with those of its flow; or say why its file cannot be read."""
    if isinstance(flow, str):
        return Comparison(problem=flow)
    served = served_flow(flow)
    if served is None:
        return Comparison(problem="the flow has no schedule")
    zone = served.schedule.zone
    start = local_time(now, zone).replace(tzinfo=None)
    end = start + timedelta(days=DAYS)

    def is_compared(wall: datetime) -> bool:
        """The old reader does not know when the clocks change: a day with a change is left out."""
        midnight = datetime(wall.year, wall.month, wall.day, tzinfo=zone)
        return midnight.utcoffset() == (midnight + timedelta(days=1)).utcoffset()

    instants = takewhile(lambda at: at <= to_microseconds(end.replace(tzinfo=zone)), served.schedule.after(now))
    walls = [local_time(at, zone).replace(tzinfo=None) for at in instants]
    new = [wall for wall in walls if is_compared(wall)]
    try:
        old = times.starts(flow.timezone, start, end, len(walls) + 2)
    except ValueError as error:
        return Comparison(new=new, problem=f"the old times cannot be read: {error}")
    return Comparison(None if old is None else list(filter(is_compared, old)), new)


def cron_starts(fields: str, zone: str, start: datetime, end: datetime, most: int) -> list[datetime] | None:
    """The starts of a line by ``croniter``, another reader than that of the flows; None if it is not installed.

    ``implement_cron_bug``: a day field that begins with a star counts as a star, as in the cron of Debian.
    """
    try:
        from croniter import croniter
    except ModuleNotFoundError:
        return None
    reader = croniter(fields, start, ret_type=datetime, implement_cron_bug=True)
    return list(takewhile(lambda at: at <= end, iter(reader.get_next, None)))


# --- Timers of systemd -----------------------------------------------------------------------------------------------


@import_flows.command("systemd")
@click.argument("paths", nargs=-1, required=True, metavar="TIMER...")
@into_option
def import_systemd(paths: Sequence[str], folder: str) -> int:
    """Write a flow file for each timer of systemd, and compare when they start by `systemd-analyze`.

    TIMER is a file NAME.timer with its service beside it, or a folder of them. No file is overwritten, and the timers
    stay as they are. Exit code 3: something of a timer or service is not in its flow, or the flow starts at other
    times.
    """
    timers, without_flow = timer_flows(paths)
    if not timers:
        raise RedriveError("; ".join(without_flow) or "there is no timer in it")
    write_new_files(folder, [file for _, file in timers])
    timed = [(timer, file) for timer, file in timers if timer.calendar]
    old = [OriginalSchedule(timer.unit, partial(calendar_starts, timer.calendar)) for timer, _ in timed]
    code = print_comparison(
        folder, old, [file for _, file in timed], "the timers are not compared: install systemd-analyze"
    )
    for timer, _ in timers:
        for sentence in timer.left_out:
            echo(one_line(f"{timer.unit}: {sentence}"))
    for sentence in without_flow:
        echo(one_line(sentence))
    echo(one_line(f"next: systemctl disable --now the timers, then: {shell_command(['redrive', 'serve', folder])}"))
    return ExitCode.PARTIAL_OR_BLOCKED if without_flow or any(timer.left_out for timer, _ in timers) else code


# --- DAGs of dagu ----------------------------------------------------------------------------------------------------


@import_flows.command("dagu")
@click.argument("source", metavar="FILE")
@into_option
def import_dagu(source: str, folder: str) -> int:
    """Write a flow file for a DAG of dagu, and say what of it has no counterpart.

    FILE is its YAML, or - for stdin. No file is overwritten. Exit code 3: something of the DAG is not in the flow; the
    file says it, too.
    """
    dag = DaguDag(parse_dag(_text_of(source), source), source)
    file = FlowText(dag.name, dag.text())
    write_new_files(folder, [file])
    path = os.path.join(folder, f"{file.name}.py")
    (found,) = run_with_log(_read_flows([os.path.abspath(path)])).values()
    problems = [*dag.left_out, *([found] if isinstance(found, str) else [])]
    for problem in problems:
        echo(one_line(f"{path}: {problem}"))
    echo(one_line(f"next: {shell_command(['redrive', 'check', path])}"))
    return ExitCode.PARTIAL_OR_BLOCKED if problems else ExitCode.SUCCESS
