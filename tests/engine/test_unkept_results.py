"""A result that cannot be stored: a success that says so, unless a child asks for it, which then fails in words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from redrive.engine import Flow
from redrive.engine.flow.source import Finding
from support.checks import check_flow
from support.commands import run_redrive

FLOW = """
from redrive.engine import Flow
flow = Flow("f")

class Frame: ...

@flow.task
def loads(): return Frame()

@flow.task(after=loads)
def only_waits(): ...

@flow.task(after=loads)
def may_do_without(loads=7): return loads

@flow.task(after=loads)
def looks(ctx): return repr(ctx.inputs["loads"])
"""
ASKS = "\n@flow.task(after=loads)\ndef asks(loads): return 1\n"


def run(folder: Path, flow: str) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, object]]]:
    (folder / "flow.py").write_text(flow)
    done = run_redrive("run", "flow.py", "--plain", "--state", "s.db", cwd=folder)
    rows = run_redrive("tasks", "s.db", "--json", cwd=folder)
    return done, {row["name"]: row for row in map(json.loads, rows.stdout.splitlines())}


def test_it_is_a_success_that_says_so_where_nobody_asks(tmp_path: Path) -> None:
    """003: the functions of the documents return what they like, and nobody looks at it."""
    done, rows = run(tmp_path, FLOW)
    assert done.returncode == 0
    advice = "return plain values, or the name of a file"
    assert f"loads SUCCESS (its result was not stored: result is a flow.Frame; {advice})" in done.stdout
    assert rows["may_do_without"]["result"] == 7
    assert "no result of 'loads': its result was not stored: result is a flow.Frame" in str(rows["looks"]["result"])


def test_a_child_that_asks_for_it_fails_in_words(tmp_path: Path) -> None:
    done, rows = run(tmp_path, FLOW + ASKS)
    assert done.returncode == 3
    assert (rows["loads"]["state"], rows["asks"]["state"]) == ("SUCCESS", "DEAD_LETTER")
    assert "asks for the result of 'loads', and its result was not stored: result is a flow.Frame" in str(
        rows["asks"]["error"]
    )
    assert "return plain values, or the name of a file; another try will not work" in done.stdout


def test_the_advice_does_not_depend_on_the_name_of_a_class(tmp_path: Path) -> None:
    done, _ = run(tmp_path, (FLOW + ASKS).replace("Frame", "returned"))
    assert "result is a flow.returned; return plain values, or the name of a file" in done.stdout


LARGE = """
from redrive.engine import Flow
flow = Flow("f")

@flow.task(kind="effect")
def pays(): return "x" * 17_000_000

@flow.task(after=pays)
def only_waits(): ...
"""


def test_what_is_too_large_makes_no_dead_letter_of_work_that_is_done(tmp_path: Path) -> None:
    """A requeue would pay a second time."""
    done, rows = run(tmp_path, LARGE)
    assert done.returncode == 0
    advice = "over 16 MiB of JSON (17000002 bytes); return the name of a file or table"
    why = f"its result was not stored: {advice}"
    assert f"pays SUCCESS ({why})" in done.stdout
    done, rows = run(tmp_path, LARGE + "\n@flow.task(after=pays)\ndef asks(pays): ...\n")
    assert (rows["pays"]["state"], rows["asks"]["state"]) == ("SUCCESS", "DEAD_LETTER")
    assert str(rows["asks"]["error"]).endswith(advice)
    assert f"{advice}; another try will not work" in done.stdout, "the line is not cut before what to do"


class Frame:
    pass


@pytest.mark.parametrize(("asks", "level"), [(True, "warning"), (False, "note")])
def test_check_reports_it_where_it_is_known(asks: bool, level: str) -> None:
    flow = Flow("f")

    @flow.task
    def loads() -> Frame:
        return Frame()

    @flow.task
    def fine() -> dict[str, int]:
        return {}

    if asks:

        @flow.task(after=loads)
        def wants(loads: Frame) -> None: ...

    told: list[Finding] = [finding for finding in check_flow(flow) if finding.rule == "result"]
    assert [(finding.level, finding.task) for finding in told] == [(level, "loads")]
    assert told[0].message.startswith(
        f"returns a {__name__.partition('.')[0]}.Frame, which cannot be stored as a result"
    )


SURVIVES = """
import datetime, decimal, enum
from redrive.engine import Flow
flow = Flow("f")

class Colour(enum.Enum):
    RED = 1

@flow.task
def totals():
    return {1: decimal.Decimal("1.10"), "when": datetime.datetime(2026, 4, 25, 3), "c": {Colour.RED}, "n": float("nan")}

@flow.task(after=totals)
def reads(totals):
    assert totals[1] == decimal.Decimal("1.10") and str(totals[1]) == "1.10", totals
    assert totals["when"] == datetime.datetime(2026, 4, 25, 3)
    assert totals["c"] == {Colour.RED} and totals["n"] != totals["n"]
"""


def test_a_child_gets_the_very_value_that_its_parent_returned(tmp_path: Path) -> None:
    done, rows = run(tmp_path, SURVIVES)
    assert (done.returncode, rows["reads"]["state"]) == (0, "SUCCESS"), done.stdout


UNUSABLE = """
from redrive.engine import Flow
flow = Flow("f", timeout=30)
@flow.task
def nothing(): pass
@flow.map(over=nothing)
def first(one): ...
@flow.map(over=nothing)
def second(one): ...
@flow.task
def values(): return (value for value in range(3))
@flow.task
def many(): return [1, 2]
@flow.map(over=many, max_size=1)
def third(one): ...
"""


def test_a_result_that_cannot_be_used_is_a_cause_in_plain_words(tmp_path: Path) -> None:
    done, rows = run(tmp_path, UNUSABLE)
    assert done.returncode == 3
    for task, cause in (
        ("first", "the result of 'nothing' is not a list"),
        ("second", "the result of 'nothing' is not a list"),
        ("values", "'values' returned a generator"),
        ("third", "the list of 'many' is too long"),
    ):
        assert f"{task} DEAD_LETTER {cause} (fp=" in done.stdout
    marks = [rows[task]["failure_fingerprint"] for task in ("first", "second", "values", "third")]
    assert marks[0] == marks[1] and len(set(marks)) == 3
