"""A power cut at any call leaves a whole file, and in it all that was told."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from redrive.engine.executor import host
from redrive.engine.statefile import lock_file
from redrive.engine.store import database
from support.marks import scaled
from support.processes import wait_for_end
from support.tracing import needs_strace

from .disk import Disk, Remains, choose_cuts
from .evidence import AcknowledgedNumbers, cut_everywhere
from .record import RUN_ID, record_run, record_writer
from .recording import Call


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    state = str(tmp_path / "state.db")
    disk = Disk(str(tmp_path), frozenset([state]))
    calls = [
        Call(1, "openat", state, b"", (), 0),
        Call(1, "fsync", str(tmp_path), b"", (), 1),
        Call(1, "pwrite64", state, b"a" * 5000, (5000, 0), 2),
        Call(1, "fdatasync", state, b"", (), 3),
        Call(1, "pwrite64", state, b"b" * 5000, (5000, 0), 4),
        Call(1, "fdatasync", state, b"", (), 4),  # begun before the last write had ended
    ]
    for number, call in enumerate(calls):
        disk.follow(number, call)
    found = {}
    for left in (Remains.NOTHING, Remains.ALL):
        (tmp_path / left).mkdir()
        disk.cut(tmp_path / left, left, random.Random(0))
        found[left] = (tmp_path / left / "state.db").read_bytes()
    assert found == {Remains.NOTHING: b"a" * 5000, Remains.ALL: b"b" * 5000}


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize(("commits", "count"), [(40, 150), pytest.param(600, scaled(600), marks=pytest.mark.weekly)])
def test_a_writer_says_nothing_that_a_power_cut_undoes(tmp_path: Path, commits: int, count: int) -> None:
    """Its log starts again every few commits. Without the syncs of the log, the same cuts find it out."""
    calls, acknowledged, state = record_writer(tmp_path, commits)
    cuts = choose_cuts(calls, count)
    assert cut_everywhere(calls, cuts, state, acknowledged, tmp_path) == []
    assert acknowledged.last == commits
    unsynced = [call for call in calls if not (call.name == "fdatasync" and call.path.endswith("-wal"))]
    assert cut_everywhere(unsynced, choose_cuts(unsynced, 150), state, AcknowledgedNumbers(), tmp_path)


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize(("width", "count"), [(2, 100), pytest.param(60, scaled(600), marks=pytest.mark.weekly)])
def test_a_run_says_nothing_that_a_power_cut_undoes(tmp_path: Path, width: int, count: int) -> None:
    """Its lines, its answers to an operator, its page, its effect and its exit code are in what is left."""
    calls, acknowledged, state = record_run(tmp_path, width)
    assert cut_everywhere(calls, choose_cuts(calls, count), state, acknowledged, tmp_path) == []
    assert (acknowledged.answers, len(acknowledged.pages), len(acknowledged.effects), acknowledged.exit_code) == (
        2,
        1,
        1,
        3,
    )


@pytest.mark.long
@needs_strace
def test_a_run_goes_on_after_a_power_cut_and_pays_once(tmp_path: Path) -> None:
    """The worst case: all that tasks wrote themselves is on the disk."""
    calls, acknowledged, state = record_run(tmp_path, 2)
    resumed: list[tuple[str, int]] = []

    def resume(left: Path) -> None:
        if acknowledged.answers < 2 or acknowledged.exit_code is not None:  # still paused, or already over
            return
        folder = left.parent
        (folder / "go-on").touch()
        (folder / "flow.py").write_text((tmp_path / "flow.py").read_text())
        (folder / "paid").write_text("".join(f"{key}\n" for key in acknowledged.effects))
        wait_for_end(host.spawn(flow=str(folder / "flow.py"), state=str(left), run_id=RUN_ID, options={"copy": True}))
        assert lock_file.last_holder(str(left)).released_at, "it has not ended in order"
        with database.reading(left) as connection:
            (pay,) = connection.execute("SELECT state FROM task WHERE name = 'pay'").fetchone()
        resumed.append((pay, len((folder / "paid").read_text().splitlines())))

    assert cut_everywhere(calls, choose_cuts(calls, scaled(20)), state, acknowledged, tmp_path, resume) == []
    assert len(resumed) > 3
    for pay, count in resumed:
        assert count <= 1, resumed
        assert pay == "DEAD_LETTER" or (pay == "SUCCESS" and count == 1), resumed
