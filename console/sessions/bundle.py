"""The load of ssh for a host where nothing is installed: a command line, and a compressed bundle of sources.

Any login shell can parse the command line; everything else goes through standard input, so that no shell parses
paths or settings.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import tokenize
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ... import engine
from ...engine.errors import AddressError
from ...engine.statefile.reader import READS
from .address import checked_user
from .session import Query

_ENGINE = Path(str(engine.__file__)).parent
_PACKAGE = "redrive.engine"

#: What starts the agent, and what its requests import when they come; modules below ``engine/``.
AGENT, SENDING, LISTING = "agent/agent", "agent/command_client", "statefile/state_files"

#: An import at the start of a line: one below TYPE_CHECKING or in a function is not needed with the module.
_IMPORT = re.compile(r"^from (\.{1,2})([\w.]*) import ([\w, ]+|\([^)]*\))", re.MULTILINE)
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


def first_bundle(settings: Mapping[str, Any]) -> bytes:
    """Return the first bytes for standard input: the bootstrap, then the modules and the ``settings`` of the agent."""
    boot = (_ENGINE / "agent/bootstrap.py").read_bytes()
    sources = module_sources(first_modules(settings))
    body = {"main": f"{_PACKAGE}.{AGENT.replace('/', '.')}", "settings": settings, "sources": sources}
    return _frame(boot) + _frame(json.dumps(body).encode())


def first_modules(settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the modules that the agent needs to start: also to list files, or to choose one without a path."""
    listing = () if settings.get("path") else (LISTING,)
    return with_imports(AGENT, *listing, *map(module_of, settings.get("queries", ())))


def module_of(query: Query) -> str:
    """Return the module that answers one of READS."""
    return f"statefile/{READS[query[0]][0]}"


def with_imports(*modules: str) -> list[str]:
    """Return modules with all that they import, sorted."""
    found: set[str] = set()
    rest = [*modules]
    while rest:
        module = rest.pop()
        if module not in found:
            found.add(module)
            rest += _imports_of(module)
    return sorted(found)


@cache
def _imports_of(module: str) -> Sequence[str]:
    found = []
    for dots, path, names in _IMPORT.findall(_text_of(module)):
        folder = (Path(module).parent if len(dots) == 1 else Path()) / path.replace(".", "/")
        within = [folder / name for name in re.findall(r"\w+", names)]
        found += [one.as_posix() for one in (folder, *within) if (_ENGINE / one).with_suffix(".py").is_file()]
    return found


def _text_of(module: str) -> str:
    return (_ENGINE / f"{module}.py").read_text(encoding="utf-8")


def module_sources(modules: Iterable[str]) -> dict[str, str]:
    """Return the sources of modules by full name, without docstrings and comments."""
    return {f"{_PACKAGE}.{module.replace('/', '.')}": _without_docs(_text_of(module)) for module in modules}


def packed_sources(modules: Iterable[str]) -> str:
    """Return the sources of modules as the agent loads them: compressed, in the letters of a JSON text."""
    return base64.b64encode(zlib.compress(json.dumps(module_sources(modules)).encode(), 9)).decode()


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
