"""``redrive trace``: a run as an OpenTelemetry trace, from what the state file keeps of it.

The run is the root span, each task a span below it with links to its parents, each attempt a span of its task. Their
ids are those of ``TRACEPARENT`` in the attempts (``engine/runner/command.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ...engine.core.outcome import OutcomeKind
from ...engine.core.projection import AttemptRow, RunProjection, TaskRow
from ...engine.domain.event_payloads import TaskMoved
from ...engine.domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, RunState
from ...engine.errors import RedriveError
from ...engine.runner.command import span_id, trace_id
from ...engine.version import VERSION
from ..feed.reads import events_of_run
from ..sessions.open import with_session
from ..sessions.session import Session
from ..text.text import echo, one_line
from .main import ExitCode, command
from .options import NamedFile, complete_runs, ssh_options, state_option

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext

Attributes = Mapping[str, str | int | bool | None]

SPANS_MAX = 512  # in one request
TIMEOUT_SECONDS = 10.0  # of a request, with its retries
_PATH = "/v1/traces"  # of a receiver that is named without a path (OTLP specification, "OTLP/HTTP request")


@command("trace")
@click.argument("run_id", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.option("--otlp", "url", required=True, metavar="URL", help="An OTLP/HTTP receiver, as http://localhost:4318.")
@state_option
@ssh_options
def export_trace(file: NamedFile, run_id: str | None, url: str) -> int:
    """RUN: default the latest run. A second export is the same trace: its ids follow from the run."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise click.UsageError(f"--otlp {url!r}: write a URL, as http://localhost:4318")
    url = url.rstrip("/") + _PATH if urlsplit(url).path in ("", "/") else url
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ModuleNotFoundError:
        raise RedriveError("traces need a library: pip install 'redrive[otel]'") from None
    run = with_session(file.to_read(), lambda session: _read_run(session, run_id))
    spans = list(run.spans())
    problems = _Problems()
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_SECONDS)
    for start in range(0, len(spans), SPANS_MAX):
        if exporter.export(spans[start : start + SPANS_MAX]) is not SpanExportResult.SUCCESS:
            raise RedriveError(f"{url} took no spans: {problems.latest or 'it is no OTLP/HTTP receiver'}")
    echo(one_line(f"{run.projection.run.run_id}: {len(spans)} spans, trace {run.trace}"))
    return ExitCode.SUCCESS


class _Problems(logging.Handler):
    """The latest message of the library, which reports by logging why a receiver took nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = ""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.latest = record.getMessage()


@cache
def _origin() -> tuple[Resource, InstrumentationScope]:
    """Who the spans are from."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return Resource({"service.name": "redrive", "service.version": VERSION}), InstrumentationScope("redrive", VERSION)


async def _read_run(session: Session, run_id: str | None) -> TracedRun:
    from opentelemetry.sdk.trace import Event as SpanEvent

    projection = await session.snapshot(run_id)
    moves: dict[str, list[SpanEvent]] = {}
    async for event in events_of_run(session, projection):
        if isinstance(event.payload, TaskMoved) and event.task is not None and event.new is not None:
            given = {"from": event.old, "actor": event.actor, "reason": event.reason, "why": event.payload.why}
            attributes = {f"redrive.{name}": value for name, value in given.items() if value}
            moves.setdefault(event.task, []).append(SpanEvent(event.new, attributes, event.at * 1000))
    run = projection.run
    return TracedRun(projection, moves, trace_id(run.dag_name, run.run_id, run.started_at))


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run with the changes of state of its tasks, as spans. ``trace``: its id."""

    projection: RunProjection
    moves: Mapping[str, list[SpanEvent]]
    trace: str

    def spans(self) -> Iterator[ReadableSpan]:
        """Yield the span of the run, then those of its tasks, each before those of its attempts.

        A task that has neither started nor ended has no span.
        """
        run = self.projection.run
        end = run.ended_at or max([run.started_at, *(task.changed_at for task in self.projection.tasks.values())])
        attributes: Attributes = {
            "redrive.flow": run.dag_name,
            "redrive.run_id": run.run_id,
            "redrive.state": str(run.state),
            "redrive.blocked": run.blocked_since is not None,
            "redrive.code_hash": run.code_hash,
            "redrive.logical_time": run.logical_time,
        }
        failed = run.ended_at is not None and run.state != RunState.SUCCESS
        yield self._span((), run.dag_name, run.started_at, end, attributes, failed=str(run.state) if failed else None)
        for task in self.projection.tasks.values():
            if task.attempts or task.ended_at is not None:
                yield self._task_span(task, end)
            for attempt in task.attempts.values():
                yield self._attempt_span(task, attempt, end)

    def _task_span(self, task: TaskRow, end: int) -> ReadableSpan:
        starts = [attempt.started_at for attempt in task.attempts.values()]
        until = task.ended_at or end
        attributes: Attributes = {
            "redrive.task": task.name,
            "redrive.state": str(task.state),
            "redrive.attempts": task.attempt,
            "redrive.generation": task.generation,
            "redrive.failure_class": task.failure_class,
            "redrive.fingerprint": task.failure_fingerprint,
            "redrive.dead_letter_kind": task.dead_letter_kind,
            "redrive.blocked_by": task.blocked_by,
        }
        failed = (task.error or str(task.state)) if task.state in NEEDS_HUMAN else None
        names = (task.name,)
        return self._span(names, task.name, min(starts, default=until), until, attributes, failed=failed)

    def _attempt_span(self, task: TaskRow, attempt: AttemptRow, end: int) -> ReadableSpan:
        attributes: Attributes = {
            "redrive.outcome": attempt.outcome,
            "redrive.failure_class": attempt.failure_class,
            "redrive.explain": attempt.explain,
            "redrive.max_rss_kb": attempt.max_rss_kb,
            "error.type": attempt.error_type,
            "host.name": attempt.host,
            "process.pid": attempt.pid,
            "process.exit.code": attempt.exit_code,
        }
        failed = (attempt.error or attempt.outcome) if attempt.outcome in (*FAILED_OUTCOMES, OutcomeKind.LOST) else None
        name, until = f"{task.name} #{attempt.attempt}", attempt.ended_at or end
        names = (task.name, attempt.attempt)
        return self._span(names, name, attempt.started_at, until, attributes, failed=failed)

    def _span(
        self,
        names: tuple[object, ...],
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        failed: str | None,
    ) -> ReadableSpan:
        """A span below that of ``names`` without the last; ``failed``: why it is an error."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, Status, StatusCode

        parents = self.projection.parents.get(str(names[0]), ()) if len(names) == 1 else ()
        resource, scope = _origin()
        return ReadableSpan(
            name,
            context=self._context(*names),
            parent=self._context(*names[:-1]) if names else None,
            resource=resource,
            attributes={key: value for key, value in attributes.items() if value is not None},
            events=self.moves.get(str(names[0]), ()) if len(names) == 1 else (),
            links=[Link(self._context(parent)) for parent in parents],
            status=Status(StatusCode.UNSET) if failed is None else Status(StatusCode.ERROR, failed),
            start_time=start * 1000,
            end_time=max(start, end) * 1000,
            instrumentation_scope=scope,
        )

    def _context(self, *names: object) -> SpanContext:
        from opentelemetry.trace import SpanContext, TraceFlags

        span = span_id(self.trace, *names)
        return SpanContext(int(self.trace, 16), int(span, 16), False, TraceFlags(TraceFlags.SAMPLED))
