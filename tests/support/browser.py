"""A headless Chromium behind a pipe, by the Chrome DevTools Protocol (https://chromedevtools.github.io/)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
_COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening")


class Browser:
    """One page of a browser with a profile of its own in ``folder``.

    Attributes:
        requests: addresses that the page asked for, its own among them.
        complaints: errors of scripts, texts on the browser's console, dialogs, and violations of the page's policy.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._numbers = iter(range(1, 1_000_000))
        self._load_events = 0
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        options = [f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(  # the browser reads commands from descriptor 3 and writes answers to 4
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", _program(), *_OPTIONS, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[commands, answers],
        )
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._session = ""
        pages = [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self._call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, place: Path | str) -> None:
        """Load a file or an address, and wait for the end of its loading."""
        self.requests.clear()
        self.complaints.clear()
        loaded = self._load_events
        self._call("Page.navigate", url=place.as_uri() if isinstance(place, Path) else place)
        while self._load_events == loaded:
            self._handle(self._receive())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Show the page as a phone with a screen of this many pixels does."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True)

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: ``light`` or ``dark``."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": number, "method": method, "params": arguments, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._handle(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = os.read(self._answers, 1 << 16)
            assert data, f"the browser ended with exit code {self._process.wait()}"
            self._unread += data
        message, self._unread = self._unread.split(b"\0", 1)
        return dict(json.loads(message))

    def _handle(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._load_events += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method in _COMPLAINTS:
            self.complaints.append(json.dumps(details))


def _program() -> str:
    for name in _PROGRAMS:
        if path := shutil.which(name):
            return path
    pytest.fail("these tests need a Chromium: apt install chromium")
