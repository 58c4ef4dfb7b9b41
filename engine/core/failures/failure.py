"""From what went wrong to a ``Failure``: plain data that can travel to the executor.

``describe`` runs inside the attempt, where the exception still has its traceback and its causes; document 000's parent
process could only see a text, and gave every exception the same fingerprint. The other functions describe an attempt
that left no exception behind: an exit code, a signal, a deadline.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping

from ..outcome import Failure, FailureClass, Fingerprint
from ..policy import RetryPolicy
from .classification_rules import parse_rules
from .classify import Classification, classify, classify_exit, classify_signal
from .fingerprint import (
    fingerprint,
    fingerprint_of_exit,
    fingerprint_of_signal,
    fingerprint_of_stack,
    innermost_of_stack,
    is_engine_path,
    is_machinery,
    message_of,
    type_name,
)
from .library_errors import ErrorFacts, clip, extract_facts

MESSAGE_MAX = 2000  # characters
TRACEBACK_MAX = 60_000
_TRACEBACK_FRAMES_MAX = 2000
_TYPES_MAX = 8  # classes of an exception, its own first
_TYPE_CHARACTERS = 200
_EVERYBODYS = frozenset(["builtins.Exception", "builtins.BaseException", "builtins.object"])

Rules = Iterable[Mapping[str, object]]


def describe_error(
    error: BaseException,
    *,
    project_root: str | None = None,
    rules: Rules = (),
    code_hash: str | None = None,
    policy: RetryPolicy | None = None,
) -> Failure:
    """Describe an exception. To be called where it was caught, in the attempt's own process.

    ``project_root`` is the folder of the flow; ``rules`` are the downstream's (``classification_rules.py``); ``code_hash`` is that of
    the task's code as it was loaded; ``policy`` adds ``retry_on`` and ``never_retry``. Raises ValueError for a bad
    rule.
    """
    verdict = classify(error, rules=parse_rules(rules), policy=policy)
    return Failure(
        error_type=type_name(error),
        message=clip(_message(error), MESSAGE_MAX),
        failure_class=verdict.failure_class,
        fingerprint=fingerprint(error, project_root=project_root, code_hash=code_hash),
        traceback=clip(traceback_of(error), TRACEBACK_MAX),
        diagnostic=verdict.diagnostic,
        retry_after_seconds=verdict.retry_after_seconds,
        facts=facts_as_json(extract_facts(error)),
    )


def facts_as_json(facts: ErrorFacts) -> dict[str, object]:
    """What rules can ask of a failure, as JSON: kept, so that a rule can be tried on what has happened."""
    said = {name: getattr(facts, name) for name in ("status", "grpc", "sqlstate", "exit_code")}
    types = [spellings[0].encode("ascii", "backslashreplace").decode() for spellings in facts.names]
    told = [name[:_TYPE_CHARACTERS] for name in types if name not in _EVERYBODYS][:_TYPES_MAX]
    return {**({"types": told} if told else {}), **{name: value for name, value in said.items() if value is not None}}


def describe_exit(exit_code: int, *, stderr: str = "", rules: Rules = ()) -> Failure:
    """Describe a program that ended with an exit code. ``stderr`` is the end of its error output, if it is known."""
    facts = ErrorFacts(exit_code=exit_code)
    lines = stderr.strip().splitlines()
    last_line = lines[-1].strip() if lines else ""
    return _without_exception(
        f"exit:{exit_code}",
        f"exit status {exit_code}" + (f": {last_line}" if last_line else ""),
        _ruled(facts, stderr, rules, classify_exit(exit_code)),
        fingerprint_of_exit(exit_code, last_line),
        stderr.strip(),
        facts_as_json(facts),
    )


def describe_signal(
    signal: int,
    sender: str = "unknown",
    *,
    stack_text: str = "",
    project_root: str | None = None,
    rules: Rules = (),
    diagnostic: str = "",
) -> Failure:
    """Describe a process that died by a signal. ``sender``: ``executor``, ``oom`` or ``unknown``.

    ``stack_text`` is what faulthandler wrote when it crashed; ``diagnostic`` a sentence such as its memory at the end.
    """
    told = fingerprint_of_signal(signal, sender, stack_text, project_root)
    verdict = _ruled(ErrorFacts(), "", rules, classify_signal(signal, sender), signal)
    kind, facts = f"signal:{signal}:{sender}", {"signal": signal}
    return _without_exception(kind, told.explain, verdict, told, diagnostic, facts)


def describe_timeout(
    timeout_seconds: float, stack_text: str = "", project_root: str | None = None, hang: str = ""
) -> Failure:
    """Describe an attempt that was killed at its deadline, in document 000's words; ``hang``: what it was at then."""
    frame = innermost_of_stack(stack_text)
    return _without_exception(
        "timeout",
        f"task exceeded {timeout_seconds:g}s" + (f": {hang}" if hang else ""),
        Classification(FailureClass.TIMEOUT, "its deadline"),
        fingerprint_of_stack(stack_text, project_root),
        f"it hung at {frame}" if frame is not None and not hang else "",
    )


def traceback_of(error: BaseException) -> str:
    """Return the traceback without the frames through which the engine, and its event loop, called the task."""
    report = traceback.TracebackException.from_exception(error, limit=-_TRACEBACK_FRAMES_MAX)
    waiting = [report]
    for part in waiting:  # the exceptions of a group, and what each of them came of
        part.stack = _without_machinery(part.stack)
        found = (part.__cause__, part.__context__, *(part.exceptions or ()))
        waiting += [other for other in found if other is not None]
    return "".join(report.format())


def _without_machinery(stack: traceback.StackSummary) -> traceback.StackSummary:
    frames = [frame for frame in stack if not is_engine_path(frame.filename)]
    first = next((place for place, frame in enumerate(frames) if not is_machinery(frame.filename)), 0)
    return traceback.StackSummary.from_list(frames[first:]) if frames else stack


def _message(error: BaseException) -> str:
    """Of a group, what the first of its exceptions says: "unhandled errors in a TaskGroup" helps nobody."""
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if first is error:
        return message_of(error)
    return f"{type(first).__name__}: {message_of(first)} ({message_of(error)})"


def _ruled(
    facts: ErrorFacts, message: str, rules: Rules, otherwise: FailureClass, signal: int | None = None
) -> Classification:
    for rule in parse_rules(rules):
        if rule.matches(facts, message, signal):
            return Classification(rule.failure_class, str(rule), rule.retry_after)
    return Classification(otherwise)


def _without_exception(
    kind: str,
    message: str,
    verdict: Classification,
    told: Fingerprint,
    diagnostic: str,
    facts: Mapping[str, object] | None = None,
) -> Failure:
    return Failure(
        error_type=kind,
        message=clip(message, MESSAGE_MAX),
        failure_class=verdict.failure_class,
        fingerprint=told,
        diagnostic=clip(diagnostic) if diagnostic else None,
        retry_after_seconds=verdict.retry_after_seconds,
        facts=facts or {},
    )
