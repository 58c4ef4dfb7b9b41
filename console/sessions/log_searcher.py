"""Searches the output of attempts in a process of its own, which starts with the first search."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from typing import Any

from ...engine.errors import RedriveError

ANSWER_SECONDS_MAX = 20.0  # a slice takes at most 2 s of processor time; a process without an answer is stopped
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class LogSearcher:
    """The process for one state file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process: Process | None = None
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()

    async def call(self, name: str, options: Mapping[str, object]) -> Any:
        """Call a function of ``log_search``. Raises RedriveError."""
        async with self._lock:
            try:
                return await asyncio.wait_for(self._call(name, options), ANSWER_SECONDS_MAX)
            except (TimeoutError, OSError, ValueError) as error:
                await self._stop()
                raise RedriveError(f"the search of the log has stopped: {error or 'no answer'}; try again") from None

    async def close(self) -> None:
        """Stop the process."""
        async with self._lock:
            await self._stop()

    async def _call(self, name: str, options: Mapping[str, object]) -> Any:
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None
        number = next(self._numbers)
        process.stdin.write(json.dumps([number, name, options]).encode() + b"\n")
        await process.stdin.drain()
        answered = 0
        while answered != number:  # answers to searches that were cancelled come first
            answered, value, *error = json.loads(await process.stdout.readline())
        if error:
            raise RedriveError(str(error[0]))
        return value

    async def _start(self) -> Process:
        command = (sys.executable, "-P", "-m", f"{__package__}.search_process", self._path)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_ANSWER_BYTES_MAX, start_new_session=True
        )
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
