"""``redrive classify``: a rule made of a failure, and what it would have done, before it goes into the flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from ...engine.core.outcome import FailureClass
from ..feed.rule_trial import Trial, told, try_rule
from ..sessions.open import with_session
from ..sessions.session import Session
from .listings import print_json
from .notes import cause_of

_LABEL_CELLS = 9


def classify(
    target: str,
    *,
    run_id: str | None,
    fingerprint: str,
    failure_class: str,
    downstream: str | None,
    conditions: Sequence[str],
    as_json: bool,
    python: str | None,
    ssh_option: Sequence[str],
) -> int:
    """Print the rule and its effect; nothing is changed anywhere."""
    chosen = conditions_of(conditions)

    async def use(session: Session) -> Trial:
        fold = await session.snapshot(run_id)
        loose = cause_of(fold, fingerprint)
        return await try_rule(session, fold, loose, FailureClass(failure_class), downstream, chosen)

    found = with_session(target, use, python=python, ssh_option=ssh_option)
    if as_json:
        print_json(
            {"rule": found.rule, "downstream": found.downstream, "flow": found.text, "effect": asdict(found.effect)}
        )
        return 0
    for label, text in told(found):
        click.echo(f"{label:{_LABEL_CELLS}}{text}")
    return 0


def conditions_of(words: Sequence[str]) -> dict[str, object]:
    """``status=409`` as a condition of a rule. Raises UsageError for what is none."""
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
