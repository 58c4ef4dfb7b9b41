"""Memory, processor time and lateness of the supervisor: ``python tests/bench/bench_supervisor.py [FLOWS] [SECONDS]``.

At rest: flows that come once a year. Then fifty flows that are due in the same minute.
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


def main() -> None:
    """Measure, and print a line for each measurement."""
    flows, seconds = (int(word) for word in [*sys.argv[1:], *["200", "30"][len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        measure_rest(Path(folder), flows, seconds)
    with tempfile.TemporaryDirectory() as folder:
        measure_lateness(Path(folder))


def start(folder: Path, names: list[str], schedule: str) -> subprocess.Popen[bytes]:
    """Start a supervisor of flows, and wait until it knows all of them."""
    (folder / "flows").mkdir()
    for name in names:
        (folder / "flows" / f"{name}.py").write_text(FLOW.format(name=name, schedule=schedule))
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    words = [sys.executable, "-P", "-m", "redrive.console", "serve", str(folder / "flows")]
    started_at = time.monotonic()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    while known_flows(folder) < len(names):
        time.sleep(0.1)
    print(f"{len(names)} flows known after {time.monotonic() - started_at:.1f} s")
    return process


def known_flows(folder: Path) -> int:
    """How many flows have a next run."""
    try:
        with sqlite3.connect(f"file:{folder}/redrive/schedules.supervisor?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM schedule WHERE next_at > 0").fetchone()[0])
    except sqlite3.Error:
        return 0


def measure_rest(folder: Path, flows: int, seconds: int) -> None:
    """Print the memory and the processor time of flows at rest."""
    process = start(folder, [f"rest{number}" for number in range(flows)], "0 0 1 1 *")
    time.sleep(8)
    before = processor_seconds(process.pid)
    time.sleep(seconds)
    share = (processor_seconds(process.pid) - before) / seconds
    print(f"{flows} flows at rest: {proportional_kb(process.pid) / 1024:.1f} MB, {share:.3%} of a processor")
    process.terminate()
    process.wait()


def measure_lateness(folder: Path) -> None:
    """Print how late runs start that are due in one minute."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=2)
    process = start(folder, [f"due{number}" for number in range(DUE)], f"{due.minute} {due.hour} * * *")
    states = [folder / "redrive" / f"due{number}.db" for number in range(DUE)]
    while datetime.now(UTC) < due + timedelta(seconds=45):
        time.sleep(1)
    starts = []
    for state in states:
        with sqlite3.connect(state) as connection:
            starts += [at / 1e6 - due.timestamp() for (at,) in connection.execute("SELECT started_at FROM run")]
    late = sorted(starts)
    print(f"{len(late)} of {DUE} flows started; late by {late[len(late) // 2]:.2f} s median, {late[-1]:.2f} s at most")
    process.terminate()
    process.wait()


def proportional_kb(pid: int) -> int:
    """The proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def processor_seconds(pid: int) -> float:
    """The processor time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
