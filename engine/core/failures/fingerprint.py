"""Identify a failure: is it the same one as before, or another?

Fingerprints are computed inside the attempt, where the exception still has its traceback. There are two of them:

- ``strict``: the same code failed at the same place, which proves that a failure is deterministic. It contains the
  line, the text of the line and the hash of the code of the task, so that after a fix the count starts at 0.
- ``loose``: the same cause, for clusters, pages and history across deploys. It contains types, functions and what tells
  apart the failures of one helper: the HTTP status, the SQLSTATE, the error number, the class; for a program its exit
  code and the line that names the error, or else its command. ``Fingerprint.fields`` lists them.

Each rule prevents a measured confusion by a plain hash (``fingerprint_v1``): an exception is its whole
chain, root cause first; a group is the set of its children; the frame that counts is the innermost of the user's own
code, not that of the library that noticed; paths are relative to the project; a recursion is the set of functions in
its cycle; code without a file is known by its byte code; an exception that was never raised by its message, without
the parts that vary.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import PurePath
from types import CodeType, TracebackType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ...domain.text import sha1_hex, sha256_hex
from ..outcome import FailureClass, Fingerprint
from .facts import (
    ProgramEnd,
    describe_exit_signal,
    extract_facts,
    message_of,
    normalize_command,
    normalize_message,
    signal_name,
    type_name,
)

CHAIN_LENGTH_MAX = 10
GROUP_WIDTH_MAX = 8
GROUP_DEPTH_MAX = 3
_GROUP_SCAN_MAX = 64  # children that are inspected for distinct ones
_FRAMES_MAX = 4096  # innermost frames that are inspected; a raised recursion limit may leave millions

_STDLIB = str(PurePath(linecache.__file__).parent)
_ENGINE = str(PurePath(__file__).parents[2])
_INSTALLED = frozenset(["site-packages", "dist-packages"])
_CANCELLED = "asyncio.exceptions.CancelledError"
_IN_GROUP = " (in a group)"


#: Part of every hash: causes of another version are never mixed with those of this one.
VERSION = "v3"

Fields = tuple[tuple[str, str], ...]


def fingerprint_of_error(
    error: BaseException,
    *,
    project_root: str | None = None,
    code_hash: str | None = None,
    failure_class: FailureClass = FailureClass.UNCLASSIFIED,
) -> Fingerprint:
    """Return the fingerprint of an exception.

    ``project_root``: the folder that paths are relative to; without it modules are named.
    ``code_hash``: that of the loaded code of the task. ``failure_class``: the class without the rules of the flow, so
    that a new rule leaves the cause as it is.
    """
    links = _without_repeats(_signature(link, project_root, depth=0) for link in _chain(error))
    class_fields = _class_fields(failure_class)
    fields = (*(field for link in links for field in link.fields), *class_fields)
    parts = (VERSION, code_hash or "", *(link.strict for link in links), *map("=".join, class_fields))
    return Fingerprint(
        strict=_digest(parts),
        loose=_digest([VERSION, *(link.loose for link in links), *map("=".join, class_fields)]),
        v1=fingerprint_v1(error),
        explain=_explanation(links),
        parts=parts,
        fields=fields,
    )


def _class_fields(failure_class: FailureClass) -> Fields:
    return () if failure_class is FailureClass.UNCLASSIFIED else (("class", str(failure_class)),)


def _explanation(links: list[_Signature]) -> str:
    """Explain a chain in words: the root cause, the nearest place in the user's code, and what it led to.

    The root may have no such place if a library raised it; and the cancellation inside a timeout shows the place, not
    the cause. A library often raises an error of another again under the same name, which says nothing new.
    """
    shown = [link for link in links if link.type_name != _CANCELLED] or links
    place = next((link.place for link in links if link.is_own), links[0].place)
    root = shown[0].inside or " ".join([shown[0].name, *shown[0].telling, place])
    later = [link.name for link in dict.fromkeys(shown[1:]) if link.name != shown[0].name]
    return root + (f", which led to {', '.join(dict.fromkeys(later))}" if later else "")


def fingerprint_v1(error: BaseException) -> str:
    """Return a plain hash, for comparison: type name and innermost frame, 12 hex digits of SHA-1."""
    frames = traceback.extract_tb(error.__traceback__)
    filename, line = (frames[-1].filename, frames[-1].lineno) if frames else ("", 0)
    signature = f"{type(error).__name__}|{filename}:{line}"
    return sha1_hex(signature.encode(errors="backslashreplace"))[:12]


def fingerprint_of_program(end: ProgramEnd, failure_class: FailureClass = FailureClass.UNCLASSIFIED) -> Fingerprint:
    """Return the fingerprint of a program that exited: its code and what it said, or its command if it said nothing."""
    by_signal = describe_exit_signal(end)
    where = f" from: {_one_line(end.command)}" if end.command else ""
    message = f": {end.line}" if end.line else f": {by_signal}" if by_signal else where
    fields = (*program_fields(end), *_class_fields(failure_class))
    return _fingerprint_of_fields(fields, f"exit status {end.exit_code}{message}", normalize_command(end.command or ""))


#: psql names the script that failed; its folder differs from host to host.
_FOLDER_OF_SCRIPT = re.compile(r"^(psql:)\S*/(?=[^/\s:]+:\d+: )")


def program_fields(end: ProgramEnd) -> Fields:
    """Return what distinguishes the failures of programs."""
    fields = [("exit code", str(end.exit_code))]
    fields += [(name, str(value)) for name, value in (("status", end.status), ("sqlstate", end.sqlstate)) if value]
    if end.line:
        fields.append(("message", normalize_message(_FOLDER_OF_SCRIPT.sub(r"\1", end.line))))
    elif end.command:
        fields.append(("command", normalize_command(end.command)))
    return tuple(fields)


#: What is known about who sent a signal, in words.
_SENDER_WORDS = {
    "oom": "out of memory: killed by the kernel",
    "limit": "over its limit of memory",
}


def fingerprint_of_signal(
    number: int, sender: str, stack_text: str = "", project_root: str | None = None, command: str | None = None
) -> Fingerprint:
    """Return the fingerprint of a signal and the crash dump. ``sender``: oom, limit or unknown."""
    words = _SENDER_WORDS.get(sender) or f"ended by {signal_name(number) or f'signal {number}'}"
    kind = ("signal", f"{number} from {sender}")
    frame = innermost_of_stack(stack_text)
    if frame is not None:
        return _fingerprint_at(kind, _relative_path(frame.path, project_root), frame, f"{words} at")
    fields = (kind, *([("command", normalize_command(command))] if command else []))
    return _fingerprint_of_fields(fields, words)


def fingerprint_of_stack(
    stack_text: str, project_root: str | None = None, command: str | None = None, hang: str = ""
) -> Fingerprint:
    """Return the fingerprint of a hang, from the faulthandler dump that was taken before the kill.

    Without a Python frame ``strict`` is empty: two such timeouts cannot be compared. The cause is then the command, or
    else ``hang``, the sentence of the autopsy.
    """
    frame = innermost_of_stack(stack_text)
    if frame is not None:
        return _fingerprint_at(("timeout", ""), _relative_path(frame.path, project_root), frame, "timed out at")
    by_command = ("command", normalize_command(command or "")), f"timed out: {_one_line(command)}"
    by_hang = ("hang", normalize_message(hang)), f"timed out: {hang}"
    field, words = by_command if command else by_hang if hang else (("hang", ""), "timed out")
    return replace(_fingerprint_of_fields((("timeout", ""), field), words), strict="")


def fingerprint_of_wait(task: str, message: str = "") -> Fingerprint:
    """Return the fingerprint of a sensor that waited in vain: its task, and its message about the wait."""
    sensor = ("sensor", normalize_command(task))
    fields = (sensor, ("waits for", normalize_message(message))) if message else (sensor,)
    return _fingerprint_of_fields(fields, f"{task} waited in vain" + (f": {_one_line(message)}" if message else ""))


_TEXT_SHOWN = 100  # characters


def _one_line(text: str | None) -> str:
    line = " ".join((text or "")[: 10 * _TEXT_SHOWN].split())
    return line if len(line) <= _TEXT_SHOWN else line[: _TEXT_SHOWN - 1] + "…"


class StackFrame(msgspec.Struct, frozen=True):
    """A frame of a faulthandler dump."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.path).name}:{self.line} in {self.function}"


_THREAD_HEAD = re.compile(r"^(?:(Current thread|Thread) 0x[0-9a-fA-F]+\b|(Coroutine) ')")
_THREAD_ORDER = ("Current thread", "Coroutine", "Thread")
_THREAD_FRAME = re.compile(r'^\s*File "(.*)", line (\d+) in (.*)$')
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def innermost_of_stack(stack_text: str) -> StackFrame | None:
    """Return the innermost frame of the user's code in a faulthandler dump, else the innermost of all, else None.

    The thread that handled the signal comes first, by default the main one.
    """
    threads = threads_of_stack(stack_text)
    for frames in threads:
        for frame in frames:
            if not _is_library(frame.path):
                return frame
    return next((frames[0] for frames in threads if frames), None)


def decode_frame(line: str) -> str:
    """Return a line of a dump with the letters that faulthandler has written as escapes: all but those of ASCII."""
    return _ESCAPED.sub(_decoded, line)


def _decoded(match: re.Match[str]) -> str:
    number = int(match[0][2:], 16)
    return letter if number <= sys.maxunicode and (letter := chr(number)).isprintable() else match[0]


def threads_of_stack(stack_text: str) -> list[list[StackFrame]]:
    """Return the frames of each thread in a dump, innermost first.

    First the thread that handled the signal, then the coroutines of its loop (``runner/stack.py``).
    """
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in stack_text.splitlines():
        head = _THREAD_HEAD.match(line)
        if head is not None:
            threads.append((head[1] or head[2], []))
            continue
        frame = _THREAD_FRAME.match(decode_frame(line))
        if frame is None:
            continue
        if not threads:  # with all_threads=False the only head is "Stack (most recent call first):"
            threads.append(("Current thread", []))
        threads[-1][1].append(StackFrame(frame[1], int(frame[2]), frame[3]))
    return [frames for _, frames in sorted(threads, key=lambda thread: _THREAD_ORDER.index(thread[0]))]


def is_engine_path(path: str) -> bool:
    """True for a file of the engine, except its example flows."""
    pure = PurePath(path)
    return pure.is_relative_to(_ENGINE) and not pure.is_relative_to(PurePath(_ENGINE, "examples"))


def is_machinery(path: str) -> bool:
    """True for a file of Python or of the engine, which run the user's code."""
    return path.startswith("<frozen ") or is_engine_path(path) or _is_of_python(PurePath(path))


# --- one exception of the chain ---------------------------------------------------------------------------------


class _Signature(NamedTuple):
    """The signature of one exception.

    In words: its ``place``, ``is_own`` if that is in the user's code, and the children ``inside``.
    ``fields``: the parts of ``loose``; ``telling``: the parts that do not follow from the type.
    """

    strict: str
    loose: str
    type_name: str
    place: str
    is_own: bool
    fields: Fields
    telling: tuple[str, ...] = ()
    inside: str = ""

    @property
    def name(self) -> str:
        """The class without its module; the hash contains the module as well."""
        return self.type_name.rpartition(".")[2]


class _Place(NamedTuple):
    """The place where an exception was raised."""

    strict: str
    loose: str
    words: str
    is_own: bool


class _Frame(NamedTuple):
    place: str  # path relative to the project, or module: never absolute
    function: str
    line: int
    text: str  # the source line, or a hash of the byte code where no file holds it
    own: bool  # the user's code, not a library's
    has_file: bool

    @property
    def strict(self) -> str:
        return f"{self.place}:{self.line}:{self.function}:{_digest([self.text])}"

    @property
    def loose(self) -> str:
        return f"{self.place}:{self.function}"

    @property
    def words(self) -> str:
        return f"{PurePath(self.place).name}:{self.line} in {self.function}"


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and its causes, root cause first. An old exception that is raised again makes a cycle."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(links) < CHAIN_LENGTH_MAX and not any(link is known for known in links):
        links.append(link)
        link = link.__context__ if link.__cause__ is None and not link.__suppress_context__ else link.__cause__
    return links[::-1]


def _signature(error: BaseException, root: str | None, depth: int) -> _Signature:
    name = type_name(error)
    strict, loose, place, is_own = _place(error, root)
    facts = _facts(error)
    fields, inside = (("type", name), ("place", loose), *facts), ""
    suffix = "".join(f"|{field}={value}" for field, value in facts)
    if isinstance(error, BaseExceptionGroup) and depth < GROUP_DEPTH_MAX:
        children = _children(error, root, depth + 1)
        strict += "".join(f"[{child}]" for child in sorted({child.strict for child in children})[:GROUP_WIDTH_MAX])
        loose += "".join(f"[{child}]" for child in sorted({child.loose for child in children})[:GROUP_WIDTH_MAX])
        inside = ", ".join(sorted({child.inside for child in children})[:GROUP_WIDTH_MAX])
        inside = inside.removesuffix(_IN_GROUP) + _IN_GROUP
        fields = (*fields, ("inside", inside))
    telling = tuple(value for field, value in facts if field in _TELLING)
    return _Signature(
        f"{name}|{strict}{suffix}", f"{name}|{loose}{suffix}", name, place, is_own, fields, telling, inside
    )


#: Facts that are shown beside the type; an error number is part of the type, and the others are long.
_TELLING = frozenset(["status", "sqlstate", "grpc", "sqlite"])


def _facts(error: BaseException) -> Fields:
    """Return what distinguishes errors of one type at one place, as one helper may raise for every status."""
    facts = extract_facts(error)
    names = ("status", "grpc", "sqlstate", "sqlite", "errno")
    found = [(name, str(value)) for name in names if (value := getattr(facts, name)) is not None]
    return (*found, *(program_fields(facts.program) if facts.program is not None else ()))


def _children(group: BaseExceptionGroup[BaseException], root: str | None, depth: int) -> list[_Signature]:
    """Return the signature of each child, with its whole chain."""
    found = []
    for child in islice(group.exceptions, _GROUP_SCAN_MAX):
        links = [_signature(link, root, depth) for link in _chain(child)]
        strict, loose = ("<".join(texts) for texts in zip(*((link.strict, link.loose) for link in links), strict=True))
        found.append(links[-1]._replace(strict=strict, loose=loose, inside=_explanation(links)))
    return found


def _place(error: BaseException, root: str | None) -> _Place:
    frames = list(_frames(error.__traceback__, root))
    if not frames:
        message = _loose_message(error)
        return _Place(message, message, _one_line(message_of(error)), is_own=False)
    if isinstance(error, RecursionError):
        cycle = _recursive_functions(frames)
        if cycle:
            functions = ",".join(cycle)
            return _Place(functions, functions, f"in the recursion of {functions}", is_own=True)
    frames_found = _significant_frames(frames, wanted=2 if isinstance(error, AssertionError) else 1)
    strict = [frame.strict for frame in frames_found]
    innermost = frames[-1]
    if not innermost.own:
        # Without its line: the same call can end at several lines of a library.
        strict.append(innermost.loose)
    return _Place(
        ">".join(strict), ">".join(frame.loose for frame in frames_found), frames_found[0].words, frames_found[0].own
    )


def _loose_message(error: BaseException) -> str:
    """Return the message without the parts that vary. The file of an OSError stays: two missing programs differ."""
    message = normalize_message(message_of(error))
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return f"{message} {normalize_command(error.filename)}"
    return message


def _significant_frames(frames: list[_Frame], wanted: int) -> list[_Frame]:
    """Return the innermost frames of the user's code, innermost first, until ``wanted`` of them have a file.

    An assertion in a shared helper needs its caller as well; so does code without a file.
    """
    frames_found: list[_Frame] = []
    for frame in reversed(frames):
        if frame.own and (not frames_found or frame.loose != frames_found[-1].loose):
            frames_found.append(frame)
            wanted -= frame.has_file
            if wanted <= 0:
                break
    return frames_found or frames[-1:]


def _recursive_functions(frames: list[_Frame]) -> list[str]:
    """Return the functions of a recursion. Its depth and its last function differ from run to run."""
    counted = Counter(frame.loose for frame in frames)
    cycle = {frame.loose: frame.own for frame in frames if counted[frame.loose] > 2}
    return sorted(function for function, own in cycle.items() if own) or sorted(cycle)


# --- frames -----------------------------------------------------------------------------------------------------


def _frames(trace: TracebackType | None, root: str | None) -> Iterator[_Frame]:
    for frame, maybe_line in deque(traceback.walk_tb(trace), maxlen=_FRAMES_MAX):
        code, line = frame.f_code, maybe_line or 0
        module = str(frame.f_globals.get("__name__", ""))
        has_file = not code.co_filename.startswith("<")  # ``<string>`` has lines in Python 3.13: those of ``python -c``
        text = linecache.getline(code.co_filename, line, frame.f_globals).strip() if has_file else ""
        own = not _is_library(code.co_filename, module)
        place = _relative_path(code.co_filename, root, module) if has_file else "<exec>"
        yield _Frame(place, code.co_qualname, line, text or _code_digest(code), own, has_file)


def _is_library(path: str, module: str = "") -> bool:
    """True for installed code, and for code of Python or of the engine."""
    if path.startswith("<"):
        return path.startswith("<frozen ") or module.partition(".")[0] in sys.stdlib_module_names
    pure = PurePath(path)
    if pure.is_relative_to(_ENGINE):
        return is_engine_path(path)
    return _is_of_python(pure) or not _INSTALLED.isdisjoint(pure.parts)


def _is_of_python(path: PurePath) -> bool:
    return path.is_relative_to(_STDLIB) and _INSTALLED.isdisjoint(path.parts)


def _relative_path(path: str, root: str | None, module: str = "") -> str:
    pure = PurePath(path)
    if root is not None and pure.is_relative_to(root):
        return pure.relative_to(root).as_posix()
    if not pure.is_absolute():
        return pure.as_posix()
    return module if module and module != "__main__" else pure.name


def _code_digest(code: CodeType) -> str:
    """Hash byte code, the same in every process: constants by value, nested code by its own hash."""
    return _digest([code.co_code.hex(), *code.co_names, *map(_constant, code.co_consts)])


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _code_digest(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


# --- hashing ----------------------------------------------------------------------------------------------------


def _fingerprint_at(kind: tuple[str, str], place: str, frame: StackFrame, words: str) -> Fingerprint:
    source = linecache.getline(frame.path, frame.line).strip()
    fields = (kind, ("place", f"{place}:{frame.function}"))
    return _fingerprint_of_fields(fields, f"{words} {frame}", str(frame.line), _digest([source]))


def _fingerprint_of_fields(fields: Fields, words: str, *strict: str) -> Fingerprint:
    """Return the fingerprint with these fields; ``strict``: what only the strict one contains."""
    loose = (VERSION, *map("=".join, fields))
    parts = (*loose, *strict)
    return Fingerprint(strict=_digest(parts), loose=_digest(loose), explain=words, parts=parts, fields=fields)


def _without_repeats(signatures: Iterable[_Signature]) -> list[_Signature]:
    """Drop a link that equals the one before: an exception that was raised again from itself."""
    known = list(signatures)
    return known[:1] + [later for earlier, later in pairwise(known) if later.strict != earlier.strict]


def _digest(parts: Iterable[str]) -> str:
    text = "\x1f".join(parts)
    return sha256_hex(text.encode(errors="backslashreplace"))[:12]
