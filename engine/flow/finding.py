"""One thing to know about a flow before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``error``: it cannot run as it stands. ``task`` is None for the flow as a whole; ``line``: of the flow file."""

    level: Level
    rule: str
    message: str
    task: str | None = None
    line: int | None = None
