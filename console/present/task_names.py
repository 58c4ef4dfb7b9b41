"""The names of a run's tasks in little room: without the prefix that all share, and no two of them alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..model.graph.name_families import common_start, shared_prefix
from ..text.text import cells, cut, one_line, shorten_middle


class TaskNames:
    """Names of one run, or titles of its groups. ``prefix``: what all names begin with, and what rows leave out."""

    def __init__(self, names: Iterable[str] = (), prefix: str | None = None) -> None:
        self._lines = {name: one_line(name) for name in names}
        self.prefix = shared_prefix(list(self._lines.values())) if prefix is None else prefix
        self.longest = max((cells(line) for line in self._lines.values()), default=0) - cells(self.prefix)
        self._short: dict[tuple[int, str], dict[str, str]] = {}  # by cells and sign: the names that are shortened

    def short(self, name: str, size: int, more: str) -> str:
        """At most ``size`` cells of a name without the prefix, unlike those of every other name."""
        line = self._lines.get(name)
        if line is None:
            return shorten_middle(one_line(name), size, more)
        if (size, more) not in self._short:
            self._short[size, more] = self._shorten_all(size, more)
        return self._short[size, more].get(name) or line[len(self.prefix) :]

    def _shorten_all(self, size: int, more: str) -> dict[str, str]:
        alike: defaultdict[str, list[str]] = defaultdict(list)
        for name, line in self._lines.items():
            rest = line[len(self.prefix) :]
            if cells(rest) > size:
                alike[shorten_middle(rest, size, more)].append(name)
        found: dict[str, str] = {}
        for text, names in alike.items():
            rests = [self._lines[name][len(self.prefix) :] for name in names]
            texts = [text] if len(names) == 1 else _disambiguate(rests, size, more)
            found.update(zip(names, texts, strict=True))
        if len(set(found.values())) < len(found):  # names that differ elsewhere are shortened to the same part
            names = [name for names in alike.values() if len(names) > 1 for name in names]
            rests = [self._lines[name][len(self.prefix) :] for name in names]
            found.update(zip(names, _numbered(rests, size, more), strict=True))
        return found


def _disambiguate(lines: Sequence[str], size: int, more: str) -> list[str]:
    """Shorten lines that would read alike: to the part where they differ, or else with a number."""
    start = len(common_start(lines))
    room = size - 2 * cells(more)
    texts = [more + cut(line[start:], 0, room).rstrip() + more for line in lines]
    if room > 0 and len(set(texts)) == len(texts):
        return texts
    return _numbered(lines, size, more)


def _numbered(lines: Sequence[str], size: int, more: str) -> list[str]:
    """Shorten lines and end each with a number of its own."""
    width = len(str(len(lines)))
    return [
        cut(shorten_middle(line, max(size - width - 1, 1), more), 0, max(size - width - 1, 0)).rstrip() + f"#{place}"
        for place, line in enumerate(lines, 1)
    ]
