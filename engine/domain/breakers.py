"""The acts of an operator on a breaker: when one is refused, and the row that it makes.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``core/breaker.py`` has the rules of a breaker that its flow declares. These hold in a file without an executor as well.
"""

from typing import Dict, NamedTuple, Optional, Tuple

from .rows import BreakerRow

#: States in which no call passes.
SHUT_BREAKERS = ("OPEN", "FORCED_OPEN")

#: States in which calls are held: as well while it probes.
HOLDING_BREAKERS = SHUT_BREAKERS + ("HALF_OPEN",)


class BreakerAct(NamedTuple):
    """One act. ``state``: that of the row; ``past``: the participle; ``refusals``: by state, why it is refused.

    ``why``: the reason of the state, with the name of the operator; empty: the reason of before stays, if any.
    ``fields``: what stays of the detail.
    """

    state: str
    past: str
    refusals: Dict[str, str]
    why: str = ""
    fields: Tuple[str, ...] = ()


_PASSES = "lets every call through"
_OF_OUTAGE = ("openings", "refused", "why")

#: A probe is an open breaker whose time has come. A probe of one that is closed would hold calls.
BREAKER_ACTS: Dict[str, BreakerAct] = {
    "open": BreakerAct("FORCED_OPEN", "held open", {"FORCED_OPEN": "is held open already"}, "held by {}", _OF_OUTAGE),
    "close": BreakerAct("CLOSED", "closed", dict.fromkeys(("CLOSED", "METRICS_ONLY"), _PASSES + " already")),
    "probe": BreakerAct(
        "OPEN",
        "probed",
        dict(
            dict.fromkeys(("CLOSED", "METRICS_ONLY", "DISABLED"), _PASSES + ": there is nothing to probe"),
            HALF_OPEN="is being probed already",
        ),
        fields=_OF_OUTAGE,
    ),
    "disable": BreakerAct("DISABLED", "disabled", {"DISABLED": "is disabled already"}, "disabled by {}"),
}


def breaker_refusal(downstream: str, how: str, state: str, is_abandoned: bool = False) -> Optional[str]:
    """Why an operator does not set a breaker in ``state``; None: he does. ``how``: of ``BREAKER_ACTS``.
    ``is_abandoned``: no executor lives, so that nobody waits for the end of a probe."""
    why = BREAKER_ACTS[how].refusals.get("OPEN" if is_abandoned and state == "HALF_OPEN" else state)
    return None if why is None else f"{downstream} {why}"


def breaker_after(row: BreakerRow, how: str, by: str, at: int) -> BreakerRow:
    """The row of a breaker after an act of operator ``by``, as far as it needs no declaration of the flow."""
    act = BREAKER_ACTS[how]
    kept = ("episode", "refilled_at") + act.fields
    detail = {name: row.detail[name] for name in kept if name in row.detail}
    if act.why:
        detail["why"] = act.why.format(by)
    detail["release_at"] = at if how == "close" else None
    was_held = row.state in HOLDING_BREAKERS
    return row._replace(
        state=act.state,
        reopens_at=at if how == "probe" else None,
        window=row.window if how == "open" else [],
        detail=detail,
        changed_at=at,
        opened_at=(row.since if was_held else at) if act.state in SHUT_BREAKERS else None,
    )
