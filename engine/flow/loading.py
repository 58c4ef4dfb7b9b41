"""How a flow file is found, read and imported.

Whatever the file is, the answer is a Flow or one sentence: FlowImportError where its code raises, else FlowError.
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
from .flow import Flow, Params, importing_with
from .source_location import place_of

#: What a flow file may be by mistake, and would be waited for without an end or read as nonsense.
_KINDS = (
    (stat.S_ISDIR, "a folder; name the Python file in it"),
    (stat.S_ISFIFO, "a pipe; a flow is a Python file, which attempts may have to read again"),
    (stat.S_ISCHR, "a device; a flow is a Python file"),
    (stat.S_ISBLK, "a device; a flow is a Python file"),
)


def split_target(target: str) -> tuple[str, str | None]:
    """``local.py:name`` -> (file, name); a plain path has no name."""
    path, colon, name = target.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (target, None)


def load_flow(target: str, params: Params | None = None, remembered: Params | None = None) -> Flow:
    """Import a flow file and return its Flow.

    ``target`` is a path, optionally ``local.py:name``; ``remembered``: the parameters that its run had until now.
    Raises FlowImportError where its code raises, FlowError where it cannot be found or read, or holds no one flow.
    """
    path, name = split_target(target)
    code = read_source(path)
    source = Path(path).resolve()
    with importing_with(remembered or {}, params or {}):
        module = _import_file(source)
        flow = _pick_flow(module, path, name)
    flow.path = str(source) + (f":{name}" if name else "")
    flow.code_hash = hashlib.sha256(code).hexdigest()[:16]
    return flow


def read_source(path: str) -> bytes:
    """The bytes of a flow file. Raises FlowError for what is not one, before Python says so in its own words."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
        try:
            mode = os.fstat(descriptor).st_mode
            for is_kind, what in _KINDS:
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
    _demand_text(path, code)
    return code


def _demand_text(path: str, code: bytes) -> None:
    """As Python itself would read it: in UTF-8, or in what its first lines name."""
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
    except SyntaxError as error:  # an encoding that there is not, or bytes in the first lines
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
        raise error.at(place_of(error.__traceback__)) from None
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(type(error), error, _from_file(error.__traceback__, str(path))))
        raise FlowImportError(f"importing {str(path)!r} failed: {type(error).__name__}: {error}", text) from error
    return module


def _from_file(frames: TracebackType | None, path: str) -> TracebackType | None:
    """The part of a traceback that is the flow's own."""
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
