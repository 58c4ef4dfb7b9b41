"""``redrive resume``: says which code it runs and how the flow differs from the run, then starts the executor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ...engine.errors import AddressError, FlowChangesError, UntrustedFlowError
from ..sessions.target import is_remote
from ..text.text import one_line
from .run import RunArguments, remote_resume_hint, start_executor

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan


def resume_run(state: str, run_id: str | None, params: Mapping[str, str], arguments: RunArguments) -> int:
    """Resume an unfinished run, with the flow file that the state file names."""
    if is_remote(state):
        raise AddressError(remote_resume_hint(state))
    plan = _plan(state, run_id, params, trusted=arguments.trust)
    _print([f"resumes {plan.run_id}", *plan.code_lines(), *plan.difference_lines()])
    if plan.doubts:
        from ...engine.executor.resume_plan import refusal

        why = refusal(plan.flow_path, plan.doubts)
        if not _is_accepted("; ".join(plan.doubts), "Run this code?"):
            raise UntrustedFlowError(why)
        arguments = replace(arguments, trust=True)
        plan = _plan(state, plan.run_id, params, trusted=True)
        _print(plan.difference_lines())
    if plan.difference is not None and plan.needs_word and not arguments.accept_changes:
        from ...engine.core.flow_difference import refusal as refusal_of_changes

        why = refusal_of_changes(plan.run_id, plan.difference)
        if not _is_accepted(why, "Resume with these changes?"):
            raise FlowChangesError(why)
        arguments = replace(arguments, accept_changes=True)
    return start_executor(None, state, plan.run_id, params, arguments, resume=True)


def _plan(state: str, run_id: str | None, params: Mapping[str, str], *, trusted: bool) -> ResumePlan:
    from ...engine.executor.resume_plan import plan_resume

    return asyncio.run(plan_resume(state, run_id, params, trusted=trusted))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(one_line(line), err=True)


def _is_accepted(why: str, question: str) -> bool:
    """Ask on a terminal; without one nobody can accept it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    click.echo(one_line(why), err=True)
    return click.confirm(question, err=True)
