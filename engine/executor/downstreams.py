"""Changes of breakers and retry budgets, told as events.

What is only counted (window, tokens) is stored with the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.events import EventKind
from ..store import breaker_rows
from ..store.journal import Journal


def tell_change(journal: Journal, run_id: str, told: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a change of state with its event."""
    breaker_rows.store(journal, rows)
    journal.tell(EventKind.BREAKER, run_id, data=dict(told))
