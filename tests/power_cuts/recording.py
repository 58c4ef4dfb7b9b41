"""Records what a command writes and syncs, in order, by ``strace``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CALLS = "pwrite64,write,sendto,fdatasync,fsync,ftruncate,unlink,link,openat,exit_group"
_BYTES_MAX = 1 << 20  # of one write
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)")
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+|\?)")
_FILE = re.compile(r"(\d+)<((?:\\x\w\w)*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that has ended; ``begun``: its number at its begin, among all that ended."""

    pid: int
    name: str
    path: str
    data: bytes
    numbers: tuple[int, ...]  # those of its arguments, and the result
    begun: int


@contextmanager
def recorded(words: Sequence[object], trace: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command; the calls of it and its children are in ``trace`` once the block has ended."""
    strace = ["strace", "-f", "-y", "-xx", "-s", str(_BYTES_MAX), "-e", f"trace={_CALLS}", "-o", str(trace)]
    process = subprocess.Popen(
        [*strace, *map(str, words)], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=dict(environment)
    )
    with process:
        yield process


def read_calls(trace: Path, is_wanted: Callable[[str], bool]) -> list[Call]:
    """Return the calls that succeeded on the wanted paths, and the exits, in the order of their ends."""
    calls: list[Call] = []
    begun: dict[int, tuple[str, int]] = {}
    with trace.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            text, at = line.rstrip("\n"), len(calls)
            if match := _BEGUN.match(text):
                begun[int(match[1])] = (match[3], at)
                continue
            if match := _RESUMED.match(text):
                first, at = begun.pop(int(match[1]))
                arguments = first + match[3]
            elif match := _LINE.match(text):
                arguments = match[3]
            else:
                continue
            call = _call(int(match[1]), match[2], arguments, match[4], at)
            if call is not None and (call.name == "exit_group" or is_wanted(call.path)):
                calls.append(call)
    return calls


def _call(pid: int, name: str, arguments: str, result: str, begun: int) -> Call | None:
    if result.startswith("-"):
        return None
    if name == "exit_group":
        return Call(pid, name, "", b"", (int(arguments),), begun)
    *quoted, rest = arguments.split('"')  # no text holds a quote: it is in hexadecimal digits
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in quoted[1::2]]
    file = _FILE.match(arguments)
    path = bytes.fromhex(file[2].replace("\\x", "")) if file else texts.pop(0) if texts else b""
    numbers = tuple(int(number) for number in re.findall(r"(?<![\w|])\d+(?![\w|])", rest))
    is_created = name == "openat" and "O_CREAT" in arguments
    if name == "openat" and not is_created:
        return None
    data = texts[0] if texts else b""
    if name in ("pwrite64", "write"):
        data = data[: int(result)]
    return Call(pid, name, path.decode(errors="replace"), data, numbers, begun)
