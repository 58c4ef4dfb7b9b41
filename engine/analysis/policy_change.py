"""Parses a change of policy for a replay: ``jitter=full, max_attempts=5, minimum_calls=3``.

One change applies to all tasks and all downstreams of a run: a task that calls less leaves capacity to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core.durations import parse_duration
from ..core.policy import RetryPolicy
from ..core.spec import DownstreamSpec

_OFF_WORDS = frozenset(["off", "none"])
_WAIT_FIELDS = frozenset(["base", "cap", "factor", "jitter"])


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Changed fields of retry policies and of downstreams; ``text``: as the user typed the change."""

    policy_fields: Mapping[str, Any] = field(default_factory=dict)
    downstream_fields: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def has_recorded_delays(self) -> bool:
        """Whether backoff delays are drawn as in the recorded run."""
        return _WAIT_FIELDS.isdisjoint(self.policy_fields)

    def apply_to_policy(self, policy: RetryPolicy) -> RetryPolicy:
        """Return ``policy`` with this change applied."""
        return replace(policy, **self.policy_fields)

    def apply_to_downstream(self, spec: DownstreamSpec) -> DownstreamSpec:
        """Return ``spec`` with this change applied to its breaker and retry budget."""
        return replace(spec, **self.downstream_fields)


NO_CHANGE = PolicyChange()


def parse_change(text: str) -> PolicyChange:
    """Parse ``name=value`` pairs with commas or spaces between. Raises ValueError with one sentence."""
    words = text.replace(",", " ").split()
    if not words:
        raise ValueError(f"name a change, as in max_attempts=5; there are {', '.join(_PARSERS)}")
    policy: dict[str, Any] = {}
    system: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _PARSERS:
            raise ValueError(f"{word!r} is not name=value with one of {', '.join(_PARSERS)}")
        target, key, parse = _PARSERS[name]
        (policy if target is RetryPolicy else system)[key] = parse(name, value)
    RetryPolicy(**policy)  # raises the same error as in a flow
    return PolicyChange(policy, system, " ".join(words))


def _parse_whole(name: str, value: str, least: int = 1) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")
    return number


def _parse_number(name: str, value: str, most: float = float("inf")) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most or number == float("inf"):
        raise ValueError(f"{name} is a number from 0{'' if most == float('inf') else f' to {most:g}'}, not {value!r}")
    return number


def _parse_seconds(name: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f"{name} is a duration, as in 90s, 10m or 1h30m, not {value!r}") from None


def _parse_or_off(parse: Callable[[str, str], object], name: str, value: str) -> object:
    return None if value in _OFF_WORDS else parse(name, value)


def _parse_poison_after(name: str, value: str) -> object:
    return value if value == "evidence" else _parse_or_off(partial(_parse_whole, least=0), name, value)


def _parse_metrics_only(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{name} is on or off, not {value!r}")
    return value == "off"


_Parser = tuple[type, str, Callable[[str, str], object]]
_PARSERS: dict[str, _Parser] = {
    "max_attempts": (RetryPolicy, "max_attempts", _parse_whole),
    "base": (RetryPolicy, "base", _parse_seconds),
    "cap": (RetryPolicy, "cap", _parse_seconds),
    "factor": (RetryPolicy, "factor", _parse_number),
    "jitter": (RetryPolicy, "jitter", lambda name, value: value),
    "max_elapsed": (RetryPolicy, "max_elapsed", partial(_parse_or_off, _parse_seconds)),
    "poison_after": (RetryPolicy, "poison_after", _parse_poison_after),
    "poison_seconds": (RetryPolicy, "poison_seconds", _parse_seconds),
    "ambiguous_attempts": (RetryPolicy, "ambiguous_attempts", _parse_whole),
    "breaker": (DownstreamSpec, "metrics_only", _parse_metrics_only),
    "failure_rate": (DownstreamSpec, "failure_rate", partial(_parse_number, most=1.0)),
    "minimum_calls": (DownstreamSpec, "minimum_calls", _parse_whole),
    "window_seconds": (DownstreamSpec, "window_seconds", _parse_seconds),
    "open_seconds": (DownstreamSpec, "open_seconds", _parse_seconds),
    "open_seconds_max": (DownstreamSpec, "open_seconds_max", _parse_seconds),
    "probes": (DownstreamSpec, "probes", _parse_whole),
    "release_per_second": (DownstreamSpec, "release_per_second", _parse_number),
    "bucket_capacity": (DownstreamSpec, "bucket_capacity", _parse_number),
    "bucket_refund": (DownstreamSpec, "bucket_refund", _parse_number),
    "bucket_per_second": (DownstreamSpec, "bucket_per_second", _parse_number),
}
