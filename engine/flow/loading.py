"""Imports a flow file.

A file in a package (its folder has an ``__init__.py``) is imported as a module of that package, so that relative
imports work. A flow may be named as a module, too: ``etl.flows.daily:flow``.

The result is a Flow, a FlowImportError if the code of the file raises, or a FlowError with one sentence.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from ..core.option_types import is_text, short_repr
from ..errors import FlowError, FlowImportError
from .flow import Flow
from .options import use_params
from .source import (
    digest_of,
    hash_of_sources,
    location_of_traceback,
    modules_of_flow,
    read_source,
    source_files,
    split_target,
    use_recorded_files,
)

# --- Imports the source files of a flow as they were when its executor loaded them -----------------------------------
#
# For processes that import the flow again while a run goes on (``runner/child.py``): a retry runs the code of the
# first attempt, also after an edit, until an operator has the executor load the new code.


class UncachedLoader(SourceFileLoader):
    """Compiles the source at each import; ``content``: the source, instead of that on the disk.

    Python's cache of bytecode is of the source if its size and the second of its last change agree: after an edit in
    the second of the import before, it is the code of that import.
    """

    def __init__(self, name: str, path: str, content: bytes | None = None) -> None:
        super().__init__(name, path)
        self._content = content

    def get_data(self, path: str) -> bytes:
        """Return the recorded source; of any other file its content."""
        return super().get_data(path) if self._content is None or path != self.path else self._content

    def path_stats(self, path: str) -> NoReturn:
        """Raise OSError: the import system then neither reads nor writes a cache."""
        raise OSError(f"the bytecode of {path} is not cached")


class RecordedSources:
    """A finder of modules (``sys.meta_path``) among recorded files. ``contents``: by path, as ``source_files`` has it.

    Files that a task imports while it runs are not among them: each attempt reads those from the disk.
    """

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents

    def content(self, path: Path) -> bytes | None:
        """Return the content of a file; None if it is not recorded."""
        return self._contents.get(str(path))

    def has(self, path: Path) -> bool:
        """Return whether a file is recorded, or on the disk."""
        return str(path) in self._contents or path.is_file()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module; None if no recorded file is its source."""
        last = name.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            package = os.path.join(folder or os.curdir, last)
            for file, inside in ((os.path.join(package, "__init__.py"), [package]), (f"{package}.py", None)):
                content = self._contents.get(os.path.realpath(file))
                if content is not None:
                    loader = UncachedLoader(name, file, content)
                    return spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)
        return None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Import recorded files from here, for a while."""
        if not self._contents:
            yield
            return
        sys.meta_path.insert(0, self)
        try:
            with use_recorded_files(self._contents):
                yield
        finally:
            sys.meta_path.remove(self)


def read_sources(digests: Mapping[str, str]) -> dict[str, bytes]:
    """Read source files, by path; leave out those that have changed since their digests were made."""
    contents = {}
    for path, digest in digests.items():
        try:
            content = Path(path).read_bytes()
        except OSError:
            continue
        if digest_of(content) == digest:
            contents[path] = content
    return contents


# --- Loading ---------------------------------------------------------------------------------------------------------


def load_flow(
    target: str,
    params: Mapping[str, Any] | None = None,
    remembered: Mapping[str, Any] | None = None,
    recorded: Mapping[str, bytes] | None = None,
) -> Flow:
    """Import a flow file and return its Flow.

    ``target``: as for ``split_target``; ``remembered``: the parameters that the run has had so far; ``recorded``:
    source files that are imported as they were, by path.
    Raises FlowImportError if its code raises, FlowError if the file cannot be read or does not hold exactly one flow.
    """
    path, name = split_target(target)
    sources = RecordedSources(recorded or {})
    source, code = _read_file(path, recorded)
    with use_params(remembered or {}, params or {}), _translated_errors(source), sources.installed():
        flow = _pick_flow(_import_file(source, sources), path, name)
    flow.path = str(source) + (f":{name}" if name else "")
    found = source_files(source, modules_of_flow()) | {str(source): digest_of(code)}
    modules = {path: content for path, content in (recorded or {}).items() if path.endswith(tuple(SOURCE_SUFFIXES))}
    flow.sources = found | {path: digest_of(content) for path, content in modules.items()}
    flow.code_hash = hash_of_sources(str(source), flow.sources)
    return flow


def load_flows(target: str) -> dict[str, Flow]:
    """Import a flow file and return all of its flows by the names of their variables; ``target``: as for ``load_flow``.

    Raises FlowImportError, FlowError as ``load_flow``; a file without a flow is no error.
    """
    path, name = split_target(target)
    sources = RecordedSources({})
    source, _ = _read_file(path)
    with use_params({}, {}), _translated_errors(source), sources.installed():
        module = _import_file(source, sources)
        flows = {name: _pick_flow(module, path, name)} if name else _flows_of(module)
    for variable, flow in flows.items():
        flow.path = f"{source}:{variable}"
    return flows


def _read_file(path: str, recorded: Mapping[str, bytes] | None = None) -> tuple[Path, bytes]:
    """Return the resolved path of a flow file and its text. Raises FlowError."""
    content = recorded.get(str(Path(path).resolve())) if recorded else None
    code = read_source(path) if content is None else content
    source = Path(path).resolve()
    if not is_text(str(source)):
        raise FlowError(f"the path of the flow file {path!r} is not UTF-8, and could not be stored: rename it")
    return source, code


def _import_file(path: Path, sources: RecordedSources) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    root, name = _place_in_package(path, sources)
    if name != path.stem:
        sys.path.insert(0, str(root))
        return importlib.import_module(name)
    module_name = name if name.isidentifier() and name not in sys.modules else "redrive_flow"
    if path.suffix not in SOURCE_SUFFIXES:
        raise FlowError(f"{str(path)!r} is not a Python file: its name must end with .py")
    loader = UncachedLoader(module_name, str(path), sources.content(path))
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _place_in_package(path: Path, sources: RecordedSources) -> tuple[Path, str]:
    """Return the folder that holds the outermost package of a file, and the name of the file as a module.

    A file outside of packages is a module by itself. So is one whose package could not be imported, because a package
    of that name is imported already.
    """
    folder, parts = path.parent, [] if path.name == "__init__.py" else [path.stem]
    while sources.has(folder / "__init__.py") and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    known = sys.modules.get(parts[0]) if len(parts) > 1 else None
    is_shadowed = known is not None and str(folder / parts[0]) not in getattr(known, "__path__", ())
    is_ours = path.is_relative_to(_ENGINE)
    return (path.parent, path.stem) if is_shadowed or is_ours else (folder, ".".join(parts))


_ENGINE = Path(__file__).resolve().parents[1]  # its examples are modules by themselves


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Raise what the code of a flow raises as FlowImportError, with a traceback that begins in the flow file."""
    try:
        yield
    except FlowImportError:
        raise
    except FlowError as error:
        raise error.at(location_of_traceback(error.__traceback__)) from None
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(type(error), error, _from_file(error.__traceback__, str(path))))
        advice = _import_advice(error, path)
        place = None if isinstance(error, SyntaxError) else location_of_traceback(error.__traceback__)
        where = f" (at {place})" if place else ""  # a SyntaxError names its line
        raise FlowImportError(
            f"importing {str(path)!r} failed: {type(error).__name__}: {error}{where}{advice}", text
        ) from error


def _import_advice(error: BaseException, path: Path) -> str:
    if not isinstance(error, ImportError) or "attempted relative import" not in str(error):
        return ""
    folder, _ = _place_in_package(path, RecordedSources({}))
    return f"; a relative import needs a package: put an empty __init__.py into {str(folder)!r}"


def _from_file(frames: TracebackType | None, path: str) -> TracebackType | None:
    """Drop the frames before the first one of the flow file."""
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    return frames


def _pick_flow(module: ModuleType, path: str, name: str | None) -> Flow:
    if name is not None:
        return _named_flow(getattr(module, name, None), path, name)
    flows = _flows_of(module)
    if len(flows) == 1:
        return next(iter(flows.values()))
    if not flows:
        raise FlowError(f"{path!r} defines no Flow; write: flow = Flow('name')")
    names = ", ".join(f"{path}:{key}" for key in flows)
    raise FlowError(f"{path!r} defines {len(flows)} flows; name one: {names}")


def _flows_of(module: ModuleType) -> dict[str, Flow]:
    """Return the flows of a module, each once, by the last variable that holds it."""
    flows = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, Flow)}
    return dict(flows.values())


def _named_flow(found: object, path: str, name: str) -> Flow:
    """Return a flow, or what a function returns that makes one. Raises FlowError."""
    if isinstance(found, Flow):
        return found
    if not callable(found):
        raise FlowError(f"{path!r} has no flow named {name!r}")
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError) as error:
        why = f"{name!r} in {path!r} is called without arguments, and it cannot be: {error}"
        raise FlowError(f"{why}; give its parameters defaults, or use Flow(params={{...}})") from None
    made = found()
    if not isinstance(made, Flow):
        raise FlowError(f"{name!r} in {path!r} returned {short_repr(made)}, not a Flow")
    return made
