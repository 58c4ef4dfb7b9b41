"""A real terminal for every test: a PTY, a program on it, and what became of both."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.pty_terminal import LIMIT_SECONDS, PtyTerminal, python
from support.waiting import wait_until

HERE = Path(__file__).parent

_LOOKS = 4  # in a row that find nothing new
_TICKS_OF_A_PICTURE = 20  # more than a program leaves out between two pictures that somebody reads


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., PtyTerminal]]:
    """``on_terminal(argv, columns=80, rows=24, environ={}, answers=True)`` -> a ``PtyTerminal``, closed afterwards."""
    opened: list[PtyTerminal] = []

    def start(*arguments: Any, **options: Any) -> PtyTerminal:
        opened.append(PtyTerminal(*arguments, **options))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


class Demo:
    """The demo application on a terminal; see ``demo_app.py``."""

    def __init__(self, terminal: PtyTerminal, folder: Path) -> None:
        self.terminal = terminal
        self.folder = folder

    def acts(self) -> list[str]:
        """What it did that changed something."""
        path = self.folder / "acts"
        return path.read_text().splitlines() if path.exists() else []

    def stats(self) -> dict[str, float]:
        """What it measured since the last question. Reads nothing from the terminal meanwhile."""
        path = self.folder / "stats"
        path.unlink(missing_ok=True)
        self.terminal.signal(signal.SIGUSR1)
        process = self.terminal.process
        wait_until(lambda: path.exists() or process.poll() is not None, interval_seconds=0.005)
        assert process.poll() is None, f"it ended\n{self.terminal.text}"
        found: dict[str, float] = json.loads(path.read_text())
        return found

    def settle(self) -> None:
        """Read until everything is on the screen: asked several times, the program has written nothing more."""
        same, written = 0, -1.0
        while same < _LOOKS:
            self.terminal.read_for(0.03)
            before, written = written, self.stats()["bytes"]
            same = same + 1 if written == before and not self.terminal.read() else 0

    def quit(self) -> None:
        """By its keys: Esc is none where another one comes right behind it, so both come until they are read apart."""
        while self.terminal.process.poll() is None:
            for key in ("\x1b", "q"):
                self.terminal.send(key)
                self.terminal.read_for(0.3)
        self.terminal.wait()

    def cursor_row(self) -> int:
        """Of the screen; 0 where no row is as under the cursor."""
        buffer = self.terminal.screen.buffer
        return next((y for y in range(3, len(buffer)) if buffer[y][3].reverse), 0)

    def ticked(self, count: int) -> dict[str, float]:
        """``stats`` after so many more ticks. Reads nothing from the terminal meanwhile."""
        ticks = self.stats()["ticks"]
        end = time.monotonic() + LIMIT_SECONDS
        while (stats := self.stats())["ticks"] < ticks + count:
            assert time.monotonic() < end, "it ticks no more"
        return stats

    def until_held_up(self) -> dict[str, float]:
        """Wait, without reading, until the kernel takes no more and the program paints no more; its ``stats`` then."""
        before = self.ticked(_TICKS_OF_A_PICTURE)
        end = time.monotonic() + LIMIT_SECONDS
        while (stats := self.ticked(_TICKS_OF_A_PICTURE))["paints"] > before["paints"]:
            assert time.monotonic() < end, "it paints for a terminal that does not read"
            before = stats
        return stats


@pytest.fixture
def demo(on_terminal: Callable[..., PtyTerminal], tmp_path: Path) -> Callable[..., Demo]:
    """``demo(*options, columns=..., rows=..., environ=...)``: started, and its first screen is complete, or ``ready``
    is on it."""

    def start(*options: str, ready: str | None = None, environ: Mapping[str, str] | None = None, **more: Any) -> Demo:
        environ = {"XDG_STATE_HOME": str(tmp_path / "state"), **(environ or {})}
        argv = python(HERE / "demo_app.py", str(tmp_path), *options)
        app = Demo(on_terminal(argv, environ=environ, **more), tmp_path)
        if ready is None:
            app.terminal.until("task_00001")
            app.settle()
        else:
            app.terminal.until(ready)
        return app

    return start
