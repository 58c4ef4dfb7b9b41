"""What a command over ssh costs on a slow line: the round trips after the greeting, and that the rows are the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.agent_process import AgentProcess
from support.commands import invoke_redrive
from support.marks import parametrize_mostly_long
from support.rich_state import write_rich_state
from support.state_file import StateFileBuilder

#: Commands, and the round trips that each takes at most: "PATH" is a state file over there, "HOST" all of them.
COMMANDS = {
    "tasks PATH": 0,
    "tasks PATH@latest": 1,
    "runs PATH": 0,
    "why PATH": 0,
    "why PATH broken": 0,
    "inbox PATH": 1,
    "inbox PATH@latest": 1,
    "inbox HOST": 1,
    "fleet HOST": 0,
    "logs PATH broken": 1,
    "logs PATH": 1,
    "report PATH": 1,
    "report --short PATH": 0,
    "systems PATH": 1,
    "systems breakers PATH": 0,
    "systems pages PATH": 0,
    "systems rows PATH": 1,
    "events PATH": 1,
}


class Trips:
    """Counts: what is sent after an answer has come is another round trip."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = self._answered = 0
        request, notify = AgentProcess.request, AgentProcess.notify

        async def counted(pipe: AgentProcess, ask: str, **fields: Any) -> Any:
            if ask == "clock":  # nobody waits for it
                return await request(pipe, ask, **fields)
            number = self._begun()
            try:
                return await request(pipe, ask, **fields)
            finally:
                self._answered = max(self._answered, number)

        def followed(pipe: AgentProcess, ask: str, **fields: Any) -> None:
            if ask == "follow" and fields["since"] is not None:
                self._begun()
            notify(pipe, ask, **fields)

        patch.setattr(AgentProcess, "request", counted)
        patch.setattr(AgentProcess, "notify", followed)

    def _begun(self) -> int:
        self.count = max(self.count, self._answered + 1)
        return self._answered + 1


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("rich") / "rich.db"
    write_rich_state(path)
    return path.read_bytes()


@pytest.fixture
def place(far: Any, make_run_file: Callable[..., StateFileBuilder], rich: bytes) -> Iterator[Path]:
    """Two state files in the default place over there; one has everything that a state file can hold."""
    folder = far.home / ".local/state/redrive"
    folder.mkdir(parents=True, exist_ok=True)
    other = make_run_file("other.db", run_id="other")
    other.close()
    (folder / "other.db").write_bytes(other.path.read_bytes())
    (folder / "rich.db").write_bytes(rich)
    yield folder
    shutil.rmtree(folder)  # commands over there may have left folders of their own


@parametrize_mostly_long(("words", "most"), COMMANDS.items(), ids=list(COMMANDS), quick=2)
def test_a_command_takes_one_round_trip(place: Path, monkeypatch: pytest.MonkeyPatch, words: str, most: int) -> None:
    trips = Trips(monkeypatch)
    where = words.replace("PATH", f"ssh://far{place}/rich.db").replace("HOST", "ssh://far").split()
    result = invoke_redrive(*where)
    assert not result.exception, result.output
    assert trips.count <= most
    if "HOST" not in words and words != "systems PATH":  # here it lists the pools of this machine as well
        here = invoke_redrive(*words.replace("PATH", f"{place}/rich.db").split())
        assert (here.exit_code, len(here.stdout.splitlines())) == (result.exit_code, len(result.stdout.splitlines()))


def test_what_is_asked_later_is_of_the_file_that_was_chosen(
    place: Path, monkeypatch: pytest.MonkeyPatch, far: Any
) -> None:
    """The host chooses a file, or opens several ahead: a question that was not asked with them is of the right one."""
    monkeypatch.setenv("REDRIVE_STATE", "ssh://far")
    other = (place / "other.db").rename(place / "z")
    assert "one line of output" in invoke_redrive("logs", "--", "broken").stdout
    other.unlink()


LONG = "".join(f"line {number} of a long log\n" for number in range(20_000))


@parametrize_mostly_long(
    ("words", "lines", "most"), [("", 20_000, 1), ("--lines 3", 3, 1), ("--lines 19999", 19_999, 2)], quick=1
)
def test_a_long_log_takes_one_round_trip(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, lines: int, most: int
) -> None:
    file = StateFileBuilder(tmp_path / "long.db", 1)
    file.finish("task_00000", text=LONG)
    file.close()
    (place / "long.db").write_bytes(file.path.read_bytes())
    trips = Trips(monkeypatch)
    result = invoke_redrive("logs", *words.split(), f"ssh://far{place}/long.db", "task_00000")
    assert (result.stdout, trips.count <= most) == ("".join(LONG.splitlines(keepends=True)[-lines:]), True), trips.count
