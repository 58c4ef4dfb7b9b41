"""The pictures of the READMEs: one night with a bit of everything, as graph and as timeline."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from redrive.engine.domain.events import EventKind
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.logs import AttemptText
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, make_app, press, rest
from ..model.runs import START, EventBuilder, S, projection_of

REGIONS = ("emea", "apac", "latam", "namerica")
FLOW = [
    *((f"extract_{name}", []) for name in ("orders", "payments", "rates", "calendar", "refunds")),
    *((f"clean_{name}", [f"extract_{name}"]) for name in ("orders", "payments", "rates", "refunds")),
    ("settle", ["clean_orders", "clean_payments", "clean_rates", "extract_calendar"]),
    *((f"load_{region}", ["settle"]) for region in REGIONS),
    ("partner_file", []),
    ("report", [*(f"load_{region}" for region in REGIONS), "clean_refunds", "partner_file"]),
    ("notify", ["report"]),
    ("archive", ["report"]),
]
TIMEOUT = {"timeout_us": 300 * S}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/revenue/settle.py", line 87, in settle
    return amount / rates[currency]
ZeroDivisionError: division by zero
"""


def emit_run(builder: EventBuilder) -> None:
    """What happened until the picture is taken, by second."""
    steps = [
        *((0, lambda name=name: builder.start(name, **TIMEOUT)) for name in ("extract_orders", "extract_payments")),
        *((0, lambda name=name: builder.start(name, **TIMEOUT)) for name in ("extract_rates", "extract_refunds")),
        (0, lambda: builder.start("extract_calendar", timeout_us=90 * S)),
        *((60 * n, lambda: poll_again(builder)) for n in range(6)),
        (30, lambda: builder.succeed("extract_rates")),
        (31, lambda: builder.start("clean_rates", **TIMEOUT)),
        (35, lambda: failed(builder, "extract_payments", "ConnectTimeout", "api.py:12 in fetch")),
        (40, lambda: builder.succeed("extract_refunds")),
        (41, lambda: builder.start("clean_refunds", **TIMEOUT)),
        (44, lambda: builder.start("extract_payments", **TIMEOUT)),
        (48, lambda: builder.succeed("extract_orders")),
        (49, lambda: builder.start("clean_orders", **TIMEOUT)),
        (62, lambda: failed(builder, "clean_refunds", *ZERO, None, "division by zero", ZERO_FINGERPRINT)),
        (66, lambda: builder.start("clean_refunds", **TIMEOUT)),
        (70, lambda: builder.succeed("clean_rates")),
        (80, lambda: failed(builder, "extract_payments", "ConnectTimeout", "api.py:12 in fetch")),
        (88, lambda: dead(builder)),
        (90, lambda: [builder.event(kind, "extract_calendar", attempt=1) for kind in _KILL]),
        (118, lambda: [builder.event(EventKind.ATTEMPT_SIGKILL, "extract_calendar", attempt=1), *hung(builder)]),
        (100, lambda: builder.start("extract_payments", **TIMEOUT)),
        (131, lambda: builder.start("extract_calendar", timeout_us=90 * S)),
        (121, lambda: builder.succeed("clean_orders")),
        (170, lambda: builder.succeed("extract_calendar")),
        (150, lambda: builder.succeed("extract_payments")),
        (151, lambda: builder.start("clean_payments", **TIMEOUT)),
        (206, lambda: builder.succeed("clean_payments")),
        (207, lambda: builder.start("settle", **TIMEOUT)),
        (249, lambda: builder.succeed("settle")),
        *((250, lambda region=region: builder.start(f"load_{region}", **TIMEOUT)) for region in REGIONS[:3]),
        (284, lambda: failed(builder, "load_latam", "OperationalError", "load.py:40 in copy", START + 352 * S)),
        (285, lambda: builder.start("load_namerica", **TIMEOUT)),
        (302, lambda: builder.succeed("load_apac")),
        *((325, lambda name=name, done=done: progress(builder, name, done)) for name, done in _PROGRESS),
    ]
    for second, events in sorted(steps, key=lambda step: step[0]):
        builder.at = START + second * S
        for event in events():
            builder.projection.apply(event)


_KILL = (EventKind.ATTEMPT_DEADLINE, EventKind.ATTEMPT_SIGTERM)
_PROGRESS = (("load_emea", 63), ("load_namerica", 41))


def poll_again(builder: EventBuilder):
    """The sensor looks again, and waits a minute more."""
    ended = {"outcome": "deferred", "ended_at": builder.at + S}
    polls = (builder.at - START) // (60 * S) + 1
    again = {"next_retry_at": builder.at + 60 * S, "deferrals": polls}
    return [*builder.start("partner_file"), builder.move("partner_file", "SENSING", ended, **again)]


ZERO = ("ZeroDivisionError", "settle.py:87 in settle")
ZERO_FINGERPRINT = "4a7c1d09e2b5"


def failed(
    builder: EventBuilder,
    name: str,
    error: str,
    place: str,
    due: int | None = None,
    error_text: str = "no answer in 10 s",
    fingerprint: str = "b2a0ff3166c0",
):
    """A failure after which the task is tried again."""
    attempt = {"explain": f"{error} {place}", "fingerprint_loose": fingerprint, "delay_us": 9 * S, "ceiling_us": 16 * S}
    attempt["error"] = error_text
    due = due or builder.at + 9 * S
    columns = {
        "next_retry_at": due,
        "failures": builder.projection.tasks[name].failures + 1,
        "delay_us": due - builder.at,
    }
    return builder.fail(name, "RETRYING", error, attempt=attempt, **columns)


def hung(builder: EventBuilder):
    """An attempt that had to be killed."""
    attempt = {"outcome": "timed_out", "where": "ssl.read, client.py:41", "explain": "timeout after 1m30"}
    return builder.fail(
        "extract_calendar", "RETRYING", "TimeoutError", attempt=attempt, failures=1, next_retry_at=builder.at + 13 * S
    )


def dead(builder: EventBuilder):
    """The same failure again: a human is needed."""
    attempt = {"explain": "ZeroDivisionError settle.py:87 in settle", "fingerprint_loose": ZERO_FINGERPRINT}
    attempt["error"] = "division by zero"
    return builder.fail(
        "clean_refunds", "DEAD_LETTER", "ZeroDivisionError", attempt=attempt, failures=2, dead_letter_kind="poison"
    )


def progress(builder: EventBuilder, name: str, done: int):
    """A task says how far it is."""
    data = {"set": {"progress_done": done, "progress_total": 100}}
    return [builder.event(EventKind.TASK_CHANGED, name, data=data)]


@pytest.fixture
def session(clock):
    """Five and a half minutes in."""
    session = FakeSession(projection_of(FLOW, deadline_at=START + 3600 * S, max_parallel=6))
    session.projection.run = session.projection.run._replace(run_id="night-2026-04-25", dag_name="revenue")
    assert session.builder is not None
    emit_run(session.builder)
    usual = {"load_emea": 130, "load_latam": 60, "load_namerica": 95, "report": 40, "notify": 2, "archive": 25}
    session.durations = {name: DurationStats(s * S, s * S * 5 // 4, 20) for name, s in usual.items()}
    session.texts["clean_refunds", 2] = AttemptText(traceback=TRACEBACK)
    clock.now = START + 330 * S
    return session


@parametrize_mostly_long("view", ["graph", "timeline"], quick=1)
def test_picture(view, session, clock, snap_compare):
    app = make_app(session, clock)

    async def prepare(pilot):
        await rest(app, pilot)
        await press(app, pilot, {"graph": "2", "timeline": "3"}[view])
        await rest(app, pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=prepare)


@pytest.mark.parametrize("name", ["README.md", "console/README.md"])
def test_every_picture_of_a_readme_is_there(name):
    readme = Path(__file__).resolve().parents[3] / name
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", readme.read_text(encoding="utf-8"))
    assert pictures
    assert [one for one in pictures if not (readme.parent / unquote(one)).is_file()] == []
