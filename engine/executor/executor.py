"""The public ``Executor``: takes the state file, starts the zygote, then imports the loop and runs it.

A flow in memory is forked from this process. What is imported by then is copied at the fork of every attempt: 150 more
mappings and 10 MB cost each attempt 1 ms, and ``threading`` (of asyncio) does work after each fork. So everything that
only the loop needs is imported after the fork.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import StartInterrupted
from .run_options import RunOptions, RunRequest, state_path_of
from .state_file_lease import INTERRUPTED, acquire_state_file

if TYPE_CHECKING:
    import asyncio

    from ..flow.flow import Flow
    from ..flow.task_def import TaskDef
    from .attempts import OutputListener, Streams
    from .loop import RunLoop
    from .opening import Machine
    from .publisher import EventListener
    from .run_end import RunResult
    from .state_file_lease import StateFileLease


class Executor:
    """Runs one run of one flow; meanwhile this process is the only writer of its state file.

    Parameters:
        dag_name: the name of the flow that consists of ``tasks``.
        run_id: text that names the run; a run of this name in the state file is resumed. None: a new run that is
            named after the time, or, with ``RunOptions(resume=True)``, the latest run in the state file.
        tasks: the tasks as ``TaskDef``; closures are allowed, because attempts are forked from this process.
        max_parallel: attempts at a time, at least 1; ignored if ``options`` is given. None: the flow's own setting,
            or 4.
        flow: instead of ``tasks``: a ``Flow``, or the path of a flow file, which a clean interpreter imports. None,
            without ``tasks``: the flow file named by the run in ``state``.
        state: the path of the state file. None: ``$REDRIVE_STATE``, or ``<flow>.db`` in the user's state folder.
        options: how to run: see ``RunOptions``.
        machine: the clock, processes and disk of the run, for tests: see ``redrive.engine.testing``.
        on_events: called with the events of each commit that is on the disk, in the thread of the event loop.
        on_output: called with the name of a task and text that it printed, in the thread of the event loop.
        streams: gets the bytes of the commands of the run, as they are, and has their input.
        on_lock: called when the state file is locked for this executor, before the flow is imported.
        on_open: called with the name of the run once the executor owns it.
        handle_signals: True: SIGTERM and SIGINT stop the run gracefully.

    Example:
        >>> from redrive.engine import TaskDef
        >>> tasks = [TaskDef("extract", lambda: [5, 7]), TaskDef("load", lambda extract: sum(extract), ["extract"])]
        >>> Executor("sums", "monday", tasks, max_parallel=4).run()
        'SUCCESS'
    """

    def __init__(
        self,
        dag_name: str = "",
        run_id: str | None = None,
        tasks: Sequence[TaskDef] | None = None,
        max_parallel: int | None = None,
        *,
        flow: Flow | str | None = None,
        state: str | os.PathLike[str] | None = None,
        options: RunOptions | None = None,
        machine: Machine | None = None,
        on_events: EventListener | None = None,
        on_output: OutputListener | None = None,
        streams: Streams | None = None,
        on_lock: Callable[[], None] | None = None,
        on_open: Callable[[str], None] | None = None,
        handle_signals: bool = False,
    ) -> None:
        if tasks is not None:
            flow = _flow_of(dag_name, tasks)
        options = options or RunOptions(max_parallel=max_parallel)
        self._request = RunRequest(
            flow=flow,
            run_id=run_id,
            state_path=state_path_of(flow, None if state is None else os.fspath(state), options.params),
            executor_id=uuid.uuid4().hex if machine is None else machine.random_hex(16),
            options=options,
            on_lock=on_lock,
        )
        self._machine = machine
        self._on_events = on_events
        self._on_output = on_output
        self._streams = streams
        self._on_open = on_open
        self._handle_signals = handle_signals
        self._lease: StateFileLease | None = None
        self._run_loop: RunLoop | None = None
        self._is_stopping = False

    @property
    def state_path(self) -> str:
        """The path of the state file."""
        return self._request.state_path

    def run(self) -> str:
        """Run to the end, and return the state of the run: "SUCCESS", "FAILED", "PARTIAL", "BLOCKED" or "RUNNING".

        "BLOCKED": the run waits for an operator. "RUNNING": it was stopped. The same call with the ``run_id`` resumes
        it. The call also works while an event loop runs, as in a notebook: it blocks that loop, and ``await
        run_here()`` does not.

        Raises:
            FlowError: the flow cannot be run.
            StateFileError: the state file cannot be used.
            ExecutorBusyError: another executor owns the state file.
            StartInterrupted: a signal arrived before the run was opened.
        """
        return self.run_result().state

    def run_result(self) -> RunResult:
        """Do what ``run`` does, and return the states and results of the tasks as well."""
        lease = self._acquire()
        try:
            from ..asyncio_log import log_asyncio
            from .loop import run_to_end

            if self._handle_signals:  # the process is ours
                log_asyncio(mask=lambda text: lease.runner.mask.text(text))
            return run_to_end(self._serve(lease), self.stop)
        except KeyboardInterrupt:  # a signal before the loop handled signals
            if lease.has_run:
                raise
            raise StartInterrupted(INTERRUPTED) from None
        finally:
            lease.release()

    def _acquire(self) -> StateFileLease:
        """Raises StartInterrupted on a signal, e.g. while this process waits for another executor to leave."""
        if not self._handle_signals:
            return self._acquire_state_file()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the loop handles both
        try:
            return self._acquire_state_file()
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, before)
            raise StartInterrupted(INTERRUPTED) from None

    def _acquire_state_file(self) -> StateFileLease:
        return (acquire_state_file if self._machine is None else self._machine.acquire)(self._request)

    async def run_here(self) -> RunResult:
        """Do what ``run_result`` does in the caller's event loop: ``await Executor(flow=flow).run_here()``."""
        lease = self._acquire_state_file()
        try:
            return await self._serve(lease)
        finally:
            lease.release()

    def stop(self) -> None:
        """Terminate the attempts and stop, now or as soon as the run is open; a later start resumes the run."""
        self._is_stopping = True
        if self._lease is not None:
            self._lease.interrupt()
        if self._run_loop is not None:
            self._run_loop.shutdown.request("now")

    async def respond(self, line: bytes) -> Mapping[str, object]:
        """Answer one line as the command socket does: an act of an operator as JSON.

        Raises:
            ConnectionError: the executor is not open, or it leaves: the act is for whoever comes next.
        """
        if self._run_loop is None:
            raise ConnectionResetError("no executor is open")
        return await self._run_loop.respond(line)

    async def _serve(self, lease: StateFileLease) -> RunResult:
        import asyncio

        from .loop import RunLoop
        from .opening import Machine, open_run

        self._lease = lease
        machine = self._machine or Machine()
        if self._handle_signals:
            handle_signals(asyncio.get_running_loop(), self.stop)
        if self._is_stopping:
            lease.interrupt()
        opened, run_loop = await open_run(lease, machine), None
        try:
            run_loop = self._run_loop = RunLoop(opened, machine, self._on_events, self._on_output, self._streams)
            if self._is_stopping:
                self.stop()
            return await run_loop.run(self._on_open)
        finally:
            self._run_loop = None
            await opened.close(None if run_loop is None else run_loop.save_file)


def handle_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and ignore SIGHUP, so that a run survives its terminal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _flow_of(dag_name: str, tasks: Sequence[TaskDef]) -> Flow:
    from ..flow.flow import Flow

    flow = Flow(dag_name)
    for task in tasks:
        flow.add(task)
    return flow
