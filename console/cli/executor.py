"""``redrive resume``, ``rerun``, ``stop`` and ``reload``: the executor of a state file.

``resume`` says which code it runs and how the flow differs from the run, then starts the executor.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ...engine import errors
from ...engine.asyncio_log import run_with_log
from ...engine.domain.acts import Answer
from ...engine.executor.run_options import RunOptions
from ...engine.statefile.lists import LATEST
from ...engine.store import database
from ..model.session_status import SessionStatus
from ..sessions.once import with_session
from ..sessions.session import LiveSession, Session, new_command
from ..sessions.target import run_in
from ..text.text import echo, echo_lines, is_interactive, one_line
from . import operate
from . import options as shared
from .group import ExitCode, code_of_answers, command
from .run import RunArguments, require_here, run_arguments, start_executor

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan


@command("resume")
@shared.TargetWords(acts=True, local=True).declare
@shared.param_option("Another value from now on.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although the flow changed: unfinished tasks that are gone are skipped, finished results stay.",
)
@shared.trust_option
@click.option("--copy", is_flag=True, help="Go on in a copy although the executor of the original lives.")
@click.option("--deadline", metavar="DURATION|TIME|never", help="Another deadline first, as redrive postpone gives it.")
@shared.running_options
def resume_run(file: shared.NamedFile, param: tuple[str, ...], deadline: str | None, **options: Any) -> int:
    from ...engine.core.flow_difference import refusal
    from ...engine.executor.resume_plan import require_accepted

    endpoint = file.to_change()
    state = endpoint.target
    arguments = run_arguments(shared.params_of(param), **options)
    require_here("resume", state)
    if not arguments.run.wait:
        from ...engine.agent.executor_socket import read_only_reason
        from ...engine.store.lock import require_free

        require_free(state)
        is_there = os.path.exists(state)
        if is_there and (reason := read_only_reason(state)):  # before the code is read and trusted in vain
            raise errors.StateFileError(f"read-only: {reason}")
    if deadline is not None:
        postponed = operate.ActRequest("postpone", options=operate.postpone_options_of(deadline), hints=False)
        code = operate.send_action(endpoint, postponed)
        if code != ExitCode.SUCCESS:
            return code
    plan = _plan(state, endpoint.run and run_in(state, endpoint.run), arguments.run)
    echo_lines(map(one_line, [*plan.code_lines(), *plan.difference_lines()]), err=True)
    if plan.doubts and _is_accepted("; ".join(plan.doubts), "Run this code?"):
        arguments = _with_options(arguments, trust=True)
        plan = _plan(state, plan.run_id, arguments.run)
        echo_lines(map(one_line, plan.difference_lines()), err=True)
    if plan.difference is not None and plan.needs_acceptance and not arguments.run.accept_changes:
        why = refusal(plan.run_id, plan.difference)
        arguments = _with_options(arguments, accept_changes=_is_accepted(why, "Resume with these changes?"))
    require_accepted(plan, accepts_changes=arguments.run.accept_changes)
    echo(one_line(f"resumes {plan.run_id}"), err=True)
    return start_executor(None, state, plan.run_id, arguments, resume=True)


@command("rerun")
@shared.TargetWords(acts=True, local=True, old_run=True, needed="flow").declare
@shared.param_option("Another value than the run had.")
@shared.trust_option
@shared.running_options
def rerun_run(file: shared.NamedFile, param: tuple[str, ...], **options: Any) -> int:
    """Its scheduled time is that of the old run.

    To run tasks of the old run itself again: redrive requeue FLOW@RUN '*' --only success.
    """
    from ...engine.executor.resume_plan import check_trust
    from ...engine.store import runs

    endpoint = file.to_change()
    state = endpoint.target
    arguments = run_arguments(shared.params_of(param), **options)
    require_here("rerun", state)
    run_id = run_in(state, endpoint.run or LATEST)
    with database.reading(state) as connection:
        source = runs.find_source(connection, run_id)
    assert source is not None  # it was found by its name
    if not source.has_ended:
        raise errors.RefusedError(f"run {run_id!r} has not ended: resume it, or abandon it first")
    if source.flow_path is None:
        raise errors.FlowError(
            f"run {run_id!r} was started by a program, not from a flow file; start that program again"
        )
    if not arguments.run.trust:
        check_trust(source, state)
    arguments = _with_options(arguments, params={**source.params, **arguments.run.params})
    new_id = None
    if source.logical_time is not None:
        new_id = run_id  # gets a number
        arguments = _with_options(arguments, logical_time=source.logical_time, replaced_run=run_id)
    return start_executor(source.flow_path, state, new_id, arguments)


def _with_options(arguments: RunArguments, **changes: Any) -> RunArguments:
    return replace(arguments, run=replace(arguments.run, **changes))


def _plan(state: str, run_id: str | None, options: RunOptions) -> ResumePlan:
    from ...engine.executor.resume_plan import plan_resume

    return run_with_log(plan_resume(state, run_id, options.params, trusted=options.trust, copied=options.copy))


def _is_accepted(why: str, question: str) -> bool:
    """Ask on a terminal. Without a terminal the changes are not accepted."""
    if not is_interactive():
        return False
    echo(one_line(why), err=True)
    return click.confirm(question, err=True)


# --- The living executor --------------------------------------------------------------------------------------------


@command("stop")
@click.option("--drain", is_flag=True, help="Let running tasks end first, instead of sending SIGTERM.")
@click.option("--wait", is_flag=True, help="Return when the executor is gone.")
@shared.reason_option
@shared.of_file
@shared.json_option
def stop_executor(file: shared.NamedFile, drain: bool, wait: bool, reason: str, as_json: bool) -> int:
    """Its run stays unfinished. Without --drain running attempts are ended, and run again later."""

    async def use(session: LiveSession) -> tuple[Answer, operate.ActPlace, SessionStatus]:
        answer, place = await _send(session, "stop", {"how": "drain" if drain else "now"}, reason)
        status = session.status
        if answer.ok and wait:
            await _wait_until_gone(session, status.executor.pid)
            answer = answer._replace(message="stopped: no executor runs this file; its runs can be resumed")
        return answer, place, status

    answer, place, before = with_session(file.to_change(), use)
    operate.print_answer(answer, as_json, place)
    if (pid := before.service_pid) is not None:
        echo(f"redrive serve (pid {pid}) goes on with its schedule; kill {pid} ends it", err=True)
    return code_of_answers(answer)


@command("reload")
@shared.reason_option
@shared.of_file
@shared.json_option
def reload_code(file: shared.NamedFile, reason: str, as_json: bool) -> int:
    """Running attempts keep the old code."""
    answer, _ = operate.act_on(
        file.to_change(), partial(_send, act="reload", options={}, reason=reason), as_json=as_json
    )
    return code_of_answers(answer)


async def _send(session: Session, act: str, options: dict[str, str], reason: str) -> operate.Acted:
    """Send an act about the run that the executor runs."""
    run = (await session.snapshot(session.status.executor.run_id)).run
    command = new_command(act, run.run_id, (), reason, options)
    return await session.send(command), operate.place_of(session, run)


async def _wait_until_gone(session: LiveSession, pid: int | None) -> None:
    """Wait until this executor is gone; a service may start another one."""
    since = (await session.snapshot()).seq
    async for _ in session.events(since):
        if not session.status.executor.alive or session.status.executor.pid != pid:
            return
