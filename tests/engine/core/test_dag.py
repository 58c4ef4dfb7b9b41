"""The graph of a flow: order, cycles, levels, descendants, the critical path."""

import random
import time
from collections.abc import Callable
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core import dag as dag_module
from redrive.engine.core.dag import Dag, remaining_path, validate_graph
from redrive.engine.errors import CycleError, FlowError

DIAMOND = [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]


@st.composite
def graphs(draw):
    """A random acyclic graph, its tasks written in a random order."""
    count = draw(st.integers(1, 14))
    pairs = [(f"t{n}", [f"t{p}" for p in range(n) if draw(st.integers(0, 3)) == 0]) for n in range(count)]
    return draw(st.permutations(pairs))


def brute_descendants(pairs, name):
    below = {child for child, parents in pairs if name in parents}
    return below.union(*(brute_descendants(pairs, child) for child in below)) if below else set()


def test_a_task_comes_after_its_parents_and_otherwise_as_written():
    dag = Dag([("late", ["first"]), ("z", []), ("first", []), ("a", [])])
    assert dag.order == ("z", "first", "late", "a")


@given(graphs())
def test_every_task_comes_once_and_after_all_of_its_parents(pairs):
    dag = Dag(pairs)
    place = {name: n for n, name in enumerate(dag.order)}
    assert sorted(place) == sorted(name for name, _ in pairs)
    assert all(place[parent] < place[name] for name, parents in pairs for parent in parents)


@given(graphs())
def test_descendants_and_ancestors_are_what_walking_the_edges_finds(pairs):
    dag = Dag(pairs)
    for name, _ in pairs:
        below = brute_descendants(pairs, name)
        assert set(dag.descendants(name)) == below
        assert dag.bits_below(dag.number[name]).bit_count() == len(below)
        assert all(name in dag.ancestors(other) for other in below)


@given(graphs(), st.data())
def test_descendants_of_a_large_graph_are_the_same_bits(pairs, data):
    small, large = Dag(pairs), Dag(pairs)
    some = data.draw(st.lists(st.sampled_from(range(len(pairs))))) if pairs else []
    expected = small.bits_below(*some)
    with mock.patch.object(dag_module, "BITS_MAX", 0):
        assert large.bits_below(*some) == expected
    assert "descendant_bits" not in vars(large)  # 600 MB for 100,000 tasks


@given(graphs(), st.data())
def test_the_remaining_path_is_the_heaviest_way_down_and_the_critical_path_weighs_as_much(pairs, data):
    weights = {name: float(data.draw(st.integers(0, 9))) for name, _ in pairs}
    dag = Dag(pairs)
    remaining = dag.remaining_path(weights)

    def heaviest(name):
        return weights[name] + max((heaviest(child) for child in dag.children(name)), default=0.0)

    assert remaining == {name: heaviest(name) for name, _ in pairs}
    path = dag.critical_path(weights)
    assert sum(weights[name] for name in path) == max(remaining.values())
    assert all(above in dag.parents(below) for above, below in pairwise(path))


def test_levels_count_the_longest_way_from_a_root():
    dag = Dag([*DIAMOND, ("e", ["a", "d"])])
    assert list(dag.levels) == [0, 1, 1, 2, 3]
    assert dag.depth == 4


def test_a_ring_is_named_in_order_and_closed():
    with pytest.raises(CycleError) as raised:
        Dag([("free", []), ("c", ["b"]), ("a", ["c", "free"]), ("b", ["a"]), ("below", ["b"])])
    assert raised.value.cycle == ("c", "a", "b", "c")
    assert "c -> a -> b -> c" in str(raised.value)


def test_a_task_that_waits_for_itself_is_a_ring():
    with pytest.raises(CycleError, match="a -> a"):
        Dag([("a", ["a"])])


@given(graphs(), st.data())
def test_whatever_ring_is_named_is_really_one(pairs, data):
    """Turn one edge chain around by adding an edge from a descendant back to its ancestor."""
    dag = Dag(pairs)
    above = [name for name, _ in pairs if dag.descendants(name)]
    if not above:
        return
    top = data.draw(st.sampled_from(above))
    bottom = data.draw(st.sampled_from(dag.descendants(top)))
    broken = [(name, [*parents, bottom] if name == top else parents) for name, parents in pairs]
    with pytest.raises(CycleError) as raised:
        Dag(broken)
    cycle = raised.value.cycle
    parents_of = dict(broken)
    assert cycle[0] == cycle[-1]
    assert len(set(cycle)) == len(cycle) - 1
    assert all(parent in parents_of[child] for parent, child in pairwise(cycle))


def test_an_unknown_parent_is_reported_with_what_was_probably_meant():
    with pytest.raises(FlowError, match=r"task 'b' waits for 'Load-Part', .* did you mean 'load_part'\?"):
        Dag([("load_part", []), ("b", ["Load-Part"])])
    with pytest.raises(FlowError, match=r"did you mean 'staging.load'\?"):
        Dag([("staging.load", []), ("b", ["load"])])
    with pytest.raises(FlowError, match=r"which is not a task of this flow$"):
        Dag([("staging.load", []), ("b", ["x"])])


def test_a_name_used_twice_is_reported():
    with pytest.raises(FlowError, match="two tasks are named 'a'"):
        Dag([("a", []), ("a", [])])


def test_a_parent_named_twice_is_one_edge():
    dag = Dag([("a", []), ("b", ["a", "a"])])
    assert dag.parents("b") == ("a",)
    assert dag.children("a") == ("b",)


def test_parts_without_an_edge_between_them_and_tasks_without_any_edge_are_found():
    dag = Dag([("a", []), ("alone", []), ("b", ["a"]), ("y", ["x"]), ("x", [])])
    assert dag.components == (("a", "b"), ("alone",), ("y", "x"))
    assert dag.orphans == ("alone",)


def test_a_flow_without_any_edge_has_no_orphans():
    assert Dag([("a", []), ("b", [])]).orphans == ()


def test_descendants_of_several_tasks_are_counted_once():
    dag = Dag(DIAMOND)
    assert dag.descendants("a", "b") == ("b", "c", "d")


def test_an_empty_flow_has_no_order_and_no_path():
    dag = Dag([])
    assert (dag.order, dag.depth, dag.critical_path({}), dag.components, dag.orphans) == (
        (),
        0,
        (),
        (),
        (),
    )


def test_a_chain_of_twenty_thousand_tasks_needs_no_recursion():
    count = 20_000
    dag = Dag((f"t{n}", [f"t{n - 1}"] if n else []) for n in range(count))
    assert dag.depth == count
    assert dag.descendant_bits[dag.number["t0"]].bit_count() == count - 1
    assert len(dag.critical_path(dict.fromkeys(dag.names, 1.0))) == count
    assert len(dag.descendants("t0")) == count - 1


def test_nine_thousand_tasks_with_forty_five_thousand_edges_are_counted_quickly():
    """A generous bound: about 0.1 s of CPU on a small machine, seconds if it were quadratic."""
    dice = random.Random(7)
    pairs = [(f"t{n}", [f"t{dice.randrange(max(0, n - 900), n)}" for _ in range(5)] if n else []) for n in range(9_000)]
    started = time.process_time()
    dag = Dag(pairs)
    counts = [bits.bit_count() for bits in dag.descendant_bits]
    remaining = dag.remaining_path(dict.fromkeys(dag.names, 1.0))
    assert time.process_time() - started < 10
    assert counts[dag.number["t0"]] > 8_000
    assert max(remaining.values()) == dag.depth


def test_the_depth_of_a_graph_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for each row of a list."""
    dag = Dag([("a", []), ("b", ["a"]), ("c", ["b"])])
    assert dag.depth == 3
    monkeypatch.setattr(Dag, "levels", ())
    assert dag.depth == 3


@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3)), max_size=7))
def test_a_flow_is_validated_without_a_graph_as_with_one(pairs: list[tuple[int, list[int]]]) -> None:
    tasks = [(str(name), tuple(map(str, parents))) for name, parents in pairs]

    def error_of(build: Callable[[list[tuple[str, tuple[str, ...]]]], object]) -> str:
        try:
            build(tasks)
        except FlowError as error:
            return str(error)
        return ""

    assert error_of(validate_graph) == error_of(Dag)
    if not error_of(Dag):
        dag, weights = Dag(tasks), {name: 1.0 + len(parents) for name, parents in tasks}
        children = {name: dag.children(name) for name in dag.names}
        assert remaining_path(children, weights) in (None, dag.remaining_path(weights))
