"""Every act of the table has a handler, words and a way from the shell; work that it makes finds an executor."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner
from redrive.console.app.executor_start import ExecutorStarter
from redrive.console.app.systems_operator import BREAKER_ACTIONS
from redrive.console.cli.group import cli
from redrive.console.keys.actions import ACTIONS
from redrive.console.model.launch_context import LaunchContext
from redrive.console.sessions.local import LocalSession
from redrive.engine import Executor
from redrive.engine.domain.acts import ACTS, BY_NAME, Act, Answer, Command, Target
from redrive.engine.domain.breakers import BREAKER_ACTS
from redrive.engine.executor import server
from redrive.engine.statefile import operator_actions
from support.commands import all_commands, quoted

FLOW = """
from pathlib import Path
from redrive.engine import Context, Flow, RetryPolicy

REPAIRED = Path(__file__).with_name("repaired")
flow = Flow("night")

@flow.task
def orders(ctx: Context) -> None:
    for scope in ctx.rows(["o-1", "o-2"], key=str):
        with scope as row:
            if row == "o-2" and not REPAIRED.exists():
                raise ValueError("no such article")

@flow.task(downstream="warehouse", retry=RetryPolicy(max_attempts=1))
def load() -> None:
    raise ConnectionError("no route")
"""

#: What has to be done first, so that the act finds something to do in a run that has ended.
BEFORE = {"cancel": ["requeue"], "hurry": ["requeue"], "pause": ["requeue"], "abandon": ["requeue"]}
BEFORE |= {"unpause": ["requeue", "pause"], "undo": ["requeue", "pause"]}

#: These ask for something that only a living executor can do.
REFUSED_WITHOUT_EXECUTOR = {"extend", "stop", "reload"}

every_act = pytest.mark.parametrize("act", ACTS, ids=[act.name for act in ACTS])


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has failed: one task failed, one holds a bad row, a page is open, no executor lives."""
    return run_in(tmp_path_factory.mktemp("ended"))


def run_in(folder: Path) -> Path:
    (folder / "flow.py").write_text(FLOW)
    assert Executor(run_id="r", flow=str(folder / "flow.py"), state=folder / "state.db").run() == "FAILED"
    return folder


@pytest.fixture
def state(ended: Path, tmp_path: Path) -> Path:
    """A state file of one's own, as the run has left it."""
    shutil.copytree(ended, tmp_path / "night")
    return tmp_path / "night" / "state.db"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Executors that a console has started: (state file, run)."""
    calls: list[tuple[str, str]] = []

    async def resume(path: str, run_id: str, options: Any) -> None:
        calls.append((path, run_id))

    monkeypatch.setattr("redrive.console.sessions.local.resume", resume)
    return calls


def ask(state: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(state)) as connection, connection:
        return connection.execute(sql).fetchall()


def current_target(state: Path, task: str) -> Target:
    ((found, generation),) = ask(state, f"SELECT state, generation FROM task WHERE name = '{task}'")
    return Target(task, found, generation)


def cause(state: Path) -> str:
    return str(ask(state, "SELECT fingerprint_loose FROM attempt WHERE name = 'load'")[0][0])


def with_old_run(state: Path) -> None:
    """An earlier run of the same flow that has ended."""
    ask(
        state,
        "INSERT OR IGNORE INTO run (rowid, run_id, dag_name, started_at, ended_at, state)"
        " SELECT 0, 'old', dag_name, 1, 2, 'SUCCESS' FROM run",
    )


def with_passed_deadline(state: Path) -> None:
    """The run has FAILED at its deadline."""
    ask(state, "UPDATE run SET deadline_at = 1, deadline_passed_at = 1")


def with_approval(state: Path) -> Target:
    """A task of the run waits for an approval."""
    spec = '{"name":"ok","kind":"approval"}'
    ask(state, f"INSERT OR IGNORE INTO task (run_id, name, state, spec) VALUES ('r', 'ok', 'READY', '{spec}')")
    return current_target(state, "ok")


#: The targets and options of an act on the run; ``before``: the ids of the commands that were sent before it.
FORMS: dict[str, Callable[[Path, list[str]], tuple[tuple[Target, ...], dict[str, Any]]]] = {
    "requeue": lambda state, before: ((current_target(state, "load"),), {"not_before": 9000}),
    "requeue-rows": lambda state, before: ((current_target(state, "orders"),), {"rows": [1]}),
    "discard-rows": lambda state, before: ((), {"rows": [1]}),
    "skip": lambda state, before: ((current_target(state, "load"),), {}),
    "approve": lambda state, before: ((with_approval(state),), {}),
    "reject": lambda state, before: ((with_approval(state),), {}),
    "cancel": lambda state, before: ((current_target(state, "load"),), {}),
    "extend": lambda state, before: ((current_target(state, "load"),), {"seconds": 600}),
    "hurry": lambda state, before: ((current_target(state, "load"),), {}),
    "pause": lambda state, before: ((), {}),
    "unpause": lambda state, before: ((), {}),
    "abandon": lambda state, before: ((), {}),
    "postpone": lambda state, before: with_passed_deadline(state) or ((), {"seconds": 600}),
    "ack-run": lambda state, before: ((), {}),
    "undo": lambda state, before: ((), {"command": before[-1]}),
    "ack": lambda state, before: ((), {"pages": [1]}),
    "snooze": lambda state, before: ((), {"pages": [1], "seconds": 600}),
    "note": lambda state, before: ((), {"fingerprint": cause(state), "text": "the router is replaced"}),
    "breaker": lambda state, before: ((), {"downstream": "warehouse", "how": "open"}),
    "prune": lambda state, before: with_old_run(state) or ((), {"runs": 0}),
    "stop": lambda state, before: ((), {"how": "now"}),
    "reload": lambda state, before: ((), {}),
}


async def command_for(act: str, state: Path) -> Command:
    """The act on this run, after what has to be done first."""
    before: list[str] = []
    session = await LocalSession.open(str(state))
    for name in BEFORE.get(act, ()):
        command = form(name, state, before)
        assert (await session.send(command)).ok
        before.append(command.id)
    await session.close()
    return form(act, state, before)


def form(act: str, state: Path, before: list[str]) -> Command:
    targets, options = FORMS[act](state, before)
    return Command(uuid.uuid4().hex, act, "r", targets, "ana@desk", "the router is replaced", options)


def reopened(state: Path) -> bool:
    return ask(state, "SELECT state FROM run") == [("RUNNING",)]


# --- The table -----------------------------------------------------------------------------------------------------


def test_the_table_and_the_handlers_are_the_same_set() -> None:
    assert set(BY_NAME) == {*operator_actions.HANDLERS, *server.HANDLERS} and len(BY_NAME) == len(ACTS)
    assert set(BY_NAME) - {"stop", "reload"} == set(operator_actions.HANDLERS)  # the two are for an executor alone
    assert {act.name for act in ACTS if act.awaited is not None} == set(server.FINISHERS)


def test_a_breaker_command_has_the_same_words_everywhere() -> None:
    assert set(BREAKER_ACTS) == set(BREAKER_ACTIONS)


@every_act
def test_an_act_has_words_and_a_help_text(act: Act) -> None:
    assert act.verb and act.past
    helps = [action.help for action in ACTIONS if action.act == act.name]
    helps += [all_commands()[act.shell.split()[0]].help or ""] if act.shell else []
    assert helps and all(helps)


@every_act
def test_an_act_has_a_shell_command_or_a_reason_for_none(act: Act) -> None:
    assert bool(act.shell) != bool(act.no_shell)
    words = (act.shell or "pause").split()
    command = all_commands()[words.pop(0)]
    if isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    assert set(words) <= {name for option in command.params for name in option.opts}


# --- The engine ----------------------------------------------------------------------------------------------------


@every_act
async def test_an_act_is_answered_once_and_the_second_time_changes_nothing(act: Act, state: Path) -> None:
    command = await command_for(act.name, state)
    session = await LocalSession.open(str(state))
    first, events = await session.send(command), ask(state, "SELECT count(*) FROM event")
    second = await session.send(command)
    await session.close()
    assert first.ok is (act.name not in REFUSED_WITHOUT_EXECUTOR), first
    assert (second, ask(state, "SELECT count(*) FROM event")) == (first, events)


async def test_another_note_is_no_second_sending_of_the_first(state: Path) -> None:
    command = await command_for("note", state)
    other = command._replace(options={**command.options, "text": "another"})
    session = await LocalSession.open(str(state))
    answers = [await session.send(one) for one in (command, other, command)]
    await session.close()
    assert [answer.ok for answer in answers] == [True, False, True] and answers[0] == answers[2]
    assert "is that of another act (note by" in answers[1].message


async def test_a_note_that_was_refused_is_refused_alike_again(state: Path) -> None:
    command = await command_for("note", state)
    refused = command._replace(options={**command.options, "fingerprint": "unknown"})
    session = await LocalSession.open(str(state))
    first, second = await session.send(refused), await session.send(refused)
    await session.close()
    assert not first.ok and first == second


@every_act
async def test_an_act_without_its_reason_is_refused(act: Act, state: Path) -> None:
    command = (await command_for(act.name, state))._replace(reason=" ")
    session = await LocalSession.open(str(state))
    answer = await session.send(command)
    await session.close()
    assert answer.message.startswith("say why") is act.needs_reason


@every_act
async def test_what_can_be_taken_back_is_taken_back(act: Act, state: Path) -> None:
    command = await command_for(act.name, state)
    session = await LocalSession.open(str(state))
    await session.send(command)
    undo = form("undo", state, [command.id])
    assert (await session.send(undo)).ok is act.is_undoable
    await session.close()


# --- The doors -----------------------------------------------------------------------------------------------------


async def send_from_its_console(session: LocalSession, command: Command) -> Answer:
    """Send a command as the console does that has started the run."""
    launch = LaunchContext(session.address, started_here=True)
    console = SimpleNamespace(launch=launch, live=SimpleNamespace(session=session))
    answer = await session.send(command)
    assert not answer.ok or not await ExecutorStarter(cast(Any, console)).start_after(command, is_confirmed=False)
    return answer


@every_act
async def test_in_the_console_that_started_the_run_an_act_that_makes_work_starts_an_executor(
    act: Act, state: Path, started: list[tuple[str, str]]
) -> None:
    command = await command_for(act.name, state)
    session = await LocalSession.open(str(state))
    await send_from_its_console(session, command)
    await session.close()
    assert started == ([(str(state), "r")] if act.starts_work else [])
    assert reopened(state) or not act.starts_work


WORDS: dict[str, Callable[[Path], list[str]]] = {
    "requeue": lambda state: ["requeue", "--state", str(state), "--reason", "x", "load"],
    "requeue-rows": lambda state: ["quarantine", str(state), "--requeue", "all", "--reason", "x"],
    "discard-rows": lambda state: ["quarantine", str(state), "--discard", "all", "--reason", "x"],
    "skip": lambda state: ["skip", "--state", str(state), "--reason", "x", "load"],
    "approve": lambda state: ["approve", "--state", str(state), "--reason", "x", "ok"],
    "reject": lambda state: ["reject", "--state", str(state), "--reason", "x", "ok"],
    "cancel": lambda state: ["cancel", "--state", str(state), "--reason", "x", "load"],
    "extend": lambda state: ["extend", "--state", str(state), "load", "10m"],
    "pause": lambda state: ["pause", str(state)],
    "unpause": lambda state: ["unpause", str(state)],
    "postpone": lambda state: ["postpone", "--state", str(state), "10m"],
    "abandon": lambda state: ["abandon", "--state", str(state), "r"],
    "ack": lambda state: ["pages", str(state), "--ack", "1"],
    "undo": lambda state: ["undo", "--state", str(state), "--run", "r"],
    "ack-run": lambda state: ["ack", "--state", str(state), "r"],
    "snooze": lambda state: ["pages", str(state), "--snooze", "1", "10m"],
    "note": lambda state: ["note", "--state", str(state), "--fingerprint", cause(state), "replaced"],
    "stop": lambda state: ["stop", str(state)],
    "reload": lambda state: ["reload", str(state)],
    "breaker": lambda state: ["breakers", str(state), "--open", "warehouse"],
    "prune": lambda state: ["prune", str(state), "--keep", "0"],
}


@pytest.mark.parametrize("act", [act for act in ACTS if act.shell], ids=lambda act: act.name)
def test_from_the_shell_an_act_that_makes_work_says_how_to_start_an_executor(act: Act, state: Path) -> None:
    asyncio.run(command_for(act.name, state))
    done = CliRunner().invoke(cli, WORDS[act.name](state), standalone_mode=False)
    assert done.return_value == (1 if act.name in REFUSED_WITHOUT_EXECUTOR else 0), done.output
    assert (f"go on with: redrive resume {quoted(state)}" in done.output) is act.starts_work
    assert reopened(state) or not act.starts_work


async def test_rows_that_are_requeued_after_the_end_of_the_run_are_run_by_an_executor(tmp_path: Path) -> None:
    """No stand-in: the console starts a process, which runs the task again over its row."""
    state = await asyncio.to_thread(run_in, tmp_path) / "state.db"
    (tmp_path / "repaired").touch()
    session = await LocalSession.open(str(state))
    answer = await send_from_its_console(session, form("requeue-rows", state, []))
    assert answer.ok, answer
    async with asyncio.timeout(120):
        async for _ in session.events(0):  # also an empty batch each second
            if not reopened(state) and not session.has_executor():
                break
    await session.close()
    assert ask(state, "SELECT state FROM quarantine") == [("resolved",)]
