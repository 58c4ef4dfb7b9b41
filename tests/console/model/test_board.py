"""The board: what a batch of events changed, what is counted, what comes next; and the same cost for any size."""

import time

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.graph.view import Graph
from redrive.console.model.replay import ReplayIndex, initial_projection
from redrive.console.model.snapshot import RunSnapshot
from redrive.engine.core.spec import TaskSpec, map_task
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.event_payloads import RunChange, RunChanged, TaskMapped
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import PageRow
from redrive.engine.domain.states import LEGAL_MOVES, NEEDS_HUMAN, NOT_STARTED, TaskState

from ..conftest import build_row
from ..screens.outages import breaker_row
from .graphs import dags, layered
from .runs import START, EventBuilder, S, failed_task, projection_of

DIAMOND = [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]


def test_a_batch_answers_with_what_it_touched():
    projection = projection_of(DIAMOND)
    board, builder = Board(projection), EventBuilder(projection)
    delta = board.apply([*builder.start("a"), *builder.after(3).succeed("a")])
    assert delta.tasks == {"a"}
    assert [(old, new) for _, old, new in delta.moves] == [
        (TaskState.PENDING, TaskState.READY),
        (TaskState.READY, TaskState.RUNNING),
        (TaskState.RUNNING, TaskState.SUCCESS),
    ]
    assert not delta.are_problems_changed
    assert board.finished == 1
    assert board.active == set()


def test_events_that_the_snapshot_holds_already_change_nothing():
    projection = projection_of(DIAMOND)
    events = EventBuilder(projection).start("a")
    board = Board(projection)
    assert board.apply(events)
    assert not board.apply(events)
    assert board.counts[TaskState.RUNNING] == 1


def test_a_dead_letter_is_a_problem_and_holds_what_waits_below():
    projection = projection_of(DIAMOND)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.succeed("a"), *builder.start("b")])
    delta = board.apply(builder.fail("b", "DEAD_LETTER", dead_letter_kind="poison"))
    assert delta.are_problems_changed
    assert board.problems == ["b"]
    assert board.dead_letters == 1
    assert (board.waiting_below("b"), board.names_waiting_below("b")) == (1, ("d",))
    assert board.waiting_below("b", "c") == 1
    assert board.apply([builder.move("b", "PENDING", generation=1)]).are_problems_changed
    assert board.problems == []


def test_the_next_problem_comes_in_topological_order_and_goes_round():
    projection = projection_of([("z", ["a"]), ("a", []), ("m", ["z"])])
    for name in ("z", "a", "m"):
        failed_task(projection, name)
    board = Board(projection)
    assert [board.next_problem(name) for name in (None, "a", "z", "m")] == ["a", "z", "m", "a"]
    assert [board.next_problem(name, -1) for name in (None, "a", "z", "m")] == ["m", "m", "a", "z"]


def test_without_a_problem_there_is_no_next_one():
    assert Board(projection_of(DIAMOND)).next_problem("a") is None


def test_the_only_problem_is_also_the_next_one():
    projection = projection_of(DIAMOND)
    failed_task(projection, "b")
    assert Board(projection).next_problem("b") == "b"


def test_the_front_is_the_latest_to_run_and_else_the_first_to_be_due():
    projection = projection_of(DIAMOND)
    board, builder = Board(projection), EventBuilder(projection)
    assert board.current_task() is None
    board.apply([*builder.start("a"), *builder.succeed("a"), *builder.start("b"), *builder.after(1).start("c")])
    assert board.current_task() == "c"
    board.apply([*builder.fail("c", next_retry_at=START + 9 * S), *builder.fail("b", next_retry_at=START + 7 * S)])
    assert board.current_task() == "b"


def test_breakers_and_pages_beside_the_run_reach_the_sentence():
    projection = projection_of(DIAMOND, {"b": {"downstream": "api"}})
    board, builder = Board(projection), EventBuilder(projection)
    state = {"downstream": "api", "state": "OPEN", "reopens_at": START + 30 * S}
    delta = board.apply([builder.event(EventKind.BREAKER, data=state), builder.move("b", "READY")])
    assert delta.other_kinds == {EventKind.BREAKER}
    assert board.explain("b", START, ALIVE) == "breaker api is open and lets a probe through in 30s"


def test_state_from_before_the_snapshot_is_read_from_the_tables():
    projection = projection_of(DIAMOND, {"b": {"downstream": "api"}})
    failed_task(projection, "a")
    projection.tasks["b"].state = TaskState.READY
    board = Board(projection)
    board.update_lists(
        breakers=[breaker_row("api", "FORCED_OPEN")],
        pages=[build_row(PageRow, {"cause": "loose-ValueError", "state": "acked", "acked_by": "ana"})],
    )
    assert board.explain("b", START, ALIVE) == "breaker api is held open by an operator"
    assert board.explain("c", START + S, ALIVE) == "waits for a, dead-lettered for 1s, page acked by ana"
    again = Board(projection, board)
    assert again.explain("b", START, ALIVE) == "breaker api is held open by an operator"


def test_a_new_snapshot_of_the_same_graph_keeps_what_was_laid_out():
    before = Board(projection_of(DIAMOND))
    assert Board(projection_of(DIAMOND), before).dag is before.dag
    assert Board(projection_of([*DIAMOND, ("e", [])]), before).dag is not before.dag


def test_the_edges_above_and_below_a_task_are_related_to_it_and_no_others():
    board = Board(projection_of([*DIAMOND, ("e", ["d"]), ("other", ["a"])]))
    assert board.related_edges("b") == {("a", "b"), ("b", "d"), ("d", "e")}


@given(dags(), st.data())
def test_what_is_counted_on_the_way_is_what_counting_again_finds(dag, data):
    approvals = data.draw(st.sets(st.sampled_from(dag.names), max_size=2))
    kinds = {name: {"kind": "approval"} for name in approvals}
    projection = projection_of([(name, dag.parents(name)) for name in dag.names], kinds)
    board, builder = Board(projection), EventBuilder(projection)
    for _ in range(data.draw(st.integers(0, 30))):
        assert set(board.undecided) == set(Board(projection).undecided)
        name = data.draw(st.sampled_from(dag.names))
        allowed = sorted(LEGAL_MOVES[projection.tasks[name].state])
        board.apply([builder.move(name, str(data.draw(st.sampled_from(allowed))))])
    again = Board(projection)
    assert +board.counts == +again.counts
    assert board.problems == again.problems == [n for n in dag.order if projection.tasks[n].state in NEEDS_HUMAN]
    assert board.active == again.active
    for name in dag.names:
        waiting = [below for below in dag.descendants(name) if projection.tasks[below].state in NOT_STARTED]
        assert board.waiting_below(name) == again.waiting_below(name) == len(waiting)


def test_ten_thousand_events_on_ten_thousand_tasks_are_taken_quickly():
    """About 15 us each; a look through the whole flow per event would take minutes."""
    projection = projection_of(layered(10_000, 40, seed=2))
    board, builder = Board(projection), EventBuilder(projection)
    events = [
        event for name in list(projection.tasks)[:3_500] for event in (*builder.start(name), *builder.succeed(name))
    ]
    started = time.process_time()
    delta = board.apply(events)
    assert time.process_time() - started < 10
    assert len(delta.tasks) == 3_500
    assert board.finished == 3_500


NAMES = ["load[0]", "load[1]"]


def mapped_board():
    projection = projection_of([("list", []), ("load", ["list"]), ("report", ["load"])])
    projection.tasks["load"].spec = map_task(TaskSpec("load", ("list",)), "list", 10)
    projection.tasks["report"].position = 20
    return Board(projection), EventBuilder(projection)


def test_a_map_task_gets_its_children_on_the_living_board():
    board, builder = mapped_board()
    board.apply([*builder.start("list"), *builder.succeed("list")])
    delta = board.apply([builder.event(EventKind.MAPPED, "load", payload=TaskMapped(2, NAMES, NAMES))])
    assert delta.is_graph_changed
    assert board.dag.names == ("list", "load", "load[0]", "load[1]", "report")
    assert board.dag.parents("load") == ("list", "load[0]", "load[1]")
    assert board.counts[TaskState.PENDING] == 4 and board.waiting_below("load[0]") == 2
    builder = EventBuilder(board.projection)
    board.apply([*builder.start("load[1]"), *builder.fail("load[1]", "DEAD_LETTER")])
    assert board.problems == ["load[1]"]
    groups = Graph(board, len).groups
    together = [board.dag.names_of(group.members) for group in groups.groups if not group.is_single]
    assert together == [("load[0]", "load[1]", "load")], "one row for all children and their end"


def test_a_board_that_shows_the_past_gets_the_children_on_its_way_back():
    board, builder = mapped_board()
    present = board.snapshot
    board.seek(RunSnapshot(initial_projection(board.projection), is_past=True))
    present.apply(builder.event(EventKind.MAPPED, "load", payload=TaskMapped(1, NAMES[:1], NAMES[:1])))
    assert "load[0]" not in board.dag
    assert board.seek(present).is_graph_changed
    assert "load[0]" in board.dag


def test_a_replay_has_the_children_from_its_beginning():
    board, builder = mapped_board()
    created = builder.event(EventKind.RUN, payload=RunChanged(RunChange.CREATED))
    events = [created, builder.event(EventKind.MAPPED, "load", payload=TaskMapped(1, NAMES[:1], NAMES[:1]))]
    before = ReplayIndex(board.projection)
    board.apply(events)
    builder = EventBuilder(board.projection)
    events += builder.start("load[0]")
    board.apply(events)
    index = ReplayIndex(board.projection)
    for one in (before, index):
        one.extend(events)
    assert "load[0]" not in before.snapshot_at(events[-1].seq, events).projection.tasks
    assert board.seek(index.snapshot_at(events[-1].seq, events)).is_graph_changed is False
    assert board.row("load[0]").state is TaskState.RUNNING
