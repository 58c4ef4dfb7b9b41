"""The stories that the documents tell, played with the real engine: how they should have ended."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, RetryPolicy, TransientError
from redrive.engine.toolkit.retry import retry

FAILING_SHARE = 0.30
FLOWS, PAGES = 14, 220


def ask(state: Path, sql: str) -> list[Any]:
    with sqlite3.connect(state) as connection:
        return connection.execute(sql).fetchall()


def pager(path: Path) -> dict[str, Any]:
    """A sender whose every message is one file."""
    return {"line": f"cat > '{path}'.$$"}


def sent_pages(path: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(path.parent.glob(f"{path.name}.*"))]


# --- fssai-503 (003.43, 003.44) -------------------------------------------------------------------------------------


def answers_503(seed: int, name: str, attempt: int) -> bool:
    return random.Random(f"{seed}/{name}/{attempt}").random() < FAILING_SHARE


def licence_flow(seed: int, max_attempts: int) -> Flow:
    """220 tasks that look up licences, as fourteen DAGs: a plan each, and what hangs below it."""
    flow = Flow("licences", max_parallel=4)
    policy = RetryPolicy(max_attempts=max_attempts, base=0.01, cap=0.05)

    def fetch(name: str) -> Callable[[Any], None]:
        def body(ctx: Any) -> None:
            if answers_503(seed, name, ctx.attempt):
                raise TransientError("503 Service Unavailable")

        return body

    for number in range(FLOWS):
        flow.task(lambda: None, name=f"plan_{number:02}", timeout=60)
    for number in range(PAGES - FLOWS):
        name = f"licence_{number:03}"
        flow.task(fetch(name), name=name, after=f"plan_{number % FLOWS:02}", retry=policy, timeout=60)
    return flow


def failures_with(seed: int, max_attempts: int) -> int:
    names = (f"licence_{number:03}" for number in range(PAGES - FLOWS))
    return sum(all(answers_503(seed, name, attempt) for attempt in range(1, max_attempts + 1)) for name in names)


@pytest.mark.long
def test_a_server_that_fails_three_times_in_ten_costs_one_page_and_less_than_one_task_in_a_hundred(tmp_path):
    """003.43, 003.44: four starts, because "retried three times" gives the 99 % of the story only so."""
    seed = next(seed for seed in range(100) if failures_with(seed, 4) == 2)
    flow = licence_flow(seed, max_attempts=4)
    flow.page("command", **pager(tmp_path / "pager"))
    state = tmp_path / "state.db"
    assert "FAILED" == Executor(run_id="friday", flow=flow, state=state).run()
    counts = dict(ask(state, "SELECT state, count(*) FROM task GROUP BY state"))
    assert {"SUCCESS": 218, "FAILED": 2} == counts
    assert counts["SUCCESS"] / PAGES >= 0.99
    assert [(1, 2, "open")] == ask(state, "SELECT episode, count, state FROM page")
    (page,) = sent_pages(tmp_path / "pager")
    assert "503 Service Unavailable" == page["body"]["error"]


@pytest.mark.long
def test_three_starts_would_not_have_been_enough():
    """003.44: 97.3 % with three starts, 99.2 % with four."""
    lost = {starts: sum(failures_with(seed, starts) for seed in range(200)) for starts in (3, 4)}
    done = {starts: 1 - count / (200 * (PAGES - FLOWS)) for starts, count in lost.items()}
    assert done[3] == pytest.approx(0.973, abs=0.003)
    assert done[4] == pytest.approx(0.992, abs=0.002)


# --- one-bad-page (004.01) ------------------------------------------------------------------------------------------

BAD_PAGE = 1704


def partner_flow(
    tmp_path: Path, number: int, fetch_page: Callable[[Callable[[int], None]], Callable[[int], None]]
) -> Flow:
    """3,000 pages in one task; one of them answers 503 the first time it is asked in a night."""
    asked = tmp_path / f"asked-{number}"
    flow = Flow("packages")

    @fetch_page
    def fetch(page: int) -> None:
        if page == BAD_PAGE and not asked.exists():
            asked.touch()
            raise TransientError("503")

    @flow.task(timeout=60, retry=RetryPolicy(max_attempts=1))
    def pull() -> int:
        for page in range(3000):
            fetch(page)
        return 3000

    flow.page("command", **pager(tmp_path / "pager"))
    return flow


def three_runs(tmp_path: Path, fetch_page: Any) -> list[str]:
    states = []
    for number in (1, 2, 3):
        flow = partner_flow(tmp_path, number, fetch_page)
        states.append(Executor(run_id=f"night-{number}", flow=flow, state=tmp_path / "state.db").run())
    return states


def test_one_bad_page_in_three_thousand_wakes_nobody_and_is_seen(tmp_path):
    """004.01: the 503s had not stopped happening; they had stopped being the engineer's problem."""
    once = retry(retries=1, base=0.01, exceptions=(TransientError,))
    assert ["SUCCESS"] * 3 == three_runs(tmp_path, once)
    assert [] == sent_pages(tmp_path / "pager")
    state = tmp_path / "state.db"
    assert 3 == len(ask(state, "SELECT seq FROM event WHERE kind = 'attempt.retry'"))
    assert [(1,)] * 3 == ask(state, "SELECT attempt FROM task"), "the whole task was never run again for one page"


@pytest.mark.long
def test_without_that_one_line_the_night_fails(tmp_path):
    assert ["FAILED"] * 3 == three_runs(tmp_path, lambda function: function)
    assert 1 <= len(sent_pages(tmp_path / "pager"))
