"""Imports the source files of a flow as they were when its executor loaded them, whatever became of them on the disk.

For processes that import the flow again while a run goes on (``runner/child.py``): a retry runs the code
of the first attempt, also after an edit, until an operator has the executor load the new code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from .source import digest_of


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
