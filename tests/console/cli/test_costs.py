"""``redrive costs``: what retries cost and healed, and which of them could go (SPEC part 4, 7)."""

import json
from pathlib import Path
from typing import Any

import pytest
from redrive.console.cli.lab import policy_lines
from redrive.engine import Executor, Flow, RetryPolicy, TransientError, retry
from redrive.engine.analysis.costs import PolicyCosts, RetryStats
from support.commands import invoke_redrive

NEVER = RetryPolicy(max_attempts=3, base=0.001, cap=0.001, jitter="none", poison_after=None)


def costs(*words: str | Path) -> str:
    return invoke_redrive("costs", *words, catch_exceptions=False).output


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of 15 tasks, 12 fail at every start and one heals at its first retry."""
    flow = Flow("f")

    def down() -> None:
        raise TransientError("503")

    def blips(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise TransientError("503")

    for number in range(12):
        flow.task(down, name=f"down{number}", retry=NEVER)
    flow.task(blips, name="blips", retry=NEVER)
    flow.task(lambda: None, name="fine1", retry=NEVER)
    flow.task(lambda: None, name="fine2", retry=NEVER)
    Executor(run_id="r", flow=flow, state=tmp_path / "state.db", max_parallel=8).run()
    return tmp_path / "state.db"


def test_each_policy_that_retried_has_a_table_and_a_verdict(state: Path) -> None:
    lines = costs(state).splitlines()
    title = lines.index("tasks without a downstream · max_attempts 3, base 0.001 s, cap 0.001 s, jitter none")
    table = [line.split()[:4] for line in lines[title + 2 : title + 5]]
    assert [["first", "try", "15", "2"], ["retry", "1", "13", "1"], ["retry", "2", "12", "0"]] == table
    ends = {
        len(line[: line.index(one) + len(one)])
        for line, one in zip(lines[title + 2 : title + 5], ("15", "13", "12"), strict=False)
    }
    assert len(ends) == 1, "figures stand under each other"
    assert lines[title + 5].startswith("retry 2 healed 0 of 15 tasks (0 %) and cost ")
    assert lines[title + 6].startswith("max_attempts=2 would have saved ")
    assert lines[title + 6].endswith(" slot seconds and 12 calls; gives up nothing")


def test_the_same_as_json(state: Path) -> None:
    (policy,) = json.loads(costs(state, "--json"))["policies"]
    assert (15, 0, 2) == (policy["tasks"], policy["undecided"], policy["suggested_max_attempts"])
    assert [15, 13, 12] == [one["starts"] for one in policy["tries"]]
    assert 3 == policy["policy"]["max_attempts"]


def test_calls_that_were_retried_inside_attempts_are_counted_by_downstream(tmp_path: Path) -> None:
    flow = Flow("f")
    flow.downstream("api")
    answers = iter(["503", "503", ""])

    @retry(base=0.01)
    def call() -> None:
        if error := next(answers):
            raise ConnectionError(error)

    flow.task(call, name="calls", downstream="api", retry=NEVER)
    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    assert "api: 2 calls retried inside attempts, 0.0 slot seconds of waits" in costs(tmp_path / "state.db")
    (inner,) = json.loads(costs(tmp_path / "state.db", "--json"))["inner_retries"].values()
    assert inner["calls"] == 2 and 0 < inner["wait_seconds"] < 0.1


def rendered(*tries: RetryStats, tasks: int = 600, undecided: int = 0, downstream: str = "api") -> list[str]:
    return list(policy_lines(PolicyCosts(downstream, RetryPolicy(max_attempts=6), tasks, undecided, tries)))


def test_the_words_of_the_specification() -> None:
    """ "retries 4-5 healed 0.3 % and cost 71 % of the slots"."""
    early = [
        RetryStats(600, 380, 200.0),
        RetryStats(220, 60, 50.0),
        RetryStats(160, 40, 20.0),
        RetryStats(120, 40, 20.0),
    ]
    *_, verdict, suggestion = rendered(*early, RetryStats(80, 2, 410.0), RetryStats(78, 0, 300.0))
    assert "retries 4-5 healed 2 of 600 tasks (0.3 %) and cost 71 % of the slot seconds" == verdict
    assert "max_attempts=4 would have saved 710.0 slot seconds and 158 calls; gives up 2 tasks healed that late" == (
        suggestion
    )


def test_where_every_retry_earns_its_price_all_of_them_are_judged_and_no_cut_is_suggested() -> None:
    *_, verdict = rendered(RetryStats(10, 5, 10.0), RetryStats(5, 5, 5.0), tasks=10, undecided=1)
    assert "retry 1 healed 5 of 10 tasks (50 %) and cost 33 % of the slot seconds; 1 task not decided yet" == verdict


def test_a_policy_whose_tasks_took_no_time_at_all_has_a_table_too() -> None:
    assert rendered(RetryStats(1, 0, 0.0), RetryStats(1, 1, 0.0), tasks=1)[-1].startswith(
        "retry 1 healed 1 of 1 task (100 %)"
    )
