"""A hostile far host: whatever it answers, the console gets values of the right type or one sentence, and goes on.

The answers of a real agent are recorded, then altered: values of wrong types, deep, huge or missing ones, frames cut,
doubled, swapped or sent again, answers to other requests, bytes flipped in the compressed stream.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import resource
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
from redrive.console.sessions import agent_process, bundle, connection
from redrive.console.sessions.address import SshAddress
from redrive.console.sessions.agent_process import AgentProcess
from redrive.console.sessions.session import part_query, runs_query
from redrive.console.sessions.ssh import SshSession
from redrive.engine.domain.acts import Command, Target
from redrive.engine.errors import RedriveError, SnapshotNeeded
from redrive.engine.statefile import lists
from support.hostile_values import VALUES, altered
from support.marks import parametrize_mostly_long, scaled
from support.rich_state import RUN, write_rich_state
from support.ssh_host import LocalSshHost

from .hostile_host import HostileHost

FRAMES = 100  # of one test
GROWTH_BYTES_MAX = 300 * 1024 * 1024
ANSWER_SECONDS = 0.05  # for an answer that never comes; a host in this process has answered by then
LISTINGS = [value for value in vars(lists).values() if isinstance(value, lists.Listing)]
COMMAND = Command("c1", "requeue", RUN, (Target("broken", "DEAD_LETTER", 0),), "ana@desk", "because", {})

Request = Callable[[SshSession], Awaitable[object]]


async def first_events(session: SshSession) -> object:
    events = session.events(0)
    try:
        return await anext(events)
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator


REQUESTS: tuple[Request, ...] = (
    lambda session: session.runs(),
    lambda session: session.part(),
    lambda session: session.part(RUN, ["broken"], has_blockers=True),
    lambda session: session.snapshot(),
    first_events,
    lambda session: session.run_events(RUN, 0, 100),
    lambda session: session.duration_stats(RUN),
    lambda session: session.attempt_text(RUN, "broken", 1),
    lambda session: session.log(RUN, "broken", 1),
    lambda session: session.find_in_log(RUN, "broken", 1, "x"),
    lambda session: session.preview(COMMAND),
    lambda session: session.preview_prune({"runs": 3}),
    *(lambda session, listing=listing: session.rows(listing) for listing in LISTINGS),
    lambda session: session.send(COMMAND),
)


ASKED = [part_query(None), runs_query()]


class Recorded:
    """What a real agent said: its hello, its answer to each kind of request, and what it sent unasked."""

    def __init__(self) -> None:
        self.hello: Any = None
        self.answers: dict[str, Any] = {}
        self.unasked: list[Any] = []


def key_of(request: Mapping[str, Any]) -> str:
    return f"{request.get('ask')} {request.get('what')} {(request.get('options') or {}).get('what')}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    path = tmp_path_factory.mktemp("far") / "state.db"
    write_rich_state(path)
    found = Recorded()
    asked: dict[int, str] = {}
    handle, notify = AgentProcess._handle, AgentProcess.notify

    def record_answer(agent: AgentProcess, message: Any) -> None:
        if not agent._hello.done():
            found.hello = message
        elif "id" in message:
            found.answers[asked[message["id"]]] = message
        else:
            found.unasked.append(message)
        handle(agent, message)

    def record_request(agent: AgentProcess, ask: str, **fields: Any) -> None:
        if "id" in fields:
            asked[fields["id"]] = key_of({"ask": ask, **fields})
        notify(agent, ask, **fields)

    async def ask_everything() -> None:
        session = await SshSession.open(str(SshAddress("far", str(path))), queries=ASKED)
        for request in REQUESTS:
            await request(session)
        await session.close()

    with (
        mock.patch.object(AgentProcess, "_handle", record_answer),
        mock.patch.object(AgentProcess, "notify", record_request),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("REDRIVE_SSH", LocalSshHost(tmp_path_factory.mktemp("ssh")).program)
        asyncio.run(ask_everything())
    return found


# --- Altered answers -----------------------------------------------------------------------------------------------

LINES = (b"[" * 100_000, b"9" * 5000, b"{", b"", b"null", b"\xff\xfe", b'{"id": 1, "id": 2}', b'"' + b"\\u0000" * 99)


class Liar:
    """Answers requests with what was recorded, altered by seeded dice."""

    def __init__(self, recorded: Recorded, number: int) -> None:
        self._recorded = recorded
        self._dice = random.Random(number)
        self._host: HostileHost

    def host(self) -> HostileHost:
        dice = self._dice
        hello = self._recorded.hello if dice.random() < 0.9 else altered(self._recorded.hello, dice)
        self._host = HostileHost(_line(hello), self.answer, self.spoil)
        return self._host

    def answer(self, request: Mapping[str, Any]) -> bytes:
        if request.get("ask") == "follow":
            return b"".join(self._frames(message) for message in self._recorded.unasked)
        if "id" not in request:
            return b""
        known = self._recorded.answers.get(key_of(request), {"ok": 1})
        if self._dice.random() < 0.1:
            known = self._dice.choice(list(self._recorded.answers.values()))  # of another request
        return self._frames({**known, "id": request["id"]})

    def spoil(self, data: bytes) -> bytes:
        if self._dice.random() > 0.01:
            return data
        place = self._dice.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << self._dice.randrange(8)]) + data[place + 1 :]

    def _frames(self, message: Mapping[str, Any]) -> bytes:
        dice, kept = self._dice, {key: value for key, value in message.items() if key == "id"}
        other = altered(message, dice)
        right, wrong = _line(message), _line({**other, **kept} if isinstance(other, dict) else other)
        choices = [right] * 8 + [wrong] * 16
        choices += [right + right, right + dice.choice(LINES) + b"\n", _line({**message, "id": dice.choice(VALUES)})]
        choices += [
            _line({**kept, "error": dice.choice(VALUES)}),
            _line({**kept, "error": ["LinkError", dice.choice(VALUES)]}),
        ]
        choices += [right[: dice.randrange(len(right))]] if dice.random() < 0.1 else []
        return dice.choice(choices)


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def visit(host: HostileHost, number: int) -> None:
    """Open a session and ask for everything, in some order."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    dice = random.Random(f"{number}:visit")
    with (
        mock.patch.object(agent_process, "PipedProcess", host),
        mock.patch.object(bundle, "module_sources", lambda modules: {}),  # this host runs no agent
    ):
        try:
            session = await SshSession.open("ssh://far/state.db", queries=ASKED)
        except RedriveError as error:
            assert str(error).isprintable()
            return
        for request in dice.sample(REQUESTS, len(REQUESTS)):
            try:
                await asyncio.wait_for(request(session), ANSWER_SECONDS)
            except (RedriveError, SnapshotNeeded) as error:
                assert str(error).isprintable(), ascii(str(error))
            except TimeoutError:
                break  # the stream is spoilt without a trace
            status = session.status
            assert status.problem is None or status.problem.isprintable()
        await session.close()
    assert problems == []


@pytest.fixture
def without_backoff() -> Iterator[None]:
    with mock.patch.object(connection, "BACKOFF_SECONDS", (0.0,)):
        yield


@parametrize_mostly_long("part", range(scaled(100)), daily=16)
def test_altered_answers_are_values_or_sentences(recorded: Recorded, without_backoff: None, part: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    frames, numbers = 0, itertools.count(part * FRAMES)
    while frames < FRAMES:
        number = next(numbers)
        host = Liar(recorded, number).host()
        asyncio.run(visit(host, number))
        frames += host.frames
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH_BYTES_MAX
