"""The attempt that only returned, before its executor saw it: most of the short ones, settled without an ``Attempt``.

``RanAttempt`` would end with the same outcome, by 60 calls more.
"""

from __future__ import annotations

import msgspec

from ..core.outcome import Outcome, OutcomeKind
from . import protocol
from .protocol import AttemptOrder


def outcome_of_clean_run(order: AttemptOrder, ran: protocol.Ran) -> Outcome | None:
    """Return the outcome of an attempt that wrote nothing but a success; None for any other."""
    exited, frame = ran.exited, ran.results
    is_silent = exited.exit_code == 0 and not (ran.output or ran.stack or exited.swept)
    if not is_silent or order.spec.kind == "command" or int.from_bytes(frame[:4], "big") != len(frame) - 4:
        return None
    try:
        ending = protocol.decode_attempt_frame(frame[4:])
    except msgspec.DecodeError:
        return None
    if not isinstance(ending, protocol.Succeeded):
        return None
    usage = {
        "exit_code": 0,
        "max_rss_kb": exited.max_rss_kb,
        "cpu_user_us": exited.cpu_user_us,
        "cpu_system_us": exited.cpu_system_us,
        "duration_us": round((exited.exited_at - ran.forked_at) * 1e6),
    }
    return Outcome(OutcomeKind.SUCCESS, result=ending.result, attempt_columns=usage)
