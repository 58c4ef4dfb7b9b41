"""The flow files below a folder, and the schedules in them: read in a short process, never in the supervisor.

``python -P -m redrive.engine.schedule.flow_files`` reads paths, one a line, and forks once for each: an import that
hangs, ends the process or breaks it costs this file alone. A few are imported at a time; one that takes long makes
room for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import select
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from ..core.spec import FlowSpec
from ..errors import RedriveError
from ..flow.import_output import ImportOutput
from ..flow.source import declared_python, split_target
from ..runner.process import set_parent_death_signal
from ..statefile.reader import Stamp, stamp_of

IMPORT_SECONDS = 60.0  # an import that takes longer is ended
IMPORTS_MAX = 2  # at a time, without those that take long
SLOW_SECONDS = 2.0  # an import that takes longer waits for something
SLOW_MAX = 64  # imports at a time that take long
#: A zygote that is forked from an executor saves the 160 ms of an interpreter; each of its forks takes 1.2 ms more.
FEW_TASKS = 100
FILE_BYTES_MAX = 4 * 1024 * 1024  # a larger one is no flow file
RESULT_BYTES_MAX = 16 * 1024 * 1024
PIECE_BYTES = 64 * 1024
OUTPUT_SECONDS = 0.5  # for the output, after the end: a process that an import has left behind may hold the pipe

#: Folders whose files are not searched: environments, caches, and what begins with a dot.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "venv"})
#: Words in the text of each file that makes a flow.
_FLOW_WORDS = (b"redrive", b"Flow(")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w.]+))", re.MULTILINE)


class FlowSource(msgspec.Struct, frozen=True):
    """A flow file to read. ``is_named``: an operator named it; else it was found in a folder."""

    target: str  # as an operator names it: FILE, or FILE:OBJECT
    file: str
    is_named: bool


class FoundFlow(msgspec.Struct, frozen=True):
    """A flow of a file. ``spec``: without its tasks; ``few_tasks``: see ``RunOptions``."""

    spec: FlowSpec
    few_tasks: bool = False


class FlowFile(msgspec.Struct, frozen=True):
    """A flow file that was read. ``flows``: by variable; ``error``: why it cannot be read."""

    target: str
    flows: Mapping[str, FoundFlow] = {}
    error: str | None = None


class _Text(msgspec.Struct, frozen=True):
    """The text of a file, read without an import. ``error``: why it cannot be read."""

    mentions_flow: bool = False
    imports: frozenset[str] = frozenset()  # the last parts of the names of modules
    error: str | None = None


class FlowFinder:
    """Finds the flow files again and again; the text of a file is searched only if the file has changed.

    ``left_out``: the files and folders that ``find`` passed by though they may make flows, each with the reason.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)
        self._known: dict[str, tuple[Stamp, _Text]] = {}  # by file
        self.left_out: Mapping[str, str] = {}

    def find(self) -> dict[FlowSource, Stamp]:
        """Return each file that may hold a flow, with its stamps.

        Raises RedriveError for a named folder that cannot be read: its flows must not be taken for removed ones.
        """
        found: dict[FlowSource, Stamp] = {}
        known: dict[str, tuple[Stamp, _Text]] = {}
        left_out: dict[str, str] = {}
        for source in self._sources(left_out):
            stamps = stamp_of(source.file)
            before = self._known.get(source.file)
            is_known = before is not None and before[0] == stamps and before[1].error is None
            text = before[1] if before is not None and is_known else _read_text(source.file)
            known[source.file] = stamps, text
            if source.is_named:
                found.pop(replace(source, is_named=False), None)  # it lies below a named folder as well
            if source.is_named or (text.mentions_flow and replace(source, is_named=True) not in found):
                found[source] = stamps
        self._known = known
        named = {source.file for source in found}
        texts = {file: text for file, (_, text) in known.items() if file not in named}
        self.left_out = {**left_out, **dict(_left_out(texts, named))}
        return found

    def _sources(self, left_out: dict[str, str]) -> Iterator[FlowSource]:
        """Yield each named file, and each file below a named folder, as absolute paths."""
        for word in self._words:
            if os.path.isdir(word):
                folder = os.path.abspath(word)
                yield from (FlowSource(path, path, is_named=False) for path in _files_below(folder, left_out))
            else:
                file, name = split_target(word)
                path = os.path.abspath(file)
                yield FlowSource(f"{path}:{name}" if name else path, path, is_named=True)


def _files_below(folder: str, left_out: dict[str, str]) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        if error.filename == folder:
            raise RedriveError(f"the folder {folder} cannot be read: {error.strerror}")
        left_out[str(error.filename)] = f"cannot be read: {error.strerror}"

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        yield from (os.path.join(parent, name) for name in sorted(names) if name.endswith(".py") and name[0] != ".")


def _read_text(path: str) -> _Text:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError as error:
        return _Text(error=f"cannot be read: {error.strerror}")
    imports = (name.rpartition(b".")[2] for one in _IMPORT.findall(text) for name in one if name)
    return _Text(all(word in text for word in _FLOW_WORDS), frozenset(map(os.fsdecode, imports)))


def _left_out(texts: Mapping[str, _Text], flow_files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that are not imported, though a flow may come from a module that they import."""
    makers = {os.path.basename(file)[: -len(".py")] for file in flow_files}
    for file, text in texts.items():
        if text.error is not None:
            yield file, text.error
        elif makers & text.imports:
            maker = min(makers & text.imports)
            yield file, f"imports {maker}, which makes flows, and names no redrive or no Flow( itself: serve it by name"


# --- Reading, as seen by the supervisor ------------------------------------------------------------------------------


async def read_found(finder: FlowFinder) -> list[FlowFile]:
    """Read all files of a finder, each with the interpreter that it names."""
    groups = group_by_interpreter(finder.find()).items()
    return [file for python, targets in groups async for file in read_flow_files(python, targets)]


def group_by_interpreter(sources: Iterable[FlowSource]) -> dict[str, list[str]]:
    """Return the targets by the interpreter that imports them."""
    groups: dict[str, list[str]] = {}
    for source in sources:
        groups.setdefault(declared_python(source.target) or sys.executable, []).append(source.target)
    return groups


async def read_flow_files(python: str, targets: Iterable[str]) -> AsyncIterator[FlowFile]:
    """Import flow files in a process of an interpreter and yield what they hold, each as soon as it is read.

    What they print goes to stderr, as ``ImportOutput`` prints it.
    """
    words = [python, "-P", "-m", "redrive.engine.schedule.flow_files"]
    pipe = asyncio.subprocess.PIPE
    left = dict.fromkeys(targets)
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=RESULT_BYTES_MAX, start_new_session=True
        )
    except OSError as error:
        for target in left:
            yield FlowFile(target, error=f"{python} cannot be started: {error.strerror}")
        return
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    printing = asyncio.create_task(_print_output(child.stderr))
    try:
        with contextlib.suppress(ConnectionError):
            child.stdin.write("".join(f"{target}\n" for target in left).encode("utf-8", "surrogateescape"))
            child.stdin.close()
        async for line in child.stdout:
            found = msgspec.json.decode(line, type=FlowFile)
            left.pop(found.target, None)
            yield found
    finally:
        if not child.stdout.at_eof():  # else it ends by itself
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        await asyncio.wait([printing], timeout=OUTPUT_SECONDS)
        printing.cancel()
    for target in left:
        yield FlowFile(target, error=f"the process that reads {target} died")


async def _print_output(stream: asyncio.StreamReader) -> None:
    output = ImportOutput()
    try:
        while data := await stream.read(PIECE_BYTES):
            output.feed(data)
    finally:
        output.close()


# --- The process that reads ------------------------------------------------------------------------------------------


def main() -> None:
    """Read paths from stdin, and write a line of JSON on stdout for each."""
    results = os.dup(1)  # a flow file may print
    os.set_inheritable(results, False)
    os.dup2(2, 1)
    from ..flow import loading  # noqa: F401  # here, and before the forks

    gc.freeze()
    left = [line.rstrip("\n") for line in reversed(sys.stdin.readlines())]
    imports: dict[int, _Import] = {}  # by pipe
    while left or imports:
        now = time.monotonic()
        slow = sum(one.started_at + SLOW_SECONDS <= now for one in imports.values())
        if left and len(imports) - slow < IMPORTS_MAX and slow < SLOW_MAX:
            one = _Import.start(left.pop())
            imports[one.pipe] = one
            continue
        for one in _wait(list(imports.values()), now):
            del imports[one.pipe]
            try:
                os.write(results, one.end() + b"\n")
            except BrokenPipeError:
                return  # whoever asked is gone; the other imports end with this process


class _Import(msgspec.Struct):
    """A process that imports a flow file and writes what is in it."""

    target: str
    pid: int
    pipe: int
    started_at: float  # on the monotonic clock
    content: bytes = b""
    is_complete: bool = False

    @classmethod
    def start(cls, target: str) -> _Import:
        pipe, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                set_parent_death_signal(signal.SIGKILL)
                with os.fdopen(write_end, "wb") as file:
                    file.write(msgspec.json.encode(_read(target)))
            finally:
                os._exit(0)
        os.close(write_end)
        return cls(target, pid, pipe, time.monotonic())

    def receive(self) -> None:
        piece = os.read(self.pipe, 65536)
        self.content += piece
        self.is_complete = not piece

    def end(self) -> bytes:
        """End the process, and return its FlowFile as JSON."""
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        if self.is_complete and self.content:
            return self.content
        why = "ended its process" if self.is_complete else f"takes longer than {IMPORT_SECONDS:g} s"
        return msgspec.json.encode(FlowFile(self.target, error=f"importing {self.target} {why}"))


def _wait(imports: list[_Import], now: float) -> list[_Import]:
    """Wait until imports write, end, or take long, and return those that are over."""
    instants = [one.started_at + after for one in imports for after in (SLOW_SECONDS, IMPORT_SECONDS)]
    seconds = min(instant - now for instant in instants if instant > now)
    ready = select.select([one.pipe for one in imports], [], [], seconds)[0]
    for one in imports:
        if one.pipe in ready:
            one.receive()
    limit = time.monotonic() - IMPORT_SECONDS
    return [one for one in imports if one.is_complete or one.started_at <= limit]


def _read(target: str) -> FlowFile:
    from ..flow.loading import load_flows

    try:
        flows = load_flows(target)
        return FlowFile(target, {name: _found(flow.spec()) for name, flow in flows.items()})
    except RedriveError as error:
        return FlowFile(target, error=str(error))


def _found(spec: FlowSpec) -> FoundFlow:
    return FoundFlow(replace(spec, tasks=(), sources={}), len(spec.tasks) <= FEW_TASKS)


if __name__ == "__main__":
    main()
