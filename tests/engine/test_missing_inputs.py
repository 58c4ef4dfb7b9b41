"""What a task gets in place of the result of a parent that did not succeed, and who cannot do without it."""

from __future__ import annotations

import functools
import sqlite3
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Context, Executor, Flow, FlowError, Missing, PermanentError, RunOptions, SkipTask
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import parse_command


def required(flow: Flow, name: str) -> tuple[str, ...]:
    return next(task.requires for task in flow.spec().tasks if task.name == name)


def test_a_parameter_without_a_default_says_what_a_task_cannot_do_without() -> None:
    flow = Flow("f")
    for name in ("orders", "rates-eu", "holidays"):
        flow.task(lambda: None, name=name)

    @flow.task(after=["orders", "rates-eu", "holidays"])
    def load(ctx: Context, orders: Any, rates_eu: Any, *, holidays: Any = None) -> None: ...

    @flow.task(after=["orders"])
    def count(ctx: Context) -> None: ...

    @flow.task(after=["orders"])
    @functools.lru_cache
    def wrapped(orders: Any) -> None: ...

    assert required(flow, "load") == ("orders", "rates-eu")
    assert required(flow, "count") == ()
    assert required(flow, "wrapped") == ("orders",)


def test_a_task_may_say_itself_what_it_requires() -> None:
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    flow.task(lambda: None, name="b")
    flow.command("load", "true", after=["a", "b"], requires=["b"])
    flow.task(lambda a: None, name="forgiving", after=["a"], requires=[])
    assert (required(flow, "load"), required(flow, "forgiving")) == (("b",), ())


def test_nothing_is_required_of_a_task_that_is_no_parent() -> None:
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    flow.task(lambda: None, name="b")
    flow.task(lambda: None, name="c", after=["a"], requires=["b"])
    with pytest.raises(FlowError, match="requires the result of 'b', which it does not come after"):
        flow.spec()


def test_a_missing_result_is_false_and_says_why() -> None:
    missing = Missing("load", "skipped by operator")
    assert not missing and missing is not None
    assert repr(missing) == "<no result of 'load': skipped by operator>"


def run(tmp_path: Path, flow: Flow, **more: Any) -> str:
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db", **more).run()


def result_of(tmp_path: Path, name: str) -> Any:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute("SELECT result FROM task WHERE name = ?", (name,)).fetchone()[0]


def test_parents_that_did_not_succeed_hand_on_what_became_of_them(tmp_path: Path) -> None:
    flow = Flow("f")

    @flow.task(max_attempts=1)
    def failed() -> None:
        raise OSError("no")

    @flow.task
    def not_taken() -> None:
        raise SkipTask("nothing to do")

    @flow.task
    def empty() -> None: ...

    @flow.task(after=[failed, not_taken, empty], rule="all_done")
    def last(ctx: Context, not_taken: str = "by default") -> list[str]:
        return [repr(ctx.inputs[name]) for name in ("failed", "not_taken", "empty")] + [not_taken]

    assert run(tmp_path, flow) == "FAILED"
    expected = (
        '["<no result of \'failed\': failed>","<no result of \'not_taken\': skipped by condition>","None","by default"]'
    )
    assert result_of(tmp_path, "last") == expected


@pytest.mark.parametrize("substituted", [True, False])
def test_a_skipped_parent_hands_on_its_substitute_or_that_it_was_skipped(tmp_path: Path, substituted: bool) -> None:
    flow = Flow("f")

    @flow.task
    def broken() -> None:
        raise PermanentError("no")

    @flow.task(after=broken)
    def child(ctx: Context) -> str:
        return f"{ctx.inputs['broken']!r}"

    def skip() -> None:
        command = {"id": uuid.uuid4().hex, "act": "skip", "run_id": "r", "actor": "ana@host", "reason": "why"}
        options = {"substitute": {"rows": 0}} if substituted else {}
        targets = [["broken", "DEAD_LETTER", 0]]
        sent = parse_command({**command, "targets": targets, "options": options})
        assert command_client.send_blocking(str(tmp_path / "state.db"), sent).ok

    threads: list[threading.Thread] = []

    def listen(events: Any) -> None:
        if any(event.new == "DEAD_LETTER" for event in events):
            threads.append(threading.Thread(target=skip))
            threads[-1].start()

    assert run(tmp_path, flow, options=RunOptions(stay=True), on_events=listen) == "PARTIAL"
    expected = "{'rows': 0}" if substituted else "<no result of 'broken': skipped by operator>"
    assert result_of(tmp_path, "child") == f'"{expected}"'
