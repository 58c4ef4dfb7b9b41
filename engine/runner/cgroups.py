"""Limits that the kernel holds: a cgroup (version 2) for each attempt with ``memory=`` or ``cpus=``.

They need a cgroup that was delegated to this process: by systemd (``Delegate=yes``, a service with a subgroup for its
own process), or the root of a container that may write to it. The kernel divides only a cgroup without processes, so
all that are in it move into a leaf first. An attempt enters its own before it does anything else, and its cgroup is
removed after its end. The worker of a command enters it to start the program there, and leaves it again.

Without such a cgroup the memory of an attempt is sampled (``usage.py``), and ``cpus=`` is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ..core.spec import FlowSpec, TaskSpec, work_of
from ..errors import FlowError
from .out_of_memory import count_kills, read_text
from .process import CGROUP as LEAF
from .protocol import AttemptOrder

MOVES_MAX = 10  # while processes are moved, others are forked
PERIOD_US = 100_000

NO_CPUS = (
    "cpus= needs a cgroup that is delegated to redrive, and this process has none: give its unit Delegate=yes and"
    " DelegateSubgroup=supervisor, start it by systemd-run --user --scope -p Delegate=yes, or leave cpus= out"
)


def delegated(root: Path = Path("/")) -> Path | None:
    """Return the cgroup that this process may divide; None: there is none. ``root``: the folder of /proc and /sys."""
    lines = read_text(root / "proc/self/cgroup").splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return None
    mount = root / "sys/fs/cgroup"
    own = mount / path
    if own.name.startswith(f"{LEAF}-"):
        return None  # of an attempt, whose limits hold for what it starts too
    places = (own.parent,) if own.suffix == ".service" else (own, own.parent)  # a divided unit cannot be restarted
    return next((base for base in places if _is_ours(base, mount)), None)


def _is_ours(base: Path, mount: Path) -> bool:
    """Return whether a cgroup was delegated: systemd has marked it, or it is the root of a container."""
    is_marked = base == mount and (base / "cgroup.type").exists()
    with suppress(OSError):
        is_marked = is_marked or os.getxattr(base, "user.delegate") == b"1"
    needed = (base, base / "cgroup.procs", base / "cgroup.subtree_control")
    has_controllers = {"cpu", "memory"} <= {*read_text(base / "cgroup.controllers").split()}
    return is_marked and has_controllers and all(os.access(one, os.W_OK) for one in needed)


def cpus_problem(task: TaskSpec, base: Path | None, *, shares_process: bool = False) -> str | None:
    """Return why the CPUs of a task cannot be bounded; None: they can, or need not.

    ``shares_process``: its function runs in a process that runs other attempts too.
    """
    if work_of(task).cpus is None:
        return None
    if base is None:
        return NO_CPUS
    is_shared = shares_process and task.kind != "command"
    return "the import of the flow leaves threads running, and cpus= bounds a process of its own" if is_shared else None


def open_cgroups(flow: FlowSpec, *, shares_process: bool) -> Cgroups | None:
    """Prepare the cgroups of a flow with limits; None: it has none, or its memory is sampled. Raises FlowError."""
    limited = [task for task in flow.tasks if work_of(task).memory is not None or work_of(task).cpus is not None]
    base = delegated() if limited else None
    try:
        found = Cgroups(base) if base is not None else None
    except OSError:
        found = base = None
    for task in limited:
        problem = cpus_problem(task, base, shares_process=shares_process)
        if problem is not None:
            raise FlowError(f"task {task.name!r}: {problem}", task=task.name)
    return found


class Cgroups:
    """The cgroups below one that was delegated. Raises OSError if it cannot be divided after all."""

    def __init__(self, base: Path) -> None:
        self._base = base
        left = base.glob(f"{LEAF}-*-*")  # by executors that have been killed
        _remove_empty(folder for folder in left if not os.path.exists(f"/proc/{folder.name.split('-')[1]}"))
        leaf = base / LEAF
        leaf.mkdir(exist_ok=True)
        for more in reversed(range(MOVES_MAX)):
            for pid in read_text(base / "cgroup.procs").split():
                with suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
            try:
                (base / "cgroup.subtree_control").write_text("+cpu +memory")
                return
            except OSError as error:
                if error.errno != errno.EBUSY or not more:
                    raise

    def bound(self, order: AttemptOrder, number: int) -> AttemptOrder:
        """Return the order of an attempt with the cgroup that is made for it, if it has limits. Raises OSError."""
        spec = order.spec
        if spec.memory is None and spec.cpus is None:
            return order
        folder = self._base / f"{LEAF}-{os.getpid()}-{number}"
        folder.mkdir()
        if spec.memory is not None:
            (folder / "memory.max").write_text(str(spec.memory))
            (folder / "memory.oom.group").write_text("1")
            with suppress(OSError):  # there is no swap
                (folder / "memory.swap.max").write_text("0")
        if spec.cpus is not None:
            (folder / "cpu.max").write_text(f"{max(round(spec.cpus * PERIOD_US), 1000)} {PERIOD_US}")
        return replace(order, cgroup=str(folder))

    def close(self) -> None:
        """Remove what attempts without a proper end have left."""
        _remove_empty(self._base.glob(f"{LEAF}-{os.getpid()}-*"))


def remove(folder: str) -> tuple[int, bool]:
    """Remove the cgroup of an attempt that has ended.

    Returns the most bytes that it held, and whether the kernel has ended it for its memory.
    """
    path = Path(folder)
    peak, kills = read_text(path / "memory.peak").strip(), count_kills(path / "memory.events")
    _remove_empty([path])
    return int(peak or 0), bool(kills)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # a process lives in it
            folder.rmdir()
