"""Finds and reads a flow file, without what imports it: the executor does no more than that."""

from __future__ import annotations

import io
import os
import stat
import sys
import tokenize

from ..errors import FlowError

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
