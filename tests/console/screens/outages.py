"""A night in which much stands between tasks and the world: a breaker that holds, pages, rows that were set aside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.rows import BreakerRow
from redrive.engine.statefile.lists import ROW_STATES, Listing, Row

from ..conftest import FakeSession, StillClock, build_row
from ..model.runs import START, EventBuilder, S, projection_of

QUOTES = [f"quote_{name}" for name in ("USD", "GBP", "JPY", "CHF", "INR")]
FLOW: list[tuple[str, list[str]]] = [
    ("fetch_orders", []),
    ("fetch_payments", []),
    ("import_customers", []),
    *((name, []) for name in QUOTES),
    ("settle", [*QUOTES, "fetch_payments"]),
    ("report", ["settle", "import_customers"]),
]
OPTIONS = {
    "downstreams": [
        {"name": "rates-api", "minimum_calls": 3, "open_seconds": 30.0, "release_per_second": 4.0},
        {"name": "payments-api", "bucket_capacity": 10.0},
        {"name": "mail", "metrics_only": True},
    ],
    "pages": [{"sender": "bell"}, {"sender": "command", "line": "page --token s3cret"}],
}


def breaker_row(downstream: str, state: str, **columns: Any) -> BreakerRow:
    """The same, as it is read."""
    return build_row(BreakerRow, row_of_breaker(downstream, state, **columns))


def row_of_breaker(downstream: str, state: str, **columns: Any) -> dict[str, Any]:
    """A row of the list "breakers"."""
    detail = {"episode": 1, "release_at": None, "why": "", "reserve_at": 0} | columns.pop("detail", {})
    row = {"downstream": downstream, "state": state, "reopens_at": None, "window": [], "tokens": None}
    return {**row, "changed_at": START, "detail": detail, **columns}


def row_of_page(number: int, title: str, **columns: Any) -> dict[str, Any]:
    """A row of the list "page_heads"; with its body, of "pages"."""
    row: dict[str, Any] = {"id": number, "cause": f"cause-{number}", "episode": 1, "run_id": "night-7", "task": None}
    row |= {"severity": "high", "title": title, "counted": 1, "sent_count": 1, "state": "open", "body": {}}
    row |= {"created_at": START + 30 * S, "updated_at": START + 30 * S, "sent_at": START + 31 * S}
    return {**row, "send_error": None, "snoozed_until": None, "acked_by": None, **columns}


def row_of_group(name: str, state: str, count: int, error: str, **columns: Any) -> dict[str, Any]:
    """A row of the list "quarantine_groups"."""
    at = START + 20 * S
    row = {"name": name, "fingerprint": "c0ffee", "first_at": at, "last_at": at + S, "last_id": count, "error": error}
    return {**dict.fromkeys(ROW_STATES, 0), **row, state: count, **columns}


def quarantined(place: int, state: str = "held") -> dict[str, Any]:
    """A row of the list "quarantine_rows"."""
    key = f"c-{place:05}"
    row = {
        "id": place + 1,
        "run_id": "night-7",
        "name": "import_customers",
        "attempt": 1,
        "generation": 0,
        "row_key": key,
        "state": state,
    }
    payload = json.dumps({"id": key, "name": f"customer {place}"})
    return {**row, "payload": payload, "error": "KeyError: 'country'", "fingerprint": "c0ffee", "at": START + 20 * S}


class OutageSession(FakeSession):
    """Windows of quarantined rows are made as they are asked for; ``asked`` says what was."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.row_count = 0

    async def rows(self, listing: Listing[Row], **options: Any) -> Sequence[Row]:
        what, row = listing.name, listing.row
        self.asked.append((what, options))
        if what == "quarantine_rows":
            self._raise()
            last = min(options["skip"] + options["limit"], self.row_count)
            return [build_row(row, quarantined(place)) for place in range(options["skip"], last)]
        if what == "quarantine":
            return [build_row(row, quarantined(options["after"]))]
        if what == "pages" and "id" in options:
            return [build_row(row, page) for page in self.lists.get("pages", ()) if page["id"] == options["id"]]
        return await super().rows(listing, **options)


def outage(clock: StillClock) -> OutageSession:
    """The clock stands 42 s after the start, and the breaker lets a probe through in 7 s."""
    specs: dict[str, dict[str, Any]] = {name: {"downstream": "rates-api"} for name in QUOTES}
    specs |= {"fetch_payments": {"downstream": "payments-api"}, "import_customers": {"max_bad_ratio": 0.2}}
    projection = projection_of(FLOW, specs, options=json.dumps(OPTIONS))
    projection.run = projection.run._replace(run_id="night-7", dag_name="nightly")
    builder = EventBuilder(projection)
    for event in _outage_events(builder):
        projection.apply(event)
    session = OutageSession(projection, "local:nightly.db")
    session.builder = builder
    clock.now = builder.at
    session.row_count = 3
    session.lists = {
        "breakers": [
            row_of_breaker(
                "rates-api",
                "OPEN",
                reopens_at=clock.now + 7 * S,
                window=[[clock.now - 30 * S, 1, 6, 0]],
                tokens=3.0,
                changed_at=clock.now - 23 * S,
                detail={"why": "6 of 7 calls failed in 60 s"},
            ),
            row_of_breaker("payments-api", "CLOSED", window=[[clock.now - 6 * S, 12, 1, 1]], tokens=9.1),
            row_of_breaker("not-of-this-flow", "OPEN", reopens_at=None),
        ],
        "quarantine_groups": [row_of_group("import_customers", "held", 3, "KeyError: 'country'")],
    }
    session.lists["pages"] = session.lists["page_heads"] = _pages(clock.now)
    return session


def _pages(now: int) -> list[dict[str, Any]]:
    why = "the same failure twice: ZeroDivisionError at settle.py:87"
    body = {"why": why, "error": "division by zero", "changed": [], "held": 2, "command": "redrive requeue settle"}
    return [
        row_of_page(
            2, "rates-api is down", cause="downstream:rates-api", severity="critical", counted=12, task=QUOTES[0]
        ),
        row_of_page(
            1, "poison on settle", body=body, task="settle", sent_at=None, send_error="command: exit status 1: no route"
        ),
        row_of_page(3, "budget spent on archive", state="acked", acked_by="ana@ops-1", run_id="night-6"),
        row_of_page(4, "deadline at risk", state="snoozed", snoozed_until=now + 59 * 60 * S, severity="critical"),
        row_of_page(5, "permanent on mail", state="resolved"),
    ]


def _outage_events(builder: EventBuilder) -> list[Event]:
    events: list[Event] = []
    for name in ("fetch_orders", "import_customers", *QUOTES[:3]):
        events += builder.start(name, timeout_us=300 * S)
    builder.after(12)
    events += builder.succeed("import_customers", duration_us=12 * S)
    events.append(builder.event(EventKind.TASK_CHANGED, "import_customers", data={"set": {"bad_rows": 3}}))
    for name in QUOTES[:3]:
        due = {"next_retry_at": builder.at + 8 * S, "failures": 1, "delay_us": 8 * S, "ceiling_us": 12 * S}
        events += builder.fail(name, "RETRYING", "TransientError", **due)
    events += [builder.move(name, "READY") for name in QUOTES[3:]]
    opened = {"downstream": "rates-api", "state": "OPEN", "reopens_at": builder.at + 37 * S}
    events.append(builder.after(7).event(EventKind.BREAKER, data=opened))
    for number, cause in ((1, "cause-1"), (2, "downstream:rates-api")):
        events.append(builder.event(EventKind.PAGE, "settle", data={"what": "opened", "id": number, "cause": cause}))
    builder.after(23)
    return events
