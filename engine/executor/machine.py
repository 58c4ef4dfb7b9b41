"""What an executor takes from the machine it runs on, as one argument: a played night gives it another machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ..clock import Clock, SystemClock
from ..core.spec import Durability, FlowSpec
from ..runner.zygote.client import environment_hash
from ..statefile.paths import default_folder
from ..store import database
from ..store.claims import random_hex
from ..store.write_ahead_log import WorkThread
from .resume_plan import read_flow
from .run_options import RunRequest
from .state_file_lease import StateFileLease, acquire_state_file

HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The clock, the processes and the disk of an executor.

    Attributes:
        acquire: locks the state file and makes the runner of the attempts.
        read_flow: imports a flow file apart from a run, with parameters.
        open_database: opens the locked state file for writing.
        writer_thread: runs the writes; None: threads of the writer.
        environment_hash: names the interpreter and its packages.
        breakers_folder: returns where executors tell one another which downstreams are down; None: they do not.
        random_hex: names an executor (16 bytes) and an attempt (8 bytes) as no other.
        heartbeat_seconds: between two beats of an executor, and two looks of a service at the clock.
    """

    clock: Clock = field(default_factory=SystemClock)
    acquire: Callable[[RunRequest], StateFileLease] = acquire_state_file
    read_flow: Callable[[str, Mapping[str, object]], Awaitable[FlowSpec]] = read_flow
    open_database: Callable[[str, Durability], sqlite3.Connection] = database.open_for_writing
    writer_thread: WorkThread | None = None
    environment_hash: Callable[[], str] = environment_hash
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    breakers_folder: Callable[[], str | None] = lambda: os.path.join(default_folder(), "breakers")
    random_hex: Callable[[int], str] = random_hex
