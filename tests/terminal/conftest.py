"""A real terminal for every test: a PTY, a program on it, and what became of both."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pty_harness() -> ModuleType:
    """The module, for tests that start programs of their own."""
    return sys.modules.get("pty_harness") or _load("pty_harness")


@pytest.fixture
def on_terminal(pty_harness: ModuleType) -> Iterator[Callable[..., Any]]:
    """``on_terminal(argv, columns=80, rows=24, environ={}, answers=True)`` -> a ``PtyTerminal``, closed afterwards."""
    opened: list[Any] = []

    def start(*arguments: Any, **options: Any) -> Any:
        opened.append(pty_harness.PtyTerminal(*arguments, **options))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


class Demo:
    """The demo application on a terminal; see ``demo_app.py``."""

    def __init__(self, terminal: Any, folder: Path) -> None:
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
        end = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < end, "the event loop does not turn"
            time.sleep(0.005)
        found: dict[str, float] = json.loads(path.read_text())
        return found


@pytest.fixture
def demo(on_terminal: Callable[..., Any], pty_harness: ModuleType, tmp_path: Path) -> Callable[..., Demo]:
    """``demo(*options, columns=..., rows=..., environ=...)``: started, and its first screen is complete."""

    def start(*options: str, ready: str = "task_00001", environ: Mapping[str, str] | None = None, **more: Any) -> Demo:
        environ = {"XDG_STATE_HOME": str(tmp_path / "state"), **(environ or {})}
        argv = pty_harness.python(HERE / "demo_app.py", str(tmp_path), *options)
        terminal = on_terminal(argv, environ=environ, **more)
        if ready:
            terminal.until(ready)
            if "--tick" not in options:
                terminal.until_quiet(0.1, at_most=2.0)
        return Demo(terminal, tmp_path)

    return start
