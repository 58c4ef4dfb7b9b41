"""What a console loads before its first frame, and at rest: modules and libraries."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow
from support.pty_terminal import PtyTerminal

_AT_THE_FIRST_FRAME = """
import sys
at_start = set(sys.modules)  # Python itself, of which each version has others

import json, os
from redrive.console.terminal.tty import Tty

path = sys.argv.pop(1)

def splash(self, words):
    with open(path, "w") as file:
        json.dump(sorted(sys.modules.keys() - at_start), file)
    os._exit(0)

Tty.splash = splash
from redrive.console.cli.main import main
main()
"""
_FLOW = "from redrive.engine import Flow\nflow = Flow('one')\nflow.command('a', 'true')\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    flow = Flow("one")
    flow.command("only", "true", timeout=10)
    assert Executor(flow=flow, state=tmp_path / "one.db").run() == "SUCCESS"
    return tmp_path / "one.db"


@contextmanager
def terminal_of(*argv: str) -> Iterator[PtyTerminal]:
    terminal = PtyTerminal([sys.executable, "-P", *argv], columns=120, rows=40, environ=dict(os.environ))
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(("most", "words"), [(88, ("attach", "one.db")), (97, ("run", "one.py", "--state", "new.db"))])
def test_little_is_imported_before_the_first_frame(
    most: int, words: tuple[str, ...], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(state.parent)
    state.with_name("one.py").write_text(
        "from redrive.engine import Flow\nflow = Flow('one')\nflow.command('a', 'b')\n"
    )
    with terminal_of("-c", _AT_THE_FIRST_FRAME, "modules.json", *words) as terminal:
        assert terminal.wait() == 0, terminal.text
    modules = json.loads(state.with_name("modules.json").read_text())
    heavy = {"asyncio", "msgspec", "sqlite3", "ssl", "subprocess", "textual", "redrive.engine.core"}
    assert heavy & set(modules) == set()
    assert len(modules) <= most, (len(modules), modules)


def test_a_console_loads_no_openssl(state: Path) -> None:
    """It is 5 of its 53 MB, and the console opens no TLS connection."""
    with terminal_of("-m", "redrive.console", "attach", str(state)) as terminal:
        terminal.until("only", 90)
        mapped = Path(f"/proc/{terminal.process.pid}/maps").read_text()
    assert "libsqlite3" in mapped or "_sqlite3" in mapped
    assert "libssl" not in mapped and "libcrypto" not in mapped
