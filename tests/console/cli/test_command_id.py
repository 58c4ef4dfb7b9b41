"""An act whose answer was lost: asked for by its id, and sent again with it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from redrive.console.cli.group import ExitCode, code_of_error
from redrive.console.sessions.address import Endpoint
from redrive.console.sessions.once import with_session
from redrive.console.sessions.session import new_command
from redrive.engine.agent import command_client
from redrive.engine.errors import NoAnswerError
from support.commands import REDRIVE, run_redrive

FLOW = """
from redrive.engine import Flow, PermanentError
flow = Flow("etl")
@flow.task
def load(): raise PermanentError("no")
@flow.task
def save(): raise PermanentError("no")
"""
ID = "act-0001"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A blocked run with two dead letters."""
    (tmp_path / "etl.py").write_text(FLOW)
    path = tmp_path / "etl.db"
    assert run_redrive("run", tmp_path / "etl.py", "--state", path).returncode == 3
    return path


@pytest.mark.long
def test_the_same_words_again_do_it_once_and_get_the_same_answer(state: Path) -> None:
    words = ["requeue", state, "load", "--reason", "mended", "--command-id", ID]
    assert run_redrive("events", state, "--command-id", ID).returncode == 1
    first, second = run_redrive(*words), run_redrive(*words)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1] == "load: runs again after attempt 1"
    asked = run_redrive("events", state, "--command-id", ID)
    assert asked.returncode == 0 and asked.stdout.count("requeue") == 1
    events = run_redrive("events", state, "--json").stdout
    assert events.count(f'"command_id": "{ID}"') == events.count(ID)
    assert run_redrive("tasks", state, "load", "--json").stdout.count('"generation": 1') == 1


def test_another_act_with_a_known_id_is_refused(state: Path) -> None:
    given = ["--command-id", ID]
    assert run_redrive("requeue", state, "load", "--reason", "mended", *given).returncode == 0
    for words in (
        ["requeue", state, "save", "--reason", "mended"],
        ["requeue", state, "load", "--reason", "another"],
        ["requeue", state, "load", "--reason", "mended", "--cascade"],
        ["skip", state, "load", "--reason", "mended"],
        ["pause", state, "--reason", "mended"],
    ):
        done = run_redrive(*words, *given)
        assert done.returncode == 1, words
        assert f"the id {ID} is that of another act (requeue by" in done.stdout + done.stderr


@pytest.mark.parametrize("pattern", ["lo*", "*"])
def test_a_glob_and_an_undo_are_found_by_their_id(state: Path, pattern: str) -> None:
    """The first one has changed what the words mean."""
    words = ["requeue", state, pattern, "--reason", "mended", "--yes", "--command-id", ID]
    first, second = run_redrive(*words), run_redrive(*words)
    assert first.returncode == second.returncode == 0
    assert set(second.stdout.splitlines()) >= set(first.stdout.splitlines()[1:])
    undo = ["undo", state, "--command-id", "undo-0001"]
    for _ in range(2):
        assert run_redrive(*undo).returncode == 0
    assert run_redrive("tasks", state, "--json").stdout.count("DEAD_LETTER") >= 2


def test_a_lost_answer_names_the_id_and_the_command_that_asks(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(path: str, command: object) -> None:
        raise NoAnswerError("no answer from the executor for 30 s")

    monkeypatch.setattr(command_client, "send_blocking", lose)
    command = new_command("pause", None)
    with pytest.raises(NoAnswerError) as lost:
        with_session(Endpoint(str(state)), lambda session: session.send(command))
    assert code_of_error(lost.value) is ExitCode.NO_ANSWER
    found = re.search(r"it may have been done: (redrive .*) says so", str(lost.value))
    assert found is not None
    asked = run_redrive(*shlex.split(found[1])[1:])
    assert asked.returncode == 1 and f"no act with id {command.id}" in asked.stderr


def test_an_act_of_a_task_of_the_run_says_so_in_the_journal(tmp_path: Path) -> None:
    state = tmp_path / "evil.db"
    task = shlex.join([*REDRIVE, "cancel", str(state), "b", "--reason", "x"])
    (tmp_path / "evil.py").write_text(
        f"from redrive.engine import Flow\nflow = Flow('evil')\nflow.command('a', {task!r})\n"
        "flow.command('b', 'true', after='a')\n"
    )
    run_redrive("run", tmp_path / "evil.py", "--state", state)
    (act,) = [one for one in run_redrive("events", state).stdout.splitlines() if " b CANCELLED" in one]
    assert re.search(r"by .* \(a task of this run, pid \d+\)", act)
