"""``redrive metrics``: what Prometheus reads is what the inbox says, and the rules and the dashboard fit it."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redrive.console.cli.metrics import METRICS, parse_address
from support.commands import run_redrive, start_redrive
from support.marks import for_each
from support.waiting import wait_until

FLOW = """
import pathlib, time
from redrive.engine import Flow, PermanentError, RetryPolicy
flow = Flow("{name}", schedule="0 0 1 1 *")
@flow.task(retry=RetryPolicy(max_attempts=2, base=0, cap=0))
def load():
    if pathlib.Path("{folder}/blocks").exists():
        raise PermanentError("no")
    if pathlib.Path("{folder}/fails").exists():
        raise ConnectionResetError("no route")
    if pathlib.Path("{folder}/waits").exists():
        time.sleep(600)
"""
Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    (tmp_path / "etl.py").write_text(FLOW.format(name="etl", folder=tmp_path))
    return tmp_path


def run_flow(folder: Path, run_id: str, how: str | None = None) -> None:
    if how is not None:
        (folder / how).touch()
    run_redrive("run", folder / "etl.py", "--plain", "--run-id", run_id)
    if how is not None:
        (folder / how).unlink()


def samples_of(text: str) -> dict[Sample, float]:
    return {
        (sample.name.removeprefix("redrive_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metrics() -> dict[Sample, float]:
    done = run_redrive("metrics")
    assert done.returncode == 0, done.stderr
    return samples_of(done.stdout)


def value(samples: Mapping[Sample, float], name: str, **labels: str) -> float | None:
    """The only value of a metric with these labels among others; None: there is none."""
    found = [number for (one, given), number in samples.items() if one == name and set(labels.items()) <= given]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_run_and_its_attempts(folder: Path) -> None:
    run_flow(folder, "good")
    ended = time.time()
    run_flow(folder, "bad", "fails")
    found = metrics()
    assert value(found, "run_state", flow="etl", state="FAILED") == 1
    assert value(found, "run_state", flow="etl", state="SUCCESS") == 0
    success = value(found, "run_last_success_timestamp_seconds", flow="etl")
    assert success is not None and ended - 60 < success <= ended
    start = value(found, "run_start_timestamp_seconds", flow="etl")
    assert start is not None and success < start < time.time()
    assert value(found, "run_attempts", flow="etl", outcome="error", failure_class="transient") == 2
    assert 0 < (value(found, "run_duration_seconds", flow="etl") or 0) < 60
    assert value(found, "needs_human") == value(found, "needs", kind="failed run", flow="etl") == 1
    assert (value(found, "state_file_bytes", part="file") or 0) > 100_000


@pytest.mark.long
def test_dead_letters_count_as_in_the_inbox_and_say_since_when(folder: Path) -> None:
    before = time.time()
    for run_id in ("one", "two"):
        run_flow(folder, run_id, "blocks")
    found = metrics()
    assert value(found, "dead_letters", flow="etl") == value(found, "needs", kind="dead letters") == 2
    assert value(found, "run_state", state="BLOCKED") == 1 and value(found, "run_state", state="RUNNING") == 0
    oldest = value(found, "dead_letter_oldest_timestamp_seconds", flow="etl")
    assert oldest is not None
    with closing(sqlite3.connect(folder / "states/redrive/etl.db")) as connection:
        (first,) = connection.execute("SELECT min(ended_at) FROM task WHERE state = 'DEAD_LETTER'").fetchone()
    assert before < oldest == first / 1e6


@pytest.mark.long
def test_a_run_whose_executor_was_killed_is_cut_off_as_in_the_list(folder: Path) -> None:
    (folder / "waits").touch()
    with start_redrive("run", folder / "etl.py", "--plain") as executor:
        assert executor.stdout is not None
        wait_until(lambda: "RUNNING" in executor.stdout.readline())
        assert value(metrics(), "run_state", state="RUNNING") == 1
        executor.kill()
    wait_until(lambda: "CUT OFF" in run_redrive("runs", "etl").stdout)
    found = metrics()
    assert value(found, "run_state", state="CUT OFF") == 1 and value(found, "run_state", state="RUNNING") == 0


def test_a_breaker(folder: Path) -> None:
    run_flow(folder, "one")
    with closing(sqlite3.connect(folder / "states/redrive/etl.db")) as connection, connection:
        for name, state in (("erp", "OPEN"), ("bank", "CLOSED")):
            connection.execute(
                "INSERT INTO breaker (downstream, state, window, detail, changed_at) VALUES (?, ?, '[]', '{}', 1)",
                (name, state),
            )
    found = metrics()
    assert value(found, "breaker_open", downstream="erp") == 1 and value(found, "breaker_open", downstream="bank") == 0
    assert value(found, "needs", kind="open breaker") == 1


def test_a_text_file_is_written_at_once(folder: Path) -> None:
    run_flow(folder, "one")
    path = folder / "collector/redrive.prom"
    refused = run_redrive("metrics", "--textfile", path)
    assert refused.returncode == 2 and "cannot be written: No such file" in refused.stderr
    path.parent.mkdir()
    path.write_text("old")
    with path.open() as old:  # a collector that reads meanwhile
        assert run_redrive("metrics", "--textfile", path).returncode == 0
        assert old.read() == "old"
    assert value(samples_of(path.read_text()), "run_state", state="SUCCESS") == 1
    assert list(path.parent.iterdir()) == [path]


def test_without_the_library_one_sentence_says_so(folder: Path) -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; from redrive.console.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", program, "metrics"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "redrive: metrics need a library: pip install 'redrive[metrics]'\n")


def read_page(url: str) -> str:
    with urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@contextmanager
def answering(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves metrics, and where."""
    with start_redrive(*words) as process:
        try:
            assert process.stdout is not None
            while "metrics at " not in (line := process.stdout.readline()):
                assert line, process.wait()
            yield process, line.strip().rpartition(" ")[2]
        finally:
            process.kill()


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A supervisor, and where the metrics of its machine are."""
    with start_redrive("serve", folder / "etl.py") as service, answering("metrics", "--listen", "0") as (_, url):
        try:
            yield service, url
        finally:
            service.kill()


def test_a_supervisor_is_seen_alive_and_dead(folder: Path) -> None:
    run_flow(folder, "one")
    with served(folder) as (service, url):
        assert url.startswith("http://127.0.0.1:")
        wait_until(lambda: value(samples_of(read_page(url)), "schedule_served", flow="etl"))
        found = samples_of(read_page(url))
        heartbeat = value(found, "supervisor_heartbeat_timestamp_seconds")
        assert heartbeat is not None and abs(heartbeat - time.time()) < 30
        assert (value(found, "schedule_next_timestamp_seconds", flow="etl") or 0) > time.time()
        assert [value(found, f"schedule_{name}", flow="etl") for name in ("paused", "late_seconds")] == [0, 0]
        run_flow(folder, "two", "fails")
        assert value(samples_of(read_page(url)), "run_state", state="FAILED") == 1
        run_redrive("schedule", "pause", "etl")
        assert value(samples_of(read_page(url)), "schedule_paused", flow="etl") == 1
        service.kill()
        service.wait(60)
        assert value(samples_of(read_page(url)), "needs", kind="dead scheduler", flow="etl") == 1


def test_a_place_that_is_taken_is_named(folder: Path) -> None:
    with answering("metrics", "--listen", "0") as (process, url):
        port = url.rpartition(":")[2].partition("/")[0]
        done = run_redrive("metrics", "--listen", port)
        assert done.returncode == 2 and f"127.0.0.1:{port}: Address already in use" in done.stderr
        process.terminate()
        assert process.wait(60) == 0


def test_what_keeps_all_from_being_read_is_said_once_and_leaves_no_metrics(folder: Path) -> None:
    run_flow(folder, "one")
    schedules = folder / "states/redrive/schedules.supervisor"
    schedules.write_text("no database, but as long as the header of one, which has a hundred bytes" * 4)
    refused = run_redrive("metrics")
    assert refused.returncode == 2 and "schedules.supervisor is damaged" in refused.stderr
    with answering("metrics", "--listen", "0") as (process, url):
        assert samples_of(read_page(url)) == samples_of(read_page(url)) == {}
        schedules.unlink()
        assert value(samples_of(read_page(url)), "run_state", state="SUCCESS") == 1
        process.terminate()
        rest = process.communicate(timeout=60)[0]
    assert rest.count("schedules.supervisor is damaged") == 1 and "Traceback" not in rest


@for_each(
    "text, address",
    [("9108", ("127.0.0.1", 9108)), (":1", ("127.0.0.1", 1)), ("0.0.0.0:2", ("0.0.0.0", 2)), ("[::1]:3", ("::1", 3))],
)
def test_an_address_without_a_host_is_of_this_machine_alone(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@for_each("text", ["", "host", "host:", "1:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="is no address"):
        parse_address(text)


# --- A real Prometheus -----------------------------------------------------------------------------------------------


def expressions() -> list[str]:
    """The expressions of the dashboard."""
    dashboard = json.loads(run_redrive("metrics", "--dashboard").stdout)
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_rules_and_the_dashboard_name_metrics_that_exist() -> None:
    alerts = run_redrive("metrics", "--alerts").stdout
    named = set(re.findall(r"\bredrive_(\w+)", " ".join([alerts, *expressions()])))
    assert named <= METRICS.keys() and len(named) > 10


@pytest.mark.long
def test_prometheus_scrapes_evaluates_and_alerts(folder: Path) -> None:
    run_flow(folder, "good")
    run_flow(folder, "bad", "blocks")
    (folder / "alerts.yml").write_text(run_redrive("metrics", "--alerts").stdout)
    assert subprocess.run(["promtool", "check", "rules", folder / "alerts.yml"], timeout=60).returncode == 0
    with served(folder) as (_, url), prometheus(folder, url) as query:
        wait_until(lambda: query("redrive_needs_human"))
        (alert,) = wait_until(lambda: query('ALERTS{alertname="RedriveNeedsHuman"}'))
        assert (alert["metric"]["flow"], alert["metric"]["kind"]) == ("etl", "dead letters")
        wait_until(lambda: query("redrive_schedule_served == 1"))
        answers = {expression: query(expression) for expression in expressions()}
        silent = {expression for expression, answer in answers.items() if not answer}
        assert silent == {"redrive_run_start_delay_seconds", "max by (downstream) (redrive_breaker_open)"}
        assert not query('ALERTS{alertname="RedriveMetricsMissing"}')


@contextmanager
def prometheus(folder: Path, url: str) -> Iterator[Any]:
    """A Prometheus that scrapes every second: a function that evaluates an expression."""
    target = url.removeprefix("http://").partition("/")[0]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\n"
        f"scrape_configs: [{{job_name: redrive, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    words = ["prometheus", "--web.listen-address=127.0.0.1:0", "--config.file=prometheus.yml"]
    log = folder / "prometheus.log"
    with log.open("w") as file:
        process = subprocess.Popen([*words, "--storage.tsdb.path=data"], cwd=folder, stdout=file, stderr=file)

    def query(expression: str) -> list[dict[str, Any]]:
        try:
            page = read_page(f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': expression})}")
        except (URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            return []
        return list(json.loads(page)["data"]["result"])

    try:
        (port,) = wait_until(lambda: re.findall(r"Listening on.*127\.0\.0\.1:(\d+)", log.read_text()))
        yield query
    finally:
        process.terminate()
        process.wait(60)
