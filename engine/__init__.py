"""A durable executor for DAGs of tasks: define a flow, run it, and find its history in one SQLite file.

>>> from redrive.engine import Executor, Flow, RetryPolicy
>>> flow = Flow("revenue", deadline="3h")
>>> @flow.task(retry=RetryPolicy(max_attempts=5), timeout=30)
... def extract():
...     return {"rows": 42}
>>> @flow.task(after=extract, timeout="10m")
... def load(extract):
...     print(extract["rows"], "rows loaded")
>>> Executor(flow=flow).run()
'SUCCESS'

The same flow in a file is run by ``redrive run revenue.py`` and checked by ``redrive check revenue.py``.

To write a flow:
    Flow, TaskDef           the tasks, their order and their common options; one task as a value
    after                   a schedule: once a day, after other flows
    Param                   a parameter of the flow with its type and its choices
    RetryPolicy             how often a task is started, and after which waits
    Context, Missing        what a running task can read and report (``ctx``); stands for the result of a failed parent

To run one from Python:
    Executor                runs one run of a flow
    RunOptions, RunResult   how to run it; how it ended
    run_with_timeout        one function in a process of its own, without a flow

What a task can raise to classify its failure:
    TransientError          may heal: retried; RetryAfter: retried after the given seconds at the earliest
    PermanentError          cannot heal: a dead letter; AuthError: the credential is refused
    AmbiguousError          unknown: few retries; classify_http returns the right error for an HTTP status
    NotReady, SkipTask      no failures: a sensor is called again later; the task is skipped
    TaskError               the base of these; TaskTerminated: SIGTERM has arrived, ``finally`` blocks run

What goes wrong around a run (RedriveError is the base):
    FlowError               the flow cannot be run; CycleError, FlowImportError: why
    StateFileError          the state file cannot be used; ExecutorBusyError: another executor owns it

To retry inside a task, and to talk to other systems:
    retry, retry_transient  decorators; the block form is redrive.engine.toolkit.retry.retrying
    backoff_delay           one wait in seconds; full_jitter: a random part of a wait
    Credential              a credential that is refreshed once for all tasks when it is refused
    SendBuffer              many small items, few calls; its settings are in redrive.engine.toolkit.send_buffer
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.failures.classify import classify_http
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
    from .executor.executor import Executor
    from .executor.run_end import RunResult
    from .executor.run_options import RunOptions
    from .flow.flow import Flow, after
    from .flow.options import Param
    from .flow.task_def import TaskDef
    from .runner.context import Context, Missing
    from .toolkit.credentials import Credential
    from .toolkit.retry import backoff_delay, full_jitter, retry, retry_transient
    from .toolkit.run_with_timeout import run_with_timeout
    from .toolkit.send_buffer import SendBuffer

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
    "Param",
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
    "after",
    "backoff_delay",
    "classify_http",
    "full_jitter",
    "retry",
    "retry_transient",
    "run_with_timeout",
]

#: Each name is imported on its first access: a command, and the process that forks attempts, load what they use.
_LAZY_NAMES = {  # others stand in ``errors``
    "core.failures.classify": ["classify_http"],
    "core.policy": ["RetryPolicy"],
    "executor.executor": ["Executor"],
    "executor.run_end": ["RunResult"],
    "executor.run_options": ["RunOptions"],
    "flow.flow": ["Flow", "after"],
    "flow.options": ["Param"],
    "flow.task_def": ["TaskDef"],
    "runner.context": ["Context", "Missing"],
    "toolkit.credentials": ["Credential"],
    "toolkit.retry": ["backoff_delay", "full_jitter", "retry", "retry_transient"],
    "toolkit.run_with_timeout": ["run_with_timeout"],
    "toolkit.send_buffer": ["SendBuffer"],
}

if not TYPE_CHECKING:  # else mypy would accept misspelled names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = next((module for module, names in _LAZY_NAMES.items() if name in names), "errors")
        return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet: for help() and completion."""
    return sorted(__all__)
