"""Random flows of scripted tasks, and the same flows for the real executor."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from redrive.engine import Flow, NotReady, PermanentError, RetryPolicy, SkipTask, TaskDef, TransientError
from redrive.engine.errors import AmbiguousError, AuthError

from .model import ScriptedTask

TIMEOUT_SECONDS = 0.5  # of tasks that hang
_SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("ok",),
    ("ok",),
    ("ok",),
    ("skip",),
    ("transient", "ok"),
    ("transient", "transient", "ok"),
    ("transient",),
    ("same",),
    ("same", "ok"),
    ("same", "other", "same", "ok"),
    ("bug",),
    ("bug", "ok"),
    ("bug", "other", "bug", "ok"),
    ("other",),
    ("other", "transient", "ok"),
    ("ambiguous", "other", "ok"),
    ("ambiguous",),
    ("transient", "permanent"),
    ("permanent",),
    ("auth",),
    ("hang",),
    ("hang", "ok"),
)


def draw_flow(seed: int) -> list[ScriptedTask]:
    """Draw the tasks of a flow."""
    dice = random.Random(seed)
    tasks: list[ScriptedTask] = []
    for number in range(dice.randint(2, 8)):
        earlier = [task.name for task in tasks]
        script = dice.choice(_SCRIPTS)
        if dice.random() < 0.1:
            script = ("wait", *script, *(("ok",) if script[-1] == "transient" else ()))  # else it waits for ever
        tasks.append(
            ScriptedTask(
                f"t{number}",
                script,
                tuple(sorted(dice.sample(earlier, min(len(earlier), dice.choice((0, 1, 1, 2, 3)))))),
                rule=dice.choice(("all_success", "all_success", "all_success_strict", "none_failed", "all_done")),
                max_attempts=dice.choice((1, 2, 3, 4)),
                poison_after=dice.choice(("evidence", "evidence", "evidence", None, 0, 1, 2, 3)),
                ambiguous_attempts=dice.choice((2, 3)),
                idempotent=dice.random() > 0.1,
                optional=dice.random() < 0.25,
            )
        )
    return tasks


def real_flow(seed: int, tasks: list[ScriptedTask]) -> Flow:
    """Return the flow for the executor."""
    dice = random.Random(f"{seed}:flow")
    flow = Flow(f"reference{seed}", max_parallel=dice.choice((1, 2, 4)))
    for task in tasks:
        is_sensor, hangs = "wait" in task.script, "hang" in task.script
        flow.add(
            TaskDef(
                task.name,
                _body(task),
                list(task.parents),
                rule=task.rule,  # type: ignore[arg-type]
                kind="sensor" if is_sensor else "python",
                recheck_seconds=0.1,
                isolation="process" if hangs else dice.choice(("process", "thread")),
                timeout_seconds=TIMEOUT_SECONDS if hangs else 60,
                grace_seconds=0.1,
                optional=task.optional,
                idempotent=task.idempotent,
                retry=RetryPolicy(
                    max_attempts=task.max_attempts,
                    base=0.01,
                    cap=0.02,
                    poison_after=task.poison_after,  # type: ignore[arg-type]
                    ambiguous_attempts=task.ambiguous_attempts,
                ),
            )
        )
    return flow


def _body(task: ScriptedTask) -> Callable[..., Any]:
    def body(ctx: Any) -> str:
        does = task.script[min(ctx.attempt, len(task.script)) - 1]
        if does == "same":
            raise type("Trouble", (Exception,), {})("each time the same")
        if does == "bug":
            raise type(f"Bug{task.name}", (ZeroDivisionError,), {})("each time the same")  # no sibling has the same
        if does == "other":
            raise type(f"Trouble{ctx.attempt}", (Exception,), {})("each time another")
        if does == "wait":
            raise NotReady("not yet")
        if does in _ERRORS:
            raise _ERRORS[does]("as scripted")
        if does == "hang":
            time.sleep(3600)
        return does

    return body


_ERRORS: dict[str, type[BaseException]] = {
    "skip": SkipTask,
    "transient": TransientError,
    "permanent": PermanentError,
    "auth": AuthError,
    "ambiguous": AmbiguousError,
}
