"""Output and long texts of attempts, as ``logs.py`` and ``log_search.py`` read them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import NamedTuple, Optional, Sequence


class LogChunk(NamedTuple):
    """A piece of an attempt's output. ``dropped``: bytes that were dropped between the chunk before and this one."""

    id: int
    at: int  # microseconds UTC
    text: str
    dropped: int = 0


class AttemptText(NamedTuple):
    """The long texts of one attempt."""

    traceback: str = ""
    stack: str = ""
    diagnostic: str = ""
    fingerprint_detail: str = ""  # JSON


class FoundChunk(NamedTuple):
    """``found``: the chunk with the match; ``next``: where to go on, None at the end of the output."""

    found: Optional[int]
    next: Optional[int]


class SelectedLines(NamedTuple):
    """Lines that match, as chunks. ``rest``: the unfinished line; ``last_id``: of the last chunk that was searched;
    ``is_end``: the output ends there."""

    chunks: Sequence[LogChunk]
    rest: str
    last_id: int
    is_end: bool
