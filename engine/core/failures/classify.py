"""Classify a failure: would the next attempt work?

``_STEPS`` lists the sources in their order: ``never_retry`` of the policy, the rules of the downstream, an error of
the engine that the task raised, the response of the other side (HTTP, gRPC, SQL), the type of the exception, and its
explicit cause. Without any, a failure is UNCLASSIFIED: it is retried, and listed for the operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ... import errors
from ..outcome import FailureClass
from ..policy import CATCH_ALL_NAMES, RetryPolicy
from . import tables
from .facts import (
    DIAGNOSTIC_MAX,
    Classification,
    ErrorFacts,
    classify_program,
    clip,
    extract_facts,
    is_unfinished_answer,
    message_of,
    safe_attribute,
)
from .phrases import BAD_CERTIFICATE, REFUSED_LOGIN

#: The longest wait that a header may cause: it can be wrong or hostile.
RETRY_AFTER_MAX_SECONDS = 7 * 86_400.0

_CAUSES_MAX = 10


class DoubtfulError(errors.AmbiguousError, errors.TransientError):
    """A TransientError for ``except`` clauses; for the engine an ambiguous failure with its small budget (004.07)."""


class InvalidRequestError(errors.PermanentError):
    """The other side refused the input of a request."""


def classify(
    error: BaseException, *, rules: Iterable[ClassificationRule] = (), policy: RetryPolicy | None = None
) -> Classification:
    """Classify an exception by its attributes alone: no library is imported, and no call blocks.

    ``rules`` are those of the task's downstream; ``policy`` adds its ``retry_on`` and ``never_retry``.
    """
    case = _ErrorCase(error, extract_facts(error), tuple(rules), policy, _CAUSES_MAX)
    found = _classify(case)
    return replace(found, diagnostic=found.diagnostic or case.facts.diagnostic)


def classify_http(
    status: int, retry_after: float | str | None = None, body: str | bytes | None = None
) -> errors.TaskError:
    """Return the exception that fits the HTTP status of a request that has failed; the caller raises it.

    The codes mean what RFC 9110 and RFC 6585 say. ``AuthError``: 401, 403, 407, 511. ``TransientError``: 408, 421, 425,
    429, 502, 503, 504, and the proxies' 521 to 524 and 529. Both ``TransientError`` and ``AmbiguousError``, with the
    small budget of these: 409, 423, 424, 500, 507 and what is unknown. ``PermanentError``: the others.

    Parameters:
        status: the code, as 503.
        retry_after: seconds, or the text of the header ``Retry-After`` (RFC 9110, 10.2.3). With it a transient failure
            is ``RetryAfter``.
        body: of the response; the operator sees it as the diagnostic, at most 4,000 characters.

    Example:
        >>> classify_http(429, retry_after="30")
        RetryAfter('HTTP 429 Too Many Requests, asked to wait 30 s')
        >>> classify_http(404)
        PermanentError('HTTP 404 Not Found')
    """
    error = _http_error(status, retry_after, body)
    error.http_status = status
    return error


def _http_error(status: int, retry_after: float | str | None, body: str | bytes | None) -> errors.TaskError:
    failure_class = _http_class(status, retry_after is not None)
    seconds = parse_retry_after(retry_after) if isinstance(retry_after, str) else retry_after
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    diagnostic = clip(text, DIAGNOSTIC_MAX) if text else None
    message = _http_message(status)
    if failure_class is None:
        return DoubtfulError(f"unknown HTTP {status}, treating as transient", diagnostic=diagnostic)
    if failure_class is FailureClass.TRANSIENT and seconds is not None:
        return errors.RetryAfter(_bounded(seconds), f"{message}, asked to wait {seconds:g} s", diagnostic=diagnostic)
    return _HTTP_ERRORS[failure_class](message, diagnostic=diagnostic)


_HTTP_ERRORS: dict[FailureClass, type[errors.TaskError]] = {
    FailureClass.TRANSIENT: errors.TransientError,
    FailureClass.PERMANENT: errors.PermanentError,
    FailureClass.VALIDATION: InvalidRequestError,
    FailureClass.AUTH: errors.AuthError,
    FailureClass.AMBIGUOUS: DoubtfulError,
}


def classify_grpc(code: str) -> FailureClass:
    """Return the class of a gRPC status code by its name; unknown ones are ambiguous."""
    return tables.GRPC.get(code, FailureClass.AMBIGUOUS)


def classify_exit(exit_code: int) -> FailureClass:
    """Return the class of a program's exit code; above 128 it is the shell's word for a signal."""
    if exit_code > 128 and exit_code - 128 in tables.SIGNALS:
        return classify_signal(exit_code - 128)
    return tables.EXIT_CODES.get(exit_code, FailureClass.UNCLASSIFIED)


def classify_signal(signal: int) -> FailureClass:
    """Return the class of a death by a signal of which nobody knows who sent it."""
    return tables.SIGNALS.get(signal, FailureClass.AMBIGUOUS)


def parse_retry_after(value: str, date: str | None = None) -> float | None:
    """Parse a Retry-After header: seconds, or a date, which is compared with the ``Date`` of the response.

    Returns None for an invalid header. Never negative, never more than ``RETRY_AFTER_MAX_SECONDS``.
    """
    from email.utils import parsedate_to_datetime  # imports random, which would slow every fork

    text = value.strip()
    try:
        return _bounded(float(text))
    except ValueError:
        pass
    if date is None:
        return None
    try:
        return _bounded((parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds())
    except (ValueError, TypeError):
        return None


# --- the steps --------------------------------------------------------------------------------------------------


class _ErrorCase(msgspec.Struct, frozen=True):
    error: BaseException
    facts: ErrorFacts
    rules: tuple[ClassificationRule, ...]
    policy: RetryPolicy | None
    causes_left: int  # the depth to which causes are still followed

    def for_error(self, error: BaseException, policy: RetryPolicy | None) -> _ErrorCase:
        """Return the case of an error inside this one, or of its cause."""
        return _ErrorCase(error, extract_facts(error), self.rules, policy, self.causes_left - 1)

    def has_one_of(self, names: Iterable[str]) -> bool:
        """Return whether the error is of one of these types."""
        return any(map(self.facts.has_type_name, names))


_UNKNOWN = Classification(FailureClass.UNCLASSIFIED)


def _classify(case: _ErrorCase) -> Classification:
    if case.policy is not None and case.has_one_of(case.policy.never_retry):
        return Classification(FailureClass.PERMANENT)
    found = next((found for step in _STEPS if (found := step(case)) is not None), _UNKNOWN)
    return _apply_retry_on(case, found)


def _apply_retry_on(case: _ErrorCase, found: Classification) -> Classification:
    """Apply ``retry_on``: errors that it names are transient, all others are permanent.

    If it names ``Exception``, each error keeps its class: otherwise one word would disable the poison rule. AUTH stays
    AUTH.
    """
    names = case.policy.retry_on if case.policy else ()
    if not names or found.failure_class is FailureClass.AUTH or isinstance(case.error, BaseExceptionGroup):
        return found  # each child of a group was filtered
    if case.has_one_of(name for name in names if name not in CATCH_ALL_NAMES):
        return replace(found, failure_class=FailureClass.TRANSIENT)
    if CATCH_ALL_NAMES.isdisjoint(names):
        return Classification(FailureClass.PERMANENT)
    return found


def _by_rule(case: _ErrorCase) -> Classification | None:
    return by_rules(case.rules, case.facts, message_of(case.error))


#: Errors that tasks raise. A DoubtfulError is both ambiguous and transient: the first matching row counts.
_TASK_ERRORS: tuple[tuple[type[BaseException], FailureClass], ...] = (
    (errors.AuthError, FailureClass.AUTH),
    (InvalidRequestError, FailureClass.VALIDATION),
    (errors.PermanentError, FailureClass.PERMANENT),
    (errors.AmbiguousError, FailureClass.AMBIGUOUS),
    (errors.TransientError, FailureClass.TRANSIENT),
)


def _by_task_error(case: _ErrorCase) -> Classification | None:
    for kind, failure_class in _TASK_ERRORS:
        if isinstance(case.error, kind):
            seconds = _bounded(case.error.seconds) if isinstance(case.error, errors.RetryAfter) else None
            return Classification(failure_class, seconds)
    return None


def _by_response(case: _ErrorCase) -> Classification | None:
    facts = case.facts
    if facts.status is not None:
        seconds = retry_after_seconds(facts)
        failure_class = _http_class(facts.status, facts.retry_after is not None) or FailureClass.AMBIGUOUS
        may_heal = failure_class in (FailureClass.TRANSIENT, FailureClass.AMBIGUOUS)
        return Classification(failure_class, seconds if may_heal else None)
    if facts.grpc is not None:
        return Classification(classify_grpc(facts.grpc))
    if facts.sqlstate is not None:
        found = tables.sqlstate_class(facts.sqlstate, message_of(case.error))
    else:
        found = tables.longest_prefix(tables.SQLITE, facts.sqlite or "")
    return None if found is None else Classification(found)


def _by_group(case: _ErrorCase) -> Classification | None:
    """A group has the hardest class of its children, and their longest Retry-After."""
    if not isinstance(case.error, BaseExceptionGroup) or not case.causes_left:
        return None
    classes = [_classify(case.for_error(child, case.policy)) for child in case.error.exceptions]
    hardest = min(classes, key=lambda found: tables.HARDEST_FIRST.index(found.failure_class))
    waits = [found.retry_after_seconds for found in classes if found.retry_after_seconds is not None]
    return replace(hardest, retry_after_seconds=max(waits, default=None))


def _by_exit(case: _ErrorCase) -> Classification | None:
    """The exit code of a program that the task ran and what it said, or the code of sys.exit in the task."""
    if case.facts.program is not None and (found := classify_program(case.facts.program)) is not None:
        return found
    code = case.error.code if isinstance(case.error, SystemExit) else case.facts.exit_code
    if not isinstance(code, int) or isinstance(code, bool):
        return None
    failure_class = classify_signal(-code) if code < 0 else classify_exit(code)
    return None if failure_class is FailureClass.UNCLASSIFIED else Classification(failure_class)


def _by_exception(case: _ErrorCase) -> Classification | None:
    for spellings in case.facts.names:
        failure_class = next((tables.EXCEPTIONS[name] for name in spellings if name in tables.EXCEPTIONS), None)
        if failure_class is not None:
            return Classification(_refine_class(case, failure_class))
    if isinstance(case.error, OSError) and case.error.errno in tables.ERRNOS:
        return Classification(tables.ERRNOS[case.error.errno])
    return None


def _refine_class(case: _ErrorCase, failure_class: FailureClass) -> FailureClass:
    """Refine types by their content: a certificate, a refused login, and an answer that is not JSON."""
    if re.search(BAD_CERTIFICATE, message_of(case.error), re.IGNORECASE):
        return FailureClass.PERMANENT
    if case.facts.has_type_name("OperationalError") and re.search(REFUSED_LOGIN, message_of(case.error), re.IGNORECASE):
        return FailureClass.AUTH
    if case.facts.has_type_name("json.JSONDecodeError") and is_unfinished_answer(case.error):
        return FailureClass.AMBIGUOUS
    return failure_class


def _by_cause(case: _ErrorCase) -> Classification | None:
    """The class of the cause: ``raise ... from``, ``orig`` of SQLAlchemy, ``reason`` of urllib."""
    if not case.causes_left:
        return None
    for cause in (case.error.__cause__, safe_attribute(case.error, "orig"), safe_attribute(case.error, "reason")):
        if isinstance(cause, BaseException) and cause is not case.error:
            found = _classify(case.for_error(cause, None))
            if found.failure_class is not FailureClass.UNCLASSIFIED:
                return found
    return None


_STEPS: tuple[Callable[[_ErrorCase], Classification | None], ...] = (
    _by_rule,
    _by_task_error,
    _by_response,
    _by_group,
    _by_exit,
    _by_exception,
    _by_cause,
)


# --- helpers ----------------------------------------------------------------------------------------------------


def _http_class(status: int, with_retry_after: bool) -> FailureClass | None:
    if with_retry_after and status in tables.WAITS_WITH_RETRY_AFTER:
        return FailureClass.TRANSIENT
    return tables.HTTP.get(status)


def _http_message(status: int) -> str:
    from http import HTTPStatus  # here: a forked attempt would copy its enum

    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def retry_after_seconds(facts: ErrorFacts) -> float | None:
    """Return what the header Retry-After of a response asks for, or None without one."""
    return None if facts.retry_after is None else parse_retry_after(facts.retry_after, facts.date)


def _bounded(seconds: float) -> float:
    """Limit a wait. NaN counts as 0: no comparison with it is true, so the task would wait for ever."""
    return 0.0 if math.isnan(seconds) else min(max(0.0, seconds), RETRY_AFTER_MAX_SECONDS)


# --- Classification rules of one downstream --------------------------------------------------------------------------
#
# They overrule the tables, because APIs use error codes in different ways.
#
# A rule is a mapping with a ``class`` and at least one condition; all of its conditions must hold, and the first rule
# that matches decides: ``{"status": 409, "class": "transient"}``, ``{"error": "mylib.Busy", "class": "transient"}``.


_TEXTS = ("error", "grpc", "sqlstate", "message")
_NUMBERS = ("status", "exit_code", "signal")
_CONDITIONS = (*_TEXTS, *_NUMBERS)


class ClassificationRule(msgspec.Struct, frozen=True):
    """A rule. ``message`` is a part of the message, without regard to case; ``sqlstate`` may be a prefix."""

    failure_class: FailureClass
    error: str | None = None
    status: int | None = None
    grpc: str | None = None
    sqlstate: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str | None = None
    retry_after: float | None = None  # seconds, in place of the header

    def matches(self, facts: ErrorFacts, message: str, signal: int | None = None) -> bool:
        """True if all conditions of the rule hold."""
        return (
            (self.error is None or facts.has_type_name(self.error))
            and (self.status is None or self.status == facts.status)
            and (self.grpc is None or self.grpc == facts.grpc)
            and (self.sqlstate is None or (facts.sqlstate or "").startswith(self.sqlstate))
            and (self.exit_code is None or self.exit_code == facts.exit_code)
            and (self.signal is None or self.signal == signal)
            and (self.message is None or self.message.casefold() in message.casefold())
        )


def by_rules(
    rules: Iterable[ClassificationRule], facts: ErrorFacts, message: str, signal: int | None = None
) -> Classification | None:
    """Return the class by the first rule that matches; None without one."""
    for rule in rules:
        if rule.matches(facts, message, signal):
            waits = retry_after_seconds(facts) if rule.retry_after is None else rule.retry_after
            return Classification(rule.failure_class, waits)
    return None


def parse_rules(mappings: Iterable[Mapping[str, object]]) -> tuple[ClassificationRule, ...]:
    """Parse the rules of a flow. Raises ValueError with the rule and the error in it."""
    return tuple(_parse(mapping) for mapping in mappings)


def _parse(mapping: Mapping[str, object]) -> ClassificationRule:
    fields: dict[str, Any] = {name: value for name, value in mapping.items() if name != "class"}
    unknown = sorted(fields.keys() - {*_CONDITIONS, "retry_after"})
    if unknown:
        raise ValueError(f"rule {dict(mapping)!r}: no condition is called {unknown[0]!r}; use {', '.join(_CONDITIONS)}")
    if fields.keys() <= {"retry_after"}:
        raise ValueError(f"rule {dict(mapping)!r}: it has no condition, so it would match everything")
    for name, value in fields.items():
        accepted: tuple[type, ...] = (str,) if name in _TEXTS else (int,) if name in _NUMBERS else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted) or value == "":
            raise ValueError(f"rule {dict(mapping)!r}: {name} is not a {'text' if name in _TEXTS else 'number'}")
    return ClassificationRule(_class_of(mapping), **fields)


def _class_of(mapping: Mapping[str, object]) -> FailureClass:
    try:
        return FailureClass(str(mapping.get("class", "")))
    except ValueError:
        known = ", ".join(FailureClass)
        raise ValueError(f"rule {dict(mapping)!r}: its class must be one of {known}") from None
