"""What is read of a task's earlier failures decides as all of them would: a task may have thousands."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.engine.core.advice import NOT_JUDGED, TimeoutJudgement, TimeoutVerdict
from redrive.engine.core.breaker import CallVerdict, DownstreamHealth
from redrive.engine.core.decide import Circumstances, TaskHistory, decide
from redrive.engine.core.outcome import (
    ENVIRONMENT_FIELDS,
    Failure,
    FailureClass,
    Fingerprint,
    Outcome,
    OutcomeKind,
)
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.store import settle
from redrive.engine.store.claims import Claim
from redrive.engine.store.runs import healed_count

from .conftest import RUN, SECOND, START, StateFile


class Past(NamedTuple):
    """An earlier attempt: what became of it, where it ran, and in which generation."""

    outcome: str = "error"
    strict: str = "s"
    loose: str = "l"
    failure_class: FailureClass = FailureClass.UNCLASSIFIED
    host: str = "h"
    generation: int = 1


CLASSES = st.sampled_from(
    [FailureClass.UNCLASSIFIED] * 4 + [FailureClass.TIMEOUT, FailureClass.AMBIGUOUS] + [*FailureClass]
)
PASTS = st.builds(
    Past,
    st.sampled_from(["error"] * 9 + ["timed_out", "lost", "deferred", "cancelled"]),
    st.sampled_from(["s"] * 9 + ["other", ""]),
    st.sampled_from(["l", "l", "k"]),
    CLASSES,
    st.sampled_from(["h"] * 9 + ["elsewhere"]),
    st.sampled_from([1] * 9 + [0]),
)
HISTORIES = st.lists(PASTS, max_size=8).map(lambda rows: sorted(rows, key=lambda row: row.generation))
FAILURES = st.builds(
    lambda failure_class, error, strict: Failure(error, "no", failure_class, Fingerprint(strict, "l")),
    CLASSES,
    st.sampled_from(
        ["ZeroDivisionError", "ZeroDivisionError", "KeyError", "RuntimeError", "exit:1", "ConnectionError"]
    ),
    st.sampled_from(["s"] * 9 + ["other", ""]),
)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 9),
    poison_after=st.sampled_from(["evidence", None, 0, 1, 2, 4]),
    poison_seconds=st.sampled_from([0.0, 3.0, 60.0]),
    ambiguous_attempts=st.integers(1, 4),
    jitter=st.just("none"),
)
SPECS = st.builds(
    lambda policy, kind, downstream: TaskSpec("a", kind=kind, downstream=downstream, retry=policy),
    POLICIES,
    st.sampled_from(["python", "python", "command", "sensor"]),
    st.sampled_from([None, "api"]),
)
VERDICTS = st.builds(
    CallVerdict, st.sampled_from([DownstreamHealth.UP] * 3 + [*DownstreamHealth]), st.sampled_from([0.0, 9.0])
)
JUDGEMENTS = st.sampled_from([NOT_JUDGED, *(TimeoutJudgement(one, "so", 9.0) for one in TimeoutVerdict)])


def whole_history(state_file: StateFile, read: TaskHistory, failure: Failure, attempt: int) -> TaskHistory:
    """The same history with what all earlier failures say, each of them read."""
    connection, is_sensor = state_file.connection, read.spec.kind == "sensor"
    rows = connection.execute(
        "SELECT attempt, outcome, fingerprint, fingerprint_loose, failure_class, host, ended_at FROM attempt"
        " WHERE attempt < ? AND generation = 1 ORDER BY attempt",
        (attempt,),
    ).fetchall()
    answered = max((row[0] for row in rows if row[1] == "deferred"), default=0) if is_sensor else 0
    rows = [row for row in rows if row[0] > answered and row[1] in ("error", "timed_out") and row[2] is not None]
    here = [row for row in rows if row[5] == "h"]
    different = [place for place, row in enumerate(here, 1) if row[2] != failure.fingerprint.strict]
    of_cause = [row for row in rows if row[3] == failure.fingerprint.loose]
    return replace(
        read,
        same_failures_at=tuple(row[6] for row in reversed(here[max(different, default=0) :])),
        first_failed_at=here[0][6] if here else None,
        failures_of_class=sum(row[4] == failure.failure_class for row in rows),
        healed=healed_count(connection, "a", failure.fingerprint.strict),
        changed=("host",) if of_cause and of_cause[-1][5] != "h" else (),
    )


@pytest.fixture(scope="module")
def one_task(tmp_path_factory: pytest.TempPathFactory) -> StateFile:
    state_file = StateFile(Path(tmp_path_factory.mktemp("past"), "state.db"))
    state_file.create({"a": ""})
    return state_file


WITHOUT_POISON = RetryPolicy(max_attempts=9, poison_after=None, poison_seconds=3.0, jitter="none")


@settings(max_examples=200)
@example(
    [Past()] * 3,
    False,
    Failure("KeyError", "no", FailureClass.UNCLASSIFIED, Fingerprint("s", "l")),
    TaskSpec("a", downstream="api", retry=WITHOUT_POISON),
    CallVerdict(DownstreamHealth.FAILING),
    NOT_JUDGED,
)
@given(HISTORIES, st.booleans(), FAILURES, SPECS, VERDICTS, JUDGEMENTS)
def test_what_is_read_decides_as_the_whole_past_would(
    one_task: StateFile,
    past: list[Past],
    has_healed: bool,
    failure: Failure,
    spec: TaskSpec,
    verdict: CallVerdict,
    judged: TimeoutJudgement,
) -> None:
    write_past(one_task, past, has_healed)
    number, at = len(past) + 3, START + (len(past) + 3) * SECOND
    kind = OutcomeKind.TIMED_OUT if failure.failure_class is FailureClass.TIMEOUT else OutcomeKind.ERROR
    outcome = Outcome(kind, failure)
    stored = settle.StoredTask(failures=len(past), first_started_at=START)
    read = settle.read_history(
        one_task.connection,
        Claim(RUN, "a", number, 1, "t"),
        spec,
        outcome,
        stored,
        at=at,
    )
    history = read if kind is OutcomeKind.ERROR else settle_with(one_task, read, failure, number, judged)
    whole = whole_history(one_task, history, failure, number)
    assert (history.first_failed_at, history.changed) == (whole.first_failed_at, whole.changed)
    around = Circumstances(verdict)
    assert decide(history, outcome, around, at, lambda low, high: high) == decide(
        whole, outcome, around, at, lambda low, high: high
    )


def settle_with(
    state_file: StateFile, read: TaskHistory, failure: Failure, number: int, judged: TimeoutJudgement
) -> TaskHistory:
    """Read it again for another judgement of the timeout, which the durations of other runs would give."""
    history = replace(read, timeout=judged, same_failures_at=(), healed=0)
    return settle._with_past(state_file.connection, Claim(RUN, "a", number, 1, "t"), history, failure)


def write_past(state_file: StateFile, past: list[Past], has_healed: bool) -> None:
    """Write the attempts of both generations and the one that ends now; in the first one ``s`` has perhaps healed."""
    success = [Past("success", "", "", generation=0)] if has_healed else [Past("lost", "s", "lost", generation=0)]
    rows = [Past(generation=0), *success, *past]
    state_file.connection.execute("DELETE FROM attempt")
    for number, row in enumerate([*rows, Past("running")], 1):
        columns = {
            "run_id": RUN,
            "name": "a",
            "attempt": number,
            "generation": row.generation,
            "token": "t",
            "started_at": START + number * SECOND - SECOND // 2,
            "ended_at": START + number * SECOND,
            "outcome": row.outcome,
            "fingerprint": None if row.outcome in ("success", "running", "deferred") else row.strict,
            "fingerprint_loose": row.loose,
            "failure_class": row.failure_class,
            **dict.fromkeys(ENVIRONMENT_FIELDS, "same"),
            "host": row.host,
        }
        state_file.write(lambda transaction, columns=columns: transaction.insert("attempt", columns))
