"""Another policy than that of the flow, as somebody asks for it: ``jitter=full, max_attempts=5, minimum_calls=3``.

For a replay (``what_if.py``). One change holds for all tasks and all systems of a run; a run cannot be asked about one
of them alone, because who calls less leaves room to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core.durations import parse_duration
from ..core.policy import RetryPolicy
from ..core.spec import DownstreamSpec

_OFF = frozenset(["off", "none"])
_WAIT_FIELDS = frozenset(["base", "cap", "factor", "jitter"])


@dataclass(frozen=True, slots=True)
class Change:
    """``policy`` and ``system``: the fields that are other ones; ``text``: as it was asked for."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def keeps_waits(self) -> bool:
        """Whether a wait is drawn as it was."""
        return _WAIT_FIELDS.isdisjoint(self.policy)

    def of_policy(self, policy: RetryPolicy) -> RetryPolicy:
        """The policy that takes the place of this one."""
        return replace(policy, **self.policy)

    def of_system(self, spec: DownstreamSpec) -> DownstreamSpec:
        """What takes the place of the breaker and the retry budget of a system."""
        return replace(spec, **self.system)


NO_CHANGE = Change()


def parse_change(text: str) -> Change:
    """Read ``name=value`` with commas or spaces between. Raises ValueError with one sentence for what cannot be."""
    words = text.replace(",", " ").split()
    if not words:
        raise ValueError(f"say what would be another one, as in max_attempts=5; there are {', '.join(_READERS)}")
    policy: dict[str, Any] = {}
    system: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _READERS:
            raise ValueError(f"{word!r} is not name=value with one of {', '.join(_READERS)}")
        target, key, read = _READERS[name]
        (policy if target is RetryPolicy else system)[key] = read(name, value)
    RetryPolicy(**policy)  # raises the sentence that the flow would have raised
    return Change(policy, system, " ".join(words))


def _whole(name: str, value: str, least: int = 1) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")
    return number


def _number(name: str, value: str, most: float = float("inf")) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most or number == float("inf"):
        raise ValueError(f"{name} is a number from 0{'' if most == float('inf') else f' to {most:g}'}, not {value!r}")
    return number


def _seconds(name: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f"{name} is a duration, as in 90s, 10m or 1h30m, not {value!r}") from None


def _or_off(read: Callable[[str, str], object], name: str, value: str) -> object:
    return None if value in _OFF else read(name, value)


def _metrics_only(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{name} is on or off, not {value!r}")
    return value == "off"


_Reader = tuple[type, str, Callable[[str, str], object]]
_READERS: dict[str, _Reader] = {
    "max_attempts": (RetryPolicy, "max_attempts", _whole),
    "base": (RetryPolicy, "base", _seconds),
    "cap": (RetryPolicy, "cap", _seconds),
    "factor": (RetryPolicy, "factor", _number),
    "jitter": (RetryPolicy, "jitter", lambda name, value: value),
    "max_elapsed": (RetryPolicy, "max_elapsed", partial(_or_off, _seconds)),
    "poison_after": (RetryPolicy, "poison_after", partial(_or_off, _whole)),
    "ambiguous_attempts": (RetryPolicy, "ambiguous_attempts", _whole),
    "breaker": (DownstreamSpec, "metrics_only", _metrics_only),
    "failure_rate": (DownstreamSpec, "failure_rate", partial(_number, most=1.0)),
    "minimum_calls": (DownstreamSpec, "minimum_calls", _whole),
    "window_seconds": (DownstreamSpec, "window_seconds", _seconds),
    "open_seconds": (DownstreamSpec, "open_seconds", _seconds),
    "probes": (DownstreamSpec, "probes", _whole),
    "release_per_second": (DownstreamSpec, "release_per_second", _number),
    "bucket_capacity": (DownstreamSpec, "bucket_capacity", _number),
    "bucket_refund": (DownstreamSpec, "bucket_refund", _number),
}
