"""What each reader of a state file costs as its run grows: ``python tests/bench/bench_readers.py``.

Runs a flow of no-op tasks in threads, 8 at once, of which ``--dead`` end as dead letters, once for each size; the files
stay in ``--folder`` for the next call. Then each command of the installed ``redrive`` reads them: the CPU seconds of
its processes, the least of ``--rounds``, and its peak memory. ``console``: from the start to the first picture, in a
pseudo-terminal.

On 2 very busy cores, of 1,000 and 100,000 tasks: runs, inbox, logs and why 0.3 to 0.5 s and 38 to 41 MB of both; tasks
0.4 and 1.5 s, 169 MB; tasks --json 0.4 and 2.7 s, 270 MB; events 0.4 and 3.4 s, 42 MB; report 0.5 and 2.7 s, 299 MB;
console 0.7 and 2.8 s, 328 MB.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REDRIVE = Path(sys.executable).with_name("redrive")
FLOW = """
from redrive.engine import Flow
flow = Flow("many", max_parallel=8)
def make(number):
    def body():
        if number % 1000 == 0:
            print("hello", number)
        if number in DEAD:
            raise DEAD[number](f"row {number % 7}")
    body.__name__ = f"task_{number:06}"
    return body
PLACES = range(0, TASKS, max(TASKS // DEAD_LETTERS, 1)) if DEAD_LETTERS else ()
DEAD = {number: (KeyError, ZeroDivisionError, TypeError)[place % 3] for place, number in enumerate(PLACES)}
for number in range(TASKS):
    flow.task(isolation="thread")(make(number))
"""
TASK = "task_000000"
#: What is read, as words after ``redrive``; FILE is the state file, OUT a path to write.
COMMANDS: dict[str, Sequence[str]] = {
    "runs": ("runs", "FILE"),
    "inbox": ("inbox", "FILE"),
    "logs TASK": ("logs", "--state", "FILE", TASK),
    "why TASK": ("why", "--state", "FILE", TASK),
    "report --short": ("report", "--short", "--state", "FILE"),
    "tasks": ("tasks", "FILE"),
    "tasks --json": ("tasks", "FILE", "--json"),
    "events": ("events", "FILE"),
    "events --json": ("events", "FILE", "--json"),
    "report": ("report", "--state", "FILE", "-o", "OUT"),
    "runs --tasks": ("runs", "--tasks", "--state", "FILE"),
}
CONSOLE = "console"
PICTURE_SECONDS = 60.0
QUIET_SECONDS = 1.5  # without output the first picture is complete


def make_file(folder: Path, tasks: int, dead: int) -> Path:
    """Run the flow, unless its file is there already."""
    path = folder / f"tasks-{tasks}-dead-{dead}.db"
    if not path.exists():
        flow = folder / f"flow_{tasks}_{dead}.py"
        flow.write_text(FLOW.replace("TASKS", str(tasks)).replace("DEAD_LETTERS", str(dead)))
        started = time.monotonic()
        unfinished = path.with_suffix(".making.db")
        subprocess.run([REDRIVE, "run", flow, "--state", unfinished, "--plain", "--quiet"], capture_output=True)
        unfinished.rename(path)
        print(f"{path}: made in {time.monotonic() - started:.0f} s, {path.stat().st_size / 1e6:.0f} MB", flush=True)
    return path


def cost_of(words: Sequence[str]) -> tuple[float, float]:
    """CPU seconds and peak megabytes of a command and its children."""
    process = subprocess.Popen([REDRIVE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _reap(process.pid)


def _reap(pid: int) -> tuple[float, float]:
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def cost_of_console(path: Path) -> tuple[float, float]:
    """The same from its start until the first picture stands."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="40")
        os.execv(REDRIVE, [str(REDRIVE), "attach", str(path)])
    deadline = time.monotonic() + PICTURE_SECONDS
    shown = 0
    while time.monotonic() < deadline:
        readable, _, _ = select.select([terminal], [], [], QUIET_SECONDS if shown > 3000 else PICTURE_SECONDS)
        if not readable:
            break
        try:
            shown += len(os.read(terminal, 65536))
        except OSError:
            break
    os.kill(pid, signal.SIGKILL)  # its farewell is no part of the picture
    cost = _reap(pid)
    os.close(terminal)
    return cost


def least(path: Path, name: str, rounds: int, out: Path) -> tuple[float, float]:
    places = {"FILE": str(path), "OUT": str(out)}
    found = [
        cost_of_console(path) if name == CONSOLE else cost_of([places.get(word, word) for word in COMMANDS[name]])
        for _ in range(rounds)
    ]
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--dead", type=int, default=300, help="dead letters of each run; 0: it succeeds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*COMMANDS, CONSOLE], default=[*COMMANDS, CONSOLE], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "redrive-bench-readers"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    paths = [make_file(options.folder, tasks, options.dead) for tasks in options.tasks]
    print("".join([f"{'CPU s, MB':16}", *(f"{tasks:>12,} tasks" for tasks in options.tasks)]))
    for name in options.only:
        costs = [least(path, name, options.rounds, options.folder / "report.html") for path in paths]
        cells = "".join(f"{seconds:9.2f} s {megabytes:4.0f} MB" for seconds, megabytes in costs)
        print(f"{name:16}{cells}", flush=True)


if __name__ == "__main__":
    main()
