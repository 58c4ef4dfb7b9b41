"""Parameters with a type, choices, or no default: from a text of the command line to the argument of a task."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from redrive.engine import Flow, Param
from redrive.engine.errors import FlowError, OptionError
from redrive.engine.flow.options import use_params
from support.commands import run_redrive
from support.marks import for_each

PARAMS: dict[str, Any] = {
    "day": Param(date),
    "until": Param(date, date(2026, 5, 1)),
    "since": Param(date, None),
    "mode": Param(str, "full", ["full", "delta"]),
    "limit": Param(int, 5, choices=(5, 50)),
    "share": Param(float, 0.5),
    "really": Param(bool, False),
}


def flow_with(remembered: dict[str, Any] | None = None, **given: Any) -> Flow:
    with use_params(remembered or {}, given):
        flow = Flow("typed", params=PARAMS)
    flow.command("a", "true")
    return flow


def test_values_have_their_types_in_the_flow_and_are_json_in_the_state_file() -> None:
    flow = flow_with(day="2026-04-25", mode="delta", limit="50", share="1", really="yes")
    assert dict(flow.params) == {
        "day": date(2026, 4, 25),
        "until": date(2026, 5, 1),
        "since": None,
        "mode": "delta",
        "limit": 50,
        "share": 1.0,
        "really": True,
    }
    stored = flow.spec().params
    assert (stored["day"], stored["until"], stored["since"]) == ("2026-04-25", "2026-05-01", None)
    assert flow_with(dict(stored)).params == flow.params, "a resumed run has the same values"


@for_each(
    "name, value, why",
    [
        ("day", "tomorrow", "parameter 'day' wants a date like '2026-04-25', not 'tomorrow'"),
        ("day", "2026-02-30", "parameter 'day' wants a date like '2026-04-25', not '2026-02-30'"),
        ("until", "5", "parameter 'until' wants a date like '2026-05-01', not '5'"),
        ("day", 5, "parameter 'day' wants a date like '2026-04-25', not 5"),
        ("mode", "fast", "parameter 'mode' is one of full, delta, not 'fast'"),
        ("limit", "7", "parameter 'limit' is one of 5, 50, not 7"),
        ("limit", True, "parameter 'limit' wants a whole number like 3, not True"),
        ("share", "nan", "parameter 'share' wants a finite number like 0.5, not 'nan'"),
        ("really", "maybe", "parameter 'really' wants true or false like False, not 'maybe'"),
    ],
)
def test_a_wrong_value_is_reported_in_one_sentence(name: str, value: Any, why: str) -> None:
    with pytest.raises(FlowError, match=re.escape(f"flow 'typed': {why}")):
        flow_with(**{"day": "2026-01-01", name: value}).spec()


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    sentence = "flow 'typed' needs a value for its parameter 'day': a date like '2026-04-25', by --param day=..."
    flow = flow_with()
    for ask in (flow.spec, lambda: flow.params["day"]):
        with pytest.raises(FlowError, match=re.escape(sentence)):
            ask()
    with pytest.raises(KeyError, match="nosuch"):
        flow.params["nosuch"]


def test_what_the_flow_no_longer_accepts_of_an_earlier_run_is_dropped() -> None:
    assert flow_with({"mode": "weekly", "limit": 50, "gone": 1}, day="2026-01-01").params["mode"] == "full"


@for_each(
    "arguments, why",
    [
        (
            (set, set()),
            "a Param begins with its type, one of str, int, float, bool, list, date, datetime, Decimal, Path, not",
        ),
        ((list, "[]"), "a Param(list) wants a list in JSON like ['a'], not '[]'"),
        ((Path, "x"), "a Param(Path) wants a path like '/data/orders.csv', not 'x'"),
        ((int, "5"), "a Param(int) wants a whole number like 3, not '5'"),
        ((date, "2026-04-25"), "a Param(date) wants a date like '2026-04-25', not '2026-04-25'"),
        ((str, "x", ["y"]), "a Param(str) is one of y, not 'x'"),
        ((int, 5, ["5"]), "a Param(int) wants a whole number like 3, not '5'"),
        ((str, "x", "xyz"), "the choices of a Param are a list, not 'xyz'"),
    ],
)
def test_a_param_is_checked_where_it_is_declared(arguments: Any, why: str) -> None:
    with pytest.raises(OptionError, match=re.escape(why)):
        Param(*arguments)


FLOW = """
from datetime import date, datetime, timedelta
from redrive.engine import Flow, Param, RetryPolicy
flow = Flow("typed", params={"day": Param(date), "mode": Param(str, "full", ["full", "delta"])},
            schedule="0 2 * * *", timezone="Asia/Kolkata")

@flow.task(timeout=9, retry=RetryPolicy(max_attempts=1))
def extract(ctx, day, mode):
    assert type(day) is date and ctx.params["day"] is day, day
    print(f"{day:%d.%m.%Y} {mode} {ctx.date} {ctx.logical_time}")
    if mode == "delta":
        raise ValueError("not today")

flow.command("shell", "echo $REDRIVE_PARAM_DAY, due on $REDRIVE_DATE", timeout=9)
"""


def test_a_run_gets_dates_and_a_requeue_is_held_to_the_same_types(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(FLOW)

    def redrive(*words: str) -> Any:
        return run_redrive(*words, cwd=tmp_path)

    refused = redrive("run", "typed.py", "--plain", "--state", "s.db")
    assert (refused.returncode, "typed.py:4: flow 'typed' needs a value for its parameter 'day'" in refused.stderr) == (
        2,
        True,
    )
    given = ["--param", "day=2026-04-25", "--param", "mode=delta", "--param", "logical_time=2026-04-26T02:00:00+05:30"]
    done = redrive("run", "typed.py", "--plain", "--state", "s.db", "--run-id", "r", *given)
    assert done.returncode == 1, done.stdout + done.stderr
    with sqlite3.connect(tmp_path / "s.db") as connection:
        logs = [text for (text,) in connection.execute("SELECT text FROM log")]
        params, options = connection.execute("SELECT params, options FROM run").fetchone()
    assert any("25.04.2026 delta 2026-04-26 2026-04-26 02:00:00+05:30" in text for text in logs), logs
    assert any("2026-04-25, due on 2026-04-26\n" in text for text in logs), logs
    assert json.loads(params)["day"] == "2026-04-25" and json.loads(options)["params"]["mode"]["choices"]
    for param, why in (("day=soon", "wants a date like"), ("mode=fast", "is one of full, delta, not 'fast'")):
        refused = redrive("requeue", "s.db", "extract", "--param", param, "--reason", "x")
        assert refused.returncode != 0 and why in refused.stdout + refused.stderr
    again = redrive("requeue", "s.db", "extract", "--param", "mode=full", "--param", "day=2026-4-5", "--reason", "x")
    assert again.returncode == 0, again.stderr
    assert redrive("resume", "s.db", "--plain").returncode == 0
    with sqlite3.connect(tmp_path / "s.db") as connection:
        assert any("05.04.2026 full" in text for (text,) in connection.execute("SELECT text FROM log"))


# --- Defaults that JSON does not have ------------------------------------------------------------------------------

RICH: dict[str, Any] = {
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 2, tzinfo=timezone(timedelta(hours=2))),
    "price": Decimal("1.50"),
    "file": Path("/data/orders.csv"),
    "regions": ["eu", "us"],
}


@for_each(
    "name, text, value",
    [
        ("day", "2026-02-01", date(2026, 2, 1)),
        ("at", "2026-02-01 02:30+00:00", datetime(2026, 2, 1, 2, 30, tzinfo=UTC)),
        ("at", "2026-02-01T02:30:05.250000Z", datetime(2026, 2, 1, 2, 30, 5, 250_000, UTC)),
        ("price", "0.10", Decimal("0.10")),
        ("file", "b.csv", Path("b.csv")),
        ("regions", '["eu"]', ["eu"]),
    ],
)
def test_the_default_decides_the_type_also_where_json_has_none(name: str, text: str, value: object) -> None:
    with use_params({}, {}):
        assert dict(Flow("rich", params=RICH).params) == RICH
    with use_params({}, {name: text}):
        flow = Flow("rich", params=RICH)
    flow.command("a", "true")
    assert flow.params[name] == value and type(flow.params[name]) is type(value)
    with use_params(dict(flow.spec().params), {}):
        assert Flow("rich", params=RICH).params == flow.params, "a resumed run has the same values"


@for_each(
    "name, text, why",
    [
        ("day", "yesterday", "wants a date like '2026-01-31', not 'yesterday'"),
        ("at", "2026-02-30T01:00", "wants a time like '2026-01-31T02:00:00+02:00', not '2026-02-30T01:00'"),
        ("at", "2026-02-01T01:00+25:00", "wants a time like"),
        ("price", "NaN", "wants a decimal number like '1.50', not 'NaN'"),
        ("price", "cheap", "wants a decimal number like '1.50', not 'cheap'"),
        ("file", "", "wants a path like '/data/orders.csv', not ''"),
    ],
)
def test_what_is_not_of_the_type_of_the_default_is_refused(name: str, text: str, why: str) -> None:
    with use_params({}, {name: text}):
        flow = Flow("rich", params=RICH)
    flow.command("a", "true")
    with pytest.raises(FlowError, match=re.escape(why)):
        flow.spec()


RICH_FLOW = """
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from redrive.engine import Flow

flow = Flow("rich", params={
    "day": date(2026, 1, 31), "at": datetime(2026, 1, 31, 2), "price": Decimal("1.50"), "file": Path("/data/x"),
    "regions": ["eu"]})

@flow.task
def looks(day, at, price, file, regions, ctx):
    return [str(day - timedelta(1)), at.year, str(price * 2), file.name, regions, type(ctx.params["price"]).__name__]

flow.command("told", 'echo "$REDRIVE_PARAM_DAY $REDRIVE_PARAM_PRICE $REDRIVE_PARAM_FILE"')
"""


def test_a_task_gets_what_its_flow_declares(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text(RICH_FLOW)
    words = ["run", "rich.py", "--plain", "--output", "--state", "s.db", "--param", "price=2.25"]
    done = run_redrive(*words, cwd=tmp_path)
    assert done.returncode == 0 and "2026-01-31 2.25 /data/x" in done.stdout, done.stdout
    with sqlite3.connect(tmp_path / "s.db") as connection:
        (result,) = connection.execute("SELECT result FROM task WHERE name = 'looks'").fetchone()
    assert json.loads(result) == ["2026-01-30", 2026, "4.50", "x", ["eu"], "Decimal"]
    done = run_redrive("requeue", "s.db", "looks", "--param", "day=soon", "--reason", "x", cwd=tmp_path)
    assert done.returncode and "wants a date" in done.stdout + done.stderr


@for_each("value", [timedelta(hours=2), time(3), {1, 2}, [date(2026, 1, 31)]])
def test_a_default_that_would_arrive_as_a_text_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match=r"parameter 'wait' is .*, which cannot be kept as JSON"):
        Flow("f", params={"wait": value})


def test_a_run_by_hand_has_the_day_of_its_start_also_where_it_goes_on_later(tmp_path: Path) -> None:
    """An empty variable in `rm -r out/$REDRIVE_DATE` would remove all days."""
    (tmp_path / "out.py").write_text(
        "from redrive.engine import Flow\nflow = Flow('out', timezone='Pacific/Kiritimati')\n"
        "@flow.task(timeout=9)\ndef day(ctx):\n    print(f'task {ctx.date} {ctx.logical_time}')\n"
        "flow.command('line', 'echo \"line $REDRIVE_DATE $REDRIVE_LOGICAL_TIME.\"', timeout=9)\n"
    )
    assert run_redrive("run", "out.py", "--plain", "--state", "s.db", cwd=tmp_path).returncode == 0
    with sqlite3.connect(tmp_path / "s.db") as connection:
        (at,) = connection.execute("SELECT started_at FROM run").fetchone()
        logs = "".join(text for (text,) in connection.execute("SELECT text FROM log"))
    today = datetime.fromtimestamp(at / 1e6, ZoneInfo("Pacific/Kiritimati")).date()
    assert f"task {today} None\n" in logs and f"line {today} .\n" in logs
