"""Classification rules of one downstream. They overrule the tables, because APIs use error codes in different ways.

A rule is a mapping with a ``class`` and at least one condition; all of its conditions must hold, and the first rule
that matches decides: ``{"status": 409, "class": "transient"}``, ``{"error": "mylib.Busy", "class": "transient"}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..outcome import FailureClass
from .library_errors import ErrorFacts

_TEXTS = ("error", "grpc", "sqlstate", "message")
_NUMBERS = ("status", "exit_code", "signal")
_CONDITIONS = (*_TEXTS, *_NUMBERS)


@dataclass(frozen=True, slots=True)
class ClassificationRule:
    """One rule. ``message`` is a part of the message, without regard to case; ``sqlstate`` may be a prefix."""

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

    def __str__(self) -> str:
        conditions = [f"{name} {getattr(self, name)}" for name in _CONDITIONS if getattr(self, name) is not None]
        return f"rule: {', '.join(conditions)} is {self.failure_class}"


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
