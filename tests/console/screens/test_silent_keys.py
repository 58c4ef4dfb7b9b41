"""No key that footer or help offers is silent: each changes the screen, or a sentence says why it does nothing.

Each key of each screen is pressed on a run that goes on, on one that is blocked, and on one that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redrive.console.keys.actions import MOVE_ACTIONS, VIEWS, Action, ScreenName, actions_of
from redrive.console.keys.keymap import key_name
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import RunState, TaskState
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock
from ..model.runs import START, S, projection_of
from .outages import outage
from .screen_driver import ScreenDriver, open_console, poisoned_run
from .test_log import chunks_of

#: Actions without a sentence of their own: moves stop at an edge, and Esc and q at the top level are those of a dialog.
EXEMPT = {action.name for action in MOVE_ACTIONS} | {"back", "quit", "redraw", "suspend"}
SIZE = (120, 40)
ESCAPES_MAX = 20  # that close what a key has opened
#: How often a key is pressed that goes step by step to an end.
REPEATED = {"fold": 14, "unfold": 14, "older_attempt": 3, "newer_attempt": 3, "slower": 3}


def running(session: FakeSession) -> FakeSession:
    return session


def blocked(session: FakeSession) -> FakeSession:
    """Nothing runs and nothing will: what has not ended waits below a dead letter."""
    _end_attempts(session, TaskState.DEAD_LETTER)
    session.projection.run = session.projection.run._replace(blocked_since=START + 60 * S)
    return session


def ended(session: FakeSession) -> FakeSession:
    _end_attempts(session, TaskState.FAILED)
    session.projection.run = session.projection.run._replace(state=RunState.PARTIAL, ended_at=START + 60 * S)
    session.set_status(executor=ExecutorState())
    for row in session.projection.tasks.values():
        if row.state in (TaskState.PENDING, TaskState.READY):
            row.state = TaskState.UPSTREAM_FAILED
    return session


def _end_attempts(session: FakeSession, state: TaskState) -> None:
    for row in session.projection.tasks.values():
        if row.state in (TaskState.RUNNING, TaskState.RETRYING, TaskState.SENSING):
            row.state, row.ended_at, row.next_retry_at = state, START + 50 * S, None
            for attempt in row.attempts.values():
                if attempt.ended_at is None:
                    attempt.ended_at, attempt.outcome, attempt.error = START + 50 * S, "error", "no answer"


RUNS = {"running": running, "blocked": blocked, "ended": ended}


def screen_of(driver: ScreenDriver) -> list[Any]:
    """Every cell of the screen with its style."""
    return [list(strip) for strip in driver.app.screen._compositor.render_strips()]


def pressed_actions(screen: ScreenName) -> Sequence[Action]:
    return [
        action for action in actions_of(screen) if action.keys and action.name not in EXEMPT | {f"view_{screen.value}"}
    ]


async def silent_keys(driver: ScreenDriver, screen: ScreenName, *way: str) -> list[str]:
    """The actions of the screen whose key changes nothing. ``way``: the keys that lead to the screen."""
    found = []
    await driver.press(*way)
    for _ in range(50):  # the rows in quarantine are read before their screen opens
        if getattr(driver.app.screen, "PLACE", screen) is screen:
            break
        await driver.pilot.pause(0.02)
    shown = driver.app.screen
    for action in pressed_actions(screen):
        await go_home(driver, shown, *way)
        for _ in range(REPEATED.get(action.name, 1)):
            driver.app.console_screen.key_bar.clear_message()
            await driver.pilot.pause()
            before = screen_of(driver)
            await driver.press(key_name(action.keys[0]))
        if screen_of(driver) == before:
            found.append(action.name)
    return found


async def go_home(driver: ScreenDriver, shown: Any, *way: str) -> None:
    """Close what is open over the screen, and go from its details to its list; from another screen take the way."""
    app = driver.app
    for _ in range(ESCAPES_MAX):
        is_covered = len(app.screen_stack) > 1 and app.screen is not shown
        is_filtered = app.screen is shown and (shown.footer_widget.prompt.has_focus or shown.filter_text)
        is_beside = (
            app.screen is shown and getattr(shown, "detail_pane", None) is not None and shown.detail_pane.has_focus
        )
        if not (is_covered or is_filtered or is_beside):
            break
        await driver.press("escape")
    else:
        pytest.fail(f"Esc does not lead back to {shown} from {app.screen}")
    if app.screen is not shown:
        await driver.press("1", *way)


async def silent_keys_on(
    session: FakeSession, clock: StillClock, screen: ScreenName, selected: str, *way: str
) -> list[str]:
    async with open_console(session, clock, size=SIZE) as driver:
        driver.app.selected = selected
        return await silent_keys(driver, screen, *way)


def on_revenue(session: FakeSession) -> FakeSession:
    session.logs = {("clean_refunds", number): chunks_of("start\nend\n") for number in (1, 2)}
    session.lists["journal"] = []
    return session


@parametrize_mostly_long(
    ("state", "screen"),
    [(state, screen) for state in ("ended", "running", "blocked") for screen in VIEWS],
    quick=1,
    daily=len(VIEWS),
    ids=str,
)
async def test_no_key_of_a_view_is_silent(
    revenue: FakeSession, clock: StillClock, screen: ScreenName, state: str
) -> None:
    session = RUNS[state](on_revenue(revenue))
    assert await silent_keys_on(session, clock, screen, "clean_refunds", f"{VIEWS.index(screen) + 1}") == []


@parametrize_mostly_long("task", ["extract_refunds", "clean_orders", "extract_payments"], quick=0, daily=0)
@pytest.mark.parametrize("screen", [ScreenName.GRAPH, ScreenName.TIMELINE], ids=lambda screen: screen.value)
async def test_no_key_is_silent_on_another_task(
    revenue: FakeSession, clock: StillClock, screen: ScreenName, task: str
) -> None:
    assert await silent_keys_on(on_revenue(revenue), clock, screen, task, f"{VIEWS.index(screen) + 1}") == []


@pytest.mark.weekly
@pytest.mark.long
async def test_no_key_of_a_log_is_silent_before_the_first_attempt(revenue: FakeSession, clock: StillClock) -> None:
    assert await silent_keys_on(on_revenue(revenue), clock, ScreenName.LOG, "notify", "5") == []


@pytest.mark.long
async def test_no_key_of_the_details_is_silent(revenue: FakeSession, clock: StillClock) -> None:
    async with open_console(on_revenue(revenue), clock, size=(80, 24)) as driver:
        assert await silent_keys(driver, ScreenName.DETAIL, "2", "d") == []


@parametrize_mostly_long(
    "way",
    [("7", "g", "N", "enter"), ("7",), ("7", "n"), ("7", "G")],
    quick=0,
    daily=1,
    ids=["rows", "breaker", "page", "group"],
)
async def test_no_key_is_silent_on_a_breaker_a_page_or_rows(clock: StillClock, way: Sequence[str]) -> None:
    async with open_console(outage(clock), clock, size=SIZE) as driver:
        assert await silent_keys(driver, ScreenName.ROWS if len(way) == 4 else ScreenName.SYSTEMS, *way) == []


@parametrize_mostly_long(
    "screen",
    [ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.INBOX],
    quick=0,
    daily=0,
    ids=lambda one: one.value,
)
async def test_no_key_is_silent_on_groups_and_causes(clock: StillClock, screen: ScreenName) -> None:
    async with open_console(poisoned_run(clock), clock, size=SIZE) as driver:
        assert await silent_keys(driver, screen, f"{VIEWS.index(screen) + 1}") == []


@pytest.mark.long
async def test_requeue_and_skip_are_offered_only_for_what_they_can_change(
    revenue: FakeSession, clock: StillClock
) -> None:
    async with open_console(revenue, clock, "2", size=SIZE) as driver:
        offered = {}
        for name in ("clean_refunds", "extract_refunds", "clean_orders", "notify"):
            driver.app.selected = name
            await driver.press("1", "2")
            offered[name] = [word for word in ("r requeue", "s skip…") if word in driver.lines[-1]]
        both = ["r requeue", "s skip…"]
        assert offered == {"clean_refunds": both, "extract_refunds": both[:1], "clean_orders": [], "notify": both[1:]}


async def test_an_empty_inbox_offers_nothing_that_needs_a_row(clock: StillClock) -> None:
    async with open_console(FakeSession(projection_of([("load", [])])), clock, "4", size=SIZE) as driver:
        assert driver.lines[-1].split() == ["q", "quit", "?", "keys"]


async def test_follow_is_not_offered_in_the_log_of_an_ended_attempt(revenue: FakeSession, clock: StillClock) -> None:
    async with open_console(on_revenue(revenue), clock, "2", "5", size=SIZE) as driver:
        assert "f follow" not in driver.lines[-1]
        await driver.press("f")
        assert "the attempt has ended" in driver.lines[-1]
