"""``Param``: a parameter of a flow with its type, its default and its choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import EllipsisType
from typing import Any, Generic, TypeVar

from ..core.option_types import short_repr
from ..core.spec import ParamSpec
from ..domain.params import convert_param, describe_type
from ..errors import FlowError, OptionError

T = TypeVar("T", str, int, float, bool, date, datetime, Decimal, Path, list[Any])

#: The types that JSON does not have: how a value becomes a text, and a text the value.
_TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    date: (date.isoformat, date.fromisoformat),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    Decimal: (str, Decimal),
    Path: (str, Path),
}
_LOADERS = {kind.__name__: load for kind, (_, load) in _TEXTS.items()}
_TYPES = (str, int, float, bool, list, *_TEXTS)
_OFFSET_DAYS_MAX = 36_500


@dataclass(frozen=True, slots=True)
class Param(Generic[T]):
    """A parameter of a flow: ``Flow(params={"day": Param(date), "mode": Param(str, "full", ["full", "delta"])})``.

    A value of another type, or one that is not among the choices, is refused before the run starts. A task gets the
    value in this type; a command gets a date as 2026-04-25.

    Parameters:
        type: str, int, float, bool, list (of JSON), ``datetime.date``, ``datetime.datetime``, ``Decimal`` or ``Path``.
        default: a value of this type, or None where a run may go without. Left out: a run has to name a value
            (``redrive run --param day=2026-04-25``).
        choices: the values that are allowed; none: all of the type.
        schedule_offset_days: of a date in a flow with a schedule, in place of a default: a whole number of days that is
            added to the day of the logical time in the time zone of the flow, also in a run that catches up or
            backfills; in a run that is started by hand, to the day of its start. -1 is the day before.

    Raises:
        OptionError: (a FlowError) there is no such type, or the default or a choice is not of it.

    Example:
        >>> from datetime import date
        >>> from redrive.engine import Flow
        >>> flow = Flow("revenue", params={"day": Param(date, date(2026, 4, 25)), "mode": Param(str, "full")})
        >>> flow.params["day"].year
        2026
        >>> Param(int, "many")
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: a Param(int) wants a whole number like 3, not 'many'
    """

    type: type[T]
    default: T | EllipsisType | None = ...
    choices: Sequence[T] = ()
    schedule_offset_days: int | None = None

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            known = ", ".join(kind.__name__ for kind in _TYPES)
            raise OptionError(f"a Param has one of the types {known}, not {short_repr(self.type)}")
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise OptionError(f"the choices of a Param are a list, not {short_repr(self.choices)}")
        for value in (*self.choices, *([] if self.is_required or self.default is None else [self.default])):
            self._check(value)
        if self.schedule_offset_days is not None:
            self._check_offset(self.schedule_offset_days)

    def _check_offset(self, days: object) -> None:
        if (
            self.default is not ...
            or self.type is not date
            or not isinstance(days, int)
            or isinstance(days, bool)
            or abs(days) > _OFFSET_DAYS_MAX
        ):
            most = _OFFSET_DAYS_MAX
            raise OptionError(
                f"schedule_offset_days of a Param(date) is a whole number from -{most} to {most}, in place of a default"
            )

    def default_for(self, day: date) -> Any:
        """Return the default of a run of a day; Ellipsis: there is none."""
        return self.default if self.schedule_offset_days is None else day + timedelta(days=self.schedule_offset_days)

    def _check(self, value: object) -> None:
        stored = _stored(value)
        is_text = isinstance(value, str) and self.type is not str  # a person may write one, a flow may not
        try:
            if is_text or convert_param(stored, None, _declared(self.spec)) != stored:
                raise ValueError(f"wants {describe_type(self.type.__name__)}, not {value!r}")
        except ValueError as error:
            raise OptionError(f"a Param({self.type.__name__}) {error}") from None

    @property
    def is_required(self) -> bool:
        """Whether a run has to name a value."""
        return self.default is ...

    @property
    def spec(self) -> ParamSpec:
        """The declared type as plain values."""
        return ParamSpec(self.type.__name__, tuple(_stored(choice) for choice in self.choices))

    def parse(self, value: object) -> Any:
        """Return a given or stored value in the type of the parameter. Raises ValueError with the end of a sentence."""
        default = None if self.is_required else _stored(self.default)
        stored = convert_param(_stored(value), default, _declared(self.spec))
        return load_param(self.type.__name__, stored)


class Params(dict[str, Any]):
    """The values of the parameters of a flow, by name."""

    def __init__(self, flow: str) -> None:
        super().__init__()
        self.flow = flow
        self.declared: dict[str, Param[Any]] = {}

    def __missing__(self, name: str) -> Any:
        """Raise FlowError for a parameter that has no value."""
        if name not in self.declared:
            raise KeyError(name)
        example = describe_type(self.declared[name].type.__name__)
        raise FlowError(
            f"flow {self.flow!r} needs a value for its parameter {name!r}: {example}, by --param {name}=..."
        )

    def check_complete(self) -> None:
        """Raise FlowError for a required parameter without a value."""
        for name in self.declared.keys() - self.keys():
            self[name]

    def stored(self) -> dict[str, Any]:
        """Return the values as JSON."""
        return {name: _stored(value) for name, value in self.items()}


def load_param(kind: str, stored: object) -> object:
    """Return the value of a parameter that is stored as JSON. ``kind``: the name of its declared type."""
    load = _LOADERS.get(kind)
    return load(stored) if load is not None and isinstance(stored, str) else stored


def declared_by_default(default: object) -> object:
    """Return the ``Param`` that a default declares by its type, if JSON does not have that type; else the default."""
    kind = _kind_of(default)
    return default if kind is None else Param(kind, default)


def _kind_of(value: object) -> Any:
    """Return the type in ``_TEXTS`` of a value; None for others. A path is of a class of its system."""
    return Path if isinstance(value, Path) else type(value) if type(value) in _TEXTS else None


def _stored(value: object) -> object:
    kind = _kind_of(value)
    return value if kind is None else _TEXTS[kind][0](value)


def _declared(spec: ParamSpec) -> Mapping[str, object]:
    return {"type": spec.type, "choices": spec.choices}
