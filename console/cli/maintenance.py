"""``redrive doctor`` and ``prune``: the care of a machine and its state files."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import stat
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import click

from ... import __version__
from ...engine.agent import executor_socket
from ...engine.core.option_types import parse_retention
from ...engine.core.supervision import is_ahead
from ...engine.core.views import run_code
from ...engine.domain.states import MOVING
from ...engine.domain.text import advised, counted, first_names, format_bytes, shell_command
from ...engine.errors import LinkError, NoAnswerError, RedriveError, StateFileError
from ...engine.runner import process
from ...engine.runner.cgroups import delegated
from ...engine.statefile import lists, lock_file, ownership
from ...engine.statefile.processes import describe_hang
from ...engine.statefile.pruning import PrunePreview
from ...engine.statefile.supervisor_file import read_schedules
from ...engine.store import database, runs
from ...engine.store.lock import describe_holder
from ..model.session_status import runner_of
from ..present.executors import executor_advice
from ..present.next_start import NOT_SERVED, next_start, start_sentence
from ..sessions.address import SshOptions, parse
from ..sessions.local import LocalSession
from ..sessions.once import clock_notice, with_session
from ..sessions.session import Session, machine_now_us, new_command
from ..sessions.ssh_errors import SILENCE_SECONDS
from ..sessions.target import existing_target
from ..text.figures import wall_day
from ..text.text import echo, echo_json, is_remote, one_line
from .group import ExitCode, command
from .options import NamedFile, TargetWords, dry_run_option, json_option, of_file
from .output import with_schema

# --- ``redrive doctor``: checks versions, the owner and the integrity of a state file, and this machine's isolation ---


WAL_RESET_BUG_FIXED = (3, 51, 3)
_CHECK_SECONDS_MAX = 3600.0
WAL_LARGE_BYTES = 64 * 1024 * 1024


class DoctorFinding(NamedTuple):
    """A line of the output of ``doctor``."""

    level: Literal["ok", "note", "warning", "error"]
    what: str
    text: str


@command("doctor")
@TargetWords(run=False).declare
@json_option
def run_checks(file: NamedFile, as_json: bool) -> int:
    """Of ssh://host: how long each step of reaching it takes; with a path also whether the state file can be read."""
    is_far = file.name is not None and is_remote(file.name)
    findings = _host(file.name or "", file.ssh) if is_far else [*_program(), *_machine(), *_state(file.name)]
    for finding in findings:
        if as_json:
            echo_json(with_schema("doctor", finding._asdict()))
        else:
            echo(f"{finding.level:7} {finding.what:11} {one_line(finding.text)}")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _host(target: str, ssh: SshOptions) -> list[DoctorFinding]:
    """Time each step of reaching a host: the login, Python over there, the agent that lists its state files, and the
    state file that is named.
    """
    from ...engine.asyncio_log import run_with_log
    from ..model.runs import describe_latest
    from ..sessions.bundle import interpreter
    from ..sessions.login import Login
    from ..sessions.open import list_state_files
    from ..sessions.ssh_errors import last_line
    from .state_files import files_of_machine

    path = parse(target).path
    address, found, begun = replace(parse(target), path=""), list[DoctorFinding](), time.monotonic()
    steps = ["login", "python", "agent", "state"]

    def done(what: str) -> None:
        nonlocal begun
        seconds, begun = time.monotonic() - begun, time.monotonic()
        found.append(DoctorFinding("ok", steps.pop(0), f"{seconds:.1f} s: {what}"))

    async def reach() -> SshOptions:
        is_shared = await asyncio.to_thread(ssh.has_shared_connection, address)
        options = ssh if is_shared else await Login(address, ssh).options()
        if is_shared or options is not ssh:
            done("by the shared connection (ControlMaster)" if is_shared else f"{address.place} lets you in")
            program = interpreter(options.python, options.become)
            words = options.argv(address, f"{program} -c 'import sqlite3' && {program} -V")
            python = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=DEVNULL)
            try:
                version, _ = await asyncio.wait_for(python.communicate(), SILENCE_SECONDS)
            except TimeoutError:
                python.kill()
                raise LinkError(f"{address.place} is silent{is_shared * ' on the shared connection'}") from None
            if python.returncode == 0:
                done(f"{options.python} {last_line(version.decode(errors='replace'))}")  # a login shell may greet
        files = await list_state_files(str(address), options)
        steps[:] = ["agent", "state"]  # also where the login alone was not tried
        done(counted(sum(one.has_file for one in files), "state file"))
        if files and (notice := clock_notice(target, files[0].clock_offset_us / 1e6)):
            found.append(DoctorFinding("warning", "clock", notice))
        return options

    try:
        options = run_with_log(reach())
        if path:
            (file_row,) = files_of_machine(target, options)
            if file_row.problem is not None:
                raise StateFileError(file_row.problem)
            done(describe_latest(file_row, machine_now_us()))
    except RedriveError as error:
        found.append(DoctorFinding("error", steps[0], f"{time.monotonic() - begun:.1f} s: {error}"))
    return found


def _program() -> Iterator[DoctorFinding]:
    yield DoctorFinding("ok", "redrive", f"{__version__} under Python {platform.python_version()} ({sys.executable})")
    version = sqlite3.sqlite_version_info
    bug = ": two writers could corrupt a WAL file; redrive has exactly one, by design"
    is_old = version < WAL_RESET_BUG_FIXED
    yield DoctorFinding("note" if is_old else "ok", "sqlite", sqlite3.sqlite_version + bug * is_old)


def _warned_schedules() -> Iterator[DoctorFinding]:
    """The warnings of the supervisor about schedules, as of those decided about ahead of the clock."""
    try:
        rows = read_schedules().schedules
    except RedriveError as error:
        yield DoctorFinding("error", "schedules", str(error))
        return
    for row in rows:
        if row.warning is not None:
            acknowledge = shell_command(["redrive", "schedule", "acknowledge", row.flow])
            yield DoctorFinding("warning", "schedule", f"{row.flow}: {row.warning}: {acknowledge}")


def _machine() -> Iterator[DoctorFinding]:
    yield from _warned_schedules()
    for what, works, missing in _ISOLATION:
        yield DoctorFinding("ok", "isolation", what) if works() else DoctorFinding("warning", "isolation", missing)
    if (base := delegated()) is not None:
        yield DoctorFinding("ok", "limits", f"memory= and cpus= by the kernel, below {base}")
    else:
        yield DoctorFinding("note", "limits", "memory= by samples, no cpus=: no cgroup is delegated to this process")


def _works(call: Callable[[], None]) -> bool:
    try:
        call()
    except (OSError, AttributeError):
        return False
    return True


_ISOLATION: tuple[tuple[str, Callable[[], bool], str], ...] = (
    (
        "/proc: processes are found and inspected",
        lambda: os.path.isdir("/proc/self/task"),
        "/proc is not mounted: attempts cannot be run",
    ),
    (
        "pidfd: a kill cannot hit another process with the same pid",
        lambda: _works(lambda: os.close(os.pidfd_open(os.getpid()))),
        "no pidfd: this kernel is older than 5.3, attempts cannot be run",
    ),
    (
        "subreaper: processes that leave an attempt's group are found and killed",
        lambda: _works(process.become_subreaper),
        "no subreaper: processes that leave an attempt's group may survive it",
    ),
    (
        "children in /proc: descendants are found at once",
        lambda: os.path.exists(f"/proc/self/task/{os.getpid()}/children"),
        "no list of children in /proc: descendants are found by a slower search",
    ),
)


def _state(target: str | None) -> Iterator[DoctorFinding]:
    try:
        path = existing_target(target)
    except RedriveError as error:
        if target is None:
            yield DoctorFinding("note", "state", str(error))
            return
        raise
    yield from _executor(path)
    for doubt in ownership.doubts([path]):
        yield DoctorFinding("warning", "owner", f"{doubt}: no run starts in it before it is yours alone (chmod 600)")
    try:
        with database.reading(path, _CHECK_SECONDS_MAX) as connection:
            if (mode := stat.S_IMODE(os.stat(path).st_mode)) & 0o077:
                yield DoctorFinding("warning", "mode", f"{mode:04o}: others may read errors and logs in it (chmod 600)")
            yield from _file(path, connection)
    except RedriveError as error:
        yield DoctorFinding("error", "state", str(error))


def _executor(path: str) -> Iterator[DoctorFinding]:
    lock, seen_at = lock_file.lock_path(path), lock_file.heartbeat_at(path)
    if seen_at is not None and not os.access(lock, os.R_OK):
        seen = f"its last sign of life was at {wall_day(seen_at)}"
        yield DoctorFinding("warning", "executor", f"whether one lives cannot be seen: {lock} is not readable; {seen}")
        return
    holder = lock_file.current_holder(path)
    if holder is not None and not holder.is_alive():
        yield _no_executor(path, holder)
        return
    try:
        response = executor_socket.ping(path)
    except RedriveError as error:
        level: Literal["error", "note"] = "error" if isinstance(error, LinkError) else "note"
        hang = f"; it {describe_hang(holder.pid)}" if holder is not None and isinstance(error, NoAnswerError) else ""
        text = "" if holder is None else f"{describe_holder(holder)}: {error}{hang}"
        yield DoctorFinding(level, "executor", text) if text else _no_executor(path)
        return
    if response is None and holder is None:
        yield _no_executor(path)
    elif response is None or holder is None:  # the executor creates a deleted lock file again within a second
        deleted = f"pid {(response or {}).get('pid')} is alive, but its lock file was deleted"
        text = deleted if holder is None else f"{describe_holder(holder)}: holds the lock and does not listen"
        yield DoctorFinding("warning", "executor", text)
    else:
        yield DoctorFinding("ok", "executor", describe_holder(holder))
    if problem := (response or {}).get("storage_problem"):
        yield DoctorFinding("error", "storage", f"nothing is started: {problem}")


def _schedules(path: str, connection: sqlite3.Connection) -> Iterator[DoctorFinding]:
    rows = lists.query(connection, lists.SCHEDULES, {})
    status = lock_file.served_by(path)
    now_us = machine_now_us()
    served = {row.flow: row for row in read_schedules().schedules if row.state_path == path}
    hang = next((row.hang for row in served.values() if row.hang), None)
    hindrance = hang or (NOT_SERVED if status is None else "")
    for row in rows:
        start = next_start(row, served.get(row.dag_name), now_us, hindrance)
        words = f"{one_line(row.dag_name)}: {start_sentence(start, now_us)}"
        if is_ahead(row.decided_until, now_us):
            until = f"{datetime.fromtimestamp(row.decided_until / 1e6, UTC).astimezone():%Y-%m-%d %H:%M}"
            words += f"; decided until {until}, ahead of the clock: redrive serve takes that back"
            yield DoctorFinding("error", "schedule", words)
        elif hang is not None:
            yield DoctorFinding("error", "schedule", f"{words}; its supervisor {hang}")
        elif status is None:
            command = shell_command(["redrive", "serve", row.flow_path or "FLOW"])
            yield DoctorFinding("warning", "schedule", f"{words}; no process serves it: {command}")
        else:
            yield DoctorFinding("ok", "schedule", f"{words}; served by {describe_holder(status)}")


def _no_executor(path: str, heir: lock_file.LockHolder | None = None) -> DoctorFinding:
    """The finding without an executor. ``heir``: a dead executor whose lock is still held by one of its processes."""
    last = lock_file.last_holder(path)
    if last is None or last.released_at is not None:
        return DoctorFinding("ok", "executor", "none: operators' acts are applied under the lock, resume starts one")
    seen_at = lock_file.heartbeat_at(path)
    since = f" since {wall_day(seen_at)}" if seen_at is not None else ""
    left = "; its processes are still alive, resume ends them" if heir is not None else ""
    return DoctorFinding("warning", "executor", f"dead{since}: pid {last.pid} is gone and did not stop in order{left}")


def _file(path: str, connection: sqlite3.Connection) -> Iterator[DoctorFinding]:
    problems = database.integrity_check(connection)
    if problems:
        yield DoctorFinding("error", "integrity", "; ".join(problems))
    else:
        yield DoctorFinding("ok", "integrity", f"{path}, {format_bytes(os.path.getsize(path))}")
    wal_bytes = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    level: Literal["ok", "warning"] = "warning" if wal_bytes > WAL_LARGE_BYTES else "ok"
    hint = ": a reader holds it back" if level == "warning" else ""
    yield DoctorFinding(level, "wal", f"{format_bytes(wal_bytes)}{hint}")
    yield from _schedules(path, connection)
    status = LocalSession(path, read_only=True).status
    for listing in lists.runs(connection):
        stuck = runs.ready_audit(connection, listing.run.run_id) if lock_file.current_holder(path) is None else []
        total = sum(listing.counts.values())
        state = run_code(listing.run, runner_of(listing.run, status), listing.counts)
        text = f"{listing.run.run_id}: {state}, {counted(total, 'task')}"
        text += f", {len(stuck)} could start" if stuck else ""
        if listing.run.ended_at is not None and not MOVING.isdisjoint(listing.counts):
            yield _unfinished(connection, path, listing.run.run_id, text)
            continue
        advice = executor_advice(listing.run, status, path, machine_now_us())
        yield DoctorFinding("warning" if advice else "ok", "run", f"{text}; {advice}" if advice else text)


def _unfinished(connection: sqlite3.Connection, path: str, run_id: str, text: str) -> DoctorFinding:
    """The finding of a run that has ended although tasks of it have not."""
    names = runs.unfinished_tasks(connection, run_id)
    how = f"requeue or skip the failed tasks above, or {advised('skip', path, run_id, ['--', names[0]])}"
    text += f"; it has ended, and {counted(len(names), 'task')} never did ({first_names(names)}): {how}"
    return DoctorFinding("error", "run", text)


# --- ``redrive prune``: deletes old runs step by step, and says what that freed --------------------------------------


@command("prune")
@click.option("--keep", required=True, metavar="DURATION|N", help="Runs to keep: as 30d, or the latest 20 of a flow.")
@dry_run_option
@of_file
@json_option
def prune_runs(file: NamedFile, keep: str, dry_run: bool, as_json: bool) -> int:
    """Unfinished runs, the latest run of each flow, runs with quarantined rows or dead letters, and notes stay. So
    does a run that shows how a cause of the inbox was handled before.
    """
    try:
        options = parse_retention(keep)
    except ValueError:
        raise click.UsageError(f"--keep {keep!r}: write a duration, as 30d, or a number of runs, as 20") from None

    async def use(session: Session) -> tuple[PrunePreview, list[str], int]:
        before = await session.preview_prune(options)
        now, deleted = before, list[str]()
        while now.is_work_left and not dry_run:
            answer = await session.send(new_command("prune", None, options=options))
            deleted += [result.task for result in answer.results]
            if not answer.ok and not deleted:
                raise RedriveError(answer.message)
            if not answer.ok:
                break
            now = await session.preview_prune(options)
        return before, deleted, before.file_bytes - now.file_bytes

    endpoint = file.to_change()
    before, deleted, freed_bytes = with_session(endpoint, use)
    if as_json:
        names = {"would_delete": before.runs} if dry_run else {"deleted": deleted, "freed_bytes": freed_bytes}
        kept = {"with_rows": before.with_rows, "with_causes": before.with_causes}
        echo_json(with_schema("prune", {"dry_run": dry_run, **names, **kept}))
        return ExitCode.SUCCESS
    if dry_run:
        for run_id in before.runs:
            echo(one_line(f"would delete {run_id}"))
        found = counted(len(before.runs), "run")
        echo(one_line(f"dry run: {found} to delete, {endpoint.target} has {format_bytes(before.file_bytes)}"))
    else:
        freed = format_bytes(max(freed_bytes, 0))
        echo(one_line(f"{counted(len(deleted), 'run')} deleted, {freed} freed in {endpoint.target}"))
    if before.with_rows:
        runs = counted(len(before.with_rows), "run")
        rows, inbox = (
            advised(listing, endpoint.target, None, endpoint.ssh.arguments) for listing in ("systems rows", "inbox")
        )
        echo(f"kept: {runs} with quarantined rows or dead letters to decide ({rows}, {inbox})")
    if before.with_causes:
        echo(f"kept: {counted(len(before.with_causes), 'run')} with an earlier failure of a cause in the inbox")
    return ExitCode.SUCCESS
