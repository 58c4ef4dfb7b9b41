"""All that ``redrive check`` finds in a flow, without a process for its import."""

from __future__ import annotations

from redrive.engine import Flow
from redrive.engine.check.flow_checks import check_spec
from redrive.engine.check.tasks import check_tasks
from redrive.engine.core.advice import PastByTask
from redrive.engine.flow.source import Finding


def check_flow(flow: Flow, observed: PastByTask | None = None) -> list[Finding]:
    """Check the spec and the tasks of a flow. ``observed``: earlier runs, by task."""
    spec = flow.spec()
    return [*check_spec(spec, observed), *check_tasks(spec, flow.functions)]
