"""The values of the parameters of a flow: given now, stored by its run, or declared as defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, date, datetime
from typing import Any

from ..core.spec import LOGICAL_TIME, ScheduleSpec
from ..domain.overrides import masked_param
from ..domain.params import convert_param
from ..errors import OptionError
from .options import check_params
from .param import Param, Params, declared_by_default
from .time_zones import open_schedule

#: For the flow that is being imported: the parameters that its run has stored, and those given now.
_params: ContextVar[tuple[Mapping[str, Any], Mapping[str, Any]]] = ContextVar("_params", default=({}, {}))


@contextmanager
def use_params(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[None]:
    """Set the parameters of flows that are created in the ``with`` block."""
    token = _params.set((dict(stored), dict(given)))
    try:
        yield
    finally:
        _params.reset(token)


def read_params(flow: str, declared: Mapping[str, Any], schedule: ScheduleSpec | None) -> tuple[Params, str | None]:
    """Return the parameters of a flow, and why a given one is refused; None: all given ones fit.

    Raises OptionError for a parameter that needs a schedule in a flow without one.
    """
    stored, given = _params.get()
    stored = {key: value for key, value in stored.items() if value != masked_param(key)}
    params, refused = _merge_params(flow, declared, _day_of(schedule, stored, given), stored, given)
    if schedule is None:
        _refuse_offsets(flow, params.declared)
    check_params(flow, params.stored())
    return params, refused


def _merge_params(
    flow: str, declared: Mapping[str, Any], day: date, stored: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Params, str | None]:
    """Merge given values over stored ones over declared defaults, in the types that are declared.

    A stored value is dropped if the flow no longer declares the parameter, or declares it with another type: users
    repair flows between runs. A given value that does not fit is returned as a sentence and not raised, because another
    flow of the same import may be the one to run.
    """
    params = Params(flow)
    declared = {name: declared_by_default(value) for name, value in declared.items()}
    params.declared = {name: value for name, value in declared.items() if isinstance(value, Param)}
    defaults = {name: value.default_for(day) if isinstance(value, Param) else value for name, value in declared.items()}
    params.update({name: value for name, value in defaults.items() if value is not ...})
    for name in declared.keys() & stored.keys() - given.keys():
        with suppress(ValueError):
            params[name] = _convert(declared[name], stored[name])
    known = ", ".join(sorted(declared)) or "none"
    refused = None
    for name, value in given.items():
        if name not in declared:
            refused = refused or f"flow {flow!r} has no parameter {name!r}; it declares: {known}"
            continue
        try:
            params[name] = _convert(declared[name], value)
        except ValueError as error:
            refused = refused or f"flow {flow!r}: parameter {name!r} {error}"
    return params, refused


def _day_of(schedule: ScheduleSpec | None, stored: Mapping[str, Any], given: Mapping[str, Any]) -> date:
    """Return the day of the logical time of the run, else of now, in the time zone of the schedule."""
    logical_time = given.get(LOGICAL_TIME) or stored.get(LOGICAL_TIME)
    with suppress(ValueError, TypeError):  # a logical time that a person wrote
        if logical_time:
            return datetime.fromisoformat(logical_time).date()
    return datetime.now(UTC if schedule is None else open_schedule(schedule, "").zone).date()


def _refuse_offsets(flow: str, declared: Mapping[str, Param[Any]]) -> None:
    for name, param in declared.items():
        if param.schedule_offset_days is not None:
            raise OptionError(f"flow {flow!r}: parameter {name!r} has schedule_offset_days, and the flow no schedule")


def _convert(declared: Any, value: Any) -> Any:
    return declared.parse(value) if isinstance(declared, Param) else convert_param(value, declared)
