"""An approval in the console: the keys ``y`` and ``n`` answer it, with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.console.model.board import Board
from redrive.console.model.graph.view import Graph
from redrive.console.model.runs import WaitingRun
from redrive.console.present import states
from redrive.console.present.runs import ListedRun
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.views import OperatorPrompt
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.rows import RunFacts
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.logs import LogChunk
from redrive.engine.statefile.needs import Need
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, run_text
from ..model.runs import START, EventBuilder, projection_of
from .screen_driver import open_console


@pytest.fixture
def session(clock: StillClock) -> FakeSession:
    """A task that waits for an approval, and another that runs."""
    flow = [("build", []), ("ok", ["build"]), ("publish", ["ok"]), ("other", [])]
    projection = projection_of(flow, {"ok": {"kind": "approval"}})
    builder = EventBuilder(projection)
    for event in [*builder.start("build"), *builder.succeed("build"), *builder.start("other")]:
        projection.apply(event)
    projection.apply(builder.move("ok", "READY", started_at=builder.at))
    session = FakeSession(projection)
    session.builder = builder
    clock.now = builder.at
    return session


def test_it_is_counted_with_what_needs_a_human_in_every_view(session: FakeSession) -> None:
    board = Board(session.projection)
    graph = Graph(board, len)
    graph.resize(80, 24)
    groups, columns = graph.groups.groups, graph.silhouette(80).columns
    asked = [board.counts, *(group.counts for group in groups), *(column.counts for column in columns)]
    assert plain(states.counts_line(board.counts, UTF8)) == "◆1  1 running  1 ok  1 pending"
    assert states.counts_text(board.counts, ALIVE) == "1 approve?, 1 running, 1 ok, 1 pending"
    assert states.leading_state(board.counts) is OperatorPrompt.APPROVAL
    assert plain(states.counts_signs({**board.counts, TaskState.DEAD_LETTER: 2}, UTF8, 30)).startswith("◆3 ●1")
    run, need = board.projection.run, Need(NeedKind.APPROVAL, "", START)
    waiting = WaitingRun(RunFacts(run.run_id, run.dag_name, START, asked=1), need)
    assert "◆1 approval" in run_text(ListedRun(board.summary, waiting=waiting), board.projection.seq)
    assert board.summary.counts == {"READY": 1, "RUNNING": 1, "SUCCESS": 1, "PENDING": 1} and board.summary.asked == 1
    assert sum(counts[OperatorPrompt.APPROVAL] for counts in asked) == 3 and not any(
        counts[TaskState.READY] for counts in asked
    )
    graph.apply(board.apply([session.builder.move("ok", "SUCCESS")]))
    assert not any(counts[OperatorPrompt.APPROVAL] for counts in asked)


def act_row(seq: int, act: str, task: str, reason: str) -> dict[str, Any]:
    """A row of the list "operator_acts"."""
    data = {"act": act, "was": {task: {"state": "READY", "generation": 0}}}
    row = dict.fromkeys(("task", "old", "new", "attempt", "generation"))
    row |= {"seq": seq, "at": START, "kind": "operator", "run_id": "before", "actor": "ana@db1", "reason": reason}
    return {**row, "command_id": f"c{seq}", "data": json.dumps(data)}


async def test_the_inbox_lists_it_while_other_tasks_run(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "4") as driver:
        assert "1 cause · 1 approval · oldest 0s" in driver.text
        assert " ".join(driver.find("waits for an").split()).startswith("▾ ◆ 1 waits for an approval ok holds 1")
        assert driver.text.count("asked at") == 1
        assert "◆ ok" in driver.text and "approve?" in driver.text
        assert "Nothing failed: it waits for an answer." in driver.text
        assert "4 Inbox ◆1" in driver.text
        assert "y approve… n reject…" in " ".join(driver.lines[-1].split())
        await driver.press("i")
        assert "ok: waits for an approval for 0s: y approves, n rejects" in " ".join(driver.text.split())
        assert "y approves, n rejects" in driver.text and "redrive approve" not in driver.text


async def test_the_inbox_shows_what_is_asked_about_and_who_answered_before(
    session: FakeSession, clock: StillClock
) -> None:
    session.projection.tasks["build"].result = json.dumps({"version": "1.4.2", "rows": 1204})
    session.logs["build", 1] = [LogChunk(1, START, "1,204 rows compared\n")]
    session.lists["operator_acts"] = [
        act_row(1, "approve", "build", "not of this task"),
        act_row(2, "reject", "ok", "numbers are wrong"),
        act_row(3, "approve", "ok", "numbers fit"),
    ]
    async with open_console(session, clock, "4") as driver:
        text = " ".join(driver.text.split())
        assert "build returned version 1.4.2 rows 1204" in text
        assert "approved by ana@db1: numbers fit" in text and "rejected by ana@db1: numbers are wrong" in text
        assert "not of this task" not in text
        assert "build wrote 1,204 rows compared" in text


@parametrize_mostly_long(("key", "act"), [("y", "approve"), ("n", "reject")], quick=2)
@parametrize_mostly_long("view", ["4", "2"])
async def test_a_key_answers_it_with_a_reason(
    session: FakeSession, clock: StillClock, view: str, key: str, act: str
) -> None:
    async with open_console(session, clock, view) as driver:
        driver.app.selected = "ok"
        await driver.settle()
        await driver.press(key)
        assert f"{act.capitalize()} ok" in driver.text
        assert session.commands == []
        await driver.submit("")
        assert "A reason is needed" in driver.text
        await driver.submit("numbers fit")
        await driver.press("a") if not session.commands else None
        (command,) = session.commands
        assert (command.act, command.reason, command.targets) == (act, "numbers fit", (("ok", "READY", 0),))


async def test_elsewhere_the_keys_do_what_they_always_do(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "2") as driver:
        driver.app.selected = "publish"
        await driver.settle()
        assert "approve…" not in driver.lines[-1]
        await driver.press("y")
        assert "Approve" not in driver.text
