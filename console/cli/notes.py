"""``redrive note``: a word on a cause for whoever is called for it next."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ...engine.core.projection import RunFold
from ...engine.domain.command import Answer, Command
from ...engine.errors import RedriveError
from ..sessions.open import actor, with_session
from ..sessions.session import Session
from .exit_codes import ExitCode
from .operate import print_answer

_NAMED_MAX = 5


def note(
    target: str,
    text: str,
    *,
    run_id: str | None,
    fingerprint: str,
    downstream: str | None,
    as_json: bool,
    python: str | None,
    ssh_option: Sequence[str],
) -> int:
    """Send it and print what the engine answered. Exit code 1 where nothing was written."""

    async def use(session: Session) -> Answer:
        fold = await session.snapshot(run_id)
        options = {"fingerprint": cause_of(fold, fingerprint), "downstream": downstream, "text": text}
        return await session.send(Command(uuid.uuid4().hex, "note", fold.run.run_id, actor=actor(), options=options))

    answer = with_session(target, use, python=python, ssh_option=ssh_option)
    print_answer(answer, as_json)
    return ExitCode.SUCCESS if answer.ok else ExitCode.FAILED


def cause_of(fold: RunFold, digits: str) -> str:
    """The loose fingerprint that some first digits mean, of a failure of this run whether it has healed or not; else
    the digits, as those of another run. Raises RedriveError where they fit several."""
    attempts = [attempt for row in fold.tasks.values() for attempt in row.attempts.values()]
    marks = {(one.fingerprint_loose, one.fingerprint) for one in attempts if one.fingerprint_loose}
    found = {loose for loose, strict in marks if loose.startswith(digits) or (strict or "").startswith(digits)}
    if digits in found or not found:
        return digits
    if len(found) > 1:
        named = ", ".join(sorted(found)[:_NAMED_MAX])
        raise RedriveError(f"{digits} fits {len(found)} causes ({named}); give more digits")
    return found.pop()
