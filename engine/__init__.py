"""redrive's engine: a durable DAG executor. It knows nothing of screens.

from redrive.engine import Flow, RetryPolicy

flow = Flow("revenue", deadline="3h")

@flow.task(retry=RetryPolicy(max_attempts=5), timeout=30)
def extract_payments(): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .context import Context
from .core.policy import RetryPolicy
from .errors import (
    AmbiguousError,
    AuthError,
    CycleError,
    ExecutorBusyError,
    FlowError,
    FlowImportError,
    NotReady,
    PermanentError,
    RedriveError,
    RetryAfter,
    SkipTask,
    StateFileError,
    TaskError,
    TaskTerminated,
    TransientError,
)
from .flow import Flow, TaskDef

if TYPE_CHECKING:
    from .executor import Executor, RunOptions, RunResult

__all__ = [
    "AmbiguousError",
    "AuthError",
    "Context",
    "CycleError",
    "Executor",
    "ExecutorBusyError",
    "Flow",
    "FlowError",
    "FlowImportError",
    "NotReady",
    "PermanentError",
    "RedriveError",
    "RetryAfter",
    "RetryPolicy",
    "RunOptions",
    "RunResult",
    "SkipTask",
    "StateFileError",
    "TaskDef",
    "TaskError",
    "TaskTerminated",
    "TransientError",
]

_EXECUTOR_WORDS = frozenset(["Executor", "RunOptions", "RunResult"])


def __getattr__(name: str) -> Any:
    """Import the executor only where it is asked for: the process that forks attempts stays small without it."""
    if name in _EXECUTOR_WORDS:
        from . import executor

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
