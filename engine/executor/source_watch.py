"""Detects that the source files of the flow differ from those that the executor has loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..flow.source_files import digest_of_file, source_root
from ..statefile.file_changes import stamp_of

_Stamp = tuple[int, ...]  # device, inode, bytes, mtime in ns; empty: there is no file


class SourceWatch:
    """Compares files by ``stat``, and reads a file only if its stamp is new. Blocks: call it in a thread."""

    def __init__(self, flow_path: str, sources: Mapping[str, str]) -> None:
        self._root = str(source_root(Path(flow_path)))
        self._loaded = dict(sources)
        self._seen: dict[str, tuple[_Stamp, str | None]] = {}  # the digest of each file at its latest stamp

    def changed_files(self) -> list[str]:
        """Return the paths of the changed and removed files."""
        return [path for path, digest in self._loaded.items() if self._digest(path) != digest]

    def names_of(self, paths: Sequence[str]) -> list[str]:
        """Return paths below the folder of the flow, for people."""
        return [os.path.relpath(path, self._root) for path in paths]

    def _digest(self, path: str) -> str | None:
        stamp, (seen, digest) = stamp_of(path), self._seen.get(path, ((-1,), None))
        if stamp != seen:
            digest = digest_of_file(path)
            self._seen[path] = (stamp, digest)
        return digest


def latest_change_us(paths: Sequence[str]) -> int | None:
    """Return the time of the latest change of these files, in microseconds UTC; None if none exists any more."""
    stamps = [stamp for path in paths if (stamp := stamp_of(path))]
    return max((stamp[3] // 1000 for stamp in stamps), default=None)
