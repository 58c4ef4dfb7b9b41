"""One sentence for each way to hang, from what was seen of the processes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from redrive.engine.core.failures.hang import (
    SYSTEM_CALLS,
    Activity,
    Autopsy,
    Descriptor,
    FileLock,
    Process,
    StackSummary,
    activity_of_channel,
    describe_hang,
    hang_report,
    split_stack_and_report,
)
from support.marks import for_each

HERE = StackSummary(where="load.py:12 in fetch")
DATABASE = Descriptor(10, 3, "tcp", "10.0.0.5:5432", "ESTABLISHED", unread=0, unsent=0)


def process(doing: Activity | None = None, *waits_on: int, pid: int = 10, parent: int = 0, **more: Any) -> Process:
    name = {10: "python3", 11: "psql"}.get(pid, "sh")
    values: dict[str, Any] = {"state": "S", "name": name, "is_exact": True, **more}
    return Process(pid, parent, activity=doing, waits_on=waits_on, **values)


def autopsy(*processes: Process, ends: tuple[Descriptor, ...] = (), cpu: float | None = 0.0, **more: Any) -> Autopsy:
    return Autopsy(processes=processes, descriptors=ends, cpu=cpu, window_seconds=10.0, **more)


CHILD: dict[str, Any] = {"pid": 11, "parent": 10, "wait_channel": "wait_woken"}
PIPE = (Descriptor(10, 5, "pipe", inode=77), Descriptor(11, 1, "pipe", inode=77, is_write_end=True))
SEEN = {
    "blocked in recv from 10.0.0.5:5432 at load.py:12 in fetch": autopsy(
        process(Activity.RECEIVE, 3), ends=(DATABASE,)
    ),
    "blocked in recv from 10.0.0.5:5432 (CLOSE_WAIT) at load.py:12 in fetch": autopsy(
        process(Activity.READ, 3), ends=(replace(DATABASE, state="CLOSE_WAIT"),)
    ),
    "blocked in send to 10.0.0.5:5432 (4,096 bytes unsent) at load.py:12 in fetch": autopsy(
        process(Activity.SEND, 3), ends=(replace(DATABASE, unsent=4096),)
    ),
    "connecting to 10.0.0.5:5432 (SYN_SENT) at load.py:12 in fetch": autopsy(
        process(Activity.CONNECT, 3), ends=(replace(DATABASE, state="SYN_SENT"),)
    ),
    "waits for 10.0.0.5:5432 at load.py:12 in fetch": autopsy(process(Activity.POLL, 3), ends=(DATABASE,)),
    "waits for 10.0.0.5:5432, 10.0.0.6:80 and 1 more at load.py:12 in fetch": autopsy(
        process(Activity.EPOLL, 3, 4, 5),
        ends=(DATABASE, Descriptor(10, 4, "tcp", "10.0.0.6:80"), Descriptor(10, 5, "tcp", "10.0.0.7:80")),
    ),
    "idle in its event loop at load.py:12 in fetch": autopsy(
        process(Activity.EPOLL, 4), ends=(DATABASE, Descriptor(10, 4, "unix"))
    ),
    "reading /mnt/slow/x.csv at load.py:12 in fetch": autopsy(
        process(Activity.READ, 6), ends=(Descriptor(10, 6, "file", "/mnt/slow/x.csv"),)
    ),
    "stuck in the kernel, where no signal reaches it (nfs_wait): reading /mnt/x at load.py:12 in fetch": autopsy(
        process(Activity.READ, 6, state="D", wait_channel="nfs_wait"), ends=(Descriptor(10, 6, "file", "/mnt/x"),)
    ),
    "waits at load.py:12 in fetch for its child `psql` (pid 11, S in wait_woken): blocked in recv from "
    "10.0.0.5:5432": autopsy(
        process(Activity.WAIT_CHILD, 11), process(Activity.RECEIVE, 3, **CHILD), ends=(replace(DATABASE, pid=11),)
    ),
    "waits at load.py:12 in fetch for its child `psql` (pid 11, S in wait_woken): blocked in recv": autopsy(
        process(Activity.POLL, 5), process(Activity.RECEIVE, 3, **CHILD), ends=PIPE
    ),
    "waits at load.py:12 in fetch for its descendant `sh` (pid 12, S): asleep": autopsy(
        process(Activity.WAIT_CHILD),
        process(Activity.WAIT_CHILD, **CHILD),
        process(Activity.SLEEP, pid=12, parent=11),
    ),
    "waits for a child process at load.py:12 in fetch": autopsy(
        process(Activity.WAIT_CHILD), process(pid=11, parent=10, state="Z")
    ),
    "waits for a lock on /x held by pid 12 (`etl`) at load.py:12 in fetch": autopsy(
        process(Activity.LOCK_FILE, 3), locks=(FileLock(10, "/x", 12, "etl"),)
    ),
    "waits for a lock on /x at load.py:12 in fetch": autopsy(
        process(Activity.LOCK_FILE, 3), locks=(FileLock(10, "/x"),)
    ),
    "waits for a lock or a thread of its own at load.py:12 in fetch": autopsy(process(Activity.FUTEX)),
    "waits for a thread of its own, blocked in recv from 10.0.0.5:5432 at load.py:12 in fetch": autopsy(
        process(Activity.FUTEX), ends=(DATABASE,), threads=(process(Activity.RECEIVE, 3, pid=14, owner=10),)
    ),
    "asleep at load.py:12 in fetch": autopsy(process(Activity.SLEEP)),
    "stopped by a signal at load.py:12 in fetch": autopsy(process(state="T")),
    "blocked in io_schedule at load.py:12 in fetch": autopsy(process(wait_channel="io_schedule")),
}


@for_each("expected", SEEN)
def test_who_waits_says_for_whom_and_that_it_costs_nothing(expected: str) -> None:
    assert describe_hang(SEEN[expected], HERE) == f"{expected}, 0 % CPU for the last 10s"


def test_who_computes_says_where() -> None:
    """The two hangs need different people."""
    spinning = autopsy(process(state="R", cpu=1.0), cpu=1.0)
    regex = StackSummary("parser.py:87 in read_row", "re.match")
    assert (
        describe_hang(spinning, regex) == "spinning in re.match at parser.py:87 in read_row, 100 % CPU for the last 10s"
    )
    assert describe_hang(spinning, HERE) == "spinning at load.py:12 in fetch, 100 % CPU for the last 10s"
    assert describe_hang(spinning) == "`python3` is spinning, 100 % CPU for the last 10s"


def test_a_child_that_computes_is_named() -> None:
    report = autopsy(process(Activity.WAIT_CHILD), process(pid=11, parent=10, state="R", cpu=0.98), cpu=0.98)
    assert describe_hang(report, HERE) == "its child `psql` (pid 11, R) is spinning, 98 % CPU for the last 10s"


def test_on_a_crowded_machine_who_wants_to_run_computes_too() -> None:
    report = autopsy(process(state="R", cpu=0.2), cpu=0.2)
    assert describe_hang(report, HERE) == "spinning at load.py:12 in fetch, 20 % CPU for the last 10s"
    thread = process(state="R", pid=14, owner=10)
    frames = StackSummary("flow.py:3 in work", "threading.join", "flow.py:30 in crunch")
    assert describe_hang(autopsy(process(Activity.FUTEX, cpu=0.2), cpu=0.2, threads=(thread,)), frames).startswith(
        "a thread is spinning at flow.py:30 in crunch, 20 %"
    )
    resting = autopsy(process(Activity.SLEEP, cpu=0.2), cpu=0.2)
    assert describe_hang(resting, HERE) == "asleep at load.py:12 in fetch, 20 % CPU for the last 10s"


def test_children_that_end_at_once_leave_their_work_behind() -> None:
    report = autopsy(process(Activity.WAIT_CHILD, cpu=0.1), cpu=0.9)
    assert describe_hang(report) == "busy, in processes that come and go, 90 % CPU for the last 10s"


def test_a_thread_that_computes_while_the_first_waits_for_it_is_reported_by_its_own_place() -> None:
    report = autopsy(process(Activity.FUTEX, cpu=1.0), cpu=1.0)
    frames = StackSummary("flow.py:3 in work", "threading.join", "flow.py:30 in crunch")
    assert describe_hang(report, frames) == "a thread is spinning at flow.py:30 in crunch, 100 % CPU for the last 10s"


def test_a_wait_in_the_library_is_called_by_its_name() -> None:
    frames = StackSummary("flow.py:3 in work", "threading.join")
    assert describe_hang(autopsy(process(Activity.FUTEX)), frames).startswith(
        "waits in threading.join at flow.py:3 in work"
    )


def test_of_a_pipeline_the_one_is_named_that_waits_for_no_other_of_it() -> None:
    """``psql | gzip`` in a shell: gzip waits for psql, and psql for the database."""
    ends = (
        Descriptor(12, 0, "pipe", inode=5),
        Descriptor(11, 1, "pipe", inode=5, is_write_end=True),
        replace(DATABASE, pid=11),
    )
    gzip = process(Activity.READ, 0, pid=12, parent=10)
    psql = process(Activity.RECEIVE, 3, pid=11, parent=10)
    assert "`psql` (pid 11, S): blocked in recv from 10.0.0.5:5432" in describe_hang(
        autopsy(process(Activity.WAIT_CHILD), gzip, psql, ends=ends)
    )


def test_two_that_wait_for_one_another_end_the_sentence() -> None:
    ends = tuple(
        Descriptor(pid, number, "pipe", inode=inode, is_write_end=bool(number))
        for pid, number, inode in ((10, 0, 1), (11, 1, 1), (11, 0, 2), (10, 1, 2))
    )
    report = autopsy(process(Activity.READ, 0), process(Activity.READ, 0, pid=11, parent=10), ends=ends)
    assert "`psql` (pid 11, S): blocked on a pipe, 0 %" in describe_hang(report)


def test_where_a_container_hides_the_call_the_one_connection_is_a_guess_and_said_to_be_one() -> None:
    hidden = process(Activity.RECEIVE, is_exact=False)
    assert describe_hang(autopsy(hidden, ends=(DATABASE,)), HERE).startswith(
        "blocked in recv, perhaps from 10.0.0.5:5432 at load.py:12"
    )
    two = (DATABASE, replace(DATABASE, number=4, name="10.0.0.6:80"))
    assert describe_hang(autopsy(hidden, ends=two), HERE).startswith("blocked in recv at load.py:12")


def test_nothing_seen_says_nothing() -> None:
    assert describe_hang(Autopsy(), HERE) == ""
    assert hang_report(Autopsy()) == ""


def test_an_unknown_share_of_the_processor_is_not_reported() -> None:
    assert describe_hang(autopsy(process(Activity.SLEEP), cpu=None)) == "asleep"


def test_a_short_window_is_reported_to_the_tenth() -> None:
    report = replace(autopsy(process(Activity.SLEEP)), window_seconds=0.42)
    assert describe_hang(report).endswith("0 % CPU for the last 0.4s")


def test_the_report_has_a_line_for_each_thing_and_leaves_out_what_says_nothing() -> None:
    report = autopsy(
        process(Activity.RECEIVE, 3, wait_channel="wait_woken", cpu=0.01, command_line="psql -f load.sql"),
        ends=(DATABASE, Descriptor(10, 1, "pipe", inode=4, is_write_end=True)),
        locks=(FileLock(10, "/x", 12, "etl"),),
        last_output="loading batch 7",
        quiet_seconds=38.4,
    )
    assert hang_report(report).splitlines() == [
        "Processes:",
        "  pid 10 S in wait_woken, recv 3, 1 % CPU: psql -f load.sql",
        "Open:",
        "  pid 10 fd 3 tcp 10.0.0.5:5432 (ESTABLISHED, 0 bytes unread, 0 bytes unsent)",
        "Locks:",
        "  pid 10 waits for /x held by pid 12 etl",
        "Output:",
        "  38s before: loading batch 7",
    ]


def test_the_report_ends_somewhere_and_says_so() -> None:
    ends = tuple(Descriptor(10, number, "tcp", f"10.0.0.5:{number}") for number in range(500))
    text = hang_report(replace(autopsy(process(), ends=ends), is_complete=False))
    assert len(text.splitlines()) < 60
    assert "  and 460 more\n" in text
    assert text.endswith("The list is incomplete: the inspection reached its time limit.\n")


def test_the_two_parts_of_what_was_seen_come_apart_again() -> None:
    """Attempts hang at the same place with other pids: the stacks are compared, the processes are not."""
    dump, report = (
        'Current thread 0x1:\n  File "load.py", line 12 in fetch\n',
        hang_report(autopsy(process(Activity.SLEEP))),
    )
    assert split_stack_and_report(dump + report) == (dump, report)
    assert split_stack_and_report(dump) == (dump, "")
    assert split_stack_and_report(report) == ("", report)


def test_every_call_has_one_meaning_on_each_machine() -> None:
    for table in SYSTEM_CALLS.values():
        assert set(table.values()) == set(Activity)


@for_each(
    "channel, doing",
    [
        ("wait_woken", Activity.RECEIVE),
        ("do_wait", Activity.WAIT_CHILD),
        ("futex_do_wait", Activity.FUTEX),
        ("poll_schedule_timeout.constprop.0", Activity.POLL),
        ("", None),
        ("io_schedule", None),
    ],
)
def test_the_kernel_function_reports_where_the_call_may_not_be_read(channel: str, doing: Activity | None) -> None:
    assert activity_of_channel(channel) is doing
