"""How a console was started on a state file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The start of the console.

    Attributes:
        state_path: the state file, where an executor can be started from here.
        started_here: whether this console started the run; leaving then asks whether to stop it.
        run_options: for executors that are started later, fields of RunOptions.
        is_of_fleet: whether Esc at the top level returns to the list of state files.
        has_tour: whether a line guides through the run, which is the demo's.
    """

    state_path: str | None = None
    started_here: bool = False
    run_options: Mapping[str, object] = field(default_factory=dict)
    is_of_fleet: bool = False
    has_tour: bool = False
