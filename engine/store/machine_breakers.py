"""Breakers of the machine: what the executors of one user tell one another about a downstream that they all call.

Each downstream has a file in ``<default place>/breakers/`` with the latest finding of any executor: it is down until an
instant, or it answered again. Another executor takes a finding as a hint, never as a fact (``core/downstreams.py:
consider``): two flows may call different systems by one name, and a system that is down for one is not down for all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from ..core.downstreams import Finding


class _Stamp(NamedTuple):
    modified_ns: int
    inode: int


class MachineBreakers:
    """The findings in ``folder``, as one executor writes and reads them. ``flow``: the name that others show."""

    def __init__(self, folder: str, downstreams: Iterable[str], flow: str, executor_id: str) -> None:
        self._paths = {name: os.path.join(folder, quote(name, safe="")) for name in downstreams}
        self._folder = folder
        self._flow = flow
        self._executor_id = executor_id
        self._seen: dict[str, _Stamp | None] = {}  # by downstream: the file that was read last

    def publish(self, downstream: str, finding: Finding) -> None:
        """Replace the finding of a downstream. A folder that cannot be written is left alone: a hint is missing."""
        path = self._paths[downstream]
        value = {**finding._asdict(), "flow": self._flow, "executor_id": self._executor_id}
        draft = f"{path}.{self._executor_id}"
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(value, file)
            os.replace(draft, path)
            self._seen[downstream] = _stamp(path)

    def read_new(self) -> dict[str, Finding]:
        """Return the findings of other executors that were published since the last call, by downstream."""
        found = {}
        for downstream, path in self._paths.items():
            stamp = _stamp(path)
            if stamp is not None and stamp != self._seen.get(downstream):
                self._seen[downstream] = stamp
                finding = self._read(path)
                if finding is not None:
                    found[downstream] = finding
        return found

    def _read(self, path: str) -> Finding | None:
        """Read a finding; a file of this executor, or one that holds something else, is none."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
                value = json.loads(file.read(10_000))
            if value["executor_id"] == self._executor_id:
                return None
            reopens_at = value["reopens_at"]
            flow, why = str(value["flow"])[:200], str(value["why"])[:500]
            return Finding(int(value["at"]), None if reopens_at is None else int(reopens_at), f"{why} (flow {flow})")
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return _Stamp(status.st_mtime_ns, status.st_ino)
