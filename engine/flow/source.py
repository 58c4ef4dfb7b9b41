"""A flow file and what belongs to it as source: found, read and parsed without importing it; and the time zone of its
schedule, whose data is on the disk.
"""

from __future__ import annotations

import ast
import io
import os
import re
import stat
import sys
import tokenize
import warnings
from collections import ChainMap, Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, timedelta, tzinfo
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ..core.option_types import short_repr
from ..domain.text import sha256_hex
from ..errors import FlowError, OptionError

if TYPE_CHECKING:
    from dotenv.parser import Binding

    from ..core.schedule import Schedule
    from ..core.spec import FlowSpec, ScheduleSpec

# --- Finds and reads a flow file, without what imports it: the executor does no more than that -----------------------


#: File types that are refused: reading them would block or return nonsense.
_REFUSED_TYPES = (
    (stat.S_ISDIR, "a folder; name the Python file in it"),
    (stat.S_ISFIFO, "a pipe; a flow is a Python file, which attempts may have to read again"),
    (stat.S_ISCHR, "a device; a flow is a Python file"),
    (stat.S_ISBLK, "a device; a flow is a Python file"),
)


def split_target(target: str) -> tuple[str, str | None]:
    """Split ``local.py:name`` or ``package.module:name`` into the path of the file and the name; None: no name.

    A module is looked for in the working directory, then in ``sys.path``; its packages are not imported.
    """
    path, colon, name = target.rpartition(":")
    if colon and path.endswith(".py"):
        return path, name
    module, _, name = target.partition(":")
    found = None if os.path.lexists(target) else _find_module(module) if _is_module_name(target) else None
    return (found, name or None) if found else (target, None)


def _is_module_name(target: str) -> bool:
    """True for ``package.module`` and ``module:name``; a bare word is the name of a file."""
    parts = target.replace(":", ".", 1).split(".")
    return len(parts) > 1 and parts[-1] != "py" and all(part.isidentifier() for part in parts)


def _find_module(name: str) -> str | None:
    inner = os.path.join(*name.split("."))
    for folder in (os.curdir, *sys.path):
        for path in (os.path.join(folder, f"{inner}.py"), os.path.join(folder, inner, "__init__.py")):
            if os.path.isfile(path):
                return os.path.normpath(path)
    return None


def read_source(path: str) -> bytes:
    """Return the bytes of a flow file. Raises FlowError for a folder, pipe, device or binary file."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # without O_NONBLOCK, a pipe blocks until it has a writer
        try:
            mode = os.fstat(descriptor).st_mode
            for is_kind, what in _REFUSED_TYPES:
                if is_kind(mode):
                    raise FlowError(f"{path!r} is {what}")
            with open(descriptor, "rb", closefd=False) as file:
                code = file.read()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        where = "; a module is looked for in the working directory and in PYTHONPATH" if _is_module_name(path) else ""
        raise FlowError(f"there is no flow file {path!r}{where}") from None
    except (OSError, ValueError) as error:
        raise FlowError(f"the flow file {path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    _check_text(path, code)
    return code


def _check_text(path: str, code: bytes) -> None:
    """Raise FlowError if the source cannot be decoded as UTF-8 or in the encoding that its first lines declare."""
    if b"\0" in code:
        line = code[: code.index(b"\0")].count(b"\n") + 1
        raise FlowError(f"{path!r} is not Python source: it holds a NUL byte in line {line}; is it the right file?")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(code).readline)
        code.decode(encoding)
    except UnicodeDecodeError as error:
        line = code[: error.start].count(b"\n") + 1
        why = f"byte 0x{code[error.start]:02x} in line {line} is not {error.encoding}"
        raise FlowError(f"{path!r} cannot be read as text: {why}; save it as UTF-8") from None
    except SyntaxError as error:  # unknown encoding, or undecodable first lines
        raise FlowError(f"{path!r} cannot be read as text: {error.msg}; save it as UTF-8") from None


# --- Reads the name and the interpreter of a flow from the source of its file, without importing it ------------------
#
# The state file is named after the flow, and is locked before the process that imports the flow exists.


_PACKAGE = __package__.rpartition(".")[0]
_MODULES = (_PACKAGE, f"{__package__}.flow")


def declared_name(target: str) -> str | None:
    """Return the name if the source has one ``flow = Flow("name")`` at the top level and nothing that changes it.

    ``target`` is a path, optionally ``local.py:name``. None: only an import can find the name, or the file cannot be
    read.
    """
    source = _read_syntax(target)
    call = None if _assigns_a_name(source) else _declaration(source, split_target(target)[1])
    return None if call is None else _literal(call.args[0] if call.args else _keyword(call, "name"))


def declared_python(target: str) -> str | None:
    """Return the interpreter if the flow is declared as for ``declared_name``, with ``python="..."``."""
    call = _declaration(_read_syntax(target, word=b"python"), split_target(target)[1])
    return None if call is None else _literal(_keyword(call, "python"))


def parse_source(target: str, word: bytes = b"") -> ast.Module | None:
    """Return the syntax tree of a flow file; None if it cannot be read, is not Python, or does not hold ``word``."""
    try:
        source = read_source(split_target(target)[0])
        with warnings.catch_warnings(action="ignore"):  # the import shows them
            return ast.parse(source) if word in source else None
    except (FlowError, ValueError, SyntaxError, RecursionError):
        return None


class _Syntax(NamedTuple):
    """A flow file: the statements of its top level, and every node, which are many: the tree is walked once."""

    top: Sequence[ast.stmt] = ()
    nodes: Sequence[ast.AST] = ()


def _read_syntax(target: str, word: bytes = b"") -> _Syntax:
    """Read a flow file; empty where ``parse_source`` returns none."""
    tree = parse_source(target, word)
    return _Syntax() if tree is None else _Syntax(tree.body, [*ast.walk(tree)])


def _declaration(source: _Syntax, variable: str | None) -> ast.Call | None:
    bound = Counter(_bindings(source.nodes))
    classes = {name for name in _flow_class_names(source.top) if bound[name.partition(".")[0]] == 1}
    calls = [node for node in source.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in classes]
    flows = {name: call for name, call in _assignments(source.top) if call in calls and bound[name] == 1}
    if variable is None and (len(calls) != 1 or len(flows) != 1):
        return None
    return flows.get(variable) if variable is not None else next(iter(flows.values()))


def _flow_class_names(top: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names of the class in this file: ``Flow``, ``F``, ``engine.Flow``, ``redrive.engine.Flow``."""
    parent, _, package = _PACKAGE.rpartition(".")
    for node in top:
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            yield from (alias.asname or alias.name for alias in node.names if alias.name == "Flow")
        elif isinstance(node, ast.ImportFrom) and node.module == parent:
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name == package)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name in _MODULES)


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name once for every binding of it, in any scope."""
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg


def _assignments(top: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in top:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _assigns_a_name(source: _Syntax) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "name" and not isinstance(node.ctx, ast.Load)
        for node in source.nodes
    )


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


# --- The line of user code that an error belongs to, as ``revenue.py:12``; frames of this package are skipped --------


_ENGINE_PATH = Path(__file__).parents[1]
_ENGINE_FOLDER = str(_ENGINE_PATH) + os.sep
_EXAMPLES = os.path.join(_ENGINE_FOLDER, "examples") + os.sep  # treated as user code


SourceLocation = tuple[str, int]  # path and line


def caller_place() -> SourceLocation | None:
    """Return the innermost line of user code on the stack; None if there is only engine code.

    ``location_of`` makes a text of it: each task of a large flow has a place, and few are shown.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def location_of_traceback(trace: TracebackType | None) -> str | None:
    """Return the innermost line of user code in a traceback; None if there is none."""
    found = None
    while trace is not None:
        if _is_user_code(trace.tb_frame.f_code.co_filename):
            found = location_of((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


@lru_cache(maxsize=64)
def _is_user_code(path: str) -> bool:
    return not path.startswith("<") and (not path.startswith(_ENGINE_FOLDER) or path.startswith(_EXAMPLES))


def location_of(place: SourceLocation | None) -> str | None:
    """Return "file:line", relative to the working directory for a file below it; None without a place."""
    if place is None:
        return None
    path, line = place
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        relative = path
    return f"{path if relative.startswith(os.pardir) else relative}:{line}"


# --- A finding of ``redrive check`` ----------------------------------------------------------------------------------


Level = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True):
    """A result of a check. "error": the flow cannot run. ``task``: None for the whole flow; ``line``: in its file."""

    level: Level
    rule: str
    message: str
    task: str | None = None
    line: int | None = None


# --- The source files of a flow: its own file, and the modules that it imported from beside it -----------------------
#
# "Beside it" is the folder of the flow file (for a file in a package: the folder that holds the outermost package) and
# the folders below. Installed packages do not count. A module that a task imports while it runs does not count either:
# each attempt reads it from the disk.


FILES_MAX = 500
DIGEST_CHARACTERS = 16

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_INTERPRETER = tuple({Path(sys.prefix), Path(sys.base_prefix)})


_of_no_flow: set[str] = set()  # names of modules


def ignore_imported_modules() -> None:
    """Count what is imported at the first call for no flow: a fork that reads 300 modules copies 800 pages for them."""
    if not _of_no_flow:
        _of_no_flow.update(sys.modules)


def modules_of_flow() -> list[object]:
    """Return the imported modules that may be a flow's own."""
    return [sys.modules[name] for name in sys.modules.keys() - _of_no_flow]


def digest_of(content: bytes) -> str:
    """Return the digest by which two versions of a file are compared."""
    return sha256_hex(content)[:DIGEST_CHARACTERS]


def source_files(flow_file: Path, modules: Iterable[object]) -> dict[str, str]:
    """Return the digest of each source file by its path; ``modules``: the imported ones, as of ``sys.modules``."""
    root = source_root(flow_file)
    paths = dict.fromkeys([flow_file, *sorted(_files_below(root, modules))[: FILES_MAX - 1]])
    return {str(path): digest for path in paths if (digest := digest_of_file(path)) is not None}


def digest_of_file(path: str | Path) -> str | None:
    """Return the digest of a file; None if it cannot be read."""
    try:
        return digest_of(Path(path).read_bytes())
    except OSError:
        return None


def source_root(flow_file: Path, known: Container[str] = ()) -> Path:
    """Return the folder from which the flow imports its own modules. ``known``: files that count as existing."""
    root = flow_file.parent
    while (str(root / "__init__.py") in known or (root / "__init__.py").exists()) and root.parent != root:
        root = root.parent
    return root


def hash_of_sources(flow_file: str, sources: Mapping[str, str]) -> str:
    """Return one hash of all source files; it does not depend on the folder in which they lie."""
    root = source_root(Path(flow_file), sources)
    lines = sorted(f"{Path(path).relative_to(root)} {digest}" for path, digest in sources.items())
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))


def _files_below(root: Path, modules: Iterable[object]) -> Iterator[Path]:
    real_folder = cache(os.path.realpath)  # some hundred modules lie in a few folders
    for module in modules:
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        folder, base = os.path.split(name)
        file = os.path.realpath(name) if os.path.islink(name) else os.path.join(real_folder(folder), base)
        if file.startswith(str(root)):
            path = Path(file)
            if path.is_relative_to(root) and not _is_installed(path, root):
                yield path


def _is_installed(path: Path, root: Path) -> bool:
    """Whether the file belongs to a package, the interpreter or this program, although it lies below the folder."""
    if not _INSTALLED.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(folder) and folder.is_relative_to(root) for folder in (*_INTERPRETER, _ENGINE_PATH))


# --- Files that a flow names -----------------------------------------------------------------------------------------
#
# The file of variables of a flow, ``Flow(env_file=".env")``: read for each run, so that a new password counts. The file
# of the days without a run, ``Flow(holidays="holidays.txt")``: read with the flow.


#: The names of the variables that this process has from files.
FROM_FILE: set[str] = set()


def use_env_file(flow: str, name: str, declared_at: SourceLocation | None) -> str:
    """Put the variables of a file into the environment of this process, and return its absolute path.

    ``name``: relative to the file that declares the flow. Raises OptionError if it cannot be read.
    """
    path = _beside(declared_at, name)
    found = _read(flow, path)
    os.environ.update(found)
    FROM_FILE.update(found)
    return str(path)


def environment_of(flow: FlowSpec) -> Mapping[str, str]:
    """Return the environment that the tasks of a flow have, for a process that has not made the flow itself.

    Raises OptionError if the file cannot be read any more.
    """
    return ChainMap(declared_variables(flow), os.environ)


def declared_variables(flow: FlowSpec) -> dict[str, str]:
    """Return the variables that a flow declares: those of its file, and its secrets of the environment.

    Raises OptionError if the file cannot be read any more.
    """
    secrets = {name: os.environ[name] for name in flow.secrets if name in os.environ and name not in flow.params}
    return secrets if flow.env_file is None else secrets | _read(flow.name, Path(flow.env_file))


def declared_files(flow: FlowSpec) -> dict[str, bytes]:
    """Read the files beside its sources that a flow reads when it is made, by path. Raises OptionError."""
    files = {"env_file": flow.env_file, "holidays": None if flow.schedule is None else flow.schedule.holidays_path}
    return {path: _text(flow.name, option, Path(path)).encode() for option, path in files.items() if path is not None}


_recorded_files: Mapping[str, bytes] = {}


@contextmanager
def use_recorded_files(contents: Mapping[str, bytes]) -> Iterator[None]:
    """Read these files, by path, in place of those on the disk, while a flow is made."""
    global _recorded_files
    before, _recorded_files = _recorded_files, contents
    try:
        yield
    finally:
        _recorded_files = before


def read_holidays(flow: str, name: str, declared_at: SourceLocation | None) -> tuple[tuple[str, ...], str]:
    """Read a file of dates: at the start of each line one, as ``2026-12-25``, or a range of them, as
    ``2026-12-24 - 2026-12-27``; ``#`` begins a comment.

    ``name``: relative to the file that declares the flow. Returns the dates, in order, and the absolute path of the
    file. Raises OptionError if the file cannot be read, or a line has no date.
    """
    path, found = _beside(declared_at, name), set[str]()
    for number, line in enumerate(_text(flow, "holidays", path).splitlines(), start=1):
        try:
            found.update(one.isoformat() for one in _dates_of(line.partition("#")[0].strip()))
        except ValueError as error:
            why = f"line {number} {error}"
            raise OptionError(f"flow {flow!r}: holidays {str(path)!r}: {why}") from None
    return tuple(sorted(found)), str(path)


_RANGE = re.compile(r"(\S+?)\s*(?:-|\u2013|\u2014|/|\.\.\.?|\bto\b|\buntil\b)\s*(\d{4}-\d\d-\d\d)(?:\s|$)")
_ANOTHER_DATE = re.compile(r"(?:[-\u2013\u2014/.~,;]+|to|until)\s*\d[\d.-]*$|\d{4}-\d\d-\d\d\b")
_RANGE_DAYS_MAX = 366


def _dates_of(line: str) -> list[date]:
    """Return the dates at the start of a line. Raises ValueError, without the number of the line."""
    if not line:
        return []
    if (found := _RANGE.match(line)) is not None:
        first, last = _date_of(found[1]), _date_of(found[2])
        days = (last - first).days
        if not 0 <= days <= _RANGE_DAYS_MAX:
            raise ValueError(f"is no range of at most {_RANGE_DAYS_MAX} days: {short_repr(line)}")
        return [first + timedelta(days=day) for day in range(days + 1)]
    word, *rest = line.split(None, 1)
    dates = [_date_of(word)]
    if rest and _ANOTHER_DATE.match(rest[0]) is not None:
        raise ValueError(f"has more than a date and its name: {short_repr(line)}; a range is 2026-12-24 - 2026-12-27")
    return dates


def _date_of(word: str) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise ValueError(f"does not begin with a date as 2026-12-25: {short_repr(word)}") from None


def _beside(declared_at: SourceLocation | None, name: str) -> Path:
    folder = Path(declared_at[0]).parent if declared_at is not None else Path()
    return (folder / name).resolve()


def _read(flow: str, path: Path) -> dict[str, str]:
    from dotenv.parser import parse_stream  # here: only flows with such a file pay for it

    values: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(_text(flow, "env_file", path))):
        if binding.key is None and not binding.error:
            continue  # a comment, or an empty line
        problem = _binding_problem(binding, values)
        if problem:  # without the line, which may have a secret
            text = binding.original.string
            line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise OptionError(f"flow {flow!r}: env_file {path}:{line}: {problem}")
        if binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values


def _binding_problem(binding: Binding, before: Mapping[str, str]) -> str:
    """Return why a line of a file of variables cannot be read; empty if it can."""
    if "\0" in binding.original.string:
        return "it has a NUL character"
    if binding.error:
        return "it is no NAME=value, or a quote has no end"
    return "" if binding.value is not None or binding.key in before else "it gives no value: NAME=value"


def _text(flow: str, option: str, path: Path) -> str:
    try:
        content = _recorded_files.get(str(path))
        content = path.read_bytes() if content is None else content
        # some editors begin a file with a byte order mark
        return io.TextIOWrapper(io.BytesIO(content), "utf-8-sig").read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"flow {flow!r}: {option} {str(path)!r} cannot be read: {why}") from None


# --- The time zone of a schedule: its data is on the disk, which engine/core does not read ----------------------------


def open_zone(name: str, flow: str) -> tzinfo:
    """Return a time zone of the IANA database. Raises FlowError if it is unknown here."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # here: without one, a fork of this process would copy it for nothing

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # unknown zone, invalid name, a folder, not a text
        why = "name one like 'Asia/Kolkata'; where no zone is found at all, install the package tzdata"
        raise FlowError(f"flow {flow!r}: there is no time zone {name!r}: {why}") from None


def open_schedule(spec: ScheduleSpec, flow: str) -> Schedule:
    """Build the ``Schedule`` of a flow. Raises FlowError."""
    from ..core.schedule import build_schedule

    try:
        return build_schedule(spec, flow, open_zone(spec.timezone, flow))
    except ValueError as error:
        raise FlowError(f"flow {flow!r}: schedule: {error}") from None
