"""Where state files are by default, and which of them somebody means who names none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import sys
from typing import Any, Dict, List

from ..errors import RedriveError, StateFileError
from .ladder import look

SUFFIX = ".db"


def default_folder() -> str:
    """The folder for state files of this user on this host."""
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/redrive")
    home = os.environ.get("XDG_STATE_HOME", "")
    base = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    return os.path.join(base, "redrive")


def default_paths() -> List[str]:
    """State files in the default folder, the one written last first."""
    folder = default_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names if name.endswith(SUFFIX)]
    return sorted(paths, key=_written_at, reverse=True)


def _written_at(path: str) -> float:
    """A writer's latest commits are in the log until a checkpoint brings them into the file."""
    latest = 0.0
    for name in (path, path + "-wal"):
        try:
            latest = max(latest, os.stat(name).st_mtime)
        except OSError:
            pass
    return latest


def resolve(path: str) -> str:
    """Expand ``~``; "" is what REDRIVE_STATE names, else the latest file in the default folder.

    Raises StateFileError when there is none.
    """
    path = path or os.environ.get("REDRIVE_STATE", "")
    if path:
        return os.path.abspath(os.path.expanduser(os.fsdecode(path.encode("utf-8", "surrogateescape"))))
    paths = default_paths()
    if not paths:
        raise StateFileError("there is no state file in {}; name one".format(default_folder()))
    return paths[0]


def default_state_files() -> List[Dict[str, Any]]:
    """What can be offered to somebody who named no file: path, when written, and its latest run."""
    return [dict(_latest_run(path), path=path, written_at=int(_written_at(path) * 1000000)) for path in default_paths()]


def _latest_run(path: str) -> Dict[str, Any]:
    try:
        connection = look(path).connection
    except RedriveError as error:
        return {"trouble": str(error)}
    try:
        row = connection.execute(
            "SELECT dag_name, run_id, state FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1"
        ).fetchone()
    finally:
        connection.close()
    return {"dag_name": row[0], "run_id": row[1], "state": row[2]} if row else {}
