"""What operators' acts make of a run, computed from the manual alone. Imports nothing of the engine.

The model follows a run step by step: it is told what an operator did and which attempt started or ended, and says in
which states each task may be now. *Safety*: no state outside of these, nothing starts before its parents allow it,
nothing runs again without an act, no budget is exceeded. *Liveness* (``check_rest``): when nothing runs and nothing can
start, every task has ended, or waits below a dead letter, which stands in the inbox.

What the parents make of a task depends on how they have ended, never on which of them ended first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PENDING, READY, RUNNING, RETRYING, SENSING = "PENDING", "READY", "RUNNING", "RETRYING", "SENSING"
SUCCESS, FAILED, DEAD_LETTER = "SUCCESS", "FAILED", "DEAD_LETTER"
UPSTREAM_FAILED, CANCELLED = "UPSTREAM_FAILED", "CANCELLED"
BY_OPERATOR, BY_BRANCH = "SKIPPED by an operator", "SKIPPED as a branch"

MOVING = frozenset([PENDING, READY, RUNNING, RETRYING, SENSING])
_ABOUT_TO_START = frozenset([READY, RETRYING, SENSING])
_SKIPPED = frozenset([BY_OPERATOR, BY_BRANCH])
_BAD = frozenset([FAILED, CANCELLED, UPSTREAM_FAILED])
#: States of a map task that runs again with its list.
_FOLLOWING = frozenset([SUCCESS, FAILED, DEAD_LETTER])

#: Rule -> states of a parent that let a child start (manual, page states).
_ALLOWS = {
    "all_success": frozenset([SUCCESS, BY_OPERATOR]),
    "all_success_strict": frozenset([SUCCESS]),
    "none_failed": frozenset([SUCCESS, BY_OPERATOR, BY_BRANCH]),
    "all_done": frozenset([SUCCESS, BY_OPERATOR, BY_BRANCH, *_BAD]),
    "collect": frozenset([SUCCESS, BY_OPERATOR, BY_BRANCH]),  # of the children of a map
    "collect_strict": frozenset([SUCCESS, BY_BRANCH]),
}
#: Act -> states from which it does something. ``requeue`` of an UPSTREAM_FAILED task takes effect with its cause only.
ACTS = {
    "requeue": _ABOUT_TO_START | {SUCCESS, FAILED, DEAD_LETTER, CANCELLED} | _SKIPPED,
    "skip": _ABOUT_TO_START | {PENDING, FAILED, DEAD_LETTER, CANCELLED, UPSTREAM_FAILED},
    "cancel": _ABOUT_TO_START | {PENDING, DEAD_LETTER},
    "approve": frozenset([READY]),
    "reject": frozenset([READY]),
}


class Difference(Exception):
    """The engine does what the model forbids."""


@dataclass(frozen=True)
class Scripted:
    """One task. ``script``: what its attempts do, in order; the last word repeats.

    ok, skip, transient, permanent, wait (a sensor: not yet); ask (an approval: it has no attempts). ``lists``: what
    the attempts that are ok return, of a task that is mapped over. ``over``: a map task has one child for each element
    of what this task returned. ``collect``: of a map task, how its children may end; None: as ``rule``.
    """

    name: str
    script: tuple[str, ...]
    parents: tuple[str, ...] = ()
    rule: str = "all_success"
    max_attempts: int = 3
    optional: bool = False
    lists: tuple[tuple[int, ...], ...] = ()
    over: str | None = None
    collect: str | None = None

    def does(self, attempt: int) -> str:
        """Return what an attempt does, counted from 1."""
        return self.script[min(attempt, len(self.script)) - 1]

    def list_of(self, attempt: int) -> tuple[int, ...]:
        """Return the list that an attempt returns."""
        return self.lists[min(attempt, len(self.lists)) - 1]


@dataclass
class _Task:
    """``own``: how it ended by itself or by an operator; None: its state follows from its parents, or it moves."""

    script: Scripted
    parents: tuple[str, ...]
    own: str | None = None
    attempts: int = 0
    failures: int = 0  # of the generation
    is_running: bool = False
    is_cancel_requested: bool = False
    is_list_remade: bool = False  # while it runs, of a map task
    over: str | None = None  # of a map task and its children: whose result is the list
    identity: tuple[int, int] | None = None  # of a child of a map task: its element, and its number among equal ones
    aside: tuple[str | None] | None = None  # ``own``, while the list has no such element
    may_run_again: bool = False  # the manual does not say whether its inputs count as equal


@dataclass
class Model:
    """One run. ``states``: as the engine has shown them last."""

    tasks: dict[str, _Task] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    acts: dict[str, dict[str, tuple[str | None, int]]] = field(default_factory=dict)  # by id: what was before it

    @classmethod
    def of(cls, tasks: Iterable[Scripted]) -> Model:
        """Return the model of a run in which nothing has happened."""
        model = cls()
        for task in tasks:
            parents = task.parents if task.over is None else tuple(dict.fromkeys((task.over, *task.parents)))
            model.tasks[task.name] = _Task(task, parents, over=task.over)
            model.states[task.name] = PENDING
        return model

    # --- Attempts --------------------------------------------------------------------------------------------------

    def start(self, name: str, attempt: int) -> None:
        """Check that a task may start now."""
        task = self.tasks[name]
        _require(not self.is_approval(name), f"{name} starts, and it is an approval")
        _require(task.own is None, f"{name} starts although it is {task.own}")
        _require(not task.is_running, f"{name} starts twice")
        _require(attempt == task.attempts + 1, f"{name}: attempt {attempt} follows {task.attempts}")
        for parent, rule in _rules_of(task):
            allows = self.states[parent] in _ALLOWS[rule]
            _require(allows, f"{name} ({rule}) starts while {parent} is {self.states[parent]}")
        task.attempts, task.is_running, task.is_list_remade = attempt, True, False

    def end(self, name: str) -> None:
        """Let the running attempt of a task end as its script says."""
        task, script = self.tasks[name], self.tasks[name].script
        task.is_running = False
        if task.is_cancel_requested:
            task.own, task.is_cancel_requested = CANCELLED, False
            return
        does = self.does(name)
        if does in _ENDS:
            task.own = _ENDS[does]
        elif does == "transient":
            task.failures += 1
            task.own = FAILED if task.failures >= script.max_attempts else None
        may_be_another = task.identity is not None and len(task.parents) > 1
        task.may_run_again = task.own == SUCCESS and (may_be_another or task.is_list_remade)
        self._note_changed(name)
        if does == "ok" and script.lists:
            self.lists[name] = script.list_of(task.attempts)
            for other in [other for other in self.tasks if self.tasks[other].script.over == name]:
                self.expand(other)

    def is_approval(self, name: str) -> bool:
        """Whether an operator answers the task."""
        return self.tasks[name].script.script == ("ask",)

    def asked(self) -> list[str]:
        """Return the approvals that wait for an answer."""
        return [name for name, state in self.states.items() if state == READY and self.is_approval(name)]

    def does(self, name: str) -> str:
        """Return what the running attempt of a task does; a map task without a list cannot collect anything."""
        task = self.tasks[name]
        if task.script.over is not None:
            return "ok" if self.states[task.script.over] == SUCCESS else "permanent"
        return task.script.does(task.attempts)

    def _note_changed(self, name: str) -> None:
        """Note that children of map tasks have a further parent whose result or state is another one now."""
        for child in self.tasks.values():
            if child.identity is not None and child.own == SUCCESS and name in child.parents[1:]:
                child.may_run_again = True

    def expand(self, name: str) -> None:
        """Make the children of a map task those of the list as it is now: each belongs to its element for ever."""
        task = self.tasks[name]
        if task.own in (BY_OPERATOR, BY_BRANCH, CANCELLED) or self.states[name] in _SKIPPED:
            return
        known = {
            child.identity: one for one, child in self.tasks.items() if child.identity and one.startswith(f"{name}[")
        }
        elements = self.lists[str(task.over)]
        identities = [(one, elements[:place].count(one)) for place, one in enumerate(elements)]
        now = [self._child(name, task, one, known) for one in identities]
        before = [parent for parent in task.parents if parent.startswith(f"{name}[")]
        for child in set(before) - set(now):
            gone = self.tasks[child]
            if not gone.is_running and gone.own != SUCCESS and gone.aside is None:
                gone.aside, gone.own = (gone.own,), BY_BRANCH
        task.parents = (*(parent for parent in task.parents if parent not in before), *now)

    def _child(self, name: str, task: _Task, identity: tuple[int, int], known: dict[tuple[int, int], str]) -> str:
        """Return the child for an element, which is back, or which gets the next number."""
        if identity not in known:
            new, own = f"{name}[{len(known)}]", task.script
            script = Scripted(new, own.script, rule=own.rule, max_attempts=own.max_attempts)
            parents = tuple(dict.fromkeys((str(own.over), *own.parents)))
            self.tasks[new], self.states[new] = _Task(script, parents, over=own.over, identity=identity), PENDING
            known[identity] = new
        child = self.tasks[known[identity]]
        if child.aside is not None:
            (child.own,), child.aside = child.aside, None
        if child.own == SUCCESS:
            child.may_run_again = bool(task.script.parents)
        return known[identity]

    # --- Acts ------------------------------------------------------------------------------------------------------

    def act(self, command: str, act: str, outcomes: Mapping[str, str], *, cascade: bool = False) -> None:
        """Let an operator act. ``outcomes``: by target, what the engine answered: done, running or refused."""
        before = {name: (task.own, task.failures) for name, task in self.tasks.items()}
        for name, outcome in outcomes.items():
            self._check_answer(act, name, outcome)
        done = [name for name, outcome in outcomes.items() if outcome == "done"]
        for name in done:
            self._apply(act, self.tasks[name], self.states[name])
            self._note_changed(name)
        if cascade:
            done += self._run_below_again(done)
        if act == "requeue":
            self._follow_lists(done)
        self.acts[command] = before

    def _follow_lists(self, names: Collection[str]) -> None:
        """Let the map tasks run again whose lists are made again."""
        for name, task in self.tasks.items():
            if task.over in names and task.identity is None and name not in names:
                task.is_list_remade = self.states[name] == RUNNING
                if self.states[name] in _FOLLOWING:
                    task.own, task.failures = None, 0
                if any(parent.startswith(f"{name}[") for parent in task.parents) or self.states[name] in _FOLLOWING:
                    self._follow_lists([name])

    def _is_gone(self, name: str) -> bool:
        """Whether a child of a map task is of an element that the list has no more."""
        return self.tasks[name].identity is not None and name not in self.tasks[name.rpartition("[")[0]].parents

    def _check_answer(self, act: str, name: str, outcome: str) -> None:
        task, state = self.tasks[name], self.states[name]
        if act == "cancel" and state == RUNNING:
            task.is_cancel_requested = True
            _require(outcome == "running", f"cancel of the running {name} is {outcome}")
            return
        if act == "requeue" and state == UPSTREAM_FAILED:
            return  # it comes back with its cause, or not at all
        refused = (
            (act == "requeue" and self._is_gone(name))
            or state not in ACTS[act]
            or (act in ("approve", "reject") and not self.is_approval(name))
        )
        if act == "skip" and outcome == "refused" and self._is_mapped_over(name):
            return  # its list is required
        _require((outcome == "refused") == refused, f"{act} of {name}, which is {state}, is {outcome}")

    def _is_mapped_over(self, name: str) -> bool:
        return any(task.script.over == name for task in self.tasks.values())

    def _apply(self, act: str, task: _Task, state: str) -> None:
        if act == "requeue" and state != UPSTREAM_FAILED:
            task.own, task.failures = None, 0
        elif act in ("approve", "reject"):
            task.own = SUCCESS if act == "approve" else FAILED
        elif act == "skip":
            task.own = BY_OPERATOR
        elif act == "cancel":
            task.own = CANCELLED

    def undo(self, command: str, undone: str, restored: Collection[str]) -> None:
        """Let an operator take back the act ``undone``; ``restored``: the tasks of which the engine says so."""
        now = {name: (task.own, task.failures) for name, task in self.tasks.items()}
        before = self.acts[undone]
        for name in restored:
            self.tasks[name].own, self.tasks[name].failures = before.get(name, (None, 0))
        self.acts[command] = now

    def _run_below_again(self, names: Collection[str]) -> list[str]:
        """Let the successes run again below tasks that do; what has ended otherwise stays, and what is below it too."""
        found, again, queue = set(names), list[str](), list(names)
        while queue:
            above = queue.pop()
            for name, task in self.tasks.items():
                is_success = task.own == SUCCESS and not self._is_gone(name)
                if above in task.parents and name not in found and (is_success or task.own is None):
                    if is_success:
                        task.own, task.failures = None, 0
                        again.append(name)
                    found.add(name)
                    queue.append(name)
        return again

    # --- Checks ----------------------------------------------------------------------------------------------------

    def check(self, states: Mapping[str, str]) -> None:
        """Check the states of all tasks after a change."""
        _require(states.keys() == self.tasks.keys(), f"the tasks are {sorted(states)}, not {sorted(self.tasks)}")
        self.states = dict(states)
        for name, task in self.tasks.items():
            if task.may_run_again and states[name] != SUCCESS:
                task.own, task.failures = None, 0
            task.may_run_again = False
            allowed = self._allowed(task)
            above = {parent: states[parent] for parent in task.parents}
            found = f"{name} ({task.script.rule}) is {states[name]}, not {' or '.join(sorted(allowed))}, below {above}"
            _require(states[name] in allowed, found)

    def _allowed(self, task: _Task) -> frozenset[str]:
        if task.is_running:
            return frozenset([RUNNING])
        if task.own is not None:
            return frozenset([task.own])
        above = [(rule, self.states[parent]) for parent, rule in _rules_of(task)]
        derived = _derived(above)
        if derived is not None:
            return frozenset([derived])
        is_met = all(state in _ALLOWS[rule] for rule, state in above)
        return MOVING - {RUNNING} if is_met else frozenset([PENDING])

    def check_rest(self, run_state: str) -> None:
        """Check a run in which nothing runs and nothing can start. ``run_state``: BLOCKED, or how it ended."""
        asked = self.asked()
        dead = [name for name, state in self.states.items() if state == DEAD_LETTER] + asked
        for name, state in self.states.items():
            if state in MOVING and name not in asked:
                above = self.tasks[name].parents
                waits = any(self.states[parent] in MOVING or self.states[parent] == DEAD_LETTER for parent in above)
                _require(
                    waits, f"{name} is {state} for ever: {[f'{parent} {self.states[parent]}' for parent in above]}"
                )
                _require(bool(dead), f"{name} is {state}, and no human is told")
        expected = "BLOCKED" if dead else self._end()
        _require(run_state == expected, f"the run is {run_state}, not {expected}: {self.states}")

    def _end(self) -> str:
        bad = [task for name, task in self.tasks.items() if self.states[name] in _BAD]
        if any(not task.script.optional for task in bad):
            return "FAILED"
        return "PARTIAL" if bad or BY_OPERATOR in self.states.values() else "SUCCESS"


_ENDS = {"ok": SUCCESS, "skip": BY_BRANCH, "permanent": DEAD_LETTER}


def _rules_of(task: _Task) -> list[tuple[str, str]]:
    """Return by which rule each parent counts (manual, page flow)."""
    return [(parent, _rule_of(task, parent)) for parent in task.parents]


def _rule_of(task: _Task, parent: str) -> str:
    script = task.script
    if parent == task.over:  # nothing can be done without the list
        return "all_success_strict" if script.rule == "all_success_strict" else "all_success"
    if script.over is None or not parent.startswith(f"{script.name}["):
        return script.rule
    collect = script.collect or script.rule
    return {"all_done": "all_done", "all_success_strict": "collect_strict"}.get(collect, "collect")


def _derived(parents: Sequence[tuple[str, str]]) -> str | None:
    """Return the state that the parents force on a task that has not ended; None: it may start, or waits."""
    if any(state in (_BAD | _STOPS.get(rule, frozenset())) and rule != "all_done" for rule, state in parents):
        return UPSTREAM_FAILED
    if any(state in MOVING | {DEAD_LETTER} for _, state in parents):
        return None
    of_map = [state for rule, state in parents if rule.startswith("collect")]
    others = [(rule, state) for rule, state in parents if not rule.startswith("collect")]
    if any(state == BY_BRANCH and rule.startswith("all_success") for rule, state in others):
        return BY_BRANCH
    no_branch = bool(others) and all((rule, state) == ("none_failed", BY_BRANCH) for rule, state in others)
    return BY_BRANCH if no_branch or (of_map and set(of_map) == {BY_BRANCH}) else None


_STOPS = {rule: frozenset([BY_OPERATOR]) for rule in ("all_success_strict", "collect_strict")}


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Difference(what)
