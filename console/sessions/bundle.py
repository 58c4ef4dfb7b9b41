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

#: What looks: goes over first. Modules below ``engine/``.
LOOKING = (
    "agent",
    "client",
    "core/json_types",
    "core/events",
    "errors",
    "store/columns",
    "store/header",
    "store/ladder",
    "store/lists",
    "store/lock_file",
    "store/mounts",
    "store/places",
    "store/processes",
    "store/reader",
    "store/snapshot",
    "store/traces",
    "store/usual",
)
#: What acts, and reads texts: goes over when the first act or text is wanted.
ACTING = (
    "core/event_codec",
    "core/event_payloads",
    "core/liveness",
    "core/overrides",
    "core/states",
    "core/trigger_rules",
    "store/act",
    "store/acts",
    "store/canary",
    "store/command",
    "store/generation",
    "store/guards",
    "store/journal",
    "store/locking",
    "store/logs",
    "store/lost",
    "store/notes",
    "store/open_writing",
    "store/operator",
    "store/paged",
    "store/preview",
    "store/propagation",
    "store/rows",
    "store/skipping",
    "store/state_lists",
    "store/undo",
    "store/upgrades",
)

#: What remembers: goes over when somebody looks at an inbox, on a slow line seconds before what acts could.
REMEMBERING = ("core/states", "store/acts", "store/failures", "store/memory", "store/state_lists")

#: What lists the state files of a host: goes over instead of a question about one of them.
OFFERING = ("store/offers",)

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
    boot = (_ENGINE / "bootstrap.py").read_bytes()
    names = LOOKING + OFFERING if settings.get("list") else LOOKING
    body = {"main": f"{_PACKAGE}.agent", "settings": settings, "sources": sources(names)}
    return _packed(boot) + _packed(json.dumps(body).encode())


def sources(names: Iterable[str]) -> dict[str, str]:
    """Texts of modules by their full names, without what only people read."""
    return {
        f"{_PACKAGE}.{name.replace('/', '.')}": _lean((_ENGINE / f"{name}.py").read_text(encoding="utf-8"))
        for name in names
    }


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
