"""The final states of a run, computed from the documents' rules alone. Imports nothing of the engine.

A task is scripted: what each of its attempts would do. The model runs no clock: waits do not change where a run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

SUCCESS, FAILED, DEAD_LETTER, SKIPPED = "SUCCESS", "FAILED", "DEAD_LETTER", "SKIPPED"
UPSTREAM_FAILED, PENDING = "UPSTREAM_FAILED", "PENDING"


@dataclass(frozen=True)
class ScriptedTask:
    """One task. ``script``: what its attempts do, in order; the last word repeats.

    ok, skip, wait (a sensor: not yet), transient, permanent, auth, validation, ambiguous, hang, same (a failure of
    which nothing is known, each time the same), bug (each time the same error that repeats by its type), other (each
    time another). ``poison_after``: 0 is any failure.
    """

    name: str
    script: tuple[str, ...]
    parents: tuple[str, ...] = ()
    rule: str = "all_success"
    max_attempts: int = 3
    poison_after: int | str | None = "evidence"
    ambiguous_attempts: int = 3
    idempotent: bool = True
    optional: bool = False


@dataclass(frozen=True)
class End:
    """How a task may end: its states, and how many attempts it has made if it ran."""

    states: frozenset[str]
    attempts: int = 0


# --- One task ------------------------------------------------------------------------------------------------------

#: What ends a task at its first occurrence: a retry cannot help, and a human has to look (000, 004).
_HOPELESS = frozenset(["permanent", "auth", "validation"])


def end_of_attempts(task: ScriptedTask) -> End:
    """Return how a task ends that its parents let start."""
    failures: list[str] = []
    attempts = 0
    while True:
        does = task.script[min(attempts, len(task.script) - 1)]
        attempts += 1
        if _asks_again(task, does):
            continue
        if does in ("ok", "skip"):
            return End(frozenset([SUCCESS if does == "ok" else SKIPPED]), attempts)
        failures.append(f"other {attempts}" if does == "other" else does)
        state = _after_failure(task, does, failures)
        if state is not None:
            return End(frozenset([state]), attempts)


def _asks_again(task: ScriptedTask, does: str) -> bool:
    """Whether a sensor is called again and spends no attempt. One that is not idempotent ends at any failure."""
    return does == "wait" or (does == "transient" and "wait" in task.script and task.idempotent)


def _after_failure(task: ScriptedTask, does: str, failures: Sequence[str]) -> str | None:
    """Return the state that follows, in the order of document 000; None: the task is tried again."""
    if does in _HOPELESS or not task.idempotent:
        return DEAD_LETTER
    if _is_poisoned(task, failures):
        return DEAD_LETTER
    if does == "ambiguous" and failures.count("ambiguous") >= task.ambiguous_attempts:
        return DEAD_LETTER
    return FAILED if len(failures) >= task.max_attempts else None


def _is_poisoned(task: ScriptedTask, failures: Sequence[str]) -> bool:
    """The same failure so often in a row; by evidence, a bug twice.

    What may heal by itself is never poison: transient failures and timeouts.
    """
    limit, latest = task.poison_after, failures[-1]
    if limit == 0:
        return True
    if limit == "evidence":
        limit = 2 if latest == "bug" else None
    if not isinstance(limit, int) or latest in ("transient", "hang"):
        return False
    return failures[-limit:] == [latest] * limit


# --- The graph -----------------------------------------------------------------------------------------------------

_DONE = frozenset([SUCCESS, FAILED, SKIPPED, UPSTREAM_FAILED])
_BAD = frozenset([FAILED, UPSTREAM_FAILED])


def _start_state(rule: str, parents: Sequence[str]) -> str:
    """Return what the states of its parents make of a task: "START", or the state in which it ends.

    A dead letter, and what waits below one, holds its children: a human may still bring a result. A failed parent
    decides at once, a skipped one when all have ended.
    """
    if rule != "all_done" and any(state in _BAD for state in parents):
        return UPSTREAM_FAILED
    if not all(state in _DONE for state in parents):
        return PENDING
    skips = {"all_done": False, "none_failed": bool(parents) and set(parents) == {SKIPPED}}
    return SKIPPED if skips.get(rule, SKIPPED in parents) else "START"


def final_states(tasks: Iterable[ScriptedTask]) -> dict[str, End]:
    """Return how each task may end. Parents come before their children."""
    ends: dict[str, End] = {}
    for task in tasks:
        possible: set[str] = set()
        for parents in product(*(sorted(ends[parent].states) for parent in task.parents)):
            possible.add(_start_state(task.rule, parents))
        own = end_of_attempts(task) if "START" in possible else End(frozenset())
        ends[task.name] = End((frozenset(possible) - {"START"}) | own.states, own.attempts)
    return ends


def run_state(tasks: Iterable[ScriptedTask], states: Mapping[str, str]) -> str:
    """Return the state of a run whose tasks have ended so."""
    if DEAD_LETTER in states.values():
        return "BLOCKED"
    bad = [task for task in tasks if states[task.name] in (*_BAD, PENDING)]
    if any(not task.optional for task in bad):
        return "FAILED"
    return "PARTIAL" if bad else "SUCCESS"
