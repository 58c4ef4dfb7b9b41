"""The preview: exactly what the engine would do, found out without asking it (SPEC part 4, 5)."""

import json
import sqlite3
import time
from importlib import resources

import redrive.engine.store
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from redrive.console.model.board import Board
from redrive.console.model.preview import PREVIEWS, preview_requeue, preview_skip, refusal
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.domain.acts import ACTS, Scope
from redrive.engine.domain.states import SkipCause, TaskState
from redrive.engine.statefile.dry_run import preview
from redrive.engine.store.runs import load_run

from .graphs import dags
from .runs import EventBuilder, failed_task, projection_of

RULES = ["all_success", "all_success", "all_success", "all_done", "none_failed", "all_success_strict"]
SCHEMA = resources.files(redrive.engine.store).joinpath("schema.sql").read_text()


@st.composite
def stored_runs(draw):
    """A state file with a run in which anything may have happened, and some targets."""
    dag = draw(dags(most=10))
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SCHEMA)
    due = draw(st.sampled_from([None, 1]))  # microseconds after the epoch; the engine is asked at 1
    connection.execute(
        "INSERT INTO run (run_id, dag_name, started_at, state, deadline_at, deadline_passed_at, paused_since)"
        " VALUES ('r', 'flow', 0, 'RUNNING', ?, ?, ?)",
        (due, due, draw(st.sampled_from([None, 1]))),
    )
    for position, name in enumerate(dag.names):
        state = draw(st.sampled_from(list(TaskState)))
        rule = draw(st.sampled_from(RULES))
        cause = str(draw(st.sampled_from(list(SkipCause)))) if state is TaskState.SKIPPED else None
        above = dag.ancestors(name)
        blocked = draw(st.sampled_from(above)) if state is TaskState.UPSTREAM_FAILED and above else None
        parents = dag.parents(name)
        requires = draw(st.lists(st.sampled_from(parents), unique=True)) if parents else []
        effect = draw(st.sampled_from([{}, {}, {"effect": True, "idempotent": False}]))
        child = draw(st.sampled_from([{}, {}, {"item": {"task": "list", "over": "rows", "index": -1}}]))
        spec = json.dumps({"name": name, "rule": rule, "requires": requires, **effect, **child})
        kind = draw(st.sampled_from(["poison", "indeterminate"])) if state is TaskState.DEAD_LETTER else None
        mode = draw(st.sampled_from(["deadline", None])) if state is TaskState.CANCELLED else None
        connection.execute(
            "INSERT INTO task (run_id, name, state, position, rule, skip_cause, blocked_by, failure_mode,"
            " dead_letter_kind, spec) VALUES ('r', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, str(state), position, rule, cause, blocked, mode, kind, spec),
        )
    for name in dag.names:
        connection.executemany(
            "INSERT INTO edge (run_id, child, parent) VALUES ('r', ?, ?)",
            [(name, above) for above in dag.parents(name)],
        )
    targets = draw(st.lists(st.sampled_from(dag.names), min_size=1, max_size=4, unique=True))
    return connection, targets


def asked_of_the_engine(connection, projection, act, targets, **options):
    seen = [[name, str(projection.tasks[name].state), projection.tasks[name].generation] for name in targets]
    command = {"id": "x", "act": act, "run_id": "r", "targets": seen, "actor": "me", "options": options}
    return preview(connection, command, at=1)


def test_what_a_dead_executor_left_running_can_be_decided_about():
    """With nobody alive it was lost; what may not happen twice has to be found out about first."""
    projection = projection_of([("a", ()), ("b", ("a",))])
    projection.tasks["a"].state = TaskState.RUNNING
    assert preview_requeue(Board(projection), ["a"]).refused == [
        ("a", "refused", "it runs: cancel it first, then requeue it")
    ]
    projection.tasks["a"].cancel_requested_at = 1
    ((_, _, sentence),) = preview_requeue(Board(projection), ["a"]).refused
    assert sentence == "its attempt was cancelled and still runs: requeue it when the attempt has ended"
    projection.tasks["a"].cancel_requested_at = None
    assert preview_requeue(Board(projection), ["a"], is_abandoned=True).run_again == ("a",)
    assert preview_skip(Board(projection), ["a"], is_abandoned=True).skipped == ("a",)
    projection.tasks["a"].spec = structs.replace(spec_of(projection.tasks["a"]), idempotent=False)
    ((name, _, why),) = preview_requeue(Board(projection), ["a"], is_abandoned=True).refused
    assert name == "a" and "find out whether it happened" in why


def comparable(changes):
    """A dry run has lists in the order of events, results of all targets, and a sentence for the answer."""
    lists = {name: sorted(value) for name, value in changes._asdict().items() if isinstance(value, (list, tuple))}
    lists |= {"results": sorted(changes.refused), "notes": list(changes.notes)}
    return changes._replace(message="", **{**lists, "held": [], "released": [], "needed_by": []})


@given(stored_runs())
def test_a_requeue_does_in_a_state_file_what_the_preview_says(run):
    connection, targets = run
    projection = load_run(connection, "r")
    answer = asked_of_the_engine(connection, projection, "requeue", targets)
    assert comparable(preview_requeue(Board(projection), targets)) == comparable(answer)


@given(stored_runs())
def test_a_skip_does_in_a_state_file_what_the_preview_says(run):
    connection, targets = run
    projection = load_run(connection, "r")
    found = preview_skip(Board(projection), targets)
    answer = asked_of_the_engine(connection, projection, "skip", targets, substitute=0)
    assert comparable(found) == comparable(answer)
    without = asked_of_the_engine(connection, projection, "skip", targets)
    needed = [(name, why.split()[0]) for name, _, why in without.results if "needs its result" in why]
    assert sorted(found.needed_by) == sorted(needed)


@given(stored_runs(), st.sampled_from([act.name for act in ACTS if act.scope is Scope.TASKS]), st.integers(0, 1))
def test_what_is_refused_is_refused_in_the_same_words_by_key_and_by_command(run, act, generation):
    """Whatever the run and the task are in: what the console offers for one task, the engine does."""
    connection, targets = run
    connection.execute(
        "UPDATE task SET generation = ?, spec = json_set(spec, '$.kind', 'approval') WHERE position % 3", (generation,)
    )
    board = Board(load_run(connection, "r"))
    shown = PREVIEWS.get(act)
    for name in targets:
        why = refusal(shown and shown(board, [name]), board, act, [name])
        reason = {"substitute": 0} if act == "skip" else {"seconds": 60.0} if act == "extend" else {}
        answer = asked_of_the_engine(connection, board.projection, act, [name], **reason)
        assert (answer.ok, answer.message if why else None) == (why is None, why)


def test_what_an_act_stops_and_brings_back_it_does_not_change():
    """The end of a stops c below the stopped b; then b may start, and c waits for it as before."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO run (run_id, dag_name, started_at, state) VALUES ('r', 'flow', 0, 'RUNNING')")
    rows = [("a", "PENDING", 0, None), ("b", "UPSTREAM_FAILED", 1, "a"), ("c", "PENDING", 2, None)]
    connection.executemany(
        "INSERT INTO task (run_id, name, state, position, blocked_by, rule, spec)"
        " VALUES ('r', ?, ?, ?, ?, 'all_success', '{}')",
        rows,
    )
    edges = [("b", "a"), ("c", "a"), ("c", "b")]
    connection.executemany("INSERT INTO edge (run_id, child, parent) VALUES ('r', ?, ?)", edges)
    answer = asked_of_the_engine(connection, load_run(connection, "r"), "skip", ["a"])
    assert (answer.skipped, answer.unblocked) == (["a"], ["b"])
    assert (answer.held_back, answer.stopped) == ([], [])


def test_a_preview_changes_nothing_on_the_board():
    projection = projection_of([("a", []), ("b", ["a"])])
    failed_task(projection, "a", "FAILED")
    projection.tasks["b"].state = TaskState.UPSTREAM_FAILED
    board = Board(projection)
    assert preview_requeue(board, ["a"]).unblocked == ("b",)
    assert [str(row.state) for row in projection.tasks.values()] == ["FAILED", "UPSTREAM_FAILED"]


def test_what_waits_below_a_dead_letter_may_go_on_unless_another_one_holds_it():
    projection = projection_of([("a", []), ("b", []), ("below_a", ["a"]), ("below_both", ["a", "b"])])
    failed_task(projection, "a")
    failed_task(projection, "b")
    found = preview_skip(Board(projection), ["a"])
    assert found.released == ("below_a",)
    assert found.held == (("below_both", ("b",)),)
    assert preview_skip(Board(projection), ["a", "b"]).released == ("below_a", "below_both")
    other = projection_of([("a", []), ("b", []), ("c", []), ("below", ["c", "b", "a"])])
    failed_task(other, "a")
    failed_task(other, "b")
    other.tasks["c"].state = TaskState.SUCCESS
    assert preview_requeue(Board(other), ["c"]).held == (("below", ("a", "b")),)


def a_run_that_its_deadline_ended():
    """Settle is a dead letter; the deadline has cancelled what waits below it."""
    chain = [("fetch", []), ("settle", ["fetch"]), ("enrich", ["settle"]), ("report", ["enrich"])]
    projection = projection_of([*chain, ("always", ["fetch"]), ("tidy", ["always", "settle"])])
    failed_task(projection, "settle")
    projection.tasks["fetch"].state = TaskState.SUCCESS
    projection.tasks["always"].state = TaskState.FAILED
    projection.tasks["tidy"].spec = structs.replace(spec_of(projection.tasks["tidy"]), rule="all_done")
    for name in ("enrich", "report"):
        projection.tasks[name].state = TaskState.CANCELLED
        projection.tasks[name].failure_mode = "deadline"
    return projection


def test_after_its_deadline_nothing_starts_below_a_dead_letter():
    """What an act brings back, or names itself, waits for the dead letter as well; what waits for ends alone does."""
    board = Board(a_run_that_its_deadline_ended())
    again = preview_requeue(board, ["enrich", "report"])
    assert (again.run_again, again.startable, again.released) == (("enrich", "report"), [], ())
    assert again.holders == {"enrich": ("settle",), "report": ("settle",)}
    skipped = preview_skip(board, ["always"])
    assert (skipped.released, skipped.holders) == ((), {"tidy": ("settle",)})
    decided = preview_requeue(board, ["settle"])
    assert (decided.startable, decided.holders) == (["settle"], {})
    assert decided.released == ("enrich", "report", "tidy"), "the failure of another holds nothing of what accepts it"


def test_a_diamond_whose_other_side_has_failed_stays_and_names_that_side():
    projection = projection_of([("a", []), ("b", []), ("join", ["a", "b"])])
    failed_task(projection, "a", "FAILED")
    failed_task(projection, "b", "FAILED")
    projection.tasks["join"].state = TaskState.UPSTREAM_FAILED
    projection.tasks["join"].blocked_by = "a"
    assert preview_requeue(Board(projection), ["a"]).stay_blocked == [("join", "b")]


def test_a_thousand_dead_letters_among_ten_thousand_tasks_are_previewed_at_once():
    """About 60 ms of CPU."""
    pairs = [(f"load_{n}", []) for n in range(1_000)] + [(f"next_{n}", [f"load_{n % 1_000}"]) for n in range(9_000)]
    projection = projection_of(pairs)
    for number in range(1_000):
        failed_task(projection, f"load_{number}")
    board = Board(projection)
    _ = board.dag.descendant_bits
    started = time.process_time()
    found = preview_requeue(board, [f"load_{n}" for n in range(0, 1_000, 2)])
    assert time.process_time() - started < 20
    assert (len(found.run_again), len(found.released), len(found.held)) == (500, 4_500, 0)


def test_the_preview_of_a_running_task_says_what_to_do_first():
    projection = projection_of([("a", [])])
    board, builder = Board(projection), EventBuilder(projection)
    board.apply(builder.start("a"))
    assert preview_requeue(board, ["a"]).refused == [("a", "refused", "it runs: cancel it first, then requeue it")]
