"""``flow.page(..., on="success")``: a notice at the end of a successful run, and only then."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, FlowError
from support.commands import quoted


def run(tmp_path: Path, line: str, notice: str) -> str:
    flow = Flow("nightly", timeout=30)
    flow.page("command", line=notice, on="success")
    flow.command("load", line, max_attempts=1)
    return Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run()


def test_a_run_that_succeeds_is_reported_with_its_size_and_is_no_page(tmp_path: Path) -> None:
    assert run(tmp_path, "true", f"cat >> {quoted(tmp_path / 'notices')}; echo $REDRIVE_PAGE_KIND >&2") == "SUCCESS"
    (notice,) = [json.loads(line) for line in (tmp_path / "notices").read_text().splitlines()]
    assert (notice["kind"], notice["title"], notice["key"]) == ("success", "nightly: run r succeeded", "success/r")
    assert notice["text"].splitlines()[1].startswith("1 task in ")
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT count(*) FROM page").fetchone() == (0,)


def test_a_run_that_fails_sends_no_notice_and_says_that_nobody_is_paged(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 3", f"touch {quoted(tmp_path / 'notices')}") == "FAILED"
    assert not (tmp_path / "notices").exists()
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        (output,) = connection.execute("SELECT data FROM event WHERE data LIKE '%no page is configured%'").fetchall()
    assert "flow.page" in output[0]


@pytest.mark.long
def test_a_notice_that_nobody_takes_is_given_up_and_fails_no_run(tmp_path: Path) -> None:
    assert run(tmp_path, "true", f"echo x >> {quoted(tmp_path / 'tries')}; echo no room >&2; exit 4") == "SUCCESS"
    assert (tmp_path / "tries").read_text() == "x\n" * 3
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        (output,) = connection.execute("SELECT data FROM event WHERE data LIKE '%notice of success%'").fetchone()
    assert "notice of success by command not accepted after 3 tries: exit status 4: no room" in output


def test_an_occasion_that_does_not_exist_and_a_bell_for_successes_are_refused() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError, match="on is one of failure, success, not 'always'"):
        flow.page("command", line="true", on="always")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="the bell rings for failures only"):
        flow.page("bell", on="success")
