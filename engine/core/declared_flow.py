"""What a run keeps of its flow (``run.options``, and the spec of each task), for whoever has no flow at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from .projection import RunProjection
from .ready_queue import spec_of
from .spec import DownstreamSpec, FlowSpec

_DOWNSTREAM_FIELDS = frozenset(one.name for one in fields(DownstreamSpec)) - {"rules"}


def declared_flow(fold: RunProjection) -> FlowSpec:
    """The flow of a run, without what only an executor asks of it: pages, parameters, rules of classification."""
    run = fold.run
    return FlowSpec(
        run.dag_name,
        tuple(spec_of(row) for row in fold.tasks.values()),
        max_parallel=run.max_parallel,
        pools=_pools(run.options),
        downstreams=tuple(declared_downstreams(run.options)),
    )


def declared_downstreams(options: str) -> Iterator[DownstreamSpec]:
    """The systems that a flow describes. ``options``: JSON; one that cannot be read declares none."""
    for one in _read(options).get("downstreams") or ():
        yield DownstreamSpec(**{name: value for name, value in one.items() if name in _DOWNSTREAM_FIELDS})


def _pools(options: str) -> Mapping[str, int]:
    return _read(options).get("pools") or {}


def _read(options: str) -> dict[str, Any]:
    try:
        found = json.loads(options)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
