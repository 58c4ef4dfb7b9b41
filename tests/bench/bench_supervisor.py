"""Lateness of the supervisor, as a table: ``python tests/bench/bench_supervisor.py``. It takes three minutes.

How late runs start of flows that are all due in the same minute. The machine must have no other work.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

FLOW = "from redrive.engine import Flow\nflow = Flow('{name}', schedule='{schedule}')\n@flow.task\ndef a(): pass\n"
DUE = 50


def start(folder: Path, names: list[str], schedule: str) -> subprocess.Popen[bytes]:
    """Start a supervisor of flows, and wait until it knows all of them."""
    (folder / "flows").mkdir()
    for name in names:
        (folder / "flows" / f"{name}.py").write_text(FLOW.format(name=name, schedule=schedule))
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    words = [sys.executable, "-P", "-m", "redrive.console", "serve", str(folder / "flows")]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    while known_flows(folder) < len(names):
        time.sleep(0.1)
    return process


def known_flows(folder: Path) -> int:
    """How many flows have a next run."""
    try:
        with sqlite3.connect(f"file:{folder}/redrive/schedules.supervisor?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM schedule WHERE next_at > 0").fetchone()[0])
    except sqlite3.Error:
        return 0


def measure_lateness(folder: Path) -> list[float]:
    """Return by how many seconds each run was late that was due in one minute, sorted."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=2)
    process = start(folder, [f"due{number}" for number in range(DUE)], f"{due.minute} {due.hour} * * *")
    states = [folder / "redrive" / f"due{number}.db" for number in range(DUE)]
    while datetime.now(UTC) < due + timedelta(seconds=45):
        time.sleep(1)
    process.terminate()
    process.wait()
    late = []
    for state in states:
        with sqlite3.connect(state) as connection:
            late += [at / 1e6 - due.timestamp() for (at,) in connection.execute("SELECT started_at FROM run")]
    return sorted(late)


def proportional_kb(pid: int) -> int:
    """The proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def processor_seconds(pid: int) -> float:
    """The processor time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        late = measure_lateness(Path(folder))
    shares = {"half of them": 0.5, "99 of 100": 0.99, "all": 1.0}
    print(f"| {len(late)} of {DUE} flows due in one minute | late by at most, seconds |\n|---|---|")
    for words, share in shares.items():
        print(f"| {words} | {late[round(share * (len(late) - 1))]:.2f} |")


if __name__ == "__main__":
    main()
