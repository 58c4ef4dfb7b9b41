"""``redrive import``: flow files from a crontab, with the proof that they start when the old lines do; from dagu.

Each line becomes a file of its own, so that one that breaks stops one job. The old line is its comment.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from ...engine.asyncio_log import run_with_log
from ...engine.clock import SystemClock
from ...engine.core.schedule import local_time, to_microseconds
from ...engine.core.spec import FlowSpec
from ...engine.domain.text import counted, shell_command, shell_word
from ...engine.domain.trigger_rules import ALL_DONE
from ...engine.errors import RedriveError
from ...engine.schedule.flow_files import read_flow_files
from ...engine.store.schedules import served_flow
from ..text.text import echo, one_line
from .crontab import (
    Expression,
    FlowText,
    Job,
    call_text,
    flows_of_crontab,
    is_of_line,
    local_zone,
    missing_program,
    names_user,
    parse_crontab,
    plain_name,
    shell_duration,
)
from .group import ExitCode, cli, summary_of
from .output import print_table, write_new_file
from .shell_text import unquoted

SOURCE_CHARACTERS_MAX = 1_000_000
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
    it is. Exit code 3: a line was left out, its flow starts at other times, or, without FILE, its program is missing.
    """
    has_user = system or os.path.abspath(source or "").startswith(_SYSTEM_CRONTABS)
    crontab = parse_crontab(_text_of(source), zone or local_zone(), has_user=has_user)
    left_out = list(crontab.left_out)
    jobs = []
    for job in crontab.jobs:
        if not has_user and names_user(job):
            left_out.append((job.number, f"it names a user, {job.line.split()[0]}: --system"))
        else:
            jobs.append(job)
    files = flows_of_crontab(jobs, _SOURCES.get(source, source) or "", lambda name: _text_of_file(folder, name))
    if not files and not left_out:
        raise RedriveError("there is no line in it that starts a command")
    write_new_files(folder, files)
    code = print_comparison(folder, jobs, files)
    _print_changes(jobs, files)
    missing = _print_remarks(jobs, files)
    for number, sentence in sorted(left_out):
        echo(one_line(f"line {number}: {sentence}"))
    if left_out or (missing and source is None):
        code = ExitCode.PARTIAL_OR_BLOCKED
    if files:
        echo(one_line(f"next: take the lines out of the crontab, then: {shell_command(['redrive', 'serve', folder])}"))
    return code


def _print_changes(jobs: Sequence[Job], files: Sequence[FlowText]) -> None:
    """Print each line that a flow has in another form, old and new."""
    changed = [(job, file.changed) for job, file in zip(jobs, files, strict=True) if file.changed]
    if changed:
        echo("lines that are changed:")
    for job, line in changed:
        echo(f"{job.number:>5} - {one_line(job.line)}")
        echo(f"      + {one_line(line)}")


def _print_remarks(jobs: Sequence[Job], files: Sequence[FlowText]) -> bool:
    """Print what an operator has to know, with the lines of which it is true. Whether a program is missing."""
    found: dict[str, list[int]] = {}
    missing = False
    for job, file in zip(jobs, files, strict=True):
        sentences = list(file.remarks)
        if program := missing_program(job):
            missing = True
            sentences.append(f"{program} is no program that is found on this machine by the PATH of the line.")
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
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "" if os.path.lexists(path) else None


def _path_of(name: str) -> str:
    return name if name.endswith(".env") else f"{name}.py"


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


def print_comparison(folder: str, jobs: Sequence[Job], files: Sequence[FlowText]) -> ExitCode:
    """Print the starts of the next DAYS days by the old lines and by the flow files, and whether they are the same."""
    paths = [os.path.abspath(os.path.join(folder, f"{file.name}.py")) for file in files]
    flows = run_with_log(_read_flows(paths))
    now = SystemClock().now_us()
    rows: list[tuple[str, ...]] = [("LINE", "FLOW", "OLD LINE", "FLOW FILE", "FIRST", "LAST", "")]
    code, is_compared = ExitCode.SUCCESS, True
    for job, file, path in zip(jobs, files, paths, strict=True):
        comparison = compare_starts(job, flows[path], now)
        if comparison.agrees and not is_of_line(_text_of_file(folder, file.name) or "", file.text):
            comparison = replace(comparison, problem="NOT IMPORTED: the file holds something else")
        is_compared &= comparison.old is not None or bool(comparison.problem)
        rows.append((str(job.number), file.name, *comparison.cells()))
        if not comparison.agrees:
            code = ExitCode.PARTIAL_OR_BLOCKED
    if jobs:
        echo(f"starts in the next {DAYS} days:")
        print_table(rows)
    if not is_compared:
        echo("the old lines are not compared: pip install 'redrive[import]', then the same command again")
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
            alone = "flow" if at in self.new else "old line"
            verdict = f"DIFFERS: {at:%Y-%m-%d %H:%M} is a start of the {alone} alone"
        old = "" if self.old is None else f"{len(self.old):,}"
        return old, f"{len(self.new):,}", first, last, one_line(self.problem or verdict)


def compare_starts(job: Job, flow: FlowSpec | str, now: int) -> Comparison:
    """Compare the starts of a line with those of its flow; or say why its file cannot be read."""
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


# --- DAGs of dagu ----------------------------------------------------------------------------------------------------


@import_flows.command("dagu")
@click.argument("source", metavar="FILE")
@into_option
def import_dagu(source: str, folder: str) -> int:
    """Write a flow file for a DAG of dagu, and say what of it has no counterpart.

    FILE is its YAML, or - for stdin. No file is overwritten. Exit code 3: something of the DAG is not in the flow; the
    file says it, too.
    """
    dag = DaguDag(_dag_of(_text_of(source), source), source)
    file = FlowText(dag.name, dag.text())
    write_new_files(folder, [file])
    path = os.path.join(folder, f"{file.name}.py")
    (found,) = run_with_log(_read_flows([os.path.abspath(path)])).values()
    problems = [*dag.left_out, *([found] if isinstance(found, str) else [])]
    for problem in problems:
        echo(one_line(f"{path}: {problem}"))
    echo(one_line(f"next: {shell_command(['redrive', 'check', path])}"))
    return ExitCode.PARTIAL_OR_BLOCKED if problems else ExitCode.SUCCESS


def _dag_of(text: str, source: str) -> Mapping[str, Any]:
    """The first document of a YAML file, with ``documents``: how many there are. Raises RedriveError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise RedriveError("DAGs of dagu need a library: pip install 'redrive[import]'") from None
    try:
        _require_small(yaml.parse(text, Loader=yaml.SafeLoader), source)
        documents = [*yaml.safe_load_all(text)]
        dag = {**_plain_keys(documents[0] if documents else None), "documents": len(documents)}
    except (yaml.YAMLError, ValueError) as error:  # a date that is none is a ValueError
        raise RedriveError(f"{source} is no YAML: {error}") from None
    if not isinstance(dag.get("steps"), list | dict):
        raise RedriveError(f"{source} is no DAG of dagu: it has no steps")
    return dag


YAML_DEPTH_MAX = 50
YAML_NODES_MAX = 100_000  # with what each alias stands for


def _require_small(events: Iterable[Any], source: str) -> None:
    """Raise RedriveError for a document that is nested too deeply, or that aliases make too large: it may be an attack.

    ``events``: of its parser, which neither builds values nor calls itself.
    """
    sizes: dict[str, int] = {}  # of what the anchors stand for
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]

    def add(anchor: str | None, size: int) -> None:
        if anchor is not None:
            sizes[anchor] = size
        outer, count = open_nodes.pop()
        if count + size > YAML_NODES_MAX:
            raise RedriveError(f"{source} is too large for a DAG: over {YAML_NODES_MAX:,} values, with its aliases")
        open_nodes.append((outer, count + size))

    for event in events:
        match type(event).__name__:
            case "ScalarEvent":
                add(event.anchor, 1)
            case "AliasEvent":
                if event.anchor not in sizes:
                    raise RedriveError(f"{source} is no DAG: the alias {event.anchor!r} has no value, or is part of it")
                add(None, sizes[event.anchor])
            case "SequenceStartEvent" | "MappingStartEvent":
                if len(open_nodes) > YAML_DEPTH_MAX:
                    raise RedriveError(f"{source} is no DAG: it is nested more than {YAML_DEPTH_MAX} levels deep")
                open_nodes.append((event.anchor, 0))
            case "SequenceEndEvent" | "MappingEndEvent":
                anchor, size = open_nodes.pop()
                add(anchor, size + 1)


def _plain_keys(value: object) -> dict[str, Any]:
    """A mapping with its keys without their two spellings: ``retryPolicy`` and ``retry_policy``."""
    return {str(key).replace("_", "").lower(): one for key, one in value.items()} if isinstance(value, dict) else {}


_COMMON_KEYS = frozenset(("name", "description", "env", "workingdir", "timeoutsec", "preconditions", "shell"))
_DAG_KEYS = _COMMON_KEYS | {
    "documents",
    "group",
    "tags",
    "labels",
    "type",
    "schedule",
    "params",
    "maxactivesteps",
    "steps",
}
_STEP_KEYS = _COMMON_KEYS | {"id", "command", "run", "script", "dir", "depends", "retrypolicy", "continueon"}
_WHEN = '''
def when(*checks, **options):
    """A task that skips itself, and the tasks below it, unless all lines of the shell succeed."""
    def check():
        for line in checks:
            if subprocess.run(["/bin/sh", "-c", line], **options).returncode:
                raise SkipTask(f"not met: {line}")
    return check

'''


class DaguDag:
    """A DAG of dagu as the text of a flow file. ``left_out``: what has no counterpart, in sentences."""

    def __init__(self, dag: Mapping[str, Any], source: str) -> None:
        self._dag = dag
        self._source = source
        self._folder = str(dag.get("workingdir") or os.path.dirname(os.path.abspath(source)))
        stem = os.path.splitext(os.path.basename(source))[0]
        self.name = plain_name(str(dag.get("name") or stem)) or "dag"
        others = dag["documents"] - 1
        self.left_out = (
            [f"{counted(others, 'further document')} of the file: a DAG is a file of its own"] if others > 0 else []
        )
        given = dag["steps"]
        named = given.items() if isinstance(given, dict) else ((None, step) for step in given)
        self._steps = [{"name": name, **_step_of(step)} for name, step in named]
        self._names: dict[str, str] = {}  # of steps, by name and by id
        for number, step in enumerate(self._steps, start=1):
            step["name"] = name = str(step.get("name") or step.get("id") or f"step{number}")
            self._names |= {name: name, str(step.get("id") or name): name}
        kind = dag.get("type")
        self._is_chain = kind == "chain" or (kind is None and not any("depends" in step for step in self._steps))
        self._may_fail = {step["name"] for step in self._steps if self._continues(step)}

    def text(self) -> str:
        """Return the text of the file."""
        self._leave_out_unknown("the DAG", self._dag, _DAG_KEYS)
        params = self._params()
        options = {
            **self._schedule(),
            "deadline": shell_duration(self._dag.get("timeoutsec")),
            "max_parallel": self._dag.get("maxactivesteps") or None,
            "params": params or None,
        }
        variables = self._variables("the DAG", self._dag)
        variables |= {name: Expression(f"str(flow.params[{name!r}])") for name in params}
        body = [call_text("flow = Flow", [self.name], options), f"variables = {variables!r}"]
        first = self._add_checks(body, "when", self._dag, {"cwd": self._folder, "env": Expression("variables")}, {})
        for number, step in enumerate(self._steps):
            self._add_step(body, step, self._parents(number) or first)
        code = "\n".join(body)
        has_checks, has_retries = "flow.task(" in code, "retry=RetryPolicy(" in code
        uses = ", ".join(["Flow", *["RetryPolicy"] * has_retries, *["SkipTask"] * has_checks])
        order = ["# The steps come one after another; `after` says what each waits for."] if self._is_chain else []
        return "\n".join(
            [
                f"# Imported by `redrive import dagu` from {one_line(self._source)}.",
                *(f"# {one_line(line)}" for line in str(self._dag.get("description") or "").splitlines()),
                *(f"# Not imported: {one_line(sentence)}" for sentence in self.left_out),
                *[*order, "", *["import os", "import subprocess", ""] * has_checks],
                *[f"from redrive.engine import {uses}", "", *[_WHEN] * has_checks, code, ""],
            ]
        )

    def _add_step(self, body: list[str], step: Mapping[str, Any], parents: list[str]) -> None:
        name = step["name"]
        owner = f"step {name!r}"
        self._leave_out_unknown(owner, step, _STEP_KEYS)
        folder = os.path.join(self._folder, str(step.get("dir") or step.get("workingdir") or ""))
        own = self._variables(owner, step)
        tolerant = [one for one in parents if one in self._may_fail]
        if tolerant and len(tolerant) < len(parents):
            self.left_out.append(f"{owner} runs after a failure of any parent, not of {', '.join(tolerant)} alone")
        start = {"after": parents or None, "rule": ALL_DONE if tolerant else None}
        place = {
            "cwd": os.path.normpath(folder),
            "env": Expression(f"{{**variables, **{own!r}}}" if own else "variables"),
        }
        if checks := self._add_checks(body, f"{name} when", step, place, start):
            start = {"after": checks}
        program = dict(self._program(owner, step))
        line = program.pop("line")
        options = {
            **start,
            **place,
            **program,
            "timeout": shell_duration(step.get("timeoutsec")),
            "optional": True if name in self._may_fail else None,
            **self._retry(owner, step),
        }
        body.append(call_text("flow.command", [name, line], options))

    def _add_checks(
        self,
        body: list[str],
        name: str,
        of: Mapping[str, Any],
        place: Mapping[str, object],
        start: Mapping[str, object],
    ) -> list[str]:
        """Add a task that checks the preconditions, and return its name in a list; empty without preconditions."""
        given = _listed(of.get("preconditions"))
        checks = [_check_line(_plain_keys(one if isinstance(one, dict) else {"condition": one})) for one in given]
        if not checks:
            return []
        words = [*map(repr, checks), f"cwd={place['cwd']!r}", f"env={{**os.environ, **{place['env']!r}}}"]
        task = Expression(f"when({', '.join(words)})")
        body.append(call_text("flow.task", [task], {"name": name, **start, "max_attempts": 1}))
        return [name]

    def _parents(self, number: int) -> list[str]:
        step = self._steps[number]
        if "depends" in step:
            return [self._names.get(str(one), str(one)) for one in _listed(step["depends"])]
        return [self._steps[number - 1]["name"]] if self._is_chain and number else []

    def _program(self, owner: str, step: Mapping[str, Any]) -> Mapping[str, object]:
        """The line of the shell, or the words, of a step, as arguments of ``flow.command``."""
        run, command, script = (step.get(key) for key in ("run", "command", "script"))
        if script is not None and command is not None:
            return _words([*shlex.split(_text(command)), "/dev/stdin"], _text(script))
        if script is not None and (interpreter := _SHEBANG.match(_text(script))):
            return _words([*shlex.split(interpreter[1]), "/dev/stdin"], _text(script))
        if isinstance(command, list) and not any(" " in _text(word) for word in command):
            return _words([_text(word) for word in command])
        given = next((one for one in (run, script, command) if one is not None and one != ""), None)
        if given is None:
            self.left_out.append(f"{owner} has no command: it fails until it has one")
            return {"line": f"echo 'what {self.name} did here is not imported' >&2; exit 1"}
        line = "\n".join(map(_text, _listed(given)))
        return self._shell_line(step, f"set -e\n{line}" if re.search(r"[\n;]", line.strip()) else line)

    def _shell_line(self, step: Mapping[str, Any], line: str) -> Mapping[str, object]:
        shell = step.get("shell") or self._dag.get("shell") or "sh"
        words = [_text(word) for word in shell] if isinstance(shell, list) else shlex.split(_text(shell))
        if len(words) > 1 or os.path.basename(words[0]) not in ("sh", "bash", "dash"):
            return _words([*words, "-c", line])
        return {"line": line, "shell": "bash" if os.path.basename(words[0]) == "bash" else None}

    def _retry(self, owner: str, step: Mapping[str, Any]) -> Mapping[str, object]:
        policy = _plain_keys(step.get("retrypolicy"))
        self._leave_out_unknown(f"{owner}: retryPolicy", policy, frozenset(("limit", "intervalsec")))
        try:
            attempts, seconds = int(policy.get("limit") or 0) + 1, float(policy.get("intervalsec") or 0)
        except (TypeError, ValueError):
            self.left_out.append(f"{owner}: retryPolicy {step['retrypolicy']}")
            attempts = 1
        if attempts == 1:
            return {"max_attempts": 1}
        wait = f"base={seconds:g}, cap={seconds:g}, jitter='none'"
        return {"retry": Expression(f"RetryPolicy(max_attempts={attempts}, {wait})")}

    def _continues(self, step: Mapping[str, Any]) -> bool:
        """Whether the steps below run also when it has failed."""
        given = step.get("continueon")
        fields = {str(given): True} if isinstance(given, str) else _plain_keys(given)
        known = {key for key, value in fields.items() if key in ("failure", "failed") and value is True}
        if others := sorted(key for key, value in fields.items() if value and key not in known):
            self.left_out.append(f"step {step['name']!r}: continueOn {', '.join(others)}")
        return bool(known)

    def _schedule(self) -> Mapping[str, object]:
        given = self._dag.get("schedule")
        if isinstance(given, dict):
            self.left_out += [f"schedule: {other}" for other in sorted(given.keys() - {"start"})]
            given = given.get("start")
        times = [str(one) for one in _listed(given)]
        self.left_out += [f"schedule {other!r}: a flow has one" for other in times[1:]]
        if not times:
            return {}
        zone, fields = local_zone(), times[0]
        if fields.startswith("CRON_TZ="):
            zone, _, fields = fields.removeprefix("CRON_TZ=").partition(" ")
        return {"schedule": fields, "timezone": zone, "misfire": "skip"}

    def _variables(self, owner: str, of: Mapping[str, Any]) -> dict[str, object]:
        found = {str(key): _text(value) for one in _listed(of.get("env")) for key, value in _pairs(one)}
        for name in [name for name, value in found.items() if "$" in value or "`" in value]:
            self.left_out.append(f"{owner}: the variable {name} is {found[name]!r} as it stands; nothing is put in")
        return dict(found)

    def _params(self) -> dict[str, str]:
        given = self._dag.get("params")
        words = [unquoted_value(one) for one in _PARAM.findall(given)] if isinstance(given, str) else _listed(given)
        found = {str(key): _text(value) for one in words for key, value in _pairs(one)}
        self.left_out += [f"params: {one}" for one in words if not isinstance(one, dict) and not list(_pairs(one))]
        self.left_out += [
            f"params: {name} is {value!r} as it stands; nothing is put in"
            for name, value in found.items()
            if "$" in value or "`" in value
        ]
        return found

    def _leave_out_unknown(self, owner: str, of: Mapping[str, Any], known: frozenset[str]) -> None:
        self.left_out += [f"{owner}: {key} {one_line(str(of[key]), 60)}" for key in sorted(of.keys() - known)]


def _step_of(step: object) -> dict[str, Any]:
    """The keys of a step; a text is its command, a list are steps at the same time, which have no counterpart."""
    return _plain_keys(
        {"parallel": step} if isinstance(step, list) else {"command": step} if isinstance(step, str) else step
    )


_SHEBANG = re.compile(r"#!\s*(\S.*)")
_PARAM = re.compile(r"""(?:[^\s"'`]|"[^"]*"|'[^']*'|`[^`]*`)+""")  # a word of the params; a command in it is one word


def unquoted_value(word: str) -> str:
    """``NAME="two words"`` without the quotes of its value."""
    name, equals, value = word.partition("=")
    return f"{name}{equals}{unquoted(value)}" if equals else unquoted(word)


def _words(words: Sequence[str], script: str | None = None) -> Mapping[str, object]:
    """A program with its words. ``script``: what it reads as the file ``/dev/stdin``."""
    return {"line": words, "stdin": script}


def _text(value: object) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(value: object) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    """The names and values of a mapping, or of one text ``NAME=value``."""
    if isinstance(value, dict):
        return value.items()
    name, equals, text = str(value).partition("=")
    return [(name, text)] if equals else []


def _check_line(entry: Mapping[str, Any]) -> str:
    """A line of the shell that succeeds if a precondition is met. ``re:`` is a pattern of grep then."""
    line = str(entry.get("condition") or entry.get("command") or "false")
    expected = entry.get("expected")
    if expected is not None:
        pattern = str(expected).removeprefix("re:")
        how = "-Eq" if str(expected).startswith("re:") else "-Fxq"
        quoted = re.sub(r'(?<!\\)"', r"\\\"", line)
        line = f'printf "%s\\n" "{quoted}" | grep {how} -e {shell_word(pattern)}'
    return f"! {{ {line}; }}" if entry.get("negate") else line
