"""``redrive note`` and ``redrive classify``: notes on a cause, and a classification rule from its failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from ...engine.core.outcome import FailureClass
from ...engine.core.projection import RunProjection
from ...engine.domain.command import Answer
from ...engine.errors import RedriveError
from ..feed.rule_trial import RuleTrial, trial_rows, try_rule
from ..sessions.identity import new_command
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.printing import echo, echo_json
from .exit_codes import code_of_answers
from .operate import ActPlace, place_of, print_answer
from .output.json_schemas import with_schema

_NAMED_MAX = 5
_LABEL_CELLS = 9


def send_note(
    endpoint: Endpoint, text: str, *, run_id: str | None, fingerprint: str, downstream: str | None, as_json: bool
) -> int:
    """Send a note and print the answer of the engine. Exit code 1 if nothing was written."""

    async def use(session: Session) -> tuple[Answer, ActPlace]:
        projection = await session.snapshot(run_id)
        options = {"fingerprint": cause_of(projection, fingerprint), "downstream": downstream, "text": text}
        command = new_command("note", projection.run.run_id, options=options)
        return await session.send(command), place_of(session, projection.run)

    answer, place = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    return code_of_answers(answer)


def cause_of(projection: RunProjection, digits: str) -> str:
    """The loose fingerprint of this run that starts with ``digits``; without a match ``digits`` itself, for other runs.

    Raises RedriveError if several fingerprints match.
    """
    attempts = [attempt for row in projection.tasks.values() for attempt in row.attempts.values()]
    marks = {(one.fingerprint_loose, one.fingerprint) for one in attempts if one.fingerprint_loose}
    found = {loose for loose, strict in marks if loose.startswith(digits) or (strict or "").startswith(digits)}
    if digits in found or not found:
        return digits
    if len(found) > 1:
        named = ", ".join(sorted(found)[:_NAMED_MAX])
        raise RedriveError(f"{digits} fits {len(found)} causes ({named}); give more digits")
    return found.pop()


def print_rule(
    endpoint: Endpoint,
    *,
    run_id: str | None,
    fingerprint: str,
    failure_class: str,
    downstream: str | None,
    conditions: Sequence[str],
    as_json: bool,
) -> int:
    """Print the rule and its effect on the past. Changes nothing."""
    chosen = conditions_of(conditions)

    async def use(session: Session) -> RuleTrial:
        projection = await session.snapshot(run_id)
        loose = cause_of(projection, fingerprint)
        return await try_rule(session, projection, loose, FailureClass(failure_class), downstream, chosen)

    found = with_session(endpoint, use)
    if as_json:
        effect = asdict(found.effect)
        value = {"rule": found.rule, "downstream": found.downstream, "flow": found.text, "effect": effect}
        echo_json(with_schema("rule", value))
        return 0
    for label, text in trial_rows(found):
        echo(f"{label:{_LABEL_CELLS}}{text}")
    return 0


def conditions_of(words: Sequence[str]) -> dict[str, object]:
    """The conditions of a rule, from words as ``status=409``. Raises UsageError for invalid words."""
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"--when {word!r}: write NAME=VALUE, as status=409")
        try:
            found[name] = int(value) if name in ("status", "exit_code", "signal") else value
        except ValueError:
            raise click.UsageError(f"--when {word!r}: {name} is a number") from None
    return found
