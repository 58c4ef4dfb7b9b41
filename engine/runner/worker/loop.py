"""The code of a warm worker: runs one attempt after another, until one of them is not a clean success.

After each success it checks what the attempt left behind (``process_state.py``). It ends after any other outcome, after
a finding, and when the executor closes the socket: then it does what a process with a single attempt does at its end.
"""

from __future__ import annotations

import contextvars
import os
import resource
import time
from collections.abc import Mapping, Set
from functools import partial
from typing import NoReturn

from .. import child, process, protocol
from ..per_attempt_import import FreshImport
from .process_state import ProcessState, kilobytes

RECEIVE_BYTES = 64 * 1024

_RESET_PEAK = b"5"  # written to clear_refs: the peak of resident memory (VmHWM) is counted from now on


class _Worker:
    """The main thread, in which every attempt runs."""

    def __init__(self, control: int, facts: child.FlowFacts) -> None:
        self._control = control
        self._facts = facts
        self._pipe = child.ResultPipe(control, facts.termination)
        self._reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._variables: Set[bytes] = frozenset()  # those that the latest attempt was given
        self._state: ProcessState | None = None

    def run(self) -> int:
        """Run attempts. Returns the exit code: 0 unless the last one failed."""
        while data := os.read(self._control, RECEIVE_BYTES):
            for payload in self._reader.feed(data):
                start = protocol.decode_executor_frame(payload)
                assert isinstance(start, protocol.Start)
                code = self._run_attempt(start)
                if code is not None:
                    return code
        return 0

    def _run_attempt(self, start: protocol.Start) -> int | None:
        """Run one attempt. Returns the exit code of the process, or None: it takes the next attempt."""
        pid = os.getpid()
        context = contextvars.copy_context()  # what the attempt sets in it ends with it, as the context of decimal
        order = protocol.decode_order(start.order)
        prepare = partial(self._prepare, start.variables)
        ending = context.run(child.run_task, order, self._facts, self._pipe, prepare, self._before_call)
        child.flush()
        process.flush_c_streams()
        if os.getpid() != pid:  # a process that the task forked has returned from the function
            os._exit(0)
        if self._state is None or not isinstance(ending, protocol.Succeeded):
            self._pipe.send(ending)
            return 0 if isinstance(ending, protocol.Succeeded) else 1
        report = _report(self._state)
        self._pipe.send(ending, report)
        return 0 if report.findings else None

    def _prepare(self, variables: Mapping[bytes, bytes]) -> None:
        """Set what a new process has from its fork: the variables of this attempt alone, random numbers of its own."""
        self._facts.termination.reset()
        if self._state is not None:
            child.reseed("random", "numpy.random")
            _reset_peak_memory()
        os.environb.update(variables)
        for name in self._variables - variables.keys():
            os.environb.pop(name, None)
        self._variables = variables.keys()
        if isinstance(self._facts.plans, FreshImport):
            self._facts.plans.preload()

    def _before_call(self) -> None:
        if self._state is None:
            self._state = ProcessState()
        self._state.begin_attempt()


def _report(state: ProcessState) -> protocol.WorkerChecked:
    findings, status = state.end_attempt()
    own, waited = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    user_us = round((own.ru_utime + waited.ru_utime) * 1e6)
    system_us = round((own.ru_stime + waited.ru_stime) * 1e6)
    return protocol.WorkerChecked(findings, kilobytes(status, b"VmHWM"), user_us, system_us, time.monotonic())


def _reset_peak_memory() -> None:
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(_RESET_PEAK)
    except OSError:
        return  # a kernel without it: the peak is that of the worker so far


def run_worker(facts: child.FlowFacts, channels: child.Channels, zygote_pid: int) -> NoReturn:
    """Run the forked worker to its end. Never returns."""
    child.run_to_end(lambda: _Worker(channels.results, facts).run(), facts, channels, zygote_pid)
