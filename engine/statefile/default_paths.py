"""Default paths of state files, and the path that the user names.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import sys
from typing import List, Optional

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
    """State files in the default folder, sorted by name."""
    folder = default_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(os.path.join(folder, name) for name in names if name.endswith(SUFFIX))


def named_path(path: str) -> Optional[str]:
    """Expand ``~``. For "", return the file that REDRIVE_STATE names, else None."""
    path = path or os.environ.get(STATE_VARIABLE, "")
    if not path:
        return None
    return os.path.realpath(os.path.expanduser(os.fsdecode(path.encode("utf-8", "surrogateescape"))))
