"""The flow files below a folder, and the schedules in them: read in a short process, never in the supervisor.

``python -P -m redrive.engine.schedule.flow_files`` reads paths, one a line, and forks once for each: an import that
hangs, ends the process or breaks it costs this file alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from ..core.spec import FlowSpec
from ..errors import RedriveError
from ..flow.source import declared_python, split_target
from ..statefile.reader import Stamp, stamp_of

IMPORT_SECONDS = 60.0  # an import that takes longer is ended
FILE_BYTES_MAX = 4 * 1024 * 1024  # a larger one is no flow file
RESULT_BYTES_MAX = 16 * 1024 * 1024

#: Folders whose files are not searched: environments, caches, and what begins with a dot.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "venv"})
#: Words in the text of each file that makes a flow.
_FLOW_WORDS = (b"redrive", b"Flow(")


@dataclass(frozen=True, slots=True)
class FlowSource:
    """One flow file to read. ``is_named``: an operator named it; else it was found in a folder."""

    target: str  # as an operator names it: FILE, or FILE:OBJECT
    is_named: bool

    @property
    def file(self) -> str:
        return split_target(self.target)[0]


@dataclass(frozen=True, slots=True)
class FlowFile:
    """What reading a flow file gave. ``flows``: by variable, without their tasks; ``error``: why it cannot be read."""

    target: str
    flows: Mapping[str, FlowSpec]
    error: str | None = None


def find_sources(words: Iterable[str]) -> Iterator[FlowSource]:
    """Yield each named file, and each file below a named folder that may hold a flow, as absolute paths.

    Raises RedriveError for a folder that cannot be read: its flows must not be taken for removed ones.
    """
    for word in words:
        if os.path.isdir(word):
            yield from (FlowSource(path, is_named=False) for path in _files_below(os.path.abspath(word)))
        else:
            file, name = split_target(word)
            yield FlowSource(os.path.abspath(file) + (f":{name}" if name else ""), is_named=True)


def _files_below(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        if error.filename == folder:
            raise RedriveError(f"the folder {folder} cannot be read: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        yield from (os.path.join(parent, name) for name in sorted(names) if name.endswith(".py") and name[0] != ".")


class FlowFinder:
    """Finds the flow files again and again; the text of a file is searched only if the file has changed."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)
        self._known: dict[str, tuple[Stamp, bool]] = {}  # by file: whether it may hold a flow

    def find(self) -> dict[FlowSource, Stamp]:
        """Return each file that may hold a flow, with its stamps. Raises RedriveError."""
        found: dict[FlowSource, Stamp] = {}
        known: dict[str, tuple[Stamp, bool]] = {}
        for source in find_sources(self._words):
            stamps = stamp_of(source.file)
            before = self._known.get(source.file)
            may_hold = before[1] if before is not None and before[0] == stamps else _mentions_flow(source.file)
            known[source.file] = (stamps, may_hold)
            if source.is_named or may_hold:
                found[source] = stamps
        self._known = known
        return found


def _mentions_flow(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError:
        return False
    return all(word in text for word in _FLOW_WORDS)


# --- Reading, as seen by the supervisor ------------------------------------------------------------------------------


async def read_flow_files(targets: Iterable[str]) -> AsyncIterator[FlowFile]:
    """Import flow files in a process of their own and yield what they hold, each as soon as it is read."""
    by_interpreter: dict[str, list[str]] = {}
    for target in targets:
        by_interpreter.setdefault(declared_python(target) or sys.executable, []).append(target)
    for python, group in by_interpreter.items():
        async for found in _read_with(python, group):
            yield found


async def _read_with(python: str, targets: list[str]) -> AsyncIterator[FlowFile]:
    words = [python, "-P", "-m", "redrive.engine.schedule.flow_files"]
    pipe = asyncio.subprocess.PIPE
    left = dict.fromkeys(targets)
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, limit=RESULT_BYTES_MAX, start_new_session=True
        )
    except OSError as error:
        for target in left:
            yield FlowFile(target, {}, f"{python} cannot be started: {error.strerror}")
        return
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(ConnectionError):
            child.stdin.write("".join(f"{target}\n" for target in targets).encode("utf-8", "surrogateescape"))
            child.stdin.close()
        async for line in child.stdout:
            found = msgspec.json.decode(line, type=FlowFile)
            left.pop(found.target, None)
            yield found
    finally:
        if not child.stdout.at_eof():  # else it ends by itself
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    for target in left:
        yield FlowFile(target, {}, f"the process that reads {target} died")


# --- The process that reads ------------------------------------------------------------------------------------------


def main() -> None:
    """Read paths from stdin, and write a line of JSON on stdout for each."""
    results = os.dup(1)  # a flow file may print
    os.set_inheritable(results, False)
    os.dup2(2, 1)
    from ..flow import loading  # noqa: F401  # here, and before the forks

    gc.freeze()
    for line in sys.stdin:
        target = line.rstrip("\n")
        os.write(results, _read_in_fork(target) + b"\n")


def _read_in_fork(target: str) -> bytes:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(msgspec.json.encode(_read(target)))
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        content = _read_until_end(read_end)
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if content is None:
        return msgspec.json.encode(FlowFile(target, {}, f"importing {target} takes longer than {IMPORT_SECONDS:g} s"))
    return content or msgspec.json.encode(FlowFile(target, {}, f"importing {target} ended its process"))


def _read_until_end(descriptor: int) -> bytes | None:
    """Return what is written until the end; None if that takes too long."""
    pieces: list[bytes] = []
    while select.select([descriptor], [], [], IMPORT_SECONDS)[0]:
        piece = os.read(descriptor, 65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
    return None


def _read(target: str) -> FlowFile:
    from ..flow.loading import load_flows

    try:
        flows = load_flows(target)
        specs = {name: replace(flow.spec(), tasks=(), sources={}) for name, flow in flows.items()}
    except RedriveError as error:
        return FlowFile(target, {}, str(error))
    return FlowFile(target, specs)


if __name__ == "__main__":
    main()
