"""``redrive check``, ``new`` and ``rehearse``: what can be known and tried of a flow before its first run."""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import msgspec

from ...engine.asyncio_log import run_with_log
from ...engine.check import flow_checks
from ...engine.check.isolated import CheckedFlow, check_in_subprocess
from ...engine.core.advice import WEEKDAYS, PastByTask, duration_stats, stats_by_weekday
from ...engine.core.predecessors import cycle_sentence
from ...engine.core.spec import FlowSpec, work_of
from ...engine.domain.text import counted, first_names, format_seconds, shell_command
from ...engine.errors import FlowError, StateFileError
from ...engine.flow.flow import Flow
from ...engine.flow.import_output import printed_afterwards
from ...engine.flow.loading import load_flow
from ...engine.flow.predecessors import follows_of, known_follows
from ...engine.flow.source import Finding
from ...engine.schedule.flow_files import FlowFinder, group_by_interpreter, read_flow_files
from ...engine.statefile.lists import DurationStats
from ...engine.statefile.lists import duration_stats as duration_stats_of
from ...engine.statefile.supervisor_file import read_known
from ...engine.store import database
from ...engine.store.flow_path import path_for_run
from ...engine.store.machine import flows_that_name
from ...engine.store.runs import past_by_task
from ...engine.testing import Night, crash, disk_full, down, error, exits, hang, play, slow
from ...engine.testing.faults import DownstreamFault, Fault, http_error
from ...engine.testing.playing import START
from ..present.evidence import duration_lines
from ..sessions.target import is_remote
from ..text.figures import number
from ..text.text import echo, echo_json, echo_lines, one_line, table_lines
from .group import ExitCode, command
from .main import explain
from .options import json_option, params_of, seconds_of
from .output import with_schema, write_new_file

NAMES_SHOWN = 5
_SIGNS = {True: "[x]", False: "[ ]", None: "[?]"}


@command("check")
@click.argument("flows", nargs=-1, required=True, metavar="FLOW...")
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", metavar="PATH", help="Compare timeouts and waits with earlier runs.")
@click.option("--verbose", is_flag=True, help="The checklist and the worst case of every task.")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too: for a pipeline that releases the flow.")
@json_option
def check_flows(
    flows: tuple[str, ...], param: tuple[str, ...], state: str | None, verbose: bool, strict: bool, as_json: bool
) -> int:
    """Of several FLOWs, or of a folder, each is checked; the exit code is that of the worst."""
    params = params_of(param)
    targets = _targets(flows)
    is_one_flow = targets == list(flows[:1])
    codes = []
    follows = known_follows(read_known())
    for target in targets:
        if not as_json and not is_one_flow:
            echo(one_line(f"{target}:"))
        try:
            codes.append(_check(target, params, state, verbose, strict, as_json, follows))
        except FlowError as error:
            if as_json:
                _echo_finding(None, target, Finding("error", "import", str(error)))
            if is_one_flow:
                raise
            explain(error)
            codes.append(ExitCode.BAD_USAGE)
    return max(codes)


def _targets(words: Sequence[str]) -> list[str]:
    """The flows that are named, and those in the files below a named folder. Raises FlowError."""
    targets: list[str] = []
    for word in words:
        found = run_with_log(_flows_below(word)) if os.path.isdir(word) else [word]
        if not found:
            raise FlowError(f"there is no flow in the files below {word!r}")
        targets += found
    return targets


async def _flows_below(folder: str) -> list[str]:
    """The flows in the files below a folder. A file that cannot be read is one as well: its check says why."""
    found: list[str] = []
    finder = FlowFinder([folder])
    sources = finder.find()
    echo_lines(
        (one_line(f"left out: {os.path.relpath(file)} {why}") for file, why in finder.left_out.items()), err=True
    )
    for python, paths in group_by_interpreter(sources).items():
        async for file in read_flow_files(python, paths):
            path = os.path.relpath(file.target)
            found += [path] if file.error or len(file.flows) == 1 else [f"{path}:{name}" for name in file.flows]
    return sorted(found)


def _check(
    flow: str,
    params: Mapping[str, str],
    state: str | None,
    verbose: bool,
    strict: bool,
    as_json: bool,
    follows: dict[str, tuple[str, ...]],
) -> ExitCode:
    """``follows``: of the flows that are known so far, those that each comes after; this one is added."""
    checked = check_in_subprocess(flow, params)
    spec, found = checked.spec, checked.findings
    follows[spec.name] = follows_of(spec)
    seen = _observed(state, spec)
    left = [finding for finding in found if finding.rule == "import"]
    circle = cycle_sentence(spec.name, follows)
    left += [Finding("error", "after", circle)] if circle else []
    findings = [
        *left,
        *flow_checks.check_spec(spec, seen, checked.cost),
        *(finding for finding in found if finding not in left),
    ]
    if as_json:
        _echo_json(checked, flow, findings, seen, verbose)
    else:
        printed = _print_findings(findings)
        _print_sharing(spec)
        if verbose:
            _print_checklists(checked, seen)
        _print_summary(spec, printed)
    levels = {finding.level for finding in findings}
    if "error" in levels:
        return ExitCode.BAD_USAGE
    return ExitCode.FAILED if strict and "warning" in levels else ExitCode.SUCCESS


def _print_sharing(spec: FlowSpec) -> None:
    """Name the other flows of this machine that share a downstream with this one: the name alone makes it one."""
    declared = {one.name: one for one in spec.downstreams}
    named = dict.fromkeys(work_of(task).downstream for task in spec.tasks)
    for downstream in filter(None, named):
        others = [flow for flow in flows_that_name(downstream) if flow != spec.name]
        if others and (downstream not in declared or declared[downstream].shared):
            flows = f"{'flow' if len(others) == 1 else 'flows'} {first_names(others, NAMES_SHOWN)}"
            echo(one_line(f"downstream {downstream} is shared with {flows}: shared=False, if it is another system"))


def _observed(state: str | None, flow: FlowSpec) -> PastByTask:
    if state is None:
        return {}
    if is_remote(state):
        raise StateFileError("check reads a state file of this machine; copy it here, or leave --state out")
    with database.reading(state) as connection:
        return past_by_task(connection, flow)


def _print_findings(findings: Sequence[Finding]) -> int:
    """Print the findings; the same finding for several tasks is one line. Returns the number of lines."""
    alike: dict[tuple[str, str, int | None], list[str]] = {}
    for finding in findings:
        alike.setdefault((finding.level, finding.message, finding.line), []).append(finding.task or "")
    for (level, message, line), names in alike.items():
        place = f"line {line}: " if line else f"{_named(names)}: " if names[0] else ""
        echo(one_line(f"{level}: {place}{message}"))
    return len(alike)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more tasks"


def _echo_finding(flow: str | None, target: str, finding: Finding) -> None:
    """Print a finding as JSON; ``flow``: None if its file cannot be imported."""
    echo_json(with_schema("check", {"flow": flow, "target": target, **msgspec.to_builtins(finding)}))


def _echo_json(checked: CheckedFlow, target: str, findings: Sequence[Finding], seen: PastByTask, verbose: bool) -> None:
    for finding in findings:
        _echo_finding(checked.spec.name, target, finding)
    for task in map(work_of, checked.spec.tasks) if verbose else ():
        past = seen.get(task.name, ())
        took = duration_stats(past)
        worst = flow_checks.worst_case_seconds(task, took)
        held = [msgspec.to_builtins(check) for check in flow_checks.checklist(task)]
        value: dict[str, object] = {
            "flow": checked.spec.name,
            "target": target,
            "task": task.name,
            "worst_case_seconds": worst,
            "checklist": held,
            "group": task.group,
            "inherited": checked.inherited.get(task.name, {}),
        }
        if took is not None:
            days = {WEEKDAYS[day]: msgspec.to_builtins(one) for day, one in stats_by_weekday(past).items()}
            value["took_seconds"] = {**msgspec.to_builtins(took), "stats_by_weekday": days}
        echo_json(with_schema("check", value))


def _print_checklists(checked: CheckedFlow, seen: PastByTask) -> None:
    for task in map(work_of, checked.spec.tasks):
        past = seen.get(task.name, ())
        echo(one_line(f"{task.name}: at the worst {flow_checks.worst_case_sum(task, duration_stats(past))}"))
        for line in duration_lines(past):
            echo(f"  {line}")
        for check in flow_checks.checklist(task):
            echo(f"  {_SIGNS[check.passes]} {one_line(check.text)}")
        for option, origin in checked.inherited.get(task.name, {}).items():
            echo(f"  {one_line(option)} comes from {one_line(origin)}")


def _print_summary(spec: FlowSpec, findings: int) -> None:
    found = counted(findings, "finding") if findings else "no findings"
    edges = counted(sum(len(task.parents) for task in spec.tasks), "edge")
    echo(f"{one_line(spec.name)}: {counted(len(spec.tasks), 'task')}, {edges}, {found}")


# --- ``redrive new``: write a first flow that runs -------------------------------------------------------------------


_TEMPLATE_NAME = "first_flow"  # the name of the flow in the template


@command("new")
@click.argument("name", metavar="FILE", default="first_flow.py")
def write_new_flow(name: str) -> int:
    path = Path(name if name.endswith(".py") else f"{name}.py")
    template = resources.files("redrive.engine.examples").joinpath(f"{_TEMPLATE_NAME}.py").read_text("utf-8")
    text = template.replace(_TEMPLATE_NAME, path.stem)
    try:
        write_new_file(path, text)
    except FileExistsError:
        raise FlowError(f"{path} exists already; give another name") from None
    except OSError as error:
        raise FlowError(f"{path} cannot be written: {error.strerror}") from None
    for line in (
        f"{path} is written; next:",
        "  " + shell_command(["redrive", "check", str(path)]),
        "  " + shell_command(["redrive", "run", str(path)]),
        "  redrive help flow",
    ):
        echo(line)
    return ExitCode.SUCCESS


# --- ``redrive rehearse``: plays a flow in virtual time with faults, one night as its timeline or many as a table ----
#
# No task runs: each returns what its children need and takes as long as it usually does. So a rehearsal calls nobody.


USUAL_SECONDS = 1.0  # of a task without earlier runs
LIST_LENGTH = 10  # of a task that is mapped over
_WINDOW = r"(?P<lasts>[^@:]+)(?:@(?P<at>.+))?"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is played. ``faults`` and ``takes``: words of the command line, by their option."""

    target: str
    params: Mapping[str, str]
    at: str | None
    state: str | None
    seed: int
    until: str
    faults: Mapping[str, Sequence[str]]
    takes: Sequence[str]
    results: Sequence[str]


@command("rehearse")
@click.argument("flow")
@click.option(
    "--down", multiple=True, metavar="NAME=10m@2m", help="A downstream fails; NAME=30%:10m: a share of calls."
)
@click.option("--fail", multiple=True, metavar="TASK=503x3", help="Or TimeoutError, exit:75, hang, so often.")
@click.option("--hang", multiple=True, metavar="TASK[=ATTEMPT]", help="Attempts end at their timeout.")
@click.option("--slow", multiple=True, metavar="TASK=4x", help="Or TASK=+30s.")
@click.option("--crash", multiple=True, metavar="5m[/10s]", help="The executor is killed, and resumed later.")
@click.option("--disk-full", multiple=True, metavar="10m@2m", help="The state file takes no write.")
@click.option("--takes", multiple=True, metavar="TASK=40s", help="Instead of the median of earlier runs, or 1 s.")
@click.option("--result", "results", multiple=True, metavar="TASK=JSON", help="What it returns; no task runs.")
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", metavar="PATH", help="Where earlier runs are.")
@click.option("--at", metavar="TIME", help="When the night begins: 2026-03-28T22:00+01:00.")
@click.option("--until", default="1d", show_default=True, metavar="DURATION", help="When a run is stopped.")
@click.option("--nights", default=1, show_default=True, type=click.IntRange(1, 100_000), help="More print a table.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the dice; of the first of many nights.")
@click.option("--show", "shows", is_flag=True, help="Open the night in the console.")
@click.option("--keep", metavar="PATH", help="Where the state file of the night is kept.")
@json_option
def rehearse(flow: str, param: tuple[str, ...], **given: Any) -> int:
    names = ("down", "fail", "hang", "slow", "crash", "disk_full")
    faults = {name.replace("_", "-"): given.pop(name) for name in names}
    options = {name: given.pop(name) for name in ("nights", "shows", "keep", "as_json")}
    return _rehearse(Rehearsal(flow, params_of(param), faults=faults, **given), **options)


def _rehearse(rehearsal: Rehearsal, *, nights: int, shows: bool, keep: str | None, as_json: bool) -> int:
    """Play and print. Raises RedriveError, UsageError."""
    with printed_afterwards():
        flow = load_flow(rehearsal.target, rehearsal.params)
    spec = flow.spec()
    faults = faults_of(rehearsal.faults, spec)
    if nights > 1:
        return _print_many(rehearsal, flow, faults, nights, as_json)
    night = _play(rehearsal, flow, faults, rehearsal.seed)
    if keep is not None:
        night.save(keep)
    if shows:
        return _show(night)
    if as_json:
        echo_json(with_schema("rehearsal", _facts(night, rehearsal.seed, faults)))
    else:
        echo_lines(_night_lines(night, faults))
    return night.exit_code


def _play(rehearsal: Rehearsal, flow: Flow, faults: Sequence[Fault], seed: int) -> Night:
    spec = flow.spec()
    return play(
        flow,
        faults=faults,
        durations=_usual_seconds(spec, rehearsal) | _pairs("--takes", rehearsal.takes),
        results=_stand_ins(spec) | {name: _json(text) for name, text in _pairs("--result", rehearsal.results).items()},
        seed=seed,
        until=rehearsal.until,
        at=rehearsal.at or START,
    )


def _stand_ins(spec: FlowSpec) -> dict[str, object]:
    """Return what each task returns: a list where it is mapped over, true from a sensor, else nothing."""
    mapped = {task.map.over for task in spec.tasks if task.map is not None}
    return {
        task.name: list(range(LIST_LENGTH)) if task.name in mapped else True if task.kind == "sensor" else None
        for task in spec.tasks
    }


def _usual_seconds(spec: FlowSpec, rehearsal: Rehearsal) -> dict[str, object]:
    """Return how long each task takes: the median of its earlier runs."""
    path = path_for_run(rehearsal.state, lambda: spec.name, rehearsal.target)
    known: Mapping[str, DurationStats] = {}
    if rehearsal.state is not None or os.path.exists(path):
        with database.reading(path) as connection:
            known = duration_stats_of(connection, spec.name)
    return {task.name: known[task.name].p50_us / 1e6 if task.name in known else USUAL_SECONDS for task in spec.tasks}


def _pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for (name, equals, value), word in zip(pairs, words, strict=True):
        if not (name and equals and value):
            raise click.UsageError(f"{option} {word!r}: write TASK=VALUE")
    return {name: value for name, _, value in pairs}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise click.UsageError(f"--result: {text!r} is not JSON") from None


# --- Faults ----------------------------------------------------------------------------------------------------------


def faults_of(words: Mapping[str, Sequence[str]], spec: FlowSpec) -> list[Fault]:
    """Read the options that name faults. Raises UsageError."""
    readers = {
        "fail": lambda word: _fail(word, spec),
        "hang": _hang,
        "slow": _slow,
        "down": _down,
        "crash": _crash,
        "disk-full": _disk_full,
    }
    return [read(word) for option, read in readers.items() for word in words.get(option, ())]


def _match(option: str, pattern: str, word: str, form: str) -> re.Match[str]:
    found = re.fullmatch(pattern, word)
    if found is None:
        raise click.UsageError(f"--{option} {word!r}: write {form}")
    return found


def _down(word: str) -> Fault:
    found = _match("down", rf"(?P<name>[^=]+)=(?:(?P<share>\d+)%:)?{_WINDOW}", word, "NAME=10m@2m, or NAME=30%:10m@2m")
    share = int(found["share"] or 100) / 100
    return down(found["name"], found["at"] or 0, _duration("down", found["lasts"]), share=share)


def _fail(word: str, spec: FlowSpec) -> Fault:
    form = "TASK=503x3: a status, an exception as TimeoutError, exit:75 or hang, and how often"
    found = _match("fail", r"(?P<task>[^=]+)=(?P<what>\d{3}|exit:\d+|[A-Za-z_]\w*?)(?:x(?P<times>\d+))?", word, form)
    task, what, times = found["task"], found["what"], int(found["times"]) if found["times"] else None
    own = next((one for one in spec.tasks if one.name == task.partition("[")[0]), None)
    if what in ("hang", "timeout"):
        return hang(task, times=times)
    if what.startswith("exit:"):
        return exits(task, int(what[5:]), times=times)
    if what.isdigit() and own is not None and own.kind == "command":
        return exits(task, 22, stderr=f"curl: (22) The requested URL returned error: {what}\n", times=times)
    if what.isdigit():
        return error(task, lambda: http_error(task, int(what)), times=times)
    kind = getattr(builtins, what, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise click.UsageError(f"--fail {word!r}: Python has no exception {what!r}; write {form}")
    return error(task, kind, times=times)


def _hang(word: str) -> Fault:
    found = _match("hang", r"(?P<task>[^=]+)(?:=(?P<attempt>\d+))?", word, "TASK, or TASK=1 for its first attempt")
    return hang(found["task"], attempt=int(found["attempt"]) if found["attempt"] else None)


def _slow(word: str) -> Fault:
    found = _match("slow", r"(?P<task>[^=]+)=(?:(?P<factor>[\d.]+)x|\+(?P<more>.+))", word, "TASK=4x or TASK=+30s")
    if found["factor"]:
        return slow(found["task"], float(found["factor"]))
    return slow(found["task"], seconds=_duration("slow", found["more"]))


def _crash(word: str) -> Fault:
    found = _match("crash", r"(?P<at>[^/]+)(?:/(?P<lasts>.+))?", word, "5m, or 5m/1h if nobody resumes it for an hour")
    return crash("executor", found["at"], _duration("crash", found["lasts"] or "10s"))


def _disk_full(word: str) -> Fault:
    found = _match("disk-full", _WINDOW, word, "10m@2m")
    return disk_full(found["at"] or 0, _duration("disk-full", found["lasts"]))


def _duration(option: str, text: str) -> float:
    return seconds_of(text, f"--{option}")


# --- One night -------------------------------------------------------------------------------------------------------


def _night_lines(night: Night, faults: Sequence[Fault]) -> list[str]:
    lines = [_sentence(night, faults), "", *night.timeline.splitlines()]
    for cause in night.inbox:
        lines += ["", f"{cause.title}: {first_names(cause.tasks, NAMES_SHOWN)}", f"  {cause.evidence}"]
    pages = [f"page: {page.title}: {page.body['why']}" for page in night.pages]
    return [*lines, *([""] if pages else []), *pages]


def _sentence(night: Night, faults: Sequence[Fault]) -> str:
    took = format_seconds(night.seconds)
    counts = Counter(night.states.values())
    states = ", ".join(f"{number(count)} {state}" for state, count in counts.most_common())
    healed = [
        f", {format_seconds(night.healed_after(name))} after {name} was well again"
        for name in _ending_outages(faults)
        if night.state == "SUCCESS"
    ]
    return f"{night.state} after {took}{''.join(healed)}: {states}; {number(night.starts())} starts"


def _ending_outages(faults: Sequence[Fault]) -> list[str]:
    found = (fault for fault in faults if isinstance(fault, DownstreamFault) and fault.when.lasts is not None)
    return sorted({fault.downstream for fault in found})


def _show(night: Night) -> int:
    """Open the console on a copy of the state file, which is removed afterwards."""
    from ..sessions.address import Endpoint, SshOptions
    from ..terminal.capabilities import detect_capabilities
    from .attach import code_of_console, show_target

    terminal = detect_capabilities()
    if terminal.unsupported_reason is not None:
        raise click.UsageError(f"--show needs a terminal: {terminal.unsupported_reason}")
    with tempfile.TemporaryDirectory(prefix="redrive-rehearsal-") as folder:
        path = os.path.join(folder, "night.db")
        night.save(path)
        endpoint = Endpoint(path, SshOptions(), night.run_id)
        return code_of_console(show_target(terminal, endpoint, read_only=True))


# --- Many nights -----------------------------------------------------------------------------------------------------


def _print_many(rehearsal: Rehearsal, flow: Flow, faults: Sequence[Fault], nights: int, as_json: bool) -> int:
    seeds = range(rehearsal.seed, rehearsal.seed + nights)
    found = [_facts(_play(rehearsal, flow, faults, seed), seed, faults) for seed in seeds]
    if as_json:
        for facts in found:
            echo_json(with_schema("rehearsal", facts))
    else:
        echo_lines(_table(found))
    return ExitCode.SUCCESS if all(facts["state"] == "SUCCESS" for facts in found) else ExitCode.FAILED


def _facts(night: Night, seed: int, faults: Sequence[Fault]) -> dict[str, object]:
    """Return one night as a line of JSON."""
    has_healed = bool(_ending_outages(faults)) and night.state == "SUCCESS"
    return {
        "flow": night.projection.run.dag_name,
        "seed": seed,
        "state": night.state,
        "exit_code": night.exit_code,
        "seconds": round(night.seconds, 3),
        "healed_seconds": round(night.healed_after(), 3) if has_healed else None,
        "starts": night.starts(),
        "pages": len(night.pages),
        "tasks": dict(Counter(night.states.values())),
    }


_COLUMNS = {"seconds": "lasts", "healed_seconds": "healed after", "starts": "starts", "pages": "pages"}


def _table(nights: Sequence[dict[str, object]]) -> list[str]:
    states = Counter(str(facts["state"]) for facts in nights)
    healed = states["SUCCESS"] / len(nights)
    lines = [f"{number(len(nights))} nights: {healed:.1%} SUCCESS" + "".join(_others(states)), ""]
    rows: list[tuple[str, ...]] = [("", "p50", "p95", "most")]
    for name, label in _COLUMNS.items():
        values = [float(str(facts[name])) for facts in nights if facts[name] is not None]
        if values:
            rows.append((label, *(_cell(name, value) for value in _spread(values))))
    worst = max(nights, key=lambda facts: (facts["state"] != "SUCCESS", float(str(facts["seconds"]))))
    return [*lines, *table_lines(rows), "", f"the worst is --seed {worst['seed']}"]


def _others(states: Counter[str]) -> list[str]:
    return [f", {number(count)} {state}" for state, count in states.most_common() if state != "SUCCESS"]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    cuts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return cuts[9], cuts[18], max(values)


def _cell(name: str, value: float) -> str:
    return number(math.ceil(value)) if name in ("starts", "pages") else format_seconds(value)
