"""Imports the flow inside each process that runs attempts, for flows whose import leaves threads running.

A process that is forked beside threads has copies of their locks, but not the threads that would release them. So the
zygote of such a flow does not import it (``zygote/zygote.py``), and a process takes one attempt after another, as with
``isolation="worker"``: an import in each attempt would cost more than most attempts. All processes import the code that
the zygote had imported (``flow/recorded_sources.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .call import CallPlan

if TYPE_CHECKING:
    from threading import Thread


class FreshImport:
    """Imports the flow in this process, once."""

    def __init__(self, load: Callable[[], Mapping[str, CallPlan]]) -> None:
        self._load = load
        self._plans: Mapping[str, CallPlan] | None = None
        self._error: BaseException | None = None
        self._threads: frozenset[Thread] = frozenset()

    def plans(self) -> Mapping[str, CallPlan]:
        """Return how to call the tasks. Raises the exception of the import, on every call."""
        if self._error is not None:
            raise self._error
        if self._plans is None:
            self._plans = self._load()
            threading = sys.modules.get("threading")
            self._threads = frozenset(threading.enumerate()) if threading is not None else frozenset()
        return self._plans

    def preload(self) -> None:
        """Import now; ``plans`` raises the error, if any."""
        try:
            self.plans()
        except BaseException as error:
            self._error = error

    def join_threads(self) -> None:
        """Join the threads that the task started, as the interpreter does at exit; not those of the import."""
        pools = sys.modules.get("concurrent.futures.thread")
        if pools is not None:
            pools._python_exit()
        threading = sys.modules.get("threading")
        for thread in threading.enumerate() if threading is not None else ():
            if not thread.daemon and thread not in self._threads:
                thread.join()
