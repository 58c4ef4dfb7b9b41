"""The documents' own programs, run as they stand there with only their imports changed."""

import os
import random
import sqlite3
import subprocess
import sys

import pytest
from support.marks import parametrize_mostly_long

#: Document 003's main, word for word; ``dice`` stands for ``random``, and sleeps are what they were.
PROGRAM = """
import dice as random, sys, time
from redrive.engine import Executor, TaskDef

if __name__ == "__main__":
    def fake(secs, fail_pct=0.0):
        def _f():
            time.sleep(secs)  # the work of the document's task
            if random.random() < fail_pct: raise RuntimeError("transient")
        return _f
    tasks = [
        TaskDef("extract_orders",   fake(0.4)),
        TaskDef("extract_payments", fake(0.5, fail_pct=0.4)),
        TaskDef("clean_orders",     fake(0.3), parents=["extract_orders"]),
        TaskDef("clean_payments",   fake(0.3), parents=["extract_payments"]),
        TaskDef("aggregate_revenue", fake(0.4),
                parents=["clean_orders", "clean_payments"]),
        TaskDef("load_dashboard",    fake(0.2),
                parents=["aggregate_revenue"]),
    ]
    final = Executor("revenue", sys.argv[1] if len(sys.argv) > 1
                     else "run-2026-04-25", tasks).run()
    print(f"DAG finished: {final}")
"""

#: Dice that fall the same way for the same attempt, whoever throws first.
DICE = """
import os
import random as _random

def random():
    return _random.Random(os.environ["DICE_SEED"] + "/" + os.environ["REDRIVE_ATTEMPT"]).random()
"""


def seed_with(*failures: bool) -> int:
    """A seed with which the first attempts fail as told, at 40 %."""
    for seed in range(10_000):
        thrown = [random.Random(f"{seed}/{attempt}").random() for attempt in range(1, len(failures) + 1)]
        if [dice < 0.4 for dice in thrown] == list(failures):
            return seed
    raise AssertionError("no such seed")


def run_program(tmp_path, seed: int) -> tuple[str, dict[str, tuple[str, int]]]:
    program = tmp_path / "dag_exec.py"
    program.write_text(PROGRAM)
    (tmp_path / "dice.py").write_text(DICE)
    state = tmp_path / "dag.db"
    done = subprocess.run(
        [sys.executable, str(program), "run-2026-04-25"],
        env={**os.environ, "REDRIVE_STATE": str(state), "DICE_SEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not done.stderr, done.stderr
    with sqlite3.connect(state) as connection:
        rows = connection.execute(
            "SELECT name, state, attempt FROM task WHERE run_id = ? ORDER BY position", ("run-2026-04-25",)
        ).fetchall()
    return done.stdout.strip(), {name: (state, attempt) for name, state, attempt in rows}


@parametrize_mostly_long(("failures", "attempts"), [((False,), 1), ((True, False), 2)])
def test_document_003_ends_with_six_successes_and_as_many_attempts_as_the_dice_gave(tmp_path, failures, attempts):
    """003.28, 003.29: on the document's own code the first retry never ends."""
    output, tasks = run_program(tmp_path, seed_with(*failures))
    assert "DAG finished: SUCCESS" == output
    assert {"SUCCESS"} == {state for state, _ in tasks.values()}
    assert [1, attempts, 1, 1, 1, 1] == [attempt for _, attempt in tasks.values()]


@pytest.mark.long  # what decides it is tried in the nights
def test_where_the_dice_fail_twice_at_one_line_the_third_start_wins(tmp_path):
    """003.29: a RuntimeError may heal: two alike, seconds apart, are no evidence of a mistake."""
    output, tasks = run_program(tmp_path, seed_with(True, True, False))
    assert "DAG finished: SUCCESS" == output
    assert ("SUCCESS", 3) == tasks["extract_payments"]
