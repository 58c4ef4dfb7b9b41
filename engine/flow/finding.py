"""A finding of ``redrive check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. "error": the flow cannot run. ``task``: None for the whole flow; ``line``: in its file."""

    level: Level
    rule: str
    message: str
    task: str | None = None
    line: int | None = None
