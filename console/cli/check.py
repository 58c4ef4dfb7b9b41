"""``redrive check`` and ``new``: what can be known of a flow before its first run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from ...engine.asyncio_log import run_with_log
from ...engine.check import flow_checks
from ...engine.check.isolated import check_in_subprocess
from ...engine.core.advice import WEEKDAYS, PastByTask, duration_stats, stats_by_weekday
from ...engine.core.predecessors import cycle_sentence
from ...engine.core.spec import FlowSpec, work_of
from ...engine.domain.text import counted, did_you_mean, first_names, shell_command
from ...engine.errors import FlowError, StateFileError
from ...engine.flow.predecessors import follows_of, known_follows
from ...engine.flow.source import Finding
from ...engine.statefile.supervisor_file import read_known
from ...engine.store import database
from ...engine.store.machine import flows_that_name
from ...engine.store.runs import past_by_task
from ..text.text import echo, echo_json, is_remote, one_line
from .group import ExitCode, command
from .main import explain
from .options import json_option, param_option, params_of
from .output import with_schema, write_new_file

_SIGNS = {True: "[x]", False: "[ ]", None: "[?]"}


@command("check")
@click.argument("flows", nargs=-1, required=True, metavar="[PROGRAM|FOLDER]...")
@param_option("A parameter that the flow declares.")
@click.option("--state", metavar="PATH", help="Compare timeouts and waits with earlier runs.")
@click.option("--verbose", is_flag=True, help="The checklist and the worst case of every task.")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too: for a pipeline that releases the flow.")
@json_option
def check_flows(
    flows: tuple[str, ...], param: tuple[str, ...], state: str | None, verbose: bool, strict: bool, as_json: bool
) -> int:
    """Of a FOLDER: all flows in the files below it. The exit code is that of the worst."""
    options = _Options(params_of(param), state, verbose, strict, as_json, known_follows(read_known()))
    targets = _targets(flows, options.follows)
    is_one_flow = targets == list(flows[:1])
    codes = []
    for target in targets:
        if not as_json and not is_one_flow:
            echo(one_line(f"{target}:"))
        try:
            codes.append(_check(target, options))
        except FlowError as error:
            if as_json:
                _echo_finding(None, target, Finding("error", "import", str(error)))
            if is_one_flow:
                raise
            explain(error)
            codes.append(ExitCode.BAD_USAGE)
    return max(codes)


def _targets(words: Sequence[str], follows: dict[str, tuple[str, ...]]) -> list[str]:
    """The flows that are named, and those in the files below a named folder. Raises FlowError."""
    targets: list[str] = []
    for word in words:
        found = _flows_below(word, follows) if os.path.isdir(word) else [word]
        if not found:
            raise FlowError(f"there is no flow in the files below {word!r}")
        targets += found
    return targets


def _flows_below(folder: str, follows: dict[str, tuple[str, ...]]) -> list[str]:
    """The flows in the files below a folder. A file that cannot be read is one as well: its check says why.

    ``follows``: of each flow those that it comes after; those in the files are added.
    """
    from ...engine.schedule.flow_files import FlowFinder, read_found  # for a folder alone

    found: list[str] = []
    finder = FlowFinder([folder])
    for file in run_with_log(read_found(finder)):
        path = os.path.relpath(file.target)
        follows.update({flow.spec.name: follows_of(flow.spec) for flow in file.flows.values()})
        found += [path] if file.error or len(file.flows) == 1 else [f"{path}:{name}" for name in file.flows]
    for left_out, why in finder.left_out.items():
        echo(one_line(f"left out: {os.path.relpath(left_out)} {why}"), err=True)
    return sorted(found)


#: By task: from where each inherited option comes.
Inherited = Mapping[str, Mapping[str, str]]


class _Options(NamedTuple):
    """The options of the command. ``follows``: of the flows that are known so far, those that each comes after."""

    params: Mapping[str, str]
    state: str | None
    verbose: bool
    strict: bool
    as_json: bool
    follows: dict[str, tuple[str, ...]]


def _check(flow: str, options: _Options) -> ExitCode:
    (spec, checked), follows = check_in_subprocess(flow, options.params), options.follows
    found = checked.findings
    follows[spec.name] = follows_of(spec)
    seen = _observed(options.state, spec)
    left = [finding for finding in found if finding.rule == "import"]
    circle = cycle_sentence(spec.name, follows)
    left += [Finding("error", "after", circle)] if circle else []
    left += [_unknown(name, follows) for name in follows[spec.name] if name not in follows and len(follows) > 1]
    findings = [
        *left,
        *flow_checks.check_spec(spec, seen, checked.cost),
        *(finding for finding in found if finding not in left),
    ]
    if options.as_json:
        _echo_json(spec, flow, findings, seen, checked.inherited if options.verbose else None)
    else:
        printed = _print_findings(findings)
        _print_sharing(spec)
        if options.verbose:
            _print_checklists(spec, checked.inherited, seen)
        _print_summary(spec, printed)
    levels = {finding.level for finding in findings}
    if "error" in levels:
        return ExitCode.BAD_USAGE
    return ExitCode.FAILED if options.strict and "warning" in levels else ExitCode.SUCCESS


def _unknown(name: str, follows: Mapping[str, object]) -> Finding:
    """Warn of a flow that another comes after and nobody knows; where no other flow is known, none is unknown."""
    meant = did_you_mean(name, follows.keys())
    return Finding("warning", "after", f"it comes after {name!r}, and no flow of that name is known here{meant}")


def _print_sharing(spec: FlowSpec) -> None:
    """Name the other flows of this machine that share a downstream with this one: the name alone makes it one."""
    declared = {one.name: one for one in spec.downstreams}
    named = dict.fromkeys(work_of(task).downstream for task in spec.tasks)
    for downstream in filter(None, named):
        others = [flow for flow in flows_that_name(downstream) if flow != spec.name]
        if others and (downstream not in declared or declared[downstream].shared):
            flows = f"{'flow' if len(others) == 1 else 'flows'} {first_names(others)}"
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
        place = f"line {line}: " if line else f"{first_names(names)}: " if names[0] else ""
        echo(one_line(f"{level}: {place}{message}"))
    return len(alike)


def _echo_finding(flow: str | None, target: str, finding: Finding) -> None:
    """Print a finding as JSON; ``flow``: None if its file cannot be imported."""
    echo_json(with_schema("check", {"flow": flow, "target": target, **msgspec.to_builtins(finding)}))


def _echo_json(
    spec: FlowSpec, target: str, findings: Sequence[Finding], past_by_task: PastByTask, inherited: Inherited | None
) -> None:
    """Print the findings as JSON, and a line for each task. ``inherited`` None: the findings alone."""
    for finding in findings:
        _echo_finding(spec.name, target, finding)
    if inherited is None:
        return
    for task in map(work_of, spec.tasks):
        past = past_by_task.get(task.name, ())
        took = duration_stats(past)
        worst = flow_checks.worst_case_seconds(task, took)
        held = [msgspec.to_builtins(check) for check in flow_checks.checklist(task)]
        value: dict[str, object] = {
            "flow": spec.name,
            "target": target,
            "task": task.name,
            "worst_case_seconds": worst,
            "checklist": held,
            "group": task.group,
            "inherited": inherited.get(task.name, {}),
        }
        if took is not None:
            days = {WEEKDAYS[day]: msgspec.to_builtins(one) for day, one in stats_by_weekday(past).items()}
            value["took_seconds"] = {**msgspec.to_builtins(took), "stats_by_weekday": days}
        echo_json(with_schema("check", value))


def _print_checklists(spec: FlowSpec, inherited: Inherited, past_by_task: PastByTask) -> None:
    from ..present.evidence import quantile_lines  # here: most checks print no checklist

    for task in map(work_of, spec.tasks):
        past = past_by_task.get(task.name, ())
        echo(one_line(f"{task.name}: at the worst {flow_checks.worst_case_sum(task, duration_stats(past))}"))
        for line in quantile_lines(past):
            echo(f"  {line}")
        for check in flow_checks.checklist(task):
            echo(f"  {_SIGNS[check.passes]} {one_line(check.text)}")
        for option, origin in inherited.get(task.name, {}).items():
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
    if path.suffix != ".py":
        raise FlowError("the name of the file is empty; give one, as first_flow.py")
    os.path.abspath(path)  # raises the error of a folder that was removed
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
