"""Makes a ``Failure`` of an exception, or of the exit code of a program: plain data for the executor.

``failure_of_error`` runs in the process of the attempt, where the exception has its traceback and its causes. How an
attempt ended otherwise: ``attempt_end.py``.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping

from ..outcome import BY_TEXT_FACT, Failure, FailureClass, Fingerprint
from ..policy import RetryPolicy
from .classify import by_rules, classify, classify_exit, parse_rules
from .facts import (
    Classification,
    ErrorFacts,
    classify_program,
    clip,
    extract_facts,
    message_of,
    read_program_end,
    read_rest,
    type_name,
)
from .fingerprint import (
    fingerprint_of_error,
    fingerprint_of_program,
    fingerprint_of_wait,
    is_engine_path,
    is_machinery,
)

MESSAGE_MAX = 2000  # characters
TRACEBACK_MAX = 60_000
_TRACEBACK_FRAMES_MAX = 2000
_TYPES_MAX = 8  # classes of an exception, its own first
_TYPE_CHARACTERS = 200
_COMMON_TYPES = frozenset(["builtins.Exception", "builtins.BaseException", "builtins.object"])

Rules = Iterable[Mapping[str, object]]


def failure_of_error(
    error: BaseException,
    *,
    project_root: str | None = None,
    rules: Rules = (),
    code_hash: str | None = None,
    policy: RetryPolicy | None = None,
) -> Failure:
    """Return the failure of an exception. Call this in the process of the attempt, where the exception was caught.

    ``project_root`` is the folder of the flow; ``rules`` are those of the downstream (``classify.py``);
    ``code_hash`` is that of the loaded code of the task; ``policy`` adds ``retry_on`` and ``never_retry``. Raises
    ValueError for an invalid rule.
    """
    verdict = classify(error, rules=parse_rules(rules), policy=policy)
    fingerprint = fingerprint_of_error(
        error, project_root=project_root, code_hash=code_hash, failure_class=classify(error).failure_class
    )
    return Failure(
        error_type=type_name(error),
        message=clip(_message(error), MESSAGE_MAX),
        failure_class=verdict.failure_class,
        fingerprint=fingerprint,
        traceback=clip(traceback_of(error), TRACEBACK_MAX),
        diagnostic=_with_body(verdict.diagnostic, error),
        retry_after_seconds=verdict.retry_after_seconds,
        facts={**facts_as_json(extract_facts(error)), **_by_text(verdict)},
    )


def _with_body(diagnostic: str | None, error: BaseException) -> str | None:
    """Return the diagnostic; that of a bare status with the body of the response, which urllib does not read."""
    if diagnostic is None or not _BARE_STATUS.fullmatch(diagnostic):
        return diagnostic
    return clip(f"{diagnostic}\n{read_rest(error)}".rstrip())


_BARE_STATUS = re.compile(r"HTTP \d{3}")


def failure_of_wait(task: str, why: str, message: str) -> Failure:
    """Return the failure of a sensor that ran out of time. ``why``: its wait, in words; ``message``: by the sensor."""
    return Failure("NotReady", clip(why, MESSAGE_MAX), FailureClass.TRANSIENT, fingerprint_of_wait(task, message))


_FUTURE = re.compile(r"<Future at 0x[0-9a-f]+ ")

PROGRESS_FACT = "progress_done"  # of an attempt that timed out

#: The facts that a rule can ask for.
_RULE_FACTS = ("status", "grpc", "sqlstate", "exit_code")


def facts_as_json(facts: ErrorFacts) -> dict[str, object]:
    """Return the facts that rules can test, as JSON. They are stored, so that a rule can be tried on past failures."""
    fields = {name: getattr(facts, name) for name in _RULE_FACTS}
    types = [spellings[0].encode("ascii", "backslashreplace").decode() for spellings in facts.names]
    kinds = [name[:_TYPE_CHARACTERS] for name in types if name not in _COMMON_TYPES][:_TYPES_MAX]
    return {
        **({"types": kinds} if kinds else {}),
        **{name: value for name, value in fields.items() if value is not None},
    }


def failure_of_exit(exit_code: int, *, stderr: str = "", rules: Rules = (), command: str | None = None) -> Failure:
    """Return the failure of a program that exited with a code.

    ``stderr`` is the end of its error output, if known. ``command``: the shell line of a command task; the process of a
    task in Python has none, and what it wrote decides nothing.
    """
    end = read_program_end(exit_code, stderr, command)
    known = classify_program(end) if command is not None else None
    found = known or Classification(classify_exit(exit_code))
    facts = ErrorFacts(exit_code=exit_code, status=end.status, sqlstate=end.sqlstate)
    fingerprint = fingerprint_of_program(end, found.failure_class)
    verdict = by_rules(parse_rules(rules), facts, stderr) or found
    line = {"line": end.line} if end.line else {}
    all_facts = {**facts_as_json(facts), **line, **_by_text(verdict)}
    return failure_of_end(f"exit:{exit_code}", fingerprint.explain, verdict, fingerprint, stderr.strip(), all_facts)


def _by_text(verdict: Classification) -> dict[str, object]:
    return {BY_TEXT_FACT: True} if verdict.is_by_text else {}


def traceback_of(error: BaseException) -> str:
    """Format the traceback without the frames of the engine and of its event loop."""
    report = traceback.TracebackException.from_exception(error, limit=-_TRACEBACK_FRAMES_MAX)
    waiting = [report]
    for part in waiting:  # also the exceptions of a group, and their causes
        part.stack = _without_machinery(part.stack)
        found = (part.__cause__, part.__context__, *(part.exceptions or ()))
        waiting += [other for other in found if other is not None]
    return "".join(report.format())


def _without_machinery(stack: traceback.StackSummary) -> traceback.StackSummary:
    frames = [frame for frame in stack if not is_engine_path(frame.filename)]
    first = next((place for place, frame in enumerate(frames) if not is_machinery(frame.filename)), 0)
    return traceback.StackSummary.from_list(frames[first:]) if frames else stack


def _message(error: BaseException) -> str:
    """Return the message; of a group, or of an error without facts, that of its first exception or of its cause."""
    first, passed = error, {id(error)}
    while (inner := _inner(first)) is not None and id(inner) not in passed:  # an error can be its own cause
        first = inner
        passed.add(id(first))
    if first is error:
        return message_of(error)
    whole = f" ({message_of(error)})" if _has_facts(error) else ""
    return ": ".join(filter(None, (type(first).__name__, message_of(first)))) + whole


def _inner(error: BaseException) -> BaseException | None:
    """Return the exception whose message stands for that of ``error``; None: its own does."""
    if isinstance(error, BaseExceptionGroup):
        first: BaseException = error.exceptions[0]
        return first
    return None if _has_facts(error) else error.__cause__


def _has_facts(error: BaseException) -> bool:
    """Whether the message has facts: an empty one has none, nor has that of tenacity's ``RetryError``, a future."""
    text = message_of(error)
    return bool(text.strip()) and _FUTURE.search(text) is None


def failure_of_end(
    kind: str,
    message: str,
    verdict: Classification,
    fingerprint: Fingerprint,
    diagnostic: str = "",
    facts: Mapping[str, object] | None = None,
) -> Failure:
    """Return the failure of an attempt without an exception."""
    return Failure(
        error_type=kind,
        message=clip(message, MESSAGE_MAX),
        failure_class=verdict.failure_class,
        fingerprint=fingerprint,
        diagnostic=clip(diagnostic) if diagnostic else None,
        retry_after_seconds=verdict.retry_after_seconds,
        facts=facts or {},
    )
