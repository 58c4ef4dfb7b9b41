"""``redrive check``: validates a flow without running it, one line per finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ....engine.check import flow_checks
from ....engine.check.isolated import CheckedFlow, check_in_subprocess
from ....engine.core.advice import WEEKDAYS, duration_stats, stats_by_weekday
from ....engine.core.spec import FlowSpec
from ....engine.domain.counting import counted
from ....engine.errors import StateFileError
from ....engine.flow.finding import Finding
from ....engine.store import database
from ....engine.store.history import TaskDurations, duration_stats_by_task
from ...present.task_durations import duration_lines
from ...sessions.target import is_remote
from ...text.printing import echo, echo_json
from ...text.text import one_line
from ..exit_codes import ExitCode
from ..output.json_schemas import with_schema

NAMES_SHOWN = 5
_SIGNS = {True: "[x]", False: "[ ]", None: "[?]"}


def check_flow(flow: str, params: Mapping[str, str], *, state: str | None, verbose: bool, as_json: bool) -> int:
    """Load the flow and print its findings. Exit code 2 if it cannot run."""
    checked = check_in_subprocess(flow, params)
    spec, found = checked.spec, checked.findings
    seen = _observed(state, spec.name)
    left = [finding for finding in found if finding.rule == "import"]
    findings = [*left, *flow_checks.check_spec(spec, seen), *(finding for finding in found if finding not in left)]
    if as_json:
        _echo_json(checked, findings, seen, verbose)
    else:
        printed = _print_findings(findings)
        if verbose:
            _print_checklists(checked, seen)
        _print_summary(spec, printed)
    return ExitCode.BAD_USAGE if any(finding.level == "error" for finding in findings) else ExitCode.SUCCESS


def _observed(state: str | None, flow_name: str) -> Mapping[str, TaskDurations]:
    if state is None:
        return {}
    if is_remote(state):
        raise StateFileError("check reads a state file of this machine; copy it here, or leave --state out")
    with database.reading(state) as connection:
        return duration_stats_by_task(connection, flow_name)


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


def _echo_json(
    checked: CheckedFlow, findings: Sequence[Finding], seen: Mapping[str, TaskDurations], verbose: bool
) -> None:
    for finding in findings:
        echo_json(with_schema("check", asdict(finding)))
    for task in checked.spec.tasks if verbose else ():
        worst = flow_checks.worst_case_seconds(task, seen.get(task.name))
        held = [asdict(check) for check in flow_checks.checklist(task)]
        value: dict[str, object] = {"task": task.name, "worst_case_seconds": worst, "checklist": held}
        value.update({"group": task.group, "inherited": checked.inherited.get(task.name, {})})
        past = seen[task.name].past if task.name in seen else ()
        if (took := duration_stats(past)) is not None:
            days = {WEEKDAYS[day]: asdict(one) for day, one in stats_by_weekday(past).items()}
            value["took_seconds"] = {**asdict(took), "stats_by_weekday": days}
        echo_json(value)


def _print_checklists(checked: CheckedFlow, seen: Mapping[str, TaskDurations]) -> None:
    for task in checked.spec.tasks:
        echo(one_line(f"{task.name}: at the worst {flow_checks.worst_case_sum(task, seen.get(task.name))}"))
        for line in duration_lines(seen[task.name].past if task.name in seen else ()):
            echo(f"  {line}")
        for check in flow_checks.checklist(task):
            echo(f"  {_SIGNS[check.passes]} {one_line(check.text)}")
        for option, origin in checked.inherited.get(task.name, {}).items():
            echo(f"  {one_line(option)} comes from {one_line(origin)}")


def _print_summary(spec: FlowSpec, findings: int) -> None:
    found = counted(findings, "finding") if findings else "no findings"
    edges = counted(sum(len(task.parents) for task in spec.tasks), "edge")
    echo(f"{one_line(spec.name)}: {counted(len(spec.tasks), 'task')}, {edges}, {found}")
