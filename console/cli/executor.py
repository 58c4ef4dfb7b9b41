"""``redrive stop`` and ``redrive reload``: acts on the executor of a state file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import click

from ...engine.domain.command import Answer, Command
from ..sessions.open import actor, with_session
from ..sessions.session import Session, SessionStatus
from .exit_codes import ExitCode, code_of_answers
from .operate import ActPlace, place_of, print_answer


def stop_executor(
    target: str,
    *,
    drain: bool,
    wait: bool,
    reason: str,
    as_json: bool,
    python: str | None,
    ssh_option: Sequence[str],
) -> int:
    """Stop the executor; with ``wait`` return when it is gone. Exit code 1 if none is alive."""

    async def use(session: Session) -> tuple[Answer, ActPlace, SessionStatus]:
        answer, place = await _send(session, "stop", {"how": "drain" if drain else "now"}, reason)
        status = session.status
        if answer.ok and wait:
            await _wait_until_gone(session, status.executor_pid)
            answer = answer._replace(message="stopped: no executor runs this file; its runs can be resumed")
        return answer, place, status

    answer, place, before = with_session(target, use, python=python, ssh_option=ssh_option)
    print_answer(answer, as_json, place)
    if before.service_pid is not None:
        said = f"redrive serve (pid {before.service_pid}) goes on with its schedule; kill {before.service_pid} ends it"
        click.echo(said, err=True)
    return code_of_answers(answer)


def reload_code(target: str, *, reason: str, as_json: bool, python: str | None, ssh_option: Sequence[str]) -> int:
    """Have the executor load changed source files. Exit code 1 if it cannot."""

    async def use(session: Session) -> tuple[Answer, ActPlace]:
        return await _send(session, "reload", {}, reason)

    answer, place = with_session(target, use, python=python, ssh_option=ssh_option)
    print_answer(answer, as_json, place)
    return ExitCode.SUCCESS if answer.ok else ExitCode.FAILED


async def _send(session: Session, act: str, options: dict[str, str], reason: str) -> tuple[Answer, ActPlace]:
    """Send an act about the run that the executor runs."""
    run = (await session.snapshot(session.status.executor_run_id)).run
    command = Command(uuid.uuid4().hex, act, run.run_id, (), actor(), reason, options)
    return await session.send(command), place_of(session, run)


async def _wait_until_gone(session: Session, pid: int | None) -> None:
    """Wait until this executor is gone; a service may start another one."""
    since = (await session.snapshot()).seq
    async for _ in session.events(since):
        if not session.status.executor_alive or session.status.executor_pid != pid:
            return
