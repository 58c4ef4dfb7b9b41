"""A hostile console: whatever it sends to a far agent, each request gets one response, in bounded memory, to the end.

Requests of every kind are altered: wrong types, deep and huge values, unknown names, lines that are not JSON. What a
console loads is code, which its login may run anyway: no source is altered.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.agent_process import MessageDecoder
from redrive.console.sessions.bundle import (
    LISTING,
    SENDING,
    boot_command,
    first_bundle,
    module_of,
    packed_sources,
    with_imports,
)
from redrive.engine.agent.agent import COMMANDS_MAX, LINE_BYTES_MAX
from redrive.engine.statefile import reader
from redrive.engine.statefile.lists import LISTINGS
from support.hostile_values import altered
from support.marks import parametrize_mostly_long, scaled
from support.rich_state import RUN, write_rich_state
from support.waiting import LIMIT_SECONDS

from .test_agent import INTERPRETERS

LINES = 1000  # of one test
LINES_AT_ONCE = 50
MEMORY_KB_MAX = 150_000
MARKER = "the-marker"
LOG = {"run_id": RUN, "name": "broken", "attempt": 1}
COMMAND = {
    "id": "c1",
    "act": "note",
    "run_id": RUN,
    "targets": [["broken", "DEAD_LETTER", 0]],
    "actor": "ana@desk",
    "reason": "because",
    "options": {"task": "broken"},
}
READS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("board", {"run_id": RUN}),
    ("board", {"run_id": RUN, "is_whole": True}),
    ("part", {"run_id": RUN, "names": ["broken"], "has_blockers": True}),
    ("history", {"run_id": RUN, "start": 0, "count": 100, "has_parents": True}),
    ("history", {"run_id": RUN, "start": 0, "count": 100}),
    ("runs", {}),
    *(("query", {"what": name, "options": {"limit": 5}}) for name in LISTINGS),
    ("past", {"run_id": RUN, "after": 0, "limit": 100}),
    ("duration_stats", {"run_id": RUN}),
    ("log", LOG),
    ("find", {**LOG, "pattern": "x"}),
    ("select", {**LOG, "pattern": "(" * 5000}),
    ("attempt_text", LOG),
    ("cause_history", {"run_id": RUN, "causes": [["f", "api"]]}),
    ("failures", {"run_id": RUN, "downstream": "api", "names": ["broken"]}),
    ("preview", {"command": COMMAND}),
    ("preview_prune", {"options": {"runs": 3}}),
)
REQUESTS: tuple[dict[str, Any], ...] = (
    *({"ask": "read", "what": what, "options": options} for what, options in READS),
    {"ask": "clock"},
    {"ask": "file", "path": "/nowhere.db", "queries": [["runs", {}]]},
    {"ask": "usage"},
    {"ask": "follow", "since": 0},
    {"ask": "follow", "since": None},
    {"ask": "acknowledge", "seq": 3},
    {"ask": "send", "command": COMMAND},
)
NO_REQUESTS = (b"", b"{", b"null", b"[" * 100_000, b"9" * 5000, b"\xff\xfe", b'"' + b"\\u0000" * 99, b"[[1, 2, 3]]")


class FarAgent:
    """An agent, started as over ssh, behind bare pipes."""

    def __init__(self, python: str, folder: Path, path: object) -> None:
        self._stderr = folder / "stderr"
        self.counts: Counter[object] = Counter()  # id -> its responses
        self.refusal: Any = None
        self._is_greeted = False
        self._has_new = threading.Condition()
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                ["sh", "-c", boot_command(python)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._write(first_bundle({"path": path, "actor": "ana@desk", "marker": MARKER}))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _read(self) -> None:
        decoder = MessageDecoder(MARKER)
        assert self._process.stdout is not None
        while data := self._process.stdout.read1():  # type: ignore[attr-defined]
            messages = list(decoder.feed(data))
            with self._has_new:
                self.counts.update(message["id"] for message in messages if "id" in message)
                self.refusal = next((message["refused"] for message in messages if "refused" in message), self.refusal)
                self._is_greeted = self._is_greeted or any("hello" in message for message in messages)
                self._has_new.notify_all()

    def load(self) -> None:
        """Wait for the greeting as a console does: the bootstrap's buffered reader can hold bytes behind the bundle."""
        with self._has_new:
            assert self._has_new.wait_for(lambda: self._is_greeted, LIMIT_SECONDS)
        reading = (module_of((question, {})) for question in reader.READS)
        sources = packed_sources(with_imports(LISTING, SENDING, *reading))
        self._write(json.dumps({"ask": "load", "sources": sources}).encode() + b"\n")

    def send(self, lines: list[bytes], ids: Collection[int]) -> Counter[object]:
        """Send lines, and wait for the responses to ``ids``; return how many responses each id has got so far."""
        self._write(b"".join(line + b"\n" for line in lines))
        with self._has_new:
            assert self._has_new.wait_for(lambda: all(self.counts[each] for each in ids), LIMIT_SECONDS)
            return self.counts.copy()

    @property
    def peak_kilobytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    def flood(self, data: bytes) -> None:
        """Write without end, until the agent has closed its input."""
        limit = time.monotonic() + LIMIT_SECONDS
        with pytest.raises(BrokenPipeError):
            while time.monotonic() < limit:
                self._write(data)

    def close(self) -> tuple[int, str]:
        """End its input; its exit code, and what it said on standard error."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(LIMIT_SECONDS)
        self._reading.join(LIMIT_SECONDS)
        return code, self._stderr.read_text()

    def kill(self) -> None:
        self._process.kill()
        self.close()


@pytest.fixture(scope="module")
def rich_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rich") / "state.db"
    write_rich_state(path)
    return path


@pytest.fixture
def start(rich_state: Path, tmp_path: Path) -> Iterator[Callable[..., FarAgent]]:
    """Starts agents on a state file of their own, or on what the test names."""
    agents: list[FarAgent] = []

    def start_one(python: str = sys.executable, path: object = None) -> FarAgent:
        if path is None:
            path = shutil.copy(rich_state, tmp_path / "state.db")
        agents.append(FarAgent(python, tmp_path, str(path)))
        return agents[-1]

    yield start_one
    for agent in agents:
        agent.kill()


@parametrize_mostly_long("part", range(scaled(10)), daily=3)
def test_altered_requests_get_one_response_each(start: Callable[..., FarAgent], part: int) -> None:
    """Under each Python that is found here."""
    dice, ids, junk = random.Random(part), range(0), 0
    agent = start(list(INTERPRETERS.values())[part % len(INTERPRETERS)])
    agent.load()
    while ids.stop < LINES:
        ids = range(ids.stop, ids.stop + LINES_AT_ONCE)
        lines = []
        for number in ids:
            if dice.random() < 0.2:
                lines.append(dice.choice(NO_REQUESTS))
                junk += 1
            request = altered(dice.choice(REQUESTS), dice)
            sent = {**request, "id": number} if isinstance(request, dict) else {"id": number}
            lines.append(json.dumps(sent).encode())
        counts = agent.send(lines, ids)
    assert counts == Counter(dict.fromkeys(range(ids.stop), 1) | {None: junk})
    assert agent.peak_kilobytes < MEMORY_KB_MAX
    assert agent.close() == (0, "")


def test_a_request_without_end_ends_the_agent_with_a_sentence(start: Callable[..., FarAgent]) -> None:
    agent = start()
    agent.flood(b"x" * 65536)
    assert agent.close() == (1, "a request is too long\n")


@pytest.mark.long
def test_commands_without_end_are_taken_as_fast_as_they_are_applied(start: Callable[..., FarAgent]) -> None:
    agent = start()
    agent.load()
    ids = range(10 * COMMANDS_MAX)
    requests = ({"ask": "send", "id": number, "command": {**COMMAND, "id": f"c{number}"}} for number in ids)
    counts = agent.send([json.dumps(request).encode() for request in requests], ids)
    assert counts == Counter(ids)
    assert agent.peak_kilobytes < MEMORY_KB_MAX


@parametrize_mostly_long("path", ["\0", "a\0b", "\x1b[2J\x07\n", "x" * 5000, "/", "/dev/zero", "\ud800"], quick=2)
def test_a_path_that_names_no_state_file_is_refused(start: Callable[..., FarAgent], path: str) -> None:
    agent = start(path=path)
    assert agent.close() == (0, "")
    kind, sentence = agent.refusal
    assert isinstance(sentence, str) and sentence, kind


@pytest.mark.long
def test_large_values_take_memory_for_one_at_a_time(start: Callable[..., FarAgent]) -> None:
    agent = start()
    values = [[[]] * 500_000, {str(number): number for number in range(100_000)}, "x" * (LINE_BYTES_MAX - 100)]
    lines = [json.dumps({"id": number, "ask": value}).encode() for number, value in enumerate(values * 3)]
    assert agent.send(lines, range(9)) == Counter(range(9))
    assert agent.peak_kilobytes < MEMORY_KB_MAX
    assert agent.close() == (0, "")
