"""How many keys each job of an operator takes, without the text that is typed: each is pressed and seen to be done.

A job that comes to need another number of keys fails here, so the number is a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock
from .screen_driver import ScreenDriver, open_console, poisoned_run
from .test_log import chunks_of

WIDE, SMALL = (120, 40), (80, 24)
REQUEUE_CAUSE = ("4", "g", "r", "1", "0", "8", "0")


class Job(NamedTuple):
    """``presses``: without the text; ``text``: what is typed at the place of None; ``is_done``: judges the screen."""

    name: str
    presses: int
    keys: tuple[str | None, ...]
    is_done: Callable[[ScreenDriver, FakeSession], bool]
    size: tuple[int, int] = SMALL
    text: str = ""


def shows(*words: str) -> Callable[[ScreenDriver, FakeSession], bool]:
    return lambda driver, session: all(word in driver.text for word in words)


def sent(*acts: str, **options: object) -> Callable[[ScreenDriver, FakeSession], bool]:
    def is_done(driver: ScreenDriver, session: FakeSession) -> bool:
        build_row = [command.act for command in session.commands] == list(acts)
        return build_row and options.items() <= dict(session.commands[0].options).items()

    return is_done


ON_ONE_FAILURE = (
    Job("know why it is stuck", 0, (), shows("◆ DEAD", "same failure")),
    Job("read the traceback", 0, (), shows("settle.py"), WIDE),
    Job("requeue one", 1, ("r",), sent("requeue")),
    Job("requeue one and take it back", 2, ("r", "z"), sent("requeue", "undo")),
    Job("skip with a reason", 2, ("s", None, "enter"), sent("skip"), text="known"),
    Job("see only problems", 1, ("slash", None), shows("/dead", "1 of 10 match"), text="dead"),
    Job("find a task", 1, ("slash", None), shows("/notify", "1 of 10 match"), text="notify"),
    Job(
        "find a line in a log",
        2,
        ("5", "slash", None),
        shows("/row 4,812", "row 4,812: zero"),
        text="row 4,812",
    ),
    Job("go to the first error of a log", 2, ("5", "e"), shows("ZeroDivisionError: division by zero")),
    Job("see the critical path", 2, ("3", "c"), shows("critical path: 2 tasks, 16s of work")),
    Job("see the last runs of each task", 1, ("1",), shows("usual", "the whole run"), WIDE),
    Job("copy the command that requeues", 3, ("y", "j", "enter"), shows("sent to the terminal's clipboard")),
)
ON_A_THOUSAND = (
    Job("see the causes", 1, ("4",), shows("3 causes", "1,080  UnicodeDecodeError")),
    Job("requeue a cause at 5 a second", 8, (*REQUEUE_CAUSE, "a"), sent("requeue", rate_per_second=5)),
    Job("requeue one of a cause first", 4, ("4", "g", "r", "o"), sent("requeue", canary=True)),
    Job(
        "requeue a cause at another rate",
        12,
        (*REQUEUE_CAUSE, "tab", "backspace", "2", "0", "a"),
        sent("requeue", rate_per_second=20),
    ),
    Job("compare two attempts of a cause", 0, (), shows("#1", "#2", "nothing changed"), WIDE),
    Job(
        "write down what is known of a cause", 4, ("4", "g", "w", None, "enter"), sent("note"), text="parser was fixed"
    ),
)


@parametrize_mostly_long("job", ON_ONE_FAILURE, ids=lambda job: job.name, quick=6)
async def test_keys_of_a_job_on_one_failure(revenue: FakeSession, clock: StillClock, job: Job) -> None:
    revenue.logs = {
        ("clean_refunds", 1): chunks_of("start\nrow 4,811: ok\nend\n"),
        ("clean_refunds", 2): chunks_of("start\nrow 4,812: zero\nZeroDivisionError: division by zero\n" + "end\n" * 40),
    }
    await do(job, revenue, clock)


@parametrize_mostly_long("job", ON_A_THOUSAND, ids=lambda job: job.name, quick=1)
async def test_keys_of_a_job_on_a_thousand_failures(clock: StillClock, job: Job) -> None:
    await do(job, poisoned_run(clock, 1_080), clock)


async def do(job: Job, session: FakeSession, clock: StillClock) -> None:
    """Press the keys: the job is done after the last one and not before."""
    assert sum(key is not None for key in job.keys) == job.presses
    async with open_console(session, clock, size=job.size) as driver:
        for key in job.keys:
            assert not job.is_done(driver, session), f"done before {key}"
            await (driver.type(job.text) if key is None else driver.press(key))
        assert job.is_done(driver, session), driver.text
