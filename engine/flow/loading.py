"""Finds, reads and imports a flow file.

The result is a Flow, a FlowImportError if the code of the file raises, or a FlowError with one sentence.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import sys
import tokenize
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

from ..errors import FlowError, FlowImportError
from .flow import Flow, Params, use_params
from .source_location import location_of_traceback

#: File types that are refused: reading them would block or return nonsense.
_REFUSED_TYPES = (
    (stat.S_ISDIR, "a folder; name the Python file in it"),
    (stat.S_ISFIFO, "a pipe; a flow is a Python file, which attempts may have to read again"),
    (stat.S_ISCHR, "a device; a flow is a Python file"),
    (stat.S_ISBLK, "a device; a flow is a Python file"),
)


def split_target(target: str) -> tuple[str, str | None]:
    """Split ``local.py:name`` into file and name; the name of a plain path is None."""
    path, colon, name = target.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (target, None)


def load_flow(target: str, params: Params | None = None, remembered: Params | None = None) -> Flow:
    """Import a flow file and return its Flow.

    ``target`` is a path, optionally ``local.py:name``; ``remembered``: the parameters that the run has had so far.
    Raises FlowImportError if its code raises, FlowError if the file cannot be read or does not hold exactly one flow.
    """
    path, name = split_target(target)
    code = read_source(path)
    source = Path(path).resolve()
    with use_params(remembered or {}, params or {}):
        module = _import_file(source)
        flow = _pick_flow(module, path, name)
    flow.path = str(source) + (f":{name}" if name else "")
    flow.code_hash = hashlib.sha256(code).hexdigest()[:16]
    return flow


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
        raise FlowError(f"there is no flow file {path!r}") from None
    except (OSError, ValueError) as error:
        raise FlowError(f"the flow file {path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    _check_text(path, code)
    return code


def _check_text(path: str, code: bytes) -> None:
    """Raise FlowError if the source cannot be decoded as UTF-8 or in the encoding that its first lines declare."""
    if b"\0" in code:
        line = code[: code.index(b"\0")].count(b"\n") + 1
        raise FlowError(f"{path!r} is no Python source: it holds a NUL byte in line {line}; is it the right file?")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(code).readline)
        code.decode(encoding)
    except UnicodeDecodeError as error:
        line = code[: error.start].count(b"\n") + 1
        why = f"byte 0x{code[error.start]:02x} in line {line} is no {error.encoding}"
        raise FlowError(f"{path!r} cannot be read as text: {why}; save it as UTF-8") from None
    except SyntaxError as error:  # unknown encoding, or undecodable first lines
        raise FlowError(f"{path!r} cannot be read as text: {error.msg}; save it as UTF-8") from None


def _import_file(path: Path) -> ModuleType:
    module_name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "redrive_flow"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise FlowError(f"{str(path)!r} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except FlowImportError:
        raise
    except FlowError as error:
        raise error.at(location_of_traceback(error.__traceback__)) from None
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(type(error), error, _from_file(error.__traceback__, str(path))))
        raise FlowImportError(f"importing {str(path)!r} failed: {type(error).__name__}: {error}", text) from error
    return module


def _from_file(frames: TracebackType | None, path: str) -> TracebackType | None:
    """Drop the frames before the first one of the flow file."""
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    return frames


def _pick_flow(module: ModuleType, path: str, name: str | None) -> Flow:
    if name is not None:
        found = getattr(module, name, None)
        if callable(found) and not isinstance(found, Flow):
            found = found()
        if not isinstance(found, Flow):
            raise FlowError(f"{path!r} has no flow named {name!r}")
        return found
    flows = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, Flow)}
    if len(flows) == 1:
        return next(iter(flows.values()))[1]
    if not flows:
        raise FlowError(f"{path!r} defines no Flow; write: flow = Flow('name')")
    names = ", ".join(f"{path}:{key}" for key, _ in flows.values())
    raise FlowError(f"{path!r} defines {len(flows)} flows; name one: {names}")
