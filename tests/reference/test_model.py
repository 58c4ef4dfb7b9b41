"""The real executor, with real processes and threads, ends random flows as the model of the documents says."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from redrive.engine import Executor
from support.marks import parametrize_mostly_long, scaled

from .flows import draw_flow, real_flow
from .model import End, ScriptedTask, final_states, run_state


@parametrize_mostly_long("seed", range(scaled(150)), quick=5, daily=20)
def test_a_random_flow_ends_as_the_documents_say(seed: int, tmp_path: Path) -> None:
    tasks = draw_flow(seed)
    state = tmp_path / "state.db"
    result = Executor(run_id="r", flow=real_flow(seed, tasks), state=state).run_result()
    expected = final_states(tasks)
    wrong = {name: (seen, expected[name]) for name, seen in result.states.items() if seen not in expected[name].states}
    assert {} == wrong
    assert run_state(tasks, result.states) == result.state
    with sqlite3.connect(state) as connection:
        attempts = dict(connection.execute("SELECT name, attempt FROM task").fetchall())
    ran = {name for name, number in attempts.items() if number}
    assert {name: expected[name].attempts for name in ran} == {name: attempts[name] for name in ran}


@pytest.mark.parametrize(
    ("task", "end"),
    [
        (ScriptedTask("t", ("bug",), max_attempts=5), End(frozenset(["DEAD_LETTER"]), 2)),
        (ScriptedTask("t", ("bug", "other", "bug", "ok"), max_attempts=5), End(frozenset(["SUCCESS"]), 4)),
        (ScriptedTask("t", ("same",), max_attempts=5), End(frozenset(["FAILED"]), 5)),
        (ScriptedTask("t", ("same",), max_attempts=5, poison_after=3), End(frozenset(["DEAD_LETTER"]), 3)),
        (ScriptedTask("t", ("other",), max_attempts=3), End(frozenset(["FAILED"]), 3)),
        (ScriptedTask("t", ("wait", "transient", "ok"), max_attempts=2), End(frozenset(["SUCCESS"]), 3)),
        (ScriptedTask("t", ("wait", "transient", "ok"), idempotent=False), End(frozenset(["DEAD_LETTER"]), 2)),
        (ScriptedTask("t", ("hang",), max_attempts=1, idempotent=False), End(frozenset(["DEAD_LETTER"]), 1)),
    ],
)
def test_the_model_itself(task: ScriptedTask, end: End) -> None:
    assert {"t": end} == final_states([task])
