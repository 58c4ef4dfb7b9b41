"""redrive's engine: a durable DAG executor. It knows nothing of screens.

    from redrive.engine import Flow, RetryPolicy

    flow = Flow("revenue", deadline="3h")

    @flow.task(retry=RetryPolicy(max_attempts=5), timeout=30)
    def extract_payments(): ...

The block form of ``retry`` is ``from redrive.engine.retrying import retrying``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .context import Context, Missing
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
    from .buffer import SendBuffer
    from .core.classify import classify_http
    from .credentials import Credential
    from .executor.loop import Executor, RunOptions, RunResult
    from .retrying import backoff_delay, full_jitter, retry, retry_transient
    from .runner.once import run_with_timeout

__all__ = [
    "AmbiguousError",
    "AuthError",
    "Context",
    "Credential",
    "CycleError",
    "Executor",
    "ExecutorBusyError",
    "Flow",
    "FlowError",
    "FlowImportError",
    "Missing",
    "NotReady",
    "PermanentError",
    "RedriveError",
    "RetryAfter",
    "RetryPolicy",
    "RunOptions",
    "RunResult",
    "SendBuffer",
    "SkipTask",
    "StateFileError",
    "TaskDef",
    "TaskError",
    "TaskTerminated",
    "TransientError",
    "backoff_delay",
    "classify_http",
    "from_tenacity",
    "full_jitter",
    "retry",
    "retry_transient",
    "run_with_timeout",
]

#: Imported where they are asked for: the process that forks attempts stays small without them.
_LATER = {
    "Credential": "credentials",
    "Executor": "executor.loop",
    "RunOptions": "executor.opening",
    "RunResult": "executor.loop",
    "SendBuffer": "buffer",
    "backoff_delay": "retrying",
    "classify_http": "core.classify",
    "from_tenacity": "core.tenacity",
    "full_jitter": "retrying",
    "retry": "retrying",
    "retry_transient": "retrying",
    "run_with_timeout": "runner.once",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
