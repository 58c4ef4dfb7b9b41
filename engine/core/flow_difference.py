"""Compare a run with the current flow, and decide what may be done about the difference without asking.

    task of the run             in the flow now          then
    ------------------------    ---------------------    ------------------------------------------------------------
    not there                   defined                  added
    unfinished                  other options, code      changed: the current definition applies
    unfinished, of exec         other command            replaced: it is another job, or day; needs an operator's word
    finished                    other work or parents    outdated: its result stays; needs an operator's word
    finished                    other options            nothing: its attempts are over
    finished child of a map     other code               nothing, while another child of it is unfinished
    finished, has a result      gone                     removed: stays an input of the tasks that came after it
    stopped or failed           gone                     removed: nothing can run it any more, so it is skipped
    moving, or a dead letter    gone                     unfinished: it would be skipped; needs an operator's word

An executor that runs loads changed code only if it finds none of the last three, and leaves added tasks to the next
start (``load_refusal``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from ..domain.states import OPEN, TaskState
from ..domain.text import first_names
from .projection import RunProjection, TaskRow
from .ready_queue import spec_of
from .spec import EXEC_SUFFIX, FlowSpec, TaskSpec, child_spec, work_of

NAMES_SHOWN = 5


class FlowDifference(msgspec.Struct, frozen=True):
    """Names of tasks by what happened to them, in the order of the flow or of the run.

    ``renamed``: pairs of a removed and an added task with the same code, which no other task has.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    replaced: tuple[str, ...] = ()  # unfinished commands of ``redrive exec``, which has another one since; ``changed``
    moved: tuple[str, ...] = ()  # unfinished tasks whose parents changed; they are among ``changed``

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.outdated or self.removed or self.unfinished)

    @property
    def needs_acceptance(self) -> bool:
        """Whether an operator must accept it, because work of the run would be lost or is invalid."""
        return bool(self.outdated or self.unfinished or self.replaced)


def with_children(flow: FlowSpec, run: RunProjection) -> FlowSpec:
    """Return the flow with the children that its map tasks have in a run, which are known as when the run began."""
    tasks = tuple(_as_begun(task, run.tasks.get(task.name)) for task in flow.tasks)
    maps = {task.name: task for task in tasks if task.map is not None}
    items = [(name, row.spec.item) for name, row in run.tasks.items() if row.spec and row.spec.item is not None]
    children = tuple(child_spec(maps[item.task], name, item.index) for name, item in items if item.task in maps)
    return replace(flow, tasks=tasks + children)


def _as_begun(task: TaskSpec, row: TaskRow | None) -> TaskSpec:
    if task.map is None or row is None or row.spec is None or row.spec.map is None:
        return task
    return replace(task, map=replace(task.map, identity=row.spec.map.identity))


def compare(run: RunProjection, flow: FlowSpec, run_again: Collection[str] = ()) -> FlowDifference:
    """``run_again``: tasks that an act lets run again before the flow is used; none of them counts as finished."""
    flow = with_children(flow, run)
    finished = {row.name for row in run.tasks.values() if row.state is TaskState.SUCCESS}.difference(run_again)
    specs = {spec.name: spec for spec in flow.tasks}
    gone = [row for name, row in run.tasks.items() if name not in specs]
    known = [(row, spec) for name, spec in specs.items() if (row := run.tasks.get(name)) is not None]
    added = tuple(name for name in specs if name not in run.tasks)
    changed = [(row, spec) for row, spec in known if row.name not in finished and has_changed(row, spec)]
    open_maps = {task for row in run.tasks.values() if row.state in OPEN and (task := _map_of(row)) is not None}
    of_finished = [
        (row, replace(spec, code=None) if _map_of(row) in open_maps else spec)
        for row, spec in known
        if row.name in finished
    ]
    return FlowDifference(
        added=added,
        changed=tuple(row.name for row, _ in changed),
        outdated=tuple(row.name for row, spec in of_finished if is_outdated(row, spec)),
        removed=tuple(row.name for row in gone if row.state not in OPEN | {TaskState.SKIPPED}),
        unfinished=tuple(row.name for row in gone if row.state in OPEN),
        renamed=_renamed(gone, [specs[name] for name in added]),
        replaced=tuple(
            row.name for row, spec in changed if (flow.path or "").endswith(EXEC_SUFFIX) and is_outdated(row, spec)
        ),
        moved=tuple(row.name for row, spec in changed if spec_of(row).parents != spec.parents),
    )


def has_changed(row: TaskRow, spec: TaskSpec) -> bool:
    """Whether the definition of a task differs; its line in the file does not count."""
    return _differ(spec_of(row), spec)


def _differ(known: TaskSpec, spec: TaskSpec) -> bool:
    return _without_place(known) != _without_place(spec) or _other_code(work_of(known), work_of(spec))


def is_outdated(row: TaskRow, spec: TaskSpec) -> bool:
    """Whether a finished task would do other work now, or get other inputs."""
    known = spec_of(row)
    work = (known.kind, known.command, known.parents) != (spec.kind, spec.command, spec.parents)
    return work or _other_code(known, spec)


def _map_of(row: TaskRow) -> str | None:
    """The map task of a child; None for any other task."""
    return None if row.spec is None or row.spec.item is None else row.spec.item.task


def _without_place(spec: TaskSpec) -> TaskSpec:
    own = None if spec.map is None else replace(spec.map, child=_without_place(spec.map.child))
    return replace(spec, source=None, code=None, map=own)


def is_still_input(row: TaskRow) -> bool:
    """Whether a task that the flow no longer defines has a result, which its children still get."""
    return row.state is TaskState.SUCCESS or row.result is not None


def _other_code(known: TaskSpec, spec: TaskSpec) -> bool:
    """Compare digests of the same version of Python; another version compiles the same text to other code."""
    if known.code is None or spec.code is None or known.code.partition(":")[0] != spec.code.partition(":")[0]:
        return False
    return known.code != spec.code


def _renamed(gone: Iterable[TaskRow], added: Iterable[TaskSpec]) -> tuple[tuple[str, str], ...]:
    old = _by_work((spec_of(row).code or spec_of(row).command, row.name) for row in gone)
    new = _by_work((spec.code or spec.command, spec.name) for spec in added)
    pairs = ((old[work], new[work]) for work in old if work in new)
    return tuple((before[0], after[0]) for before, after in pairs if len(before) == len(after) == 1)


def _by_work(tasks: Iterable[tuple[str | None, str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for work, name in tasks:
        if work is not None:
            found.setdefault(work, []).append(name)
    return found


# --- In words ---------------------------------------------------------------------------------------------------------


def describe(difference: FlowDifference) -> Iterator[str]:
    """Yield one sentence for each kind of difference, with a bounded number of names."""
    found = {
        "added": difference.added,
        "changed, the current definition applies": difference.changed,
        "removed, a result stays an input of the tasks after it": difference.removed,
        "apparently renamed; a renamed task runs again": [f"{old} is {new} now" for old, new in difference.renamed],
        "finished with another definition, its result stays": difference.outdated,
        "removed before it finished, skipped": difference.unfinished,
    }
    yield from (f"{what}: {join_names(names)}" for what, names in found.items() if names)


def refusal(run_id: str, difference: FlowDifference) -> str:
    """Return why a run is not resumed without an operator's word, and what to do."""
    reasons = []
    if difference.replaced:
        return (
            f"run {run_id!r} had another command than {join_names(difference.replaced)} has since: start that one again"
            " by redrive exec; or resume with --accept-changes, which runs the later one in its place"
        )
    if difference.unfinished:
        reasons.append(f"still has to do {join_names(difference.unfinished)}, which the flow no longer defines")
    if difference.outdated:
        reasons.append(f"has finished {join_names(difference.outdated)} with another definition than the flow has now")
    return (
        f"run {run_id!r} {', and '.join(reasons)}; bring it back, or resume with --accept-changes: tasks that are gone"
        " are skipped, results of finished tasks stay (requeue them to run them again)"
    )


def load_refusal(difference: FlowDifference) -> str | None:
    """Return why a living executor cannot go on with this flow; None if it can."""
    if difference.unfinished or difference.removed:
        return f"it no longer defines {join_names(difference.unfinished + difference.removed)}"
    if difference.moved:
        return f"other tasks come before {join_names(difference.moved)}"
    return None


def other_import(flow: FlowSpec, other: FlowSpec) -> str:
    """Return how the same source files became another flow in other surroundings; empty if they did not."""
    found = {task.name: task for task in other.tasks}
    missing = [task.name for task in flow.tasks if task.name not in found]
    if missing:
        return f"it lacks {join_names(missing)}"
    changed = [task.name for task in flow.tasks if _differ(task, found[task.name])]
    return f"other options or code: {join_names(changed)}" if changed else ""


def join_names(found: Iterable[str]) -> str:
    """Join names, a bounded number of them."""
    return first_names(list(found), NAMES_SHOWN)
