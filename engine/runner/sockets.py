"""The peers and queues of sockets, from /proc/PID/net and, for unix sockets, netlink.

Reading is bounded by time: the tables are long on a host with 100,000 connections.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address

from msgspec.structs import replace

from ..core.failures.hang import Descriptor

LINES_PER_CLOCK_CHECK = 256  # at the clock
CACHE_SECONDS = 0.1

_TCP_STATES = (
    "",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
)
_TABLES = (("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp"))

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_UDIAG_SHOW_NAME, _UDIAG_SHOW_PEER, _UDIAG_SHOW_QUEUES = 1, 4, 16
_UNIX_DIAG_NAME, _UNIX_DIAG_PEER, _UNIX_DIAG_QUEUES = 0, 2, 4
_REQUEST = struct.Struct("=IHHII BBHIIIII")  # nlmsghdr and unix_diag_req
_HEADER_BYTES = 16
_ANSWER_BYTES = 16  # unix_diag_msg
_NETLINK_SECONDS = 0.02


class Tables:
    """The kernel's socket tables, cached for ``CACHE_SECONDS``: deadlines often coincide."""

    def __init__(self) -> None:
        self._namespace = ""
        self._valid_until = 0.0
        self._rows: dict[int, tuple[str, list[bytes]]] = {}  # by inode

    def with_peers(self, sockets: Sequence[Descriptor], until: float) -> dict[int, Descriptor]:
        """Return sockets by inode with kind, peer and queues, as far as they are found by ``until`` (monotonic)."""
        if sockets:
            self._read(sockets[0].pid, until)
        found = {}
        for end in sockets:
            if end.inode in self._rows:
                found[end.inode] = _internet(end, *self._rows[end.inode])
            elif time.monotonic() < until and (unix := _unix(end)) is not None:
                found[end.inode] = unix
        return found

    def _read(self, pid: int, until: float) -> None:
        namespace = _namespace(pid)
        if namespace == self._namespace and time.monotonic() < self._valid_until:
            return
        self._rows.clear()
        for table, kind in _TABLES:
            for line in _lines(f"/proc/{pid}/net/{table}", until):
                fields = line.split()
                self._rows[int(fields[9])] = (kind, fields)
        self._namespace, self._valid_until = namespace, time.monotonic() + CACHE_SECONDS

    def clear(self) -> None:
        """Free the cache."""
        self._rows.clear()
        self._valid_until = 0.0


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _lines(path: str, until: float) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            next(file, None)
            for number, line in enumerate(file):
                yield line
                if number % LINES_PER_CLOCK_CHECK == LINES_PER_CLOCK_CHECK - 1 and time.monotonic() > until:
                    return
    except OSError:
        return  # the family does not exist here, or access is refused


def _internet(end: Descriptor, kind: str, fields: list[bytes]) -> Descriptor:
    unsent, _, unread = fields[4].partition(b":")
    number = int(fields[3], 16)
    state = _TCP_STATES[number] if kind == "tcp" and number < len(_TCP_STATES) else ""
    peer = address(fields[2].decode("ascii"))
    if state == "LISTEN":
        peer = address(fields[1].decode("ascii"))
    return replace(end, kind=kind, name=peer, state=state, unread=int(unread, 16), unsent=int(unsent, 16))


def address(text: str) -> str:
    """Convert ``0100007F:1538`` to ``127.0.0.1:5432``. Empty for port 0 of the zero address."""
    host, _, port = text.partition(":")
    if int(port, 16) == 0 and int(host, 16) == 0:
        return ""
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return f"{IPv4Address(packed)}:{int(port, 16)}"
    found = IPv6Address(packed)
    return f"{found.ipv4_mapped}:{int(port, 16)}" if found.ipv4_mapped else f"[{found}]:{int(port, 16)}"


# --- Unix sockets: only netlink knows their peers -------------------------------------------------------------------


def _unix(end: Descriptor) -> Descriptor | None:
    attributes = _query_unix(end.inode, _UDIAG_SHOW_NAME | _UDIAG_SHOW_PEER | _UDIAG_SHOW_QUEUES)
    if attributes is None:
        return None
    peer = attributes.get(_UNIX_DIAG_PEER)
    name = attributes.get(_UNIX_DIAG_NAME)
    if peer is not None:
        theirs = _query_unix(struct.unpack("=I", peer)[0], _UDIAG_SHOW_NAME) or {}
        name = theirs.get(_UNIX_DIAG_NAME)
    queues = attributes.get(_UNIX_DIAG_QUEUES)
    unread, unsent = struct.unpack("=II", queues) if queues is not None and peer is not None else (None, None)
    return replace(end, kind="unix", name=_path(name or b""), unread=unread, unsent=unsent)


def _path(name: bytes) -> str:
    """Return the path; the zero byte of an abstract name becomes an @."""
    return os.fsdecode(b"@" + name[1:] if name[:1] == b"\0" else name.rstrip(b"\0"))


def _query_unix(inode: int, show: int) -> dict[int, bytes] | None:
    """Return the attributes of one unix socket; None if it does not exist or netlink is refused."""
    request = _REQUEST.pack(
        _REQUEST.size,
        _SOCK_DIAG_BY_FAMILY,
        _NLM_F_REQUEST,
        1,
        0,
        socket.AF_UNIX,
        0,
        0,
        0xFFFFFFFF,
        inode,
        show,
        0xFFFFFFFF,
        0xFFFFFFFF,
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as asking:
            asking.settimeout(_NETLINK_SECONDS)
            asking.send(request)
            answer = asking.recv(8192)
    except OSError:
        return None
    (kind,) = struct.unpack_from("=H", answer, 4)
    return _attributes(answer[_HEADER_BYTES + _ANSWER_BYTES :]) if kind == _SOCK_DIAG_BY_FAMILY else None


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found
