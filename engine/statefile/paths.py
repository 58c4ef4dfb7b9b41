"""Paths of state files: the default ones, the one that the user names, and the file system of a path.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import sys
from typing import List, NamedTuple, Optional
from urllib.parse import quote

from ..errors import StateFileError

# --- Default paths of state files, and the path that the user names --------------------------------------------------


STATE_VARIABLE = "REDRIVE_STATE"
SUFFIX = ".db"


def has_content(path: str) -> bool:
    """True for a file that exists and is not empty."""
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def file_uri(path: str, options: str) -> str:
    """A file URI. Unquoted, ``a?b.db`` would open another file, and create it."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?{options}"


def default_folder() -> str:
    """The folder for state files of this user on this host: ``platformdirs.user_state_path("redrive")``."""
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/redrive")
    home = os.environ.get("XDG_STATE_HOME", "").strip()
    base = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):  # else the folder "~" of the working folder
        raise StateFileError("this user has no home: set HOME or XDG_STATE_HOME to a folder for state files")
    return os.path.join(base, "redrive")


def supervisor_path() -> str:
    """The path of the file of ``redrive serve``, in the default folder for state files."""
    return os.path.join(default_folder(), "schedules.supervisor")  # no state file: its suffix differs from theirs


def default_paths() -> List[str]:
    """State files in the default folder, sorted by name."""
    folder = default_folder()
    return [os.path.join(folder, name) for name in names_in(folder) if name.endswith(SUFFIX)]


def names_in(folder: str) -> List[str]:
    """The names in a folder, sorted; none if it is not there, or cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def named_path(path: str) -> Optional[str]:
    """Expand ``~``. For "", return the file that REDRIVE_STATE names, else None."""
    path = path or os.environ.get(STATE_VARIABLE, "")
    if not path:
        return None
    return os.path.realpath(os.path.expanduser(os.fsdecode(path.encode("utf-8", "surrogateescape"))))


def folder_sentence(path: str) -> str:
    """Say that the path of a state file is that of a folder."""
    return "{} is a directory; name a file in it, such as {}".format(path, os.path.join(path, "state.db"))


# --- The file system of a path: SQLite's write-ahead log does not work on network file systems, or on a full one -----


#: Over a network, the shared-memory index and the locks are not common to all processes that open the file.
NETWORK_TYPES = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "davfs",
        "fuse.davfs2",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.gcsfuse",
    ]
)


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    type: str
    source: str


def mount_of(path: str, mounts_path: str = "/proc/self/mounts") -> Optional[Mount]:
    """Return the file system that holds ``path`` (which need not exist yet); None if it is unknown."""
    try:
        with open(mounts_path, encoding="utf-8", errors="surrogateescape") as lines:
            rows = [fields for fields in (line.split(" ") for line in lines) if len(fields) > 2]
    except OSError:
        return None
    real = os.path.realpath(path)
    mounts = [(_unescape(point), kind, source) for source, point, kind, *_ in rows]
    covering = [mount for mount in mounts if _covers(mount[0], real)]
    if not covering:
        return None
    # Later lines cover earlier ones at the same point; the longest point wins.
    point, kind, source = max(reversed(covering), key=lambda mount: len(mount[0]))
    return Mount(point, kind, _unescape(source))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _covers(point: str, path: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")


def network_problem(path: str, mounts_path: str = "/proc/self/mounts") -> Optional[str]:
    """Return one sentence that says why a state file cannot be here, and what to do; None if it can."""
    mount = mount_of(path, mounts_path)
    if mount is None or mount.type not in NETWORK_TYPES:
        return None
    if mount.type == "fuse.sshfs":
        host, _, folder = mount.source.partition(":")
        remote = os.path.join(folder or "/", os.path.relpath(os.path.realpath(path), mount.point))
        return (
            f"{path} is on sshfs, where SQLite shows old data for ever; open ssh://{host}/{remote.lstrip('/')} instead"
        )
    return (
        f"{path} is on a network file system ({mount.type} at {mount.point}), where SQLite's write-ahead log does not "
        f"work; put the state file on a local disk with --state"
    )


FULL_BYTES = 64 * 1024  # less free space is too little for one commit: a -shm grows by 32 kB, a -wal by whole pages


def is_full(path: str) -> bool:
    """True if the file system of a path has no room for a commit; False if it does not say."""
    try:
        found = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    has_no_inode = found.f_files > 0 and found.f_favail == 0
    return found.f_blocks > 0 and (found.f_bavail * found.f_frsize < FULL_BYTES or has_no_inode)
