"""Default paths of state files, and the file to open when the user names none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import sys
from typing import List

from ..errors import StateFileError

STATE_VARIABLE = "REDRIVE_STATE"
SUFFIX = ".db"


def default_folder() -> str:
    """The folder for state files of this user on this host: ``platformdirs.user_state_path("redrive")``."""
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/redrive")
    home = os.environ.get("XDG_STATE_HOME", "").strip()
    base = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    return os.path.join(base, "redrive")


def default_paths() -> List[str]:
    """State files in the default folder, latest write first."""
    folder = default_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names if name.endswith(SUFFIX)]
    return sorted(paths, key=written_at, reverse=True)


def written_at(path: str) -> float:
    """When a state file or its log was last written, in seconds since 1970."""
    latest = 0.0
    for name in (path, path + "-wal"):
        try:
            latest = max(latest, os.stat(name).st_mtime)
        except OSError:
            pass
    return latest


def latest_path() -> str:
    """The state file in the default folder that was written last. Raises StateFileError when there is none."""
    paths = default_paths()
    if not paths:
        folder = default_folder()
        raise StateFileError("there is no state file in {}; start a run, or name one with --state".format(folder))
    return paths[0]


def resolve(path: str) -> str:
    """Expand ``~``. For "", return the file that REDRIVE_STATE names, else the latest file in the default folder.

    Raises StateFileError when there is none.
    """
    path = path or os.environ.get(STATE_VARIABLE, "")
    if path:
        return os.path.abspath(os.path.expanduser(os.fsdecode(path.encode("utf-8", "surrogateescape"))))
    return latest_path()
