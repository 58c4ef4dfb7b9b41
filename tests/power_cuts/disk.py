"""The disk of a machine whose power fails: what was synced is there, and of the rest any 4 kB or none."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from .recording import Call

BLOCK = 4096


class Remains(StrEnum):
    """What is on the disk of what was written and not synced."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"  # of each block any version
    LATE = "late"  # what was written last, without what was written first
    ALL_BUT_ONE = "all but one"


@dataclass(slots=True)
class _File:
    synced: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, int, bytes]] = field(default_factory=list)  # (number of the call, offset, data)

    def sync(self, begun: int) -> None:
        """Make what was written before the sync began durable."""
        kept = []
        for number, offset, data in self.writes:
            if number < begun:
                _write(self.synced, offset, data)
            else:
                kept.append((number, offset, data))
        self.writes = kept

    @property
    def size(self) -> int:
        return max([len(self.synced), *(offset + len(data) for _, offset, data in self.writes)])

    def content(self, left: Remains, dice: random.Random) -> bytes:
        """Return the file after a power cut."""
        found = bytearray(self.synced)
        versions: dict[int, list[tuple[int, bytes]]] = {}
        for _, offset, data in self.writes:
            for block in range(offset // BLOCK, (offset + len(data) - 1) // BLOCK + 1):
                start = max(offset, block * BLOCK)
                versions.setdefault(block, []).append((start, data[start - offset : (block + 1) * BLOCK - offset]))
        lost = dice.choice(list(versions)) if versions else 0
        first = dice.randint(0, len(versions))
        for order, (block, pieces) in enumerate(versions.items()):
            kept = {
                Remains.NOTHING: 0,
                Remains.ALL: len(pieces),
                Remains.SOME: dice.randint(0, len(pieces)),
                Remains.LATE: len(pieces) if order >= first else 0,
                Remains.ALL_BUT_ONE: 0 if block == lost else len(pieces),
            }[left]
            for start, piece in pieces[:kept]:
                _write(found, start, piece)
        return bytes(found)


def is_making(path: str) -> bool:
    """Whether a state file is made under this name, which a link then replaces."""
    return os.path.basename(path).startswith(".redrive-")


@dataclass(slots=True)
class Disk:
    """Follows the calls; ``paths``: the files to follow, in one folder."""

    folder: str
    paths: frozenset[str]
    _files: dict[str, _File] = field(default_factory=dict)  # by name, as the running system sees them
    _named: dict[str, _File] = field(default_factory=dict)  # by name, as the synced folder has them
    _renames: list[tuple[int, str, _File | None]] = field(default_factory=list)  # not synced; None: removed

    def follow(self, number: int, call: Call) -> None:
        """Take one more call."""
        if call.name in ("fsync", "fdatasync") and call.path == self.folder:
            self._sync_folder(call.begun)
        if call.path not in self.paths and not is_making(call.path):
            return
        if call.name == "openat" and call.path not in self._files:
            self._files[call.path] = _File()
            self._renames.append((number, call.path, self._files[call.path]))
        elif call.name == "link":
            self._files[call.data.decode()] = self._files[call.path]
            self._renames.append((number, call.data.decode(), self._files[call.path]))
        elif call.name == "unlink":
            self._files.pop(call.path, None)
            self._renames.append((number, call.path, None))
        elif call.name == "pwrite64" and call.path in self._files:
            self._files[call.path].writes.append((number, call.numbers[-1], call.data))
        elif call.name == "write" and call.path in self._files:  # Python writes the tables from their begin
            self._files[call.path].writes.append((number, self._files[call.path].size, call.data))
        elif call.name == "ftruncate" and call.path in self._files:
            if call.numbers[-1] < self._files[call.path].size:
                raise NotImplementedError(f"{call.path} shrinks")
        elif call.name in ("fsync", "fdatasync") and call.path in self._files:
            self._files[call.path].sync(call.begun)

    def cut(self, target: Path, left: Remains, dice: random.Random) -> None:
        """Write into the folder ``target`` what the disk holds if the power fails now."""
        named = dict(self._named)
        count = {Remains.NOTHING: 0, Remains.ALL: len(self._renames)}.get(left, dice.randint(0, len(self._renames)))
        _rename(named, self._renames[:count])
        for path, file in named.items():
            (target / os.path.basename(path)).write_bytes(file.content(left, dice))

    def _sync_folder(self, begun: int) -> None:
        _rename(self._named, [one for one in self._renames if one[0] < begun])
        self._renames = [one for one in self._renames if one[0] >= begun]


def _rename(named: dict[str, _File], renames: Iterable[tuple[int, str, _File | None]]) -> None:
    for _, path, file in renames:
        if file is None:
            named.pop(path, None)
        else:
            named[path] = file


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut after the call ``number``."""

    number: int
    left: Remains
    seed: int


def choose_cuts(calls: Sequence[Call], count: int, seed: int = 0) -> list[Cut]:
    """Choose cuts: before and after each sync, after each write, and as many more as asked for, in their order."""
    dice = random.Random(seed)
    syncs = [number for number, call in enumerate(calls) if call.name in ("fsync", "fdatasync")]
    edges = [place for number in syncs for place in (number - 1, number) if place >= 0]
    writes = [number for number, call in enumerate(calls) if call.name == "pwrite64"]
    chosen = [(place, left) for place in edges for left in (Remains.NOTHING, Remains.SOME)]
    chosen += [(place, dice.choice(list(Remains))) for place in writes]
    dice.shuffle(chosen)
    while len(chosen) < count:
        chosen.append((dice.choice(writes), dice.choice(list(Remains))))
    return sorted(
        (Cut(place, left, dice.getrandbits(32)) for place, left in chosen[:count]), key=lambda cut: cut.number
    )
