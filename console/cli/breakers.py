"""``redrive breakers``: lists circuit breakers, and sets them by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...engine.domain.command import Answer
from ...engine.statefile.list_rows import BREAKERS, BreakerRow
from ..model.board import Board
from ..model.breaker_view import BreakerStatus, breaker_status, callers_of, downstream_specs, with_held_tasks
from ..present.runs import place_line
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.durations import format_duration
from ..text.printing import echo, print_table
from .exit_codes import code_of_answers
from .operate import ActPlace, place_of, print_answer
from .output.json_schemas import echo_values


def list_or_set_breakers(
    endpoint: Endpoint, run_id: str | None, as_json: bool, *, acts: Sequence[tuple[str, str]], reason: str
) -> int:
    """List the breakers of a run, or set some by ``acts``: (act, downstream). Exit code 1 if one was refused."""

    async def use(session: Session) -> tuple[list[Answer], Board, Sequence[BreakerRow], ActPlace]:
        board = Board(await session.snapshot(run_id))
        run = board.projection.run.run_id
        commands = [new_command("breaker", run, (), reason, {"downstream": name, "how": how}) for how, name in acts]
        answers = [await session.send(command) for command in commands]
        return answers, board, await session.query(BREAKERS), place_of(session, board.projection.run)

    answers, board, rows, place = with_session(endpoint, use)
    for answer in answers:
        print_answer(answer, as_json, place)
    if not acts and not as_json:
        echo(place_line(place.run, place.address))
    if not acts:
        _print(_guards(board, rows), as_json)
    return code_of_answers(*answers)


def _guards(board: Board, rows: Sequence[BreakerRow]) -> list[BreakerStatus]:
    known, callers = {row.downstream: row for row in rows}, callers_of(board)
    now_us = time.time_ns() // 1000
    specs = downstream_specs(board).items()
    return [
        with_held_tasks(board, breaker_status(spec, known.get(name)), callers.get(name, ()), now_us)
        for name, spec in specs
    ]


def _print(guards: Sequence[BreakerStatus], as_json: bool) -> None:
    now_us = time.time_ns() // 1000
    if as_json:
        echo_values("breakers", (_value(guard, now_us) for guard in guards))
        return
    if not guards:
        echo("no task of this run names a downstream")
        return
    lines: list[Sequence[str]] = [("DOWNSTREAM", "STATE", "FAILED", "REOPENS", "HELD", "RETRIES LEFT", "WHY")]
    print_table(lines + [_row(guard, now_us) for guard in guards])


def _row(guard: BreakerStatus, now_us: int) -> tuple[str, ...]:
    calls, failures = guard.totals(now_us)
    at = guard.breaker.reopens_at
    reopens = "" if at is None or not guard.is_blocking else "in " + format_duration(max(at - now_us, 0))
    left = f"{guard.tokens:g} of {guard.spec.bucket_capacity:g}"
    return guard.name, str(guard.state), f"{failures} of {calls}", reopens, str(len(guard.held)), left, guard.why


def _value(guard: BreakerStatus, now_us: int) -> dict[str, object]:
    calls, failures = guard.totals(now_us)
    return {
        "downstream": guard.name,
        "state": str(guard.state),
        "calls": calls,
        "failures": failures,
        "window_seconds": guard.spec.window_seconds,
        "reopens_at": guard.breaker.reopens_at,
        "changed_at": guard.since,
        "held": list(guard.held),
        "running": guard.running,
        "tokens": guard.tokens,
        "bucket_capacity": guard.spec.bucket_capacity,
        "why": guard.why,
    }
