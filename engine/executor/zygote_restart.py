"""Opens the flow in a new zygote: after the death of the old one, and when its source files changed on the disk.

    moment                                          then
    --------------------------------------------    --------------------------------------------------------------
    the zygote died                                 the flow is opened again, also with changed files
    an act that runs a task again (LOADING_ACTS)    changed files are loaded first, if the run can go on with them
    a retry, and every CHECK_SECONDS                changed files are only reported, once: a file that somebody edits
                                                    must not change a run before an operator has seen the failure

Running attempts end with the code that they began with. If the new code cannot be imported, or its tasks no longer fit
the run (``core/flow_difference.py``), the old code stays in use, and the answer says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ..core import flow_difference
from ..core.flow_difference import FlowDifference
from ..core.spec import FlowSpec
from ..domain.event_payloads import RunChange, RunChanged, RunColumns
from ..domain.text import advised
from ..errors import FlowError, RedriveError
from ..flow.source import digest_of_file, source_root, split_target
from ..runner.protocol import Open
from ..runner.runner import OpenFlow
from ..statefile.reader import Stamp, stamp_of
from ..store import flow_changes
from .active_run import ActiveRun, WriteInTransaction
from .opening import OpenRun

LOADING_ACTS = frozenset(["requeue", "requeue-rows", "hurry", "reload"])
CHECK_SECONDS = 10.0
RETRY_CHECK_SECONDS = 1.0


class ReloadResult(NamedTuple):
    """The result of a reload of changed files. ``sentence``: for the operator; empty if nothing changed."""

    ok: bool = True
    sentence: str = ""


class ZygoteRestart:
    """Keeps a zygote with the flow of a run.

    ``on_done()``: attempts can start again; ``on_failed(error)``: they never can.
    """

    def __init__(
        self,
        opened: OpenRun,
        run: ActiveRun,
        *,
        write: WriteInTransaction,
        on_done: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._opened = opened
        self._run = run
        self._write = write
        self._on_done = on_done
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._watch = _watch_of(opened.flow)
        self._loaded_at = datetime.now().astimezone()  # for people
        self._reported: list[str] = []
        self._check: asyncio.Task[None] | None = None
        self._checked_at = asyncio.get_running_loop().time()  # the flow has just been imported
        self._check_due_at = self._checked_at + CHECK_SECONDS

    # --- After a death ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new zygote; the attempts of the old one have ended as lost."""
        self._task = asyncio.get_running_loop().create_task(self._open_again())
        self._task.add_done_callback(self._on_opened)

    async def _open_again(self) -> None:
        async with self._loading:
            if self._opened.flow.path is None:
                raise RedriveError("the process that holds the functions of this flow died; start the program again")
            prepared = await self._prepare()
            if prepared.spec.code_hash == self._opened.flow.code_hash:
                self._opened.runner.replace(prepared)
            else:
                await self._adopt(prepared, [])

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failed(error)
        else:
            self._on_done()

    # --- After a change of files -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Report changed files, at most every CHECK_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._watch is not None and self._check is None and now >= self._check_due_at:
            self._checked_at, self._check_due_at = now, now + CHECK_SECONDS
            self._check = asyncio.get_running_loop().create_task(self._report())
            self._check.add_done_callback(self._on_checked)

    def check_before_retry(self) -> None:
        """Report changed files soon, because a task has failed."""
        self._check_due_at = min(self._check_due_at, self._checked_at + RETRY_CHECK_SECONDS)
        self.check()

    async def close(self) -> None:
        """End a running check, and a zygote that is being opened."""
        unfinished = [task for task in (self._task, self._check) if task is not None]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    def _on_checked(self, check: asyncio.Task[None]) -> None:
        self._check = None
        if not check.cancelled() and (error := check.exception()) is not None:
            self._on_failed(error)

    async def _report(self) -> None:
        watch = self._watch
        if watch is None or self._loading.locked():
            return
        changed = watch.names_of(await asyncio.to_thread(watch.changed_files))
        if watch is self._watch and changed != self._reported:
            self._reported = changed
            self._emit(RunChange.CODE_CHANGED, changed)

    async def load_for(self, act: str, run_again: Collection[str] = ()) -> ReloadResult:
        """Load changed files before ``act``. ``run_again``: tasks that the act lets run again."""
        if act not in LOADING_ACTS or self._watch is None:
            return ReloadResult()
        async with self._loading:
            changed = await asyncio.to_thread(self._watch.changed_files)
            if changed:
                return await self._load(self._watch, changed, run_again)
            if self._reported:
                self._reported = []
                self._emit(RunChange.CODE_CHANGED, [])
            return ReloadResult()

    async def _load(self, watch: SourceWatch, changed: Sequence[str], run_again: Collection[str]) -> ReloadResult:
        files = watch.names_of(changed)
        shown = flow_difference.join_names(files)
        try:
            if self._opened.remote is not None:
                raise FlowError("tasks on Dask need a new executor: stop it, and resume the run")
            difference = await self._adopt(await self._prepare(), files, run_again)
        except (FlowError, OSError) as error:
            self._reported = files
            self._emit(RunChange.CODE_REFUSED, files, str(error))
            why = f"{shown} changed but cannot be used: {error}"
            return ReloadResult(False, f"{why}; the code of {_clock(self._loaded_at)} stays in use")
        at = latest_change_us(changed)
        if at is not None:
            self._loaded_at = datetime.fromtimestamp(at / 1e6).astimezone()
        parts = [f"runs the code of {_clock(self._loaded_at)} ({shown} changed)"]
        parts += [f"{words} {flow_difference.join_names(names)}" for words, names in _consequences(difference) if names]
        return ReloadResult(True, "; ".join(parts))

    async def _prepare(self) -> OpenFlow:
        flow, stored = self._opened.flow, self._run.projection.run.python_path
        python_path = stored.split(os.pathsep) if stored else []
        return await self._opened.runner.prepare(Open(flow.path or "", {}, flow.params, python_path))

    async def _adopt(self, prepared: OpenFlow, files: Sequence[str], run_again: Collection[str] = ()) -> FlowDifference:
        """Use a flow from now on: write what changed, then change the memory. Raises FlowError if it does not fit."""
        opened, projection = self._opened, self._run.projection
        flow = prepared.shared.mask.stored_flow(prepared.spec)
        difference = flow_difference.compare(projection, flow, run_again)
        try:
            why = flow_difference.load_refusal(difference)
            if why is not None:
                resume = advised("resume", self._opened.state_path, self._run.run_id)
                raise FlowError(f"{why}: stop, then {resume}, which shows what follows")
            await opened.writer.submit(lambda t: flow_changes.load_code(t, projection, flow, difference, files))
        except BaseException:
            await opened.runner.discard(prepared)
            raise
        opened.flow = replace(opened.flow, code_hash=flow.code_hash, sources=flow.sources)
        opened.identity = replace(opened.identity, code_hash=flow.code_hash)
        for spec in flow_difference.with_children(flow, projection).tasks:
            if spec.name in projection.tasks:
                projection.tasks[spec.name].spec = spec
        self._run.use_specs(prepared.spec.tasks, flow.tasks)
        self._watch, self._reported = _watch_of(opened.flow), []
        opened.runner.replace(prepared)
        return difference

    def _emit(self, what: str, files: Sequence[str], why: str | None = None) -> None:
        """Emit one event, and store the names of the files for the header."""
        columns: RunColumns = {"code_changed": flow_difference.join_names(files) or None}
        change: RunChanged = RunChanged(what, columns, files=files, why=why)
        self._write(lambda transaction: transaction.change_run(self._run.run_id, change))


def _watch_of(flow: FlowSpec) -> SourceWatch | None:
    """Return the watch of a flow in a file; a flow in the memory of a program has no files."""
    return None if flow.path is None or not flow.sources else SourceWatch(split_target(flow.path)[0], flow.sources)


def _consequences(difference: FlowDifference) -> tuple[tuple[str, Sequence[str]], ...]:
    return (
        ("changed tasks:", difference.changed),
        ("finished with the old code, and do not run again by themselves:", difference.outdated),
        ("added tasks, which start after a stop and a resume:", difference.added),
    )


def _clock(at: datetime) -> str:
    return at.strftime("%H:%M" if at.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


# --- Detects that the source files of the flow differ from those that the executor has loaded ------------------------


class SourceWatch:
    """Compares files by ``stat``, and reads a file only if its stamp is new. Blocks: call it in a thread."""

    def __init__(self, flow_path: str, sources: Mapping[str, str]) -> None:
        self._root = str(source_root(Path(flow_path)))
        self._loaded = dict(sources)
        self._seen: dict[str, tuple[Stamp, str | None]] = {}  # the digest of each file at its latest stamp

    def changed_files(self) -> list[str]:
        """Return the paths of the changed and removed files."""
        return [path for path, digest in self._loaded.items() if self._digest(path) != digest]

    def names_of(self, paths: Sequence[str]) -> list[str]:
        """Return paths below the folder of the flow, for people."""
        return [os.path.relpath(path, self._root) for path in paths]

    def _digest(self, path: str) -> str | None:
        stamp, (seen, digest) = stamp_of(path), self._seen.get(path, ((-1,), None))
        if stamp != seen:
            digest = digest_of_file(path)
            self._seen[path] = (stamp, digest)
        return digest


def latest_change_us(paths: Sequence[str]) -> int | None:
    """Return the time of the latest change of these files, in microseconds UTC; None if none exists any more."""
    stamps = [stamp for path in paths if (stamp := stamp_of(path))]
    return max((stamp[3] // 1000 for stamp in stamps), default=None)
