"""Prints what the door over ssh costs: ``python tests/bench/bench_ssh.py [RELAY] [--tasks 10000] [--idle 30]``.

Starts an sshd of its own on loopback. RELAY is the path of a program that makes a line slow: as ``RELAY --stdio --to
HOST:PORT [--rtt MS] [--bps BITS]`` a ProxyCommand, as ``RELAY --listen PORT --to HOST:PORT`` a port that SIGUSR1 makes
a black hole and another one opens again. Without it only the quick line is measured. Goals: p95 from a commit to here
150 ms, agent idle 0.3 % of a core, first picture at 150 ms round trip 4 s, 10,000 tasks usable at 56 kbit/s in 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parent.parent))

from redrive.console.model.session_status import Link
from redrive.console.sessions.address import SshOptions
from redrive.console.sessions.ssh import SshSession
from redrive.engine.domain.event_payloads import AttemptColumns, TaskColumns, TaskMoved
from redrive.engine.errors import SnapshotNeeded
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims
from support.ssh_host import SshHost, free_port, listens
from support.state_file import StateFileBuilder

COMMITS = 200
BLACKOUT_SECONDS = 30.0
PATIENCE_SECONDS = 0.5


def fill(run_file: StateFileBuilder, tasks: int, done: float) -> None:
    """Bring a share of the tasks to an end, in the order of the flow, with the spread of figures that life has."""
    dice = random.Random(7)

    def item(transaction: Transaction) -> None:
        for number in range(int(tasks * done)):
            name = f"task_{number:05}"
            transaction.at += dice.randrange(500, 3000)
            claims.promote(transaction, run_file.run_id, {name: 0})
            host: AttemptColumns = {"pid": 4000 + number, "host": "far"}
            attempt = claims.claim(transaction, run_file.run_id, name, 0, f"{dice.getrandbits(128):032x}", host)
            ended: AttemptColumns = {
                "ended_at": transaction.at + dice.randrange(2_000, 900_000),
                "duration_us": dice.randrange(2_000, 900_000),
                "outcome": "success",
                "max_rss_kb": dice.randrange(12_000, 90_000),
                "cpu_user_us": dice.randrange(900, 600_000),
                "cpu_system_us": dice.randrange(500, 90_000),
            }
            transaction.change_attempt(run_file.run_id, name, attempt, ended)
            ended_at: TaskColumns = {"ended_at": ended["ended_at"]}
            moved = TaskMoved(attempt_set=ended)
            transaction.move(
                run_file.run_id, name, "RUNNING", "SUCCESS", 0, set=ended_at, attempt=attempt, payload=moved
            )

    run_file.write(item)


def show(what: str, value: str) -> None:
    print(f"{what:<58} {value}", flush=True)


async def first_picture(run_file: StateFileBuilder, options: SshOptions) -> tuple[float, float, float, int]:
    """Seconds to connect, to the first picture, to the whole one; and how many tasks it has."""
    start = time.monotonic()
    session = await SshSession.open(f"ssh://far{run_file.path}", options=options)
    connected = time.monotonic() - start
    projection = await session.snapshot(patience_seconds=PATIENCE_SECONDS)
    pictured = time.monotonic() - start
    if any(task.state == "SUCCESS" and task.started_at is None for task in projection.tasks.values()):
        try:
            async for _ in session.events(projection.seq):
                pass
        except SnapshotNeeded:
            projection = await session.snapshot()
    whole = time.monotonic() - start
    assert all(task.started_at for task in projection.tasks.values() if task.state == "SUCCESS")
    await session.close()
    return connected, pictured, whole, len(projection.tasks)


async def delays(run_file: StateFileBuilder) -> list[float]:
    """Seconds from a commit to the event here, where somebody waits for it all the time."""
    session = await SshSession.open(f"ssh://far{run_file.path}")
    came: dict[int, float] = {}

    async def wait(since: int) -> None:
        async for batch in session.events(since):
            came.update((event.seq, time.monotonic()) for event in batch)

    waiting = asyncio.create_task(wait(run_file.head()))
    dice = random.Random(3)
    committed: dict[int, float] = {}
    for _ in range(COMMITS):
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        await asyncio.to_thread(run_file.emit_idle_events)
        committed[run_file.head()] = time.monotonic()
    await asyncio.sleep(1)
    waiting.cancel()
    await session.close()
    return [came[seq] - when for seq, when in committed.items()]


async def idle(run_file: StateFileBuilder, far: SshHost, seconds: float) -> tuple[float, float, float]:
    """Share of a core that the agent and the local ssh use while nothing happens; megabytes of the agent."""
    session = await SshSession.open(f"ssh://far{run_file.path}")
    await session.snapshot()
    agents = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "-ISuc" in (process.info["cmdline"] or []) and process.environ().get("HOME") == str(far.home)
    ]
    clients = [psutil.Process(pid) for pid in far.connections()]
    await asyncio.sleep(2)  # past the quicker polls after something came
    before = [_cpu(agents), _cpu(clients)]
    await asyncio.sleep(seconds)
    used = [(_cpu(some) - was) / seconds for some, was in zip((agents, clients), before, strict=True)]
    memory = sum(agent.memory_info().rss for agent in agents) / 1e6
    await session.close()
    return used[0], used[1], memory


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


async def blackout(run_file: StateFileBuilder, far: SshHost, relay: str) -> None:
    """Nothing passes for a while, then everything again; what was committed meanwhile must come."""
    port = free_port()
    command = [sys.executable, relay, "--listen", str(port), "--to", f"127.0.0.1:{far.port}", "--rtt", "150"]
    line = subprocess.Popen(command)
    try:
        while not listens(port):  # noqa: ASYNC110 (it says nothing when it is ready)
            await asyncio.sleep(0.05)
        options = SshOptions(options=(f"Port={port}", f"HostKeyAlias=[127.0.0.1]:{far.port}"))
        session = await SshSession.open(f"ssh://far{run_file.path}", options=options)
        events = session.events(run_file.head())
        await anext(events)
        line.send_signal(signal.SIGUSR1)
        dark = time.monotonic()
        run_file.emit_idle_events(100)
        stale = await _until(session, Link.STALE) - dark
        await asyncio.sleep(max(0.0, dark + BLACKOUT_SECONDS - time.monotonic()))
        line.send_signal(signal.SIGUSR1)
        light = time.monotonic()
        came = 0
        while came < 100:
            came += len(await anext(events))
        show(f"blackout of {BLACKOUT_SECONDS:g} s: shown as stale after", f"{stale:.1f} s")
        show("blackout: all 100 events here, this long after its end", f"{time.monotonic() - light:.1f} s")
        await session.close()
    finally:
        line.kill()
        line.wait()


async def _until(session: SshSession, link: Link) -> float:
    while session.status.link is not link:  # noqa: ASYNC110 (a status that ages has no event)
        await asyncio.sleep(0.05)
    return time.monotonic()


async def quick_line(run_file: StateFileBuilder, far: SshHost, seconds: float) -> None:
    runs_of = [await first_picture(run_file, SshOptions()) for _ in range(5)]
    tasks = runs_of[0][3]
    show("loopback: connected", f"{median(run[0] for run in runs_of):.2f} s")
    show(
        f"loopback: picture of {tasks} tasks, first / whole",
        " / ".join(f"{median(run[index] for run in runs_of):.2f} s" for index in (1, 2)),
    )
    found = await delays(run_file)
    marks = quantiles(found, n=100)
    show(
        "loopback: commit to event here, p50 / p95 / p99", " / ".join(f"{marks[n] * 1e3:.0f} ms" for n in (49, 94, 98))
    )
    agent, client, memory = await idle(run_file, far, seconds)
    show(
        f"idle for {seconds:g} s: agent / local ssh / memory of agent", f"{agent:.2%} / {client:.2%} / {memory:.1f} MB"
    )


async def slow_lines(run_files: dict[str, StateFileBuilder], far: SshHost, relay: str) -> None:
    for rtt, bps in ((150, 0), (150, 1_000_000), (20, 56_000)):
        rate = f", {bps // 1000} kbit/s" if bps else ""
        words = [sys.executable, relay, "--stdio", "--to", "%h:%p", "--rtt", str(rtt)] + (
            ["--bps", str(bps)] if bps else []
        )
        options = SshOptions(options=(f"ProxyCommand={shlex.join(words)}",))
        for name, run_file in run_files.items():
            connected, pictured, whole, _ = await first_picture(run_file, options)
            show(
                f"{rtt} ms{rate}, {name}: connected / first / whole",
                f"{connected:.1f} / {pictured:.1f} / {whole:.1f} s",
            )
    await blackout(next(iter(run_files.values())), far, relay)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("relay", nargs="?")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=30.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as scratch:
        folder = Path(scratch)
        far = SshHost(folder)
        os.environ["REDRIVE_SSH"] = far.program
        run_files: dict[str, Any] = {}
        try:
            for name, tasks, done in (
                ("1,000 tasks, half done", 1000, 0.5),
                (f"{given.tasks:,} tasks, a third done", given.tasks, 1 / 3),
                (f"{given.tasks:,} tasks, all done", given.tasks, 1.0),
            ):
                run_files[name] = StateFileBuilder(folder / f"{len(run_files)}.db", tasks)
                fill(run_files[name], tasks, done)
            await quick_line(list(run_files.values())[1], far, given.idle)
            if given.relay:
                await slow_lines(run_files, far, given.relay)
        finally:
            for run_file in run_files.values():
                run_file.close()
            far.stop()


if __name__ == "__main__":
    asyncio.run(main())
