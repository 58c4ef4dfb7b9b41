"""Lists the state files in the default folder of a host, for a user who named none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The order depends on runs and never on the time of a write, because an idle executor writes, too.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...domain.states import RunState
from ...errors import RedriveError, StateFileError
from ..default_paths import default_folder, default_paths, named_path
from ..open_readonly import open_readonly


class Offer(NamedTuple):
    """A state file with its latest run.

    Attributes:
        started_at: of the latest run, microseconds UTC; 0 without a run.
        has_work: whether a run of the file is unfinished, or the latest run has failed.
        trouble: why the file cannot be read.
    """

    path: str
    dag_name: Optional[str] = None
    run_id: Optional[str] = None
    state: Optional[str] = None
    started_at: int = 0
    has_work: bool = False
    trouble: Optional[str] = None


def offers() -> List[Offer]:
    """Every state file of the default folder: first those with something to do, then by the start of the latest run.

    If REDRIVE_STATE is set, only its file.
    """
    named = named_path("")
    return sorted(map(_offer, default_paths() if named is None else [named]), key=_rank)


def default_path() -> str:
    """The first of ``offers``. Raises StateFileError when there is none."""
    found = offers()
    if not found:
        sentence = "there is no state file in {}; start a run, or name one with --state"
        raise StateFileError(sentence.format(default_folder()))
    return found[0].path


def state_files() -> List[Dict[str, Any]]:
    """``offers`` in JSON values."""
    return [dict(offer._asdict()) for offer in offers()]


def _rank(offer: Offer) -> Tuple[bool, bool, int, str]:
    return offer.trouble is not None, not offer.has_work, -offer.started_at, offer.path


_LATEST = (
    "SELECT dag_name, run_id, state, started_at, EXISTS (SELECT 1 FROM run WHERE ended_at IS NULL)"
    " FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1"
)


def _offer(path: str) -> Offer:
    try:
        connection = open_readonly(path).connection
    except RedriveError as error:
        return Offer(path, trouble=str(error))
    try:
        row = connection.execute(_LATEST).fetchone()
    finally:
        connection.close()
    if row is None:
        return Offer(path)
    dag_name, run_id, state, started_at, is_any_unfinished = row
    return Offer(path, dag_name, run_id, state, started_at, bool(is_any_unfinished) or state == RunState.FAILED)
