"""A child of a map task belongs to its element, whatever the list does: each row of the table in ``map_tasks.py``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.preview import preview_requeue
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import Identity, TaskSpec, map_task
from redrive.engine.domain.states import CHANGED_AFTER_EFFECT, effect_key
from redrive.engine.statefile.dry_run import preview
from redrive.engine.store import runs
from redrive.engine.store.claims import Claim
from support.marks import parametrize_mostly_long

from .conftest import RUN, SECOND, StateFile
from .mapped import FAILURE, Mapped

LISTS = "list"
SUCCESS = Outcome(OutcomeKind.SUCCESS, result="1")
Element = dict[str, Any]


LOST = Outcome(OutcomeKind.LOST, FAILURE)
ENDED = Outcome(OutcomeKind.ERROR, FAILURE)


def tasks_of(identity: Identity, *, effect: bool = True) -> Sequence[TaskSpec]:
    child = TaskSpec("load", ("list",), retry=RetryPolicy(max_attempts=2), effect=effect, idempotent=not effect)
    return (TaskSpec("list"), map_task(child, "list", 12, identity), TaskSpec("report", ("load",), requires=("load",)))


def pay(key: str, amount: int = 1) -> Element:
    return {"id": key, "amount": amount}


class Payments(Mapped):
    """A map task with an effect, by key: what each key has paid."""

    def __init__(self, state_file: StateFile, identity: Identity = "key", *, effect: bool = True) -> None:
        super().__init__(state_file, tasks_of(identity, effect=effect))
        self.is_keyed = identity == "key"
        self.list: list[Any] = []
        self.begun: dict[str, Claim] = {}
        self.paid: dict[str, Any] = {}  # idempotency key -> who was paid with it
        self.happened: Counter[Any] = Counter()

    def new_list(self, elements: list[Any], *, keys: bool = True) -> None:
        """Return another list from its task, which was requeued unless it is the first."""
        if self.list is not None and self.file.column("list", "state") == "SUCCESS":
            self.act("requeue", "list")
        self.list = elements
        names = [one["id"] for one in elements] if self.is_keyed and keys else None
        self.run("list", elements, keys=names)

    def who(self, index: int) -> Any:
        """Who the element of the list is: its key, or its value with its number among equal ones."""
        one = self.list[index]
        if isinstance(one, dict):
            return one["id"] if self.is_keyed else json.dumps(one)
        return one, self.list[:index].count(one)

    def begin(self, name: str) -> None:
        claim = self.claim(name)
        if claim is None:
            return
        item = (self.file.projection().tasks[name].spec or TaskSpec("")).item
        assert item is not None
        key, who = effect_key(RUN, name, claim.key_generation), self.who(item.index)
        assert self.paid.setdefault(key, who) == who
        assert list(self.paid.values()).count(who) == 1, "one element has one key for ever"
        assert not self.happened[who], "an effect that has happened does not begin again"
        self.begun[name] = claim

    def finish(self, name: str, outcome: Outcome = SUCCESS) -> None:
        claim = self.begun.pop(name)
        if outcome.kind is OutcomeKind.SUCCESS:
            self.happened[self.paid[effect_key(RUN, name, claim.key_generation)]] += 1
        self.end(claim, outcome)

    def pay_all(self) -> None:
        for name in runs.ready_audit(self.file.connection, RUN):
            if name.startswith("load["):
                self.begin(name)
                self.finish(name)

    def children(self) -> list[str]:
        """The children that the map task waits for, in their order."""
        projection = self.file.projection()
        names = [name for name in projection.parents["load"] if name.startswith("load[")]
        return sorted(names, key=lambda name: projection.tasks[name].position)


@pytest.fixture
def payments(state_file: StateFile) -> Payments:
    return Payments(state_file)


def test_each_element_is_paid_once_under_its_own_key(payments: Payments) -> None:
    for keys in ("AB", "ZAB", "BZA", "", "A", "QZAB", "BBZ"[:2][:1] + "Z"):
        payments.new_list([pay(key) for key in keys])
        payments.pay_all()
        assert payments.children() == [f"load[{key}]" for key in keys]
    assert payments.happened == {"A": 1, "B": 1, "Z": 1, "Q": 1}
    assert payments.paid == {f"{RUN}/load[{key}]/0": key for key in "ABZQ"}


def test_without_a_key_equal_elements_have_a_number_and_numbers_are_never_used_twice(state_file: StateFile) -> None:
    payments = Payments(state_file, "value")
    for words in ("AAB", "BAAA", "", "C", "CAB"):
        payments.new_list(list(words))
        payments.pay_all()
    assert payments.children() == ["load[4]", "load[0]", "load[2]"]
    assert payments.happened == {("A", 0): 1, ("A", 1): 1, ("B", 0): 1, ("A", 2): 1, ("C", 0): 1}


def test_an_effect_stays_when_its_element_changes_and_says_so(payments: Payments) -> None:
    payments.new_list([pay("A"), pay("B")])
    payments.pay_all()
    payments.new_list([pay("A", 5), pay("B")])
    assert payments.states == {"load": "PENDING", "load[A]": "SUCCESS", "load[B]": "SUCCESS"}
    assert [payments.file.column("load[A]", column) for column in ("stale", "notice")] == [1, CHANGED_AFTER_EFFECT]
    payments.new_list([pay("A"), pay("B")])
    assert [payments.file.column("load[A]", column) for column in ("stale", "notice")] == [0, None]


def test_what_is_no_effect_runs_again_when_its_element_changes(state_file: StateFile) -> None:
    payments = Payments(state_file, effect=False)
    payments.new_list([pay("A"), pay("B")])
    payments.run("load[A]", 1)
    payments.run("load[B]", 2)
    payments.new_list([pay("B"), pay("A", 5)])
    assert payments.states == {"load": "PENDING", "load[B]": "SUCCESS", "load[A]": "PENDING"}


@pytest.mark.parametrize(
    ("outcome", "effect", "state"),
    [
        (ENDED, False, "PENDING"),
        (ENDED, True, "DEAD_LETTER"),  # a human decides whether it has happened
        (Outcome(OutcomeKind.SKIPPED, skip_reason="cancelled"), False, "PENDING"),
        (Outcome(OutcomeKind.SKIPPED, skip_reason="cancelled"), True, "PENDING"),
    ],
)
def test_what_ended_by_the_value_of_its_element_runs_again_with_another_one(
    state_file: StateFile, outcome: Outcome, effect: bool, state: str
) -> None:
    payments = Payments(state_file, effect=effect)
    payments.new_list([pay("A"), pay("B")])
    payments.begin("load[A]")
    payments.finish("load[A]", outcome)
    before = payments.states["load[A]"]
    payments.new_list([pay("B"), pay("A")])
    assert payments.states["load[A]"] == before
    payments.new_list([pay("A", 7), pay("B")])
    assert payments.states["load[A]"] == state


def test_a_child_that_fails_while_its_element_is_gone_is_not_tried_again(state_file: StateFile) -> None:
    payments = Payments(state_file, effect=False)
    payments.new_list([pay("A"), pay("B")])
    payments.begin("load[A]")
    payments.new_list([pay("B")])
    failure = Failure("E", "later", FailureClass.TRANSIENT, Fingerprint("b" * 32, "b" * 32))
    payments.finish("load[A]", Outcome(OutcomeKind.ERROR, failure))
    assert payments.states["load[A]"] == "RETRYING"
    payments.file.now += 3600 * SECOND
    assert payments.claim("load[A]") is None
    assert payments.states["load[A]"] == "SKIPPED"
    payments.new_list([pay("A"), pay("B")])
    assert (payments.states["load[A]"], payments.file.column("load[A]", "failures")) == ("PENDING", 1)


def test_an_effect_that_ran_while_its_element_changed_stays(payments: Payments) -> None:
    payments.new_list([pay("A")])
    payments.begin("load[A]")
    payments.new_list([pay("Z"), pay("A", 5)])
    payments.finish("load[A]")
    assert payments.states["load[A]"] == "SUCCESS"
    assert payments.file.column("load[A]", "notice") == CHANGED_AFTER_EFFECT


COLUMNS = (
    "state",
    "attempt",
    "failures",
    "checkpoint",
    "key_generation",
    "overrides",
    "bad_rows",
    "error",
    "skip_cause",
)


def _fail(payments: Payments) -> None:
    payments.begin("load[A]")
    payments.finish("load[A]", ENDED)


def _skip(payments: Payments) -> None:
    payments.act("skip", "load[A]", substitute=7)


def _cancel(payments: Payments) -> None:
    payments.act("cancel", "load[A]")


def _requeue(payments: Payments) -> None:
    _fail(payments)
    payments.act("requeue", "load[A]", max_attempts=7, new_key=True)
    with payments.file.connection as connection:
        connection.execute("UPDATE task SET checkpoint = '[3]', bad_rows = 2 WHERE name = 'load[A]'")
    payments.reload()


def _nothing(payments: Payments) -> None:
    """The child waits for its first attempt."""


@pytest.mark.parametrize("happens", [_nothing, _fail, _skip, _cancel, _requeue])
def test_a_child_has_all_that_it_had_when_its_element_is_back(payments: Payments, happens: Any) -> None:
    payments.new_list([pay("A"), pay("B")])
    happens(payments)
    before = [payments.file.column("load[A]", column) for column in COLUMNS]
    payments.new_list([pay("B")])
    assert (payments.states["load[A]"], payments.children()) == ("SKIPPED", ["load[B]"])
    assert not payments.file.act("requeue", "load[A]")["ok"]
    payments.new_list([pay("C"), pay("A"), pay("B")])
    assert [payments.file.column("load[A]", column) for column in COLUMNS] == before
    assert payments.children() == ["load[C]", "load[A]", "load[B]"]


def test_an_effect_in_doubt_waits_for_a_human_when_its_element_is_gone(payments: Payments) -> None:
    payments.new_list([pay("A"), pay("B")])
    payments.begin("load[A]")
    payments.finish("load[A]", LOST)
    payments.new_list([pay("B")])
    assert payments.states["load[A]"] == "DEAD_LETTER"
    assert "the list has no such element" in str(payments.file.act("requeue", "load[A]")["message"])


def test_no_child_starts_before_the_keys_of_its_elements_are_known(payments: Payments) -> None:
    payments.new_list([pay("A"), pay("B")])
    payments.new_list([pay("B"), pay("C")], keys=False)  # as an operator's substitute, or the list of a command
    assert payments.states == {"load": "PENDING", "load[A]": "SKIPPED", "load[B]": "SKIPPED"}
    assert list(runs.ready_audit(payments.file.connection, RUN)) == ["load"]
    claim = payments.claim("load")
    assert claim is not None
    payments.end(claim, Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0, element_keys={"load": ("B", "C")}))
    assert payments.states == {"load": "PENDING", "load[B]": "PENDING", "load[C]": "PENDING", "load[A]": "SKIPPED"}


def test_other_keys_than_those_of_the_start_name_no_child(payments: Payments) -> None:
    """After a change of the code, an element that is new cannot be told from one that has another key now."""
    payments.new_list([pay("A"), pay("B")])
    payments.pay_all()
    payments.act("requeue", "list")
    payments.list = [pay("A"), pay("B")]
    payments.run("list", payments.list, keys=["1", "2"])
    assert payments.children() == ["load[A]", "load[B]"]
    payments.act("requeue", "list")
    payments.list = [pay("A"), pay("B", 9)]
    payments.run("list", payments.list, keys=["1", "2"])
    assert payments.children() == []
    claim = payments.claim("load")
    assert claim is not None
    payments.end(claim, Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0, element_keys={"load": ("1", "2")}))
    assert payments.states["load"] == "DEAD_LETTER"
    assert "another one than this run began with" in str(payments.file.column("load", "error"))


def test_an_effect_over_mappings_without_a_key_is_refused_before_it_begins(state_file: StateFile) -> None:
    payments = Payments(state_file, "value")
    payments.new_list([pay("A")])
    claim = payments.claim("load")
    assert claim is not None
    payments.end(claim, Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0, element_keys={"load": ()}))
    assert payments.states == {"load": "DEAD_LETTER"}
    assert "key=lambda element" in str(payments.file.column("load", "error"))


def test_a_list_that_comes_while_its_map_collects_is_collected_again(payments: Payments) -> None:
    payments.new_list([pay("A")])
    payments.pay_all()
    claim = payments.claim("load")
    assert claim is not None
    payments.act("requeue", "list")
    payments.end(claim, SUCCESS)
    assert payments.file.column("load", "state") == "PENDING"


def test_a_requeue_of_a_list_says_what_follows_and_what_does_not(payments: Payments) -> None:
    payments.new_list([pay("A"), pay("B")])
    payments.pay_all()
    payments.run("load", [1, 1])
    payments.run("report")
    answer = payments.file.act("requeue", "list")
    assert "2 effects have happened and stay" in str(answer["message"])
    assert "1 task after it keeps the result of the old list: --cascade runs it again" in str(answer["message"])
    payments.see()
    assert payments.file.column("load", "state") == "PENDING"


def test_the_preview_of_the_console_says_what_the_requeue_of_a_list_does(payments: Payments) -> None:
    payments.new_list([pay("A"), pay("B"), pay("C")])
    payments.pay_all()
    payments.new_list([pay("A"), pay("B")])
    payments.run("load", [1, 1])
    payments.run("report")
    projection, connection = payments.file.projection(), payments.file.connection
    for names in (["list"], ["load[C]"], ["load"]):
        targets = [[name, str(projection.tasks[name].state), projection.tasks[name].generation] for name in names]
        command = {"id": "x", "act": "requeue", "run_id": RUN, "targets": targets, "actor": "me"}
        theirs, ours = preview(connection, command, at=1), preview_requeue(Board(projection), names)
        assert (sorted(ours.run_again), sorted(ours.stale)) == (sorted(theirs.run_again), sorted(theirs.stale))
        assert list(ours.notes) == list(theirs.notes)
        assert sorted(ours.refused) == sorted(theirs.refused)


# --- Lists that change between requeues, with effects ----------------------------------------------------------------

KEYED = st.lists(
    st.builds(pay, st.sampled_from("ABCD"), st.integers(1, 2)), max_size=5, unique_by=lambda one: one["id"]
)
PLAIN = st.lists(st.sampled_from("AB"), max_size=4)
STEPS = st.sampled_from(["list", "list", "begin", "begin", "finish", "finish", "fail", "lose", "requeue", "resume"])


def _play(payments: Payments, data: Any, lists: Any) -> None:
    step = data.draw(STEPS)
    begun = sorted(payments.begun)
    if step == "list":
        payments.new_list(data.draw(lists), keys=data.draw(st.booleans()) if payments.is_keyed else True)
    elif step == "begin":
        _begin(payments, data)
    elif step == "resume":
        payments.reload()
    elif step == "requeue":
        failed = [name for name, state in payments.states.items() if state == "DEAD_LETTER" and name != "load"]
        if failed:
            payments.file.act("requeue", data.draw(st.sampled_from(failed)))
            payments.see()
    elif begun:
        payments.finish(data.draw(st.sampled_from(begun)), {"fail": ENDED, "lose": LOST}.get(step, SUCCESS))


def _begin(payments: Payments, data: Any) -> None:
    ready = sorted(name for name in runs.ready_audit(payments.file.connection, RUN) if name != "report")
    name = data.draw(st.sampled_from(ready)) if ready else ""
    if name.startswith("load["):
        payments.begin(name)
    elif name == "load":
        claim = payments.claim(name)
        assert claim is not None
        keys = tuple(one["id"] for one in payments.list) if payments.is_keyed else ()
        is_known = len(payments.children()) == len(payments.list)
        collect = Outcome(OutcomeKind.SUCCESS, result=json.dumps(payments.children()))
        wait = Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0, element_keys={"load": keys})
        payments.end(claim, collect if is_known else wait)
        if is_known:
            assert [payments.who(place) for place in range(len(payments.list))] == [
                payments.paid[f"{RUN}/{child}/0"] for child in payments.children()
            ]


@parametrize_mostly_long("identity", ["key", "value"], quick=1)
def test_no_list_repeats_an_effect_or_gives_its_key_to_another(make_state_file: Any, identity: Identity) -> None:
    numbers = iter(range(1_000_000))

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def play(data: Any) -> None:
        payments = Payments(make_state_file(f"{next(numbers)}.db"), identity)
        lists = KEYED if identity == "key" else PLAIN
        payments.new_list(data.draw(lists))
        for _ in range(data.draw(st.integers(3, 14))):
            payments.file.now += 2 * SECOND  # a map task that waited for its keys is due
            _play(payments, data, lists)

    play()
