"""What ssh carries to a host where nothing is installed: a command line, and a compressed bundle of sources.

Any login shell can parse the command line; everything else goes through standard input, so that no shell parses
paths or settings.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tokenize
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ... import engine
from ...engine.errors import AddressError
from ...engine.statefile.reader import READS
from .address import checked_user

_ENGINE = Path(str(engine.__file__)).parent
_PACKAGE = "redrive.engine"

#: What reading needs; sent first. Files and folders below ``engine/``, without their subfolders.
READING = (
    *("errors", "domain/events", "domain/rows", "agent/agent", "agent/executor_socket"),
    *(f"statefile/{name}" for name in ("copies", "durations", "formats", "lists", "lock_file", "opening", "paths")),
    *(f"statefile/{name}" for name in ("processes", "reader", "snapshot")),
)
#: What changes a run or reads long texts; sent before the first such request.
CHANGING = (
    *("domain", "agent/command_client"),
    *(f"statefile/{name}" for name in ("action", "breakers", "clean_ups", "dry_run", "large_results", "logs")),
    *(f"statefile/{name}" for name in ("map_tasks", "open_writing", "operator_actions", "run_acts", "task_acts")),
    *(f"statefile/{name}" for name in ("ownership", "pruning", "quarantine", "requeue", "transitions", "undo")),
)
#: What an inbox and a list of state files need; sent before the first such request.
ON_DEMAND = (
    "domain",
    *(f"statefile/{name}" for name in ("causes", "health_file", "state_files", "start_requests", "supervisor_file")),
)

_STATEMENT_ENDS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_BOOT = "import sys,zlib;r=sys.stdin.buffer;exec(zlib.decompress(r.read(int(r.readline()))))"
_HOME = re.compile(r"(~[A-Za-z0-9_.-]*)(/.*)?")


def boot_command(python: str, become: str | None = None) -> str:
    """Return the remote command; see ``interpreter``.

    Isolated (``-I``), so that no file or variable of the remote host replaces a module of the library.
    """
    return f"exec {interpreter(python, become)} -ISuc '{_BOOT}'"


def interpreter(python: str, become: str | None = None) -> str:
    """Words for a remote shell. ``python``: name or path of the remote interpreter; ``~`` expands on that host;
    ``become``: the user over there who runs it, by sudo, which asks for no password.

    Raises AddressError if ``python`` cannot be the name of a program, or ``become`` that of a user.
    """
    if not python or python.startswith("-") or not python.isprintable():
        raise AddressError(f"{python!r} cannot be the name of an interpreter")
    home = _HOME.fullmatch(python)
    word = home[1] + (shlex.quote(home[2]) if home[2] else "") if home else shlex.quote(python)
    sudo = "" if become is None else f"sudo -n -H -u {checked_user(become)} -- "
    return sudo + word


def first_bundle(settings: Mapping[str, object]) -> bytes:
    """Return the first bytes for standard input: the bootstrap, then the modules and the ``settings`` of the agent."""
    boot = (_ENGINE / "agent/bootstrap.py").read_bytes()
    names = READING if settings.get("path") else READING + ON_DEMAND  # without a path, the agent chooses a file
    body = {"main": f"{_PACKAGE}.agent.agent", "settings": settings, "sources": module_sources(names)}
    return _frame(boot) + _frame(json.dumps(body).encode())


def modules_for(what: str) -> Sequence[str]:
    """Return the modules that the agent needs for one of READS, beside READING."""
    module = f"statefile/{READS[what][0]}"
    return next((group for group in (CHANGING, ON_DEMAND) if module in group), ())


def module_sources(folders: Iterable[str]) -> dict[str, str]:
    """Return the sources of the modules in ``folders`` (see READING) by full name, without docstrings and comments."""
    return {
        f"{_PACKAGE}.{module.replace('/', '.')}": _without_docs((_ENGINE / f"{module}.py").read_text(encoding="utf-8"))
        for module in modules_in(folders)
    }


def modules_in(folders: Iterable[str]) -> list[str]:
    """Return the modules in ``folders`` as sorted paths below ``engine/`` without suffix."""
    found: set[str] = set()
    for name in folders:
        folder = _ENGINE / name
        files = folder.glob("*.py") if folder.is_dir() else [_ENGINE / f"{name}.py"]
        found.update(file.relative_to(_ENGINE).with_suffix("").as_posix() for file in files)
    return sorted(module for module in found if not module.endswith("__init__"))


def _without_docs(text: str) -> str:
    """Remove docstrings, comments and most of the indentation, a third of the bytes. The lines keep their numbers."""
    lines = text.splitlines()
    before, docstring_line = tokenize.NEWLINE, 0
    inside: set[int] = set()  # numbers of the lines that begin inside a string
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (first, column), (last, _) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[first - 1] = lines[first - 1][:column].rstrip()
        elif token.type == tokenize.STRING and before in _STATEMENT_ENDS and token.string.startswith('"""'):
            lines[first - 1 : last] = [" " * column + '""'] + [""] * (last - first)
            docstring_line = first
        elif token.type == tokenize.STRING:
            inside.update(range(first + 1, last + 1))
        elif docstring_line and token.type not in (tokenize.NEWLINE, tokenize.NL):
            if token.type != tokenize.DEDENT:  # other statements follow in the same body
                lines[docstring_line - 1] = ""
            docstring_line = 0
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    lean = (line if at in inside else _with_small_indentation(line) for at, line in enumerate(lines, 1))
    return "\n".join(lean) + "\n"


def _with_small_indentation(line: str) -> str:
    code = line.lstrip(" ")
    return " " * ((len(line) - len(code)) // 4) + code


def _frame(data: bytes) -> bytes:
    packed = zlib.compress(data, 9)
    return b"%d\n%s" % (len(packed), packed)
