"""``redrive metrics``: a machine for Prometheus.

What needs a human is the answer of the one rule, ``engine/statefile/needs.py``. Instants are exported as such, in
seconds since 1970: an age in a text file would stand still when nobody writes the file any more.

They are read in a process of their own: reading a state file in the process that writes it would drop its locks
(https://sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import click

from ... import __version__
from ...engine.core.views import RUN_CODES, run_state_code, run_view
from ...engine.domain.breakers import HOLDING_BREAKERS
from ...engine.domain.rows import RunFacts
from ...engine.errors import RedriveError
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import attention_count, needs_of
from ...engine.statefile.state_files import FileRow, FileRowReader, read_figures
from ...engine.statefile.supervisor_file import ServedSchedule, read_schedules
from ..model.runs import known_counts, status_of
from ..model.session_status import runner_of
from ..present.schedules import SCHEDULE_COLUMNS
from ..sessions.session import machine_now_us
from ..text.columns import json_value
from ..text.text import echo, one_line
from .group import ExitCode, command

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

PORT = 9108

#: Name without ``redrive_`` -> its help and its labels.
METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "info": ("The version of redrive.", ("version",)),
    "needs_human": ("How much waits for a human on this machine: the number in the header of the console.", ()),
    "needs": ("What waits for a human, by kind.", ("kind", "flow", "state_file")),
    "notices": ("What is listed until somebody has acknowledged it; nothing waits for it.", ()),
    "supervisor_heartbeat_timestamp_seconds": ("The last sign of life of redrive serve.", ()),
    "schedule_served": ("1: a living redrive serve starts the runs.", ("flow", "file")),
    "schedule_paused": ("1: an operator has paused the schedule.", ("flow", "file")),
    "schedule_next_timestamp_seconds": ("When the next run is due.", ("flow", "file")),
    "schedule_late_seconds": ("How long a run is due that has not started; 0: none.", ("flow", "file")),
    "schedule_start_failed": ("1: the latest start failed, and nobody has acknowledged that.", ("flow", "file")),
    "schedule_missed_starts": ("Logical times without a run that nobody has started or dismissed.", ("flow", "file")),
    "schedule_usual_seconds": ("The median duration of the latest successful runs.", ("flow", "file")),
    "run_state": ("1 for the state of the latest run, 0 for the others.", ("flow", "state_file", "state")),
    "run_start_timestamp_seconds": ("When the latest run started.", ("flow", "state_file")),
    "run_duration_seconds": ("How long the latest run took, or has taken so far.", ("flow", "state_file")),
    "run_start_delay_seconds": ("From the logical time of the latest run to its start.", ("flow", "state_file")),
    "run_last_success_timestamp_seconds": ("When the latest successful run ended.", ("flow", "state_file")),
    "run_attempts": ("Attempts of the latest run.", ("flow", "state_file", "outcome", "failure_class")),
    "dead_letters": ("Tasks that wait for a decision, in all runs.", ("flow", "state_file")),
    "dead_letter_oldest_timestamp_seconds": ("Since when the oldest of them waits.", ("flow", "state_file")),
    "breaker_open": ("1: the breaker of a downstream is open.", ("downstream", "state_file")),
    "executor_alive": ("1: an executor owns the state file.", ("state_file",)),
    "state_file_bytes": ("The size of a state file, and of its write-ahead log.", ("state_file", "part")),
}


@command("metrics")
@click.option("--textfile", "path", metavar="PATH", help="Write PATH at once, as for the textfile collector.")
@click.option("--listen", "address", metavar="ADDRESS", help=f"Answer HTTP: as {PORT}, or 0.0.0.0:{PORT}.")
@click.option("--alerts", is_flag=True, help="Print rules of alerts for Prometheus.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
def print_metrics(path: str | None, address: str | None, alerts: bool, dashboard: bool) -> int:
    """Without an option the metrics are printed. ADDRESS without a host is one of this machine alone; --listen answers
    until SIGTERM.
    """
    if sum((path is not None, address is not None, alerts, dashboard)) > 1:
        raise click.UsageError("give one of --textfile, --listen, --alerts and --dashboard")
    if alerts or dashboard:
        name = "alerts.yml" if alerts else "dashboard.json"
        echo(resources.files("redrive.console.manual").joinpath(name).read_text("utf-8"), nl=False)
        return ExitCode.SUCCESS
    try:
        from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
    except ModuleNotFoundError:
        raise RedriveError("metrics need a library: pip install 'redrive[metrics]'") from None
    registry = CollectorRegistry()
    registry.register(MachineCollector(report_problems=address is not None))
    if address is not None:
        _answer(registry, *parse_address(address))
    elif path is not None:
        try:
            write_to_textfile(path, registry)
        except OSError as error:
            raise RedriveError(f"{path} cannot be written: {error.strerror}") from None
    else:
        echo(generate_latest(registry).decode(), nl=False)
    return ExitCode.SUCCESS


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``9108``, ``:9108`` or ``0.0.0.0:9108``. Raises click.UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{text!r} is no address: write {PORT}, or 0.0.0.0:{PORT}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _answer(registry: CollectorRegistry, host: str, port: int) -> None:
    """Answer HTTP until SIGTERM or SIGINT."""
    from prometheus_client import start_http_server

    signals = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise RedriveError(f"metrics cannot be served at {host}:{port}: {error.strerror}") from None
    echo(f"metrics at http://{host}:{server.server_port}/metrics")
    sys.stdout.flush()
    signal.sigwait(signals)


# --- The figures of this machine -------------------------------------------------------------------------------------


Labels = tuple[str, ...]


class Samples:
    """The values of METRICS, each once for its labels: Prometheus refuses all of them for one that comes twice."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a value; None: there is none. Of the same labels the latest holds."""
        if value is not None:
            self.values[name][labels] = value

    def set_seconds(self, name: str, us: int | None, *labels: str) -> None:
        """Set an instant or a length of time, of microseconds."""
        self.set(name, None if us is None else us / 1e6, *labels)

    def add(self, name: str, value: float, *labels: str) -> None:
        self.values[name][labels] = self.values[name].get(labels, 0) + value


class MachineCollector:
    """Reads the metrics of this machine at each scrape; a state file that has not changed is not read again.

    ``report_problems``: what keeps all from being read is printed once, and there are no metrics, which calls; else it
    is raised.
    """

    def __init__(self, *, report_problems: bool) -> None:
        self._file_rows = FileRowReader()
        self._report_problems = report_problems
        self._problem = ""

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        try:
            samples, problem = self.read(machine_now_us()), ""
        except RedriveError as error:
            if not self._report_problems:
                raise
            samples, problem = Samples(), str(error)
            if problem != self._problem:
                echo(one_line(f"redrive: {problem}"), err=True)
        self._problem = problem
        for name, values in samples.values.items():
            text, labels = METRICS[name]
            family = GaugeMetricFamily(f"redrive_{name}", text, labels=labels)
            for label_values, value in values.items():
                family.add_metric(label_values, value)
            yield family

    def read(self, now_us: int) -> Samples:
        """The samples as of now. Raises RedriveError."""
        samples = Samples()
        samples.set("info", 1, __version__)
        file_rows, view = self._file_rows.read(), read_schedules()
        _add_needs(samples, file_rows, now_us)
        samples.set_seconds("supervisor_heartbeat_timestamp_seconds", view.heartbeat_at)
        for schedule in view.schedules:
            add_schedule(samples, schedule, now_us)
        for file_row in (one for one in file_rows if one.has_file):
            _add_file(samples, file_row)
            figures = read_figures(file_row.path)
            for run in figures.runs:
                add_run(samples, run, file_row, now_us)
                for one in figures.attempts.get(run.run_id, ()):
                    labels = run.dag_name, file_row.path, one.outcome, one.failure_class
                    samples.set("run_attempts", one.attempts, *labels)
            for breaker in figures.breakers:
                samples.set("breaker_open", breaker.state in HOLDING_BREAKERS, breaker.downstream, file_row.path)
        return samples


def _add_needs(samples: Samples, file_rows: Sequence[FileRow], now_us: int) -> None:
    needs = needs_of(file_rows, now_us)
    samples.set("needs_human", attention_count(needs))
    samples.set("notices", sum(need.is_notice for need in needs))
    for need in needs:
        if not need.is_notice:
            samples.add("needs", need.counted, need.kind.value, need.flow or "", need.path)


#: Metric of a schedule -> the column that it is of.
_OF_SCHEDULES = {
    "schedule_served": "is_served",
    "schedule_paused": "is_paused",
    "schedule_next_timestamp_seconds": "next_at",
    "schedule_missed_starts": "missed_times",
    "schedule_usual_seconds": "usual_us",
}


def add_schedule(samples: Samples, schedule: ServedSchedule, now_us: int) -> None:
    labels, values = (schedule.flow, schedule.file), json_value(SCHEDULE_COLUMNS, schedule, now_us)
    for name, column in _OF_SCHEDULES.items():
        (samples.set_seconds if name.endswith("_seconds") else samples.set)(name, cast(Any, values[column]), *labels)
    late_since = schedule.late_from(now_us)
    samples.set_seconds("schedule_late_seconds", 0 if late_since is None else now_us - late_since, *labels)
    samples.set("schedule_start_failed", schedule.has_failed_start(), *labels)


def add_run(samples: Samples, run: RunFacts, file_row: FileRow, now_us: int) -> None:
    labels, counts = (run.dag_name, file_row.path), known_counts(run)
    runner = runner_of(run, status_of(file_row))
    state = run_state_code(run, runner, counts)
    for one in RUN_CODES:
        samples.set("run_state", one == state, *labels, one)
    samples.set_seconds("run_start_timestamp_seconds", run.started_at, *labels)
    samples.set_seconds("run_duration_seconds", run_view(run, runner, now_us, counts).clock, *labels)
    if run.logical_time is not None:
        samples.set_seconds("run_start_delay_seconds", run.started_at - run.logical_time, *labels)
    samples.set_seconds("run_last_success_timestamp_seconds", run.succeeded_at, *labels)


def _add_file(samples: Samples, file_row: FileRow) -> None:
    samples.set("executor_alive", file_row.executor is not None and file_row.executor.alive, file_row.path)
    for part, suffix in (("file", ""), ("log", "-wal")):
        with contextlib.suppress(FileNotFoundError):
            samples.set("state_file_bytes", os.path.getsize(file_row.path + suffix), file_row.path, part)
    oldest: dict[str, int] = {}
    for group in file_row.rows_of(NeedKind.DEAD_LETTERS):
        samples.add("dead_letters", group.counted, group.flow, file_row.path)
        if group.since is not None:
            oldest[group.flow] = min(group.since, oldest.get(group.flow, group.since))
    for flow, since in oldest.items():
        samples.set_seconds("dead_letter_oldest_timestamp_seconds", since, flow, file_row.path)
