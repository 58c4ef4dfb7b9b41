"""Read the flow of a run from the state file: ``run.options`` and the spec of each task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .projection import RunProjection
from .ready_queue import spec_of
from .spec import DownstreamSpec, FlowSpec

_DOWNSTREAM_FIELDS = frozenset(one.name for one in fields(DownstreamSpec)) - {"rules"}


def declared_flow(projection: RunProjection) -> FlowSpec:
    """Return the flow of a run, without pages, parameters and classification rules."""
    run = projection.run
    return FlowSpec(
        run.dag_name,
        tuple(spec_of(row) for row in projection.tasks.values()),
        max_parallel=run.max_parallel,
        pools=_read(run.options).get("pools") or {},
        downstreams=tuple(declared_downstreams(run.options)),
    )


def declared_downstreams(options: str) -> Iterator[DownstreamSpec]:
    """Yield the downstreams that a flow declares. ``options``: JSON; unreadable options declare none."""
    for one in _read(options).get("downstreams") or ():
        yield DownstreamSpec(**{name: value for name, value in one.items() if name in _DOWNSTREAM_FIELDS})


def _read(options: str) -> dict[str, Any]:
    try:
        found = json.loads(options)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
