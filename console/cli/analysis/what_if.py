"""``redrive replay --what-if``: compares a run with its replay under another policy."""

from __future__ import annotations

from dataclasses import asdict

import click

from ....engine.analysis.policy_change import PolicyChange, parse_change
from ...feed.event_reader import EventHistory
from ...feed.what_if import WhatIfResult, replay_under_policy
from ...model.replay import NUMBER_MAX, parse_when
from ...present.what_if import table, title
from ...sessions.open import with_session
from ...sessions.session import Session
from ...sessions.ssh_options import Endpoint
from ...text.printing import echo_json, echo_lines
from ..output.json_schemas import with_schema


def print_what_if(
    endpoint: Endpoint, run_id: str | None, as_json: bool, *, at: str | None, what_if: str, replays: int
) -> int:
    """Print the comparison. ``at``: start of the replay, a time or an event's number; None: the start of the run."""
    change = _change_of(what_if)

    async def use(session: Session) -> WhatIfResult:
        projection = await session.snapshot(run_id)
        history = EventHistory(session, projection)
        seq = None
        if at is not None:
            when = parse_when(at, projection.run)
            await history.load(projection.seq)
            seq = min(when if when < NUMBER_MAX else history.index.seq_at(when), history.index.seq)
        return await replay_under_policy(session, projection, history, change, seq, replays)

    answer = with_session(endpoint, use)
    if as_json:
        echo_json(with_schema("what-if", _plain(answer)))
    else:
        echo_lines((title(answer.comparison), *table(answer.comparison), "", *answer.sentences()))
    return 0


def _change_of(text: str) -> PolicyChange:
    try:
        return parse_change(text)
    except ValueError as error:
        raise click.UsageError(f"--what-if: {error}") from None


def _plain(answer: WhatIfResult) -> dict[str, object]:
    comparison = answer.comparison
    return {
        "run_id": answer.run_id,
        "change": {**comparison.change.policy_fields, **comparison.change.downstream_fields},
        "seq": answer.seq,
        **asdict(answer.context),
        "replays": comparison.replays,
        "as_it_was": asdict(comparison.recorded),
        "same_again": {reading: asdict(figures) for reading, figures in comparison.control.items()},
        "changed": {reading: asdict(spread) for reading, spread in comparison.changed.items()},
    }
