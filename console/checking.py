"""``redrive check``: what can be known about a flow before it runs, each finding in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from ..engine.checks import Finding, check_spec
from ..engine.flow import load_flow
from .cli import ExitCode
from .present.text import one_line


def check_flow(flow: str, params: Mapping[str, str], as_json: bool) -> int:
    """Load the flow, print its findings, and say whether it can run. Exit code 2 where it cannot."""
    spec = load_flow(flow, params).spec()
    findings = check_spec(spec)
    for finding in findings:
        _print(finding, as_json)
    if not as_json:
        worst = "no findings" if not findings else f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
        edges = sum(len(task.parents) for task in spec.tasks)
        click.echo(f"{one_line(spec.name)}: {len(spec.tasks)} tasks, {edges} edges, {worst}")
    return ExitCode.BAD_USAGE if any(finding.level == "error" for finding in findings) else ExitCode.SUCCESS


def _print(finding: Finding, as_json: bool) -> None:
    if as_json:
        value = {"level": finding.level, "task": finding.task, "rule": finding.rule, "message": finding.message}
        click.echo(json.dumps(value, ensure_ascii=False))
    else:
        place = f"{finding.task}: " if finding.task else ""
        click.echo(one_line(f"{finding.level}: {place}{finding.message}"))
