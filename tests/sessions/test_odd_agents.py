"""What the far side prints is data: whatever it is, the answer here is a sentence."""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import sys
import textwrap
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redrive.console.model.session_status import Link
from redrive.console.sessions import agent_process
from redrive.console.sessions.agent_process import LINE_BYTES_MAX, MessageDecoder
from redrive.console.sessions.ssh import SshSession
from redrive.engine.errors import LinkError, RedriveError
from support.commands import run_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until_async

ODD = """
    import json, sys, time, zlib
    pipe = sys.stdin.buffer
    pipe.read(int(pipe.readline()))
    settings = json.loads(zlib.decompress(pipe.read(int(pipe.readline()))))["settings"]
    packer = zlib.compressobj()
    def out(data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    def say(*messages):
        lines = b"".join((m if isinstance(m, bytes) else json.dumps(m).encode()) + b"\\n" for m in messages)
        out(packer.compress(lines) + packer.flush(zlib.Z_SYNC_FLUSH))
    hello = {"hello": {"path": "/x.db", "uuid": "u", "answers": [], "beat": {}}}
    out(settings["marker"].encode() + b"\\n")
"""


@pytest.fixture
def far_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program in the place of ssh and all that is behind it."""

    def put(program: str) -> None:
        script = tmp_path / "odd.py"
        script.write_text(textwrap.dedent(ODD) + textwrap.dedent(program))
        monkeypatch.setenv("REDRIVE_SSH", shlex.join([sys.executable, str(script)]))

    return put


@parametrize_mostly_long(
    "program",
    [
        "out(b'plain words')",
        "say(b'no json')",
        "say([1, 2, 3])",
        "say({'hello': 5})",
        "say({'hello': {}})",
        "say({'refused': 'because'})",
        "say({'refused': ['NoSuchError', '\\x1b[2Jgone']})",
        "say({'refused': ['__loader__', 'x']})",
        "pass",
        "out(b'')",
    ],
    quick=2,
)
async def test_no_hello_but_something_else_is_a_sentence(far_side: Any, program: str) -> None:
    far_side(program)
    with pytest.raises(RedriveError) as caught:
        async with asyncio.timeout(90):
            await SshSession.open("ssh://odd/x.db")
    assert str(caught.value).isprintable()


@parametrize_mostly_long("nonsense", ["{'events': 5}", "{'events': [[1]]}", "{'reset': 1}", "7", "b'{'"], quick=2)
async def test_nonsense_in_the_middle_closes_the_session_with_a_sentence(far_side: Any, nonsense: str) -> None:
    far_side(f"say(hello); time.sleep(0.2); say({nonsense}); pipe.read()")
    session = await SshSession.open("ssh://odd/x.db")
    events = session.events(0)
    waiting = asyncio.ensure_future(anext(events))
    await wait_until_async(lambda: session.status.link is not Link.LIVE)
    assert session.status.problem and session.status.problem.isprintable()
    waiting.cancel()
    await session.close()


async def test_answers_to_nobody_and_words_of_later_versions_do_no_harm(far_side: Any) -> None:
    odd = "{'id': 999, 'ok': 1}, {'id': 'x'}, {'fashion': 'new'}, {'beat': {'new': 1, 'problem': 'that was all'}}"
    far_side(f"say(hello, {odd}); pipe.read()")
    session = await SshSession.open("ssh://odd/x.db")
    await wait_until_async(lambda: session.status.problem)
    assert (session.status.link, session.status.problem) == (Link.LIVE, "that was all")
    await session.close()


def test_messages_come_out_whole_however_the_bytes_are_cut() -> None:
    packer = zlib.compressobj()
    messages = [{"n": number, "text": "x" * number} for number in range(300)]
    stream = b"Welcome\r\nto far" + b"marker\n"
    for message in messages:
        stream += packer.compress(json.dumps(message).encode() + b"\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    for size in (1, 7, 4096, len(stream)):
        unpacker = MessageDecoder("marker")
        found = [
            message for start in range(0, len(stream), size) for message in unpacker.feed(stream[start : start + size])
        ]
        assert found == messages


def test_a_stream_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.console.sessions.agent_process.LINE_BYTES_MAX", 1_000_000)
    unpacker = MessageDecoder("marker")
    bomb = zlib.compress(b"x" * 100_000_000)
    with pytest.raises(LinkError, match="more than 1,000,000 bytes"):
        list(unpacker.feed(b"marker\n" + bomb))


ENDLESS = {
    "beats": "say(hello)\nwhile True: say(*[{'beat': {'problem': 'x' * 9}}] * 1000)",
    "small": "say(hello)\nwhile True: say(*[{'n': 1}] * 10000)",
    "one line": "say(hello)\nwhile True: out(packer.compress(b'[' + b'0,' * 500000) + packer.flush(zlib.Z_SYNC_FLUSH))",
}


@parametrize_mostly_long("program", ENDLESS.values(), ids=list(ENDLESS), quick=1)
async def test_a_host_that_sends_without_end_is_left_with_a_sentence(
    far_side: Any, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Meanwhile the loop runs: keys are handled while messages are."""
    monkeypatch.setattr(agent_process, "MESSAGES_PER_SECOND_MAX", 2000)  # a busy machine handles less than 10,000
    monkeypatch.setattr(agent_process, "BUSY_SECONDS", 0.001)
    far_side(program)
    session = await SshSession.open("ssh://odd/x.db")
    turns = 0
    while session.status.link is not Link.CLOSED:
        await asyncio.sleep(0.001)
        turns += 1
    assert session.status.problem in (
        "odd: the remote host sends messages without end",
        f"odd: a message of the agent has more than {LINE_BYTES_MAX:,} bytes",
    )
    is_one_line = program == ENDLESS["one line"]  # all of it may come in one piece to a console that was held up
    assert turns > 3 or is_one_line
    with pytest.raises(LinkError):
        await session.runs()
    await session.close()


async def test_a_long_message_costs_no_more_than_its_length() -> None:
    """The rest of an unfinished message was searched again with each piece."""
    message = json.dumps("x" * (LINE_BYTES_MAX - 10)).encode() + b"\n"
    packed = zlib.compress(message)
    started = time.process_time()
    decoder = MessageDecoder("marker")
    assert [len(text) for text in decoder.feed(b"marker\n" + packed)] == [LINE_BYTES_MAX - 10]
    assert time.process_time() - started < 2.0


BOMBS = {
    "rows": "{'rows': 10**9, 'columns': {'name': {'all': 'a'}, 'state': {'all': 'PENDING'}}}",
    "more rows than names": "{'rows': 10**8, 'columns': {'name': ['a', 'b'], 'state': {'all': 'PENDING'}}}",
    "columns": "{'rows': 10000, 'columns': {str(n): {'all': 0} for n in range(100000)}}",
    "no table": "5",
    "negative": "{'rows': -1, 'columns': {'name': ['a']}}",
}
LIMIT_BYTES = 1024**3  # of addresses, for a command that reads one row


@parametrize_mostly_long("table", BOMBS.values(), ids=list(BOMBS), quick=2)
def test_a_table_costs_what_was_sent_for_it(far_side: Any, table: str) -> None:
    far_side(f"""
board = {{'done': 0, 'parents': None, 'specs': {{}}, 'seq': 1, 'run': {{}}, 'tasks': {table}}}
hello['hello']['answers'] = [{{'ok': board}} for _ in settings['queries']]
say(hello)
pipe.read()
""")
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    done = run_redrive("tasks", "ssh://odd/x.db", preexec_fn=limit)
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    (sentence,) = done.stderr.splitlines()
    assert "cannot be read" in sentence


@pytest.mark.parametrize("field", ["problem", "read_only", "health"])
async def test_sentences_of_a_heartbeat_are_printable(far_side: Any, field: str) -> None:
    said: object = "so \x1b[2J it is"
    said = ["e", 1, said, {}, []] if field == "health" else said
    far_side(f"say(hello, {{'beat': {{{field!r}: {said!r}}}}}); pipe.read()")
    session = await SshSession.open("ssh://odd/x.db")

    def problems() -> list[str]:
        status = session.status
        return [text for text in (status.problem, status.read_only, status.storage_problem) if text]

    await wait_until_async(problems)
    (text,) = problems()
    assert text.isprintable() and "it is" in text
    await session.close()
