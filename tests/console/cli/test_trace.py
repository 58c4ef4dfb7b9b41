"""``redrive report --otlp``: a run arrives at a receiver as one trace; attempts know their span."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.commands import run_redrive
from support.otlp import Receiver, receiving

FLOW = """
import os, pathlib
from redrive.engine import Flow, PermanentError, RetryPolicy
flow = Flow("etl")
@flow.task(retry=RetryPolicy(max_attempts=2, base=0, cap=0))
def extract(ctx):
    pathlib.Path(f"python-{ctx.attempt}").write_text(os.environ["TRACEPARENT"])
    if ctx.attempt == 1:
        raise ConnectionResetError("no route")
load = flow.command("load", "printf %s $TRACEPARENT > command", after=[extract])
@flow.task(after=[load, extract])
def send():
    raise PermanentError("no account")
@flow.task(after=[send])
def report(): ...
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    (tmp_path / "etl.py").write_text(FLOW)
    done = run_redrive("run", tmp_path / "etl.py", "--plain", "--run-id", "night")
    assert done.returncode == 3, done.stdout
    return tmp_path


def attributes(span: Span) -> dict[str, object]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_a_run_is_a_trace_of_tasks_and_attempts(folder: Path, receiver: Receiver) -> None:
    done = run_redrive("report", "--otlp", receiver.url)
    assert done.returncode == 0, done.stderr
    spans = {span.name: span for span in receiver.spans}
    attempts = {"extract #1", "extract #2", "load #1", "send #1"}
    assert spans.keys() == {"etl", "extract", "load", "send", *attempts}
    (trace,) = {span.trace_id.hex() for span in receiver.spans}
    assert done.stdout == f"night: 8 spans, trace {trace}\n"
    assert (receiver.paths, receiver.services) == (["/v1/traces"], {"redrive"})
    assert spans["etl"].parent_span_id == b""
    for name, span in spans.items():
        if name != "etl":
            parent = spans[name.partition(" #")[0] if name in attempts else "etl"]
            assert span.parent_span_id == parent.span_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert {link.span_id for link in spans["send"].links} == {spans["load"].span_id, spans["extract"].span_id}
    failed = {name for name, span in spans.items() if span.status.code == Status.STATUS_CODE_ERROR}
    assert failed == {"extract #1", "send #1", "send"} and "no account" in spans["send"].status.message
    assert attributes(spans["extract #1"])["redrive.failure_class"] == "transient"
    assert attributes(spans["etl"])["redrive.run_id"] == "night"
    moves = [event.name for event in spans["extract"].events]
    assert moves == ["READY", "RUNNING", "RETRYING", "READY", "RUNNING", "SUCCESS"][-len(moves) :]
    assert {"RETRYING", "SUCCESS"} <= set(moves)


@pytest.mark.long
def test_attempts_know_their_span_and_a_second_export_is_the_same_trace(folder: Path, receiver: Receiver) -> None:
    for target in ("night", "night"):
        assert run_redrive("report", f"etl@{target}", "--otlp", f"{receiver.url}/v1/traces").returncode == 0
    first, second = receiver.spans[:8], receiver.spans[8:]
    assert [span.SerializeToString() for span in first] == [span.SerializeToString() for span in second]
    spans = {span.name: span for span in first}
    for file, name in (("python-1", "extract #1"), ("python-2", "extract #2"), ("command", "load #1")):
        span = spans[name]
        assert (folder / file).read_text() == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


@pytest.mark.long
def test_a_requeue_is_part_of_the_same_trace(folder: Path, receiver: Receiver) -> None:
    assert run_redrive("report", "--otlp", receiver.url).returncode == 0
    assert run_redrive("requeue", "etl", "send", "--reason", "account is there").returncode == 0
    receiver.spans.clear()
    assert run_redrive("report", "--otlp", receiver.url).returncode == 0
    (send,) = [span for span in receiver.spans if span.name == "send"]
    (event,) = [event for event in send.events if event.name == "PENDING"]
    assert {one.key: one.value.string_value for one in event.attributes}["redrive.reason"] == "account is there"


def test_a_receiver_that_takes_nothing_is_named(folder: Path, receiver: Receiver) -> None:
    receiver.status = 404
    done = run_redrive("report", "--otlp", receiver.url)
    assert done.returncode == 2 and f"{receiver.url}/v1/traces took no spans: " in done.stderr
    assert "404" in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert "write a URL" in run_redrive("report", "--otlp", "localhost").stderr


def test_without_the_library_one_sentence_says_so(folder: Path) -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; from redrive.console.cli.main import main; main()"
    words = [sys.executable, "-P", "-c", program, "report", "--otlp", "http://localhost"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "redrive: traces need a library: pip install 'redrive[otel]'\n")
