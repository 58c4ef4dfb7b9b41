"""Lists the state files in the default folder of a host, for a user who named none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
from typing import Any, Dict, List

from ...errors import RedriveError
from ..default_paths import STATE_VARIABLE, default_paths, resolve, written_at
from ..open_readonly import open_readonly


def state_files() -> List[Dict[str, Any]]:
    """Path, instant of the last write and latest run of each file, latest write first.

    If REDRIVE_STATE is set, only its file.
    """
    paths = [resolve("")] if os.environ.get(STATE_VARIABLE) else default_paths()
    return [dict(_latest_run(path), path=path, written_at=int(written_at(path) * 1000000)) for path in paths]


def _latest_run(path: str) -> Dict[str, Any]:
    try:
        connection = open_readonly(path).connection
    except RedriveError as error:
        return {"trouble": str(error)}
    try:
        row = connection.execute(
            "SELECT dag_name, run_id, state FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1"
        ).fetchone()
    finally:
        connection.close()
    return {"dag_name": row[0], "run_id": row[1], "state": row[2]} if row else {}
