"""What ssh carries to a host where nothing is installed: a command line, and sources packed into a parcel.

The command line is a string that any login shell understands; everything else goes through standard input, so that
neither paths nor settings ever meet a shell.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tokenize
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ... import engine
from ...engine.errors import AddressError

_ENGINE = Path(str(engine.__file__)).parent
_PACKAGE = "redrive.engine"

#: What a reader needs; ssh carries it first. Files and folders below ``engine/``, without their subfolders.
READING = ("errors", "json_types", "domain/events", "agent", "statefile")
#: What changes a run and what reads texts; ssh carries it with the first command or text.
CHANGING = ("domain", "statefile/changes")
#: What an inbox and a list of state files need; ssh carries it with the first such question.
ON_DEMAND = ("domain", "statefile/on_demand")

_STATEMENT_ENDS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_BOOT = "import sys,zlib;r=sys.stdin.buffer;exec(zlib.decompress(r.read(int(r.readline()))))"
_HOME = re.compile(r"(~[A-Za-z0-9_.-]*)(/.*)?")


def boot_command(python: str) -> str:
    """The remote command. ``python``: name or path of the interpreter over there; ``~`` is that host's.

    Isolated (``-I``), so that nothing in the folder or environment over there is taken for a module of the library.
    Raises AddressError for what cannot be the name of a program.
    """
    if not python or python.startswith("-") or not python.isprintable():
        raise AddressError(f"{python!r} cannot be the name of an interpreter")
    home = _HOME.fullmatch(python)
    word = home[1] + (shlex.quote(home[2]) if home[2] else "") if home else shlex.quote(python)
    return f"exec {word} -ISuc '{_BOOT}'"


def first_parcel(settings: Mapping[str, object]) -> bytes:
    """What goes down standard input first: the bootstrap, then what looks, then ``settings`` for ``agent.main``."""
    boot = (_ENGINE / "agent/bootstrap.py").read_bytes()
    names = READING + ON_DEMAND if settings.get("list") else READING
    body = {"main": f"{_PACKAGE}.agent.agent", "settings": settings, "sources": sources(names)}
    return _packed(boot) + _packed(json.dumps(body).encode())


def sources(places: Iterable[str]) -> dict[str, str]:
    """Texts of the modules in these places (see READING) by their full names, without what only people read."""
    return {
        f"{_PACKAGE}.{module.replace('/', '.')}": _lean((_ENGINE / f"{module}.py").read_text(encoding="utf-8"))
        for module in modules_in(places)
    }


def modules_in(places: Iterable[str]) -> list[str]:
    """The modules in these places as paths below ``engine/`` without their suffix, sorted."""
    found: set[str] = set()
    for place in places:
        folder = _ENGINE / place
        files = folder.glob("*.py") if folder.is_dir() else [_ENGINE / f"{place}.py"]
        found.update(file.relative_to(_ENGINE).with_suffix("").as_posix() for file in files)
    return sorted(module for module in found if not module.endswith("__init__"))


def _lean(text: str) -> str:
    """Empty docstrings and comments: a third of the bytes. Lines keep their numbers, for tracebacks."""
    lines = text.splitlines()
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (first, column), (last, _) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[first - 1] = lines[first - 1][:column].rstrip()
        elif token.type == tokenize.STRING and before in _STATEMENT_ENDS and token.string.startswith('"""'):
            lines[first - 1 : last] = [" " * column + '""'] + [""] * (last - first)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return "\n".join(lines) + "\n"


def _packed(data: bytes) -> bytes:
    packed = zlib.compress(data, 9)
    return b"%d\n%s" % (len(packed), packed)
