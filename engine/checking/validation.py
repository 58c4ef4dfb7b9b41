"""What cannot be a task, in one sentence each that says what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from ..core.policy import RetryPolicy
from ..core.spec import Isolation
from ..errors import FlowError

if TYPE_CHECKING:
    from ..flow import TaskDef

RULES = ("all_success", "all_success_strict", "none_failed", "all_done")


def check_task(task: TaskDef, pools: Mapping[str, int]) -> None:
    """Raise FlowError for what cannot be a task. ``pools``: the slots of each."""

    def refuse(why: str) -> None:
        raise FlowError(f"task {task.name!r}: {why}")

    if not isinstance(task.name, str) or not task.name:
        refuse("a task's name is a text that is not empty")
    if "\0" in task.name or not is_text(task.name):
        refuse("a task's name holds no NUL character and no half of a character")
    if task.kind != "command" and not callable(task.fn):
        refuse(f"its function is {task.fn!r}, which cannot be called")
    if task.timeout_seconds is not None and not task.timeout_seconds > 0:
        refuse(f"its timeout is {task.timeout_seconds!r}; give seconds above 0, or None for no deadline")
    if not task.grace_seconds >= 0:
        refuse(f"its grace_seconds is {task.grace_seconds!r}; give 0 or more")
    if task.retry is not None and not isinstance(task.retry, RetryPolicy):
        starts = task.retry if isinstance(task.retry, int) else 3
        refuse(f"its retry is {task.retry!r}; write retry=RetryPolicy(max_attempts={starts}), or max_attempts={starts}")
    if task.kind == "sensor" and not task.recheck_seconds > 0:
        refuse("its every is 0: give the seconds that it waits between two looks")
    if task.isolation not in get_args(Isolation):
        refuse(f"its isolation is {task.isolation!r}; choose 'process', 'thread' or 'dask'")
    if task.isolation == "thread" and task.kind == "command":
        refuse("a command cannot run in a thread")
    if task.rule not in RULES:
        refuse(f"its rule is {task.rule!r}; choose one of {', '.join(RULES)}")
    if task.pool is not None and task.pool not in pools:
        refuse(f"its pool {task.pool!r} is not declared; add it to Flow(pools={{{task.pool!r}: 2}})")
    if task.pool is not None and not 1 <= task.pool_slots <= pools[task.pool]:
        refuse(f"it wants {task.pool_slots} slots of pool {task.pool!r}, which has {pools[task.pool]}")
    if task.max_active is not None and task.max_active < 1:
        refuse(f"its max_active is {task.max_active!r}; give 1 or more, or None")


def is_text(value: str) -> bool:
    """False for what is empty or holds lone surrogates, as bytes from a command line that are no UTF-8."""
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False
