"""The plan of one night, drawn from a seed: a flow, what its attempts do, and what happens to the executor.

What an attempt does depends on the seed, its task and its number alone, so that a plan with fewer tasks or acts is
still the same night.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, ScheduleSpec, TaskSpec, map_task

START_US = 1_790_000_000_000_000  # 2026-09-21 in microseconds UTC
LATER_STARTS_US = (2_147_483_617_000_000, 4_102_444_770_000_000)  # half a minute before 2**31 seconds, and before 2100

TEMPERS: dict[str, dict[str, int]] = {
    # what attempts do -> weight
    "fine": {"success": 1},
    "flaky": {"success": 5, "transient": 3, "unclassified": 2, "lost": 1, "not started": 1, "killed": 1},
    "broken": {
        "same failure": 6,
        "same as its siblings": 4,
        "permanent": 1,
        "auth": 1,
        "validation": 1,
        "ambiguous": 2,
        "oom": 2,
        "transient": 3,
    },
    "slow": {"success": 2, "hang": 5, "slow success": 3, "transient": 1},
    "branch": {"success": 2, "skip": 3, "transient": 1},
    "sensor": {"defer": 6, "success": 2, "transient": 1, "hang": 1},
}
ACTS = {
    "requeue": 8,
    "skip": 5,
    "cancel": 5,
    "undo": 4,
    "pause": 2,
    "unpause": 3,
    "extend": 3,
    "hurry": 3,
    "breaker": 4,
    "abandon": 1,
    "zygote dies": 2,
    "ack": 1,
    "stop": 1,
}
LIST_MAX = 4  # elements of a list that is mapped over
OTHER_ACTS = ("ack", "snooze", "note", "requeue-rows", "discard-rows", "reload")
HEARTBEATS = (1.0, 5.0, 20.0)  # seconds
BREAKER_HOWS = ("open", "close", "probe", "disable")


class PlannedAct(msgspec.Struct, frozen=True):
    """One act of an operator; its targets are chosen when it happens. ``number``: its place in the full plan."""

    number: int
    at: float  # seconds of the night
    act: str


class Plan(msgspec.Struct, frozen=True):
    """One night. ``crashes``: (number of the commit, whether it was committed)."""

    seed: int
    flow: FlowSpec
    tempers: dict[str, str]
    acts: tuple[PlannedAct, ...] = ()
    crashes: tuple[tuple[int, bool], ...] = ()
    refusals: tuple[int, ...] = ()
    clock_steps: tuple[tuple[float, float], ...] = ()  # (at, seconds)
    stays: bool = True
    max_parallel: int = 4
    logical_time: int | None = None  # of a night that a schedule starts
    start_us: int = START_US
    heartbeat_seconds: float = 1.0  # what the loop does by an event must not wait for its heartbeat

    def behaviour(self, task: str, attempt: int) -> tuple[str, random.Random]:
        """Return what an attempt does, and the dice for its details."""
        dice = random.Random(f"{self.seed}:{task}:{attempt}")
        weights = TEMPERS[self.tempers.get(task.partition("[")[0], "fine")]
        if any(spec.name == task and spec.map is not None for spec in self.flow.tasks):
            weights = TEMPERS["fine"]  # it only collects the results of its children
        return dice.choices(list(weights), list(weights.values()))[0], dice

    def is_mapped_over(self, task: str) -> bool:
        """Whether a task returns the list of a map task."""
        return any(spec.map is not None and spec.map.over == task for spec in self.flow.tasks)

    def without_tasks(self, names: Collection[str]) -> Plan:
        """Return the plan of a flow without some tasks; their children lose a parent, map tasks go with the list."""
        gone = set(names) | {task.name for task in self.flow.tasks if task.map is not None and task.map.over in names}
        tasks = tuple(_without_parents(task, gone) for task in self.flow.tasks if task.name not in gone)
        return replace(self, flow=replace(self.flow, tasks=tasks))


def draw_plan(seed: int, *, heartbeats: Sequence[float] = HEARTBEATS, other_acts: float = 0.15) -> Plan:
    """Draw the plan of a seed. ``other_acts``: the share of OTHER_ACTS; without them, seeds keep their old nights."""
    plan, dice = _draw_whole_plan(seed), random.Random(f"{seed}:heartbeat")
    heartbeat_seconds = dice.choice(heartbeats)
    acts = tuple(replace(act, act=dice.choice(OTHER_ACTS)) if dice.random() < other_acts else act for act in plan.acts)
    if plan.flow.deadline_seconds is not None:
        acts = tuple(_postponed(seed, act) for act in acts)
    return replace(plan, heartbeat_seconds=heartbeat_seconds, acts=acts)


def _postponed(seed: int, act: PlannedAct) -> PlannedAct:
    """Return the act, or one that gives the run another deadline."""
    dice = random.Random(f"{seed}:postpone:{act.number}")
    return replace(act, act="postpone") if dice.random() < 0.15 else act


def _draw_whole_plan(seed: int) -> Plan:
    plan, dice = _draw_plain_plan(seed), random.Random(f"{seed}:more")
    if dice.random() < 0.25:
        plan = _with_map_task(plan, dice)
    if dice.random() < 0.2:
        plan = replace(plan, start_us=dice.choice(LATER_STARTS_US))
    if dice.random() < 0.15:
        logical_time = plan.start_us // 60_000_000 * 60_000_000
        plan = replace(plan, flow=replace(plan.flow, schedule=ScheduleSpec("* * * * *")), logical_time=logical_time)
    groups = tuple(replace(task, group=dice.choice((None, "g", "g.h"))) for task in plan.flow.tasks)
    return replace(plan, flow=replace(plan.flow, tasks=groups))


def _with_map_task(plan: Plan, dice: random.Random) -> Plan:
    """Return the plan with a task that maps over the list of another one, and with a task below it."""
    names = [task.name for task in plan.flow.tasks if task.kind != "sensor"]
    if not names:
        return plan
    over, temper = dice.choice(names), dice.choices(list(TEMPERS), (6, 6, 3, 2, 1, 0))[0]
    child = _task(dice, "m", names, temper, dict(plan.flow.pools), plan.flow.downstreams)
    child = replace(child, parents=tuple(dict.fromkeys((over, *child.parents))), kind="python", command=None)
    below = TaskSpec("n", ("m",), rule=dice.choice(("all_success", "none_failed", "all_done")))
    tasks = (*plan.flow.tasks, map_task(child, over, LIST_MAX), below)
    return replace(plan, flow=replace(plan.flow, tasks=tasks), tempers={**plan.tempers, "m": temper, "n": "flaky"})


def _without_parents(task: TaskSpec, names: Collection[str]) -> TaskSpec:
    parents = tuple(parent for parent in task.parents if parent not in names)
    mapping = task.map and replace(task.map, child=_without_parents(task.map.child, names))
    return replace(task, parents=parents, map=mapping)


def _draw_plain_plan(seed: int) -> Plan:
    dice = random.Random(seed)
    pools = {f"pool{number}": dice.randint(1, 3) for number in range(dice.choice((0, 0, 1, 2)))}
    downstreams = tuple(_downstream(dice, number) for number in range(dice.choice((0, 1, 1, 2))))
    tempers: dict[str, str] = {}
    tasks: list[TaskSpec] = []
    for number in range(dice.choice((1, 2, 3, 4, 5, 6, 8, 10, 14, 20))):
        temper = dice.choices(list(TEMPERS), (6, 6, 3, 2, 1, 2))[0]
        task = _task(dice, f"t{number}", [task.name for task in tasks], temper, pools, downstreams)
        tempers[task.name] = temper
        tasks.append(task)
    flow = FlowSpec(
        "night",
        tuple(tasks),
        deadline_seconds=dice.choice((None, None, None, 60.0, 600.0)),
        dead_letter_ttl=dice.choice((None, None, 120.0)),
        pools=pools,
        downstreams=downstreams,
        path="night.py",
        code_hash="night",
    )
    length = dice.choice((20.0, 60.0, 300.0))
    acts = sorted(dice.uniform(0, length) for _ in range(dice.choice((0, 0, 1, 2, 4, 8, 16))))
    for place in range(1, len(acts)):
        acts[place] = acts[place - 1] + 0.001 if dice.random() < 0.2 else acts[place]  # two operators at once
    acts.sort()
    kinds = dice.choices(list(ACTS), list(ACTS.values()), k=len(acts))
    return Plan(
        seed,
        flow,
        tempers,
        tuple(PlannedAct(number, at, kind) for number, (at, kind) in enumerate(zip(acts, kinds, strict=True))),
        crashes=tuple((dice.randint(1, 60), dice.random() < 0.5) for _ in range(dice.choice((0, 0, 1, 1, 2, 4)))),
        refusals=_refusals(dice),
        clock_steps=tuple(
            (dice.uniform(0, length), dice.choice((-86_400.0, -3600.0, -30.0, 30.0, 3600.0, 86_400.0)))
            for _ in range(dice.choice((0, 0, 0, 0, 1, 2)))
        ),
        stays=dice.random() < 0.6,
        max_parallel=dice.choice((1, 2, 4, 8)),
    )


def _refusals(dice: random.Random) -> tuple[int, ...]:
    if dice.random() < 0.85:
        return ()
    first = dice.randint(2, 40)
    return tuple(range(first, first + dice.choice((1, 3, 6))))


def _downstream(dice: random.Random, number: int) -> DownstreamSpec:
    return DownstreamSpec(
        f"system{number}",
        minimum_calls=dice.choice((2, 3, 5)),
        open_seconds=dice.choice((5.0, 30.0)),
        probes=dice.choice((1, 1, 2)),
        on_open=dice.choice(("hold", "hold", "hold", "fail", "dead_letter")),
        release_per_second=dice.choice((0.0, 1.0, 5.0)),
        bucket_capacity=dice.choice((0.0, 1.0, 10.0)),
        metrics_only=dice.random() < 0.1,
    )


def _task(
    dice: random.Random,
    name: str,
    earlier: list[str],
    temper: str,
    pools: dict[str, int],
    downstreams: tuple[DownstreamSpec, ...],
) -> TaskSpec:
    is_sensor = temper == "sensor"
    is_effect = not is_sensor and dice.random() < 0.1
    pool = dice.choice((None, *pools))
    options: dict[str, Any] = {
        "parents": tuple(sorted(dice.sample(earlier, min(len(earlier), dice.choice((0, 1, 1, 2, 3)))))),
        "kind": "sensor" if is_sensor else dice.choice(("python", "python", "command")),
        "timeout": dice.choice((2.0, 10.0, 30.0)) if temper in ("slow", "sensor") else dice.choice((None, 60.0)),
        "grace_seconds": dice.choice((0.0, 1.0, 5.0)),
        "downstream": dice.choice((None, *(spec.name for spec in downstreams))),
        "pool": pool,
        "pool_slots": 1 if pool is None else dice.randint(1, pools[pool]),
        "effect": is_effect,
        "idempotent": not is_effect and dice.random() > 0.05,
        "optional": dice.random() < 0.2,
        "recheck_seconds": dice.choice((1.0, 10.0)),
        "rule": dice.choice(("all_success", "all_success", "all_success_strict", "none_failed", "all_done")),
        "retry": RetryPolicy(
            max_attempts=dice.choice((1, 2, 3, 5)),
            base=dice.choice((0.0, 1.0, 5.0)),
            cap=30.0,
            jitter=dice.choice(("none", "full", "equal", "decorrelated", "add50")),
            max_elapsed=120.0 if is_sensor else dice.choice((None, None, 20.0)),
            poison_after=dice.choice(("evidence", "evidence", None, 0, 2, 3)),
            poison_seconds=dice.choice((0.0, 5.0, 60.0)),
        ),
    }
    if options["kind"] == "command":
        options["command"] = "true"
    return TaskSpec(name, **options)
