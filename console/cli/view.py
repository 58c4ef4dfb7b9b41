"""Prints what a command reads through a session: once, or again whenever it changes."""

from __future__ import annotations

from ..sessions.address import Endpoint
from ..sessions.once import read_once
from .output import Read, print_lines


def print_view(endpoint: Endpoint, read: Read, *, follow: bool, as_json: bool) -> int:
    """Print the lines that ``read`` returns; with ``follow``, again whenever they change."""
    if follow:
        from .following import follow_view  # here: it imports the event loop

        return follow_view(endpoint, read, as_json=as_json)
    print_lines(read_once(endpoint, read))
    return 0
