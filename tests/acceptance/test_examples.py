"""The flows that are shipped: the demo shows every failure system once, and document 004's case ends as it should."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from redrive.console.present.tour import STAGES
from support.commands import run_redrive
from support.film import record_demo

EXAMPLES = Path(__file__).resolve().parents[2] / "engine/examples"
FILM = Path(__file__).with_name("tour.svg")


def ask(state: Path, sql: str) -> list[Any]:
    with sqlite3.connect(state) as connection:
        return connection.execute(sql).fetchall()


#: What each failure system leaves behind: one query each that must find something.
SEEN = {
    "flaky, and healed": "SELECT 1 FROM task WHERE name = 'fetch_payments' AND state = 'SUCCESS' AND attempt = 3",
    "hang, stack, SIGTERM, SIGKILL": "SELECT 1 FROM event WHERE kind = 'attempt.sigkill' AND task = 'fetch_calendar'",
    "poison": "SELECT 1 FROM event WHERE task = 'settle' AND new = 'DEAD_LETTER' AND data LIKE '%poison%'",
    "permanent, and what the other side said": "SELECT 1 FROM attempt WHERE diagnostic LIKE 'scope%'",
    "sensor": "SELECT 1 FROM event WHERE task = 'partner_file' AND new = 'SENSING'",
    "fan-out through a pool": "SELECT 1 FROM task WHERE name = 'load_part_4' AND state = 'SUCCESS'",
    "breaker that opens": "SELECT 1 FROM event WHERE kind = 'breaker' AND data LIKE '%\"OPEN\"%'",
    "breaker that closes": "SELECT 1 FROM breaker WHERE downstream = 'rates-api' AND state = 'CLOSED'",
    "tasks that were held and spent no attempt": "SELECT 1 FROM task WHERE name = 'quote_INR' AND attempt = 1",
    "rows in quarantine": "SELECT 1 FROM event WHERE kind = 'quarantine' AND data LIKE '%\"held\",\"count\":3%'",
    "rows that came through": "SELECT 1 FROM quarantine WHERE state = 'resolved'",
    "inner retry": "SELECT 1 FROM event WHERE kind = 'attempt.retry' AND task = 'fetch_orders'",
    "page that was sent": "SELECT 1 FROM page WHERE sent_at IS NOT NULL AND state = 'resolved'",
    "progress": "SELECT 1 FROM event WHERE kind = 'task.changed' AND data LIKE '%progress_total%'",
    "deadline": "SELECT 1 FROM run WHERE deadline_at IS NOT NULL",
    "skip": "SELECT 1 FROM task WHERE name = 'fetch_invoices' AND state = 'SKIPPED'",
}


@pytest.mark.first
@pytest.mark.long
def test_the_demo_shows_every_failure_system_and_ends_once_each_is_decided(tmp_path):
    state = tmp_path / "demo.db"
    done = run_redrive("demo", "--state", state, "--plain")
    last = [line for line in done.stdout.splitlines() if "] PAGED " not in line][-1]  # a page may be sent after it
    assert 3 == done.returncode and "BLOCKED" in last, done.stdout + done.stderr
    for act in (
        ("systems", "rows", state, "load_customers", "--requeue", "all", "--reason", "the countries are filled in"),
        ("requeue", state, "settle", "--reason", "the payments of today are loaded"),
        ("skip", state, "fetch_invoices", "--reason", "the partner gives no access before Monday"),
    ):
        assert 0 == run_redrive(*act).returncode, act
    assert 3 == run_redrive("resume", state, "--plain").returncode  # PARTIAL
    assert [] == [system for system, sql in SEEN.items() if not ask(state, sql)]
    assert [("PARTIAL",)] == ask(state, "SELECT state FROM run")
    assert [("fetch_invoices", "SKIPPED")] == ask(state, "SELECT name, state FROM task WHERE state <> 'SUCCESS'")


@pytest.mark.first
@pytest.mark.long
def test_the_tour_of_the_demo_is_recorded(tmp_path, request):
    """The film of the README; ``--snapshot-update`` replaces it."""
    film = tmp_path / "tour.svg"
    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        film.write_text(asyncio.run(record_demo(Path(folder))))
    assert_shows_the_tour(film, *re.findall(PATH, sys.prefix))  # of the interpreter, where an executor has left early
    if request.config.getoption("update_snapshots"):
        FILM.write_bytes(film.read_bytes())


def test_the_film_of_the_readme_shows_the_tour_of_today():
    assert_shows_the_tour(FILM)


PATH = r"/(?:home|root|work|tmp)/\w*"


def assert_shows_the_tour(film, *own_paths):
    """Each stage, and what its key shows, to the end of the run; no path of a machine, but for ``own_paths``."""
    assert film.stat().st_size < 300_000
    words = " ".join(ElementTree.parse(film).getroot().itertext())
    lines = [f" {place + 1} of {len(STAGES)}: " for place in range(len(STAGES))]
    lines += [f"{stage.asks.format(about=stage.abouts[0], dead='.*')}: press" for stage in STAGES]
    assert [line for line in lines if not re.search(line, words)] == []
    shown = ("Breakers", "SIGKILL", "1 cause", "Skip fetch_invoices", "Undo: skip", "Requeue 3 rows", "success")
    assert [word for word in shown if word not in words] == []
    assert set(re.findall(PATH, words)) <= {"/tmp/redrive", *own_paths}


def test_the_invoices_of_document_004_arrive_although_three_calls_in_ten_fail(tmp_path):
    """004.41: classify, five attempts, base 1 doubled to 60 under full jitter, quarantine of invalid invoices."""
    state = tmp_path / "invoices.db"
    params = ["fail_percent=30", "bad_percent=2", "scale=0.01", "seed=4"]
    words = [word for param in params for word in ("--param", param)]
    done = run_redrive("run", EXAMPLES / "invoices.py", "--state", state, "--plain", *words)
    assert 0 == done.returncode, done.stdout + done.stderr
    ((held,),) = ask(state, "SELECT count(*) FROM quarantine WHERE state = 'held'")
    ((summary,),) = ask(state, "SELECT result FROM task WHERE name = 'summarize'")
    assert 0 < held < 50 and 20 * 50 == json.loads(summary)["loaded"] + held
    assert ask(state, "SELECT 1 FROM task WHERE name LIKE 'pull_%' AND attempt > 1")
    assert [] == ask(state, "SELECT 1 FROM page")


def test_a_credential_that_has_run_out_stops_the_run_at_the_first_call(tmp_path):
    """004.32, 004.40: fail loudly at the first, page, and do not lock the account."""
    state = tmp_path / "invoices.db"
    done = run_redrive("run", EXAMPLES / "invoices.py", "--state", state, "--plain", "--param", "token=old")
    assert 3 == done.returncode
    assert [("check_credential", 1, "auth")] == ask(
        state, "SELECT name, attempt, dead_letter_kind FROM task WHERE attempt > 0"
    )
    assert [("auth on check_credential", "critical", 1)] == ask(state, "SELECT title, severity, count FROM page")


@pytest.mark.parametrize("flow", ["demo.py", "revenue.py", "invoices.py"])
def test_the_shipped_flows_pass_their_own_check(flow):
    done = run_redrive("check", EXAMPLES / flow)
    assert 0 == done.returncode, done.stdout
    assert "error:" not in done.stdout
