"""``redrive pages``: lists, acknowledges and snoozes pages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...engine.domain.command import Answer
from ...engine.statefile.list_rows import PAGES, PageRow
from ..present.runs import place_line
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.durations import format_duration
from ..text.event_text import UNSENT_UNTIL
from ..text.printing import echo, print_table
from .exit_codes import code_of_answers
from .output.json_schemas import echo_values


def list_or_update_pages(
    endpoint: Endpoint,
    run_id: str | None,
    as_json: bool,
    *,
    everything: bool,
    ack: Sequence[int],
    snooze: Sequence[tuple[int, float]],
) -> int:
    """List pages, or acknowledge or snooze some first. Exit code 1 if an act changed nothing."""
    acts: list[tuple[str, int, dict[str, object]]] = [("ack", page, {}) for page in ack]
    acts += [("snooze", page, {"seconds": seconds}) for page, seconds in snooze]

    async def use(session: Session) -> tuple[list[Answer], Sequence[PageRow], str, bool]:
        run = None if run_id is None else (await session.snapshot(run_id)).run  # raises for an unknown run
        place = place_line(run, session.address)
        answers = [
            await session.send(new_command(act, None, options={"pages": [page], **more})) for act, page, more in acts
        ]
        return answers, await session.query(PAGES), place, session.status.executor_alive

    answers, rows, place, has_executor = with_session(endpoint, use)
    shown = [row for row in rows if _is_shown(row, run_id, everything)]
    if as_json:
        echo_values("pages", map(_value, shown))
    else:
        echo(place)
    if not as_json and not acts:
        _print(shown, has_executor)
    for (act, page, _), answer in zip(acts, answers, strict=True):
        echo(f"{act} {page}: {answer.message}", err=as_json)
    return code_of_answers(*answers)


def _is_shown(row: PageRow, run_id: str | None, everything: bool) -> bool:
    return (run_id is None or row.run_id == run_id) and (everything or row.state != "resolved")


def _value(row: PageRow) -> dict[str, object]:
    """The columns of the row, by name."""
    return {"count" if name == "counted" else name: value for name, value in row._asdict().items()}


def _print(rows: Sequence[PageRow], has_executor: bool) -> None:
    if not rows:
        echo("no pages are open")
        return
    now = time.time_ns() // 1000
    lines: list[Sequence[str]] = [("ID", "SEVERITY", "STATE", "COUNT", "AGE", "SENT", "TITLE")]
    lines += [_row(row, now) for row in rows]
    print_table(lines)
    if any(_is_unsent(row) for row in rows):
        sentence = "the executor goes on trying" if has_executor else UNSENT_UNTIL
        echo(f"unsent: {sentence}")


def _is_unsent(row: PageRow) -> bool:
    return row.state == "open" and row.sent_at is None and row.send_error is not None


def _row(row: PageRow, now: int) -> tuple[str, ...]:
    age = format_duration(now - row.created_at)
    return (str(row.id), row.severity, _state(row, now), str(row.counted), age, _sent(row), row.title)


def _state(row: PageRow, now: int) -> str:
    if row.state == "acked":
        return f"acked by {row.acked_by}"
    if row.state == "snoozed" and row.snoozed_until is not None:
        return f"snoozed for {format_duration(row.snoozed_until - now)}"
    return str(row.state)


def _sent(row: PageRow) -> str:
    if row.send_error:
        return f"failed: {row.send_error}"
    return "yes" if row.sent_at is not None else "no"
