"""Causes and severities of pages, and which pages are sent now (SPEC 4.13)."""

import pytest
from redrive.engine.core.causes import (
    STORM_PAGES,
    STORM_WINDOW_US,
    PageRequest,
    Reminder,
    SendPlan,
    check_sender,
    is_reminder_due,
    page_cause,
    plan_reminder,
    plan_sending,
    severity_of,
)
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint
from redrive.engine.domain.rows import PageRow
from redrive.engine.domain.states import DeadLetterKind
from support.marks import for_each

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
DAY = 24 * 3600 * SECOND


def failure(failure_class: FailureClass, loose: str = "loose") -> Failure:
    return Failure("E", "boom", failure_class, Fingerprint("strict", loose))


def cause(
    run_id: str,
    kind: DeadLetterKind | None,
    failure: Failure | None,
    downstream: str | None = None,
    state: str = "CLOSED",
    task: str = "",
) -> str:
    return page_cause(PageRequest(run_id, task, "", "", kind, failure=failure, downstream=downstream), state)


@for_each(
    "kind, failure_class, severity",
    [
        (DeadLetterKind.AUTH, FailureClass.AUTH, "critical"),
        (DeadLetterKind.DEADLINE, FailureClass.TRANSIENT, "critical"),
        (DeadLetterKind.POISON, FailureClass.UNCLASSIFIED, "high"),
        (DeadLetterKind.PERMANENT, FailureClass.VALIDATION, "high"),
        (DeadLetterKind.OUT_OF_MEMORY, FailureClass.OUT_OF_MEMORY, "high"),
        (None, FailureClass.TRANSIENT, "normal"),
        (None, FailureClass.TIMEOUT, "normal"),
        (None, FailureClass.OUT_OF_MEMORY, "high"),
    ],
)
def test_the_urgency_follows_from_the_class(kind, failure_class, severity):
    """004.32, 004.40: a refused credential is the loudest, a budget spent on blips the quietest."""
    assert severity == severity_of(kind, failure(failure_class))


def test_a_cause_is_the_loose_fingerprint_else_the_run():
    assert "loose" == cause("r", None, failure(FailureClass.TRANSIENT))
    assert "run:r" == cause("r", DeadLetterKind.CRASH_LOOP, None)
    assert "run:r" == cause("r", DeadLetterKind.CRASH_LOOP, failure(FailureClass.UNCLASSIFIED, "lost"))


def test_while_its_breaker_is_not_closed_the_downstream_is_the_cause():
    blip = failure(FailureClass.TRANSIENT)
    assert "downstream:api" == cause("r", None, blip, "api", "OPEN")
    assert "downstream:api" == cause("r", None, blip, "api", "HALF_OPEN")
    assert "loose" == cause("r", None, blip, "api", "CLOSED")
    assert "loose" == cause("r", None, blip, "api", "METRICS_ONLY")


def test_a_bug_is_a_cause_of_its_own_although_its_downstream_is_down():
    bug = failure(FailureClass.UNCLASSIFIED)
    assert "loose" == cause("r", DeadLetterKind.POISON, bug, "api", "OPEN")


def test_a_refused_credential_is_one_cause_per_downstream_and_no_outage():
    assert "credential:api" == cause("r", DeadLetterKind.AUTH, failure(FailureClass.AUTH), "api", "CLOSED")


def test_everything_that_comes_too_late_is_one_cause():
    late = failure(FailureClass.TRANSIENT)
    assert "deadline:r" == cause("r", DeadLetterKind.DEADLINE, late, "api", "OPEN")


# --- What may go out ------------------------------------------------------------------------------------------------


def page(number: int, severity: str = "normal", count: int = 1, **columns) -> PageRow:
    known = {"id": number, "severity": severity, "counted": count, "sent_count": 0, "state": "open"}
    return PageRow(**{**dict.fromkeys(PageRow._fields), **known, **columns})


def test_a_first_page_goes_out_at_once():
    assert SendPlan(single=(1,)) == plan_sending([page(1)], [], None, NOW)


def test_the_most_urgent_goes_first():
    pages = [page(1), page(2, "high"), page(3, "critical"), page(4, "high")]
    assert (3, 2, 4, 1) == plan_sending(pages, [], None, NOW).single


def test_what_exceeds_the_storm_cap_waits_for_one_digest():
    pages = [page(number) for number in range(1, 41)]
    first = plan_sending(pages, [], None, NOW)
    assert tuple(range(1, STORM_PAGES + 1)) == first.single

    sent = [NOW] * STORM_PAGES
    sent_pages = [page(number, sent_at=NOW, sent_count=1) for number in range(1, STORM_PAGES + 1)]
    rest = pages[STORM_PAGES:]
    waiting = plan_sending([*sent_pages, *rest], sent, None, NOW + SECOND)
    assert ((), (), NOW + STORM_WINDOW_US) == (waiting.single, waiting.digest, waiting.next_check_at)


def test_the_digest_comes_when_the_window_is_over_and_once_a_window():
    """A storm that goes on: room for ten again, the rest in the digest; and no second digest soon."""
    later = NOW + STORM_WINDOW_US
    grown = [page(1, sent_at=NOW, sent_count=1, count=48)]
    assert ((), (1,)) == _sent(plan_sending(grown, [NOW], None, later))
    again = [page(1, sent_at=NOW, sent_count=48, count=49)]
    plan = plan_sending(again, [], later, later + SECOND)
    assert ((), ()) == _sent(plan)
    assert later + STORM_WINDOW_US == plan.next_check_at


def _sent(plan: SendPlan) -> tuple:
    return plan.single, plan.digest


def test_what_was_folded_is_reported_in_the_digest_and_not_before():
    grown = [page(1, sent_at=NOW, sent_count=1, count=1247)]
    plan = plan_sending(grown, [NOW], None, NOW + SECOND)
    assert SendPlan(next_check_at=NOW + STORM_WINDOW_US) == plan


def test_an_acknowledged_page_is_silent_also_when_it_grows():
    assert SendPlan() == plan_sending([page(1, state="acked", count=9), page(2, state="acked")], [], None, NOW)


@pytest.mark.parametrize(
    ("undecided", "last_at", "reminder"),
    [
        ([], NOW, None),
        ([(1, NOW), (2, NOW - DAY)], None, Reminder((1, 2), NOW)),
        ([(1, NOW), (2, NOW - DAY)], NOW - SECOND, Reminder((1, 2), NOW - SECOND + DAY)),
        ([(1, NOW)], NOW - 2 * DAY, Reminder((1,), NOW + DAY)),
    ],
)
def test_a_reminder_is_due_a_day_after_the_oldest_page_and_the_one_before(undecided, last_at, reminder):
    assert plan_reminder(undecided, last_at) == reminder


def test_the_last_round_of_a_night_sends_what_is_due_within_an_hour():
    reminder = Reminder((1,), NOW + 3000 * SECOND)
    assert is_reminder_due(reminder, NOW, is_last=True) and not is_reminder_due(reminder, NOW, is_last=False)
    assert not is_reminder_due(reminder, NOW - 1000 * SECOND, is_last=True)


def test_a_snoozed_page_waits_for_its_instant():
    snoozed = [page(1, state="snoozed", snoozed_until=NOW + 60 * SECOND)]
    assert SendPlan(next_check_at=NOW + 60 * SECOND) == plan_sending(snoozed, [], None, NOW)


def test_growth_that_was_reported_an_hour_ago_is_due_after_a_restart():
    assert (1,) == plan_sending(
        [page(1, sent_at=NOW - 6 * STORM_WINDOW_US, sent_count=1, count=5)], [], None, NOW
    ).digest


# --- Senders as a flow declares them --------------------------------------------------------------------------------


@for_each(
    "sender, options",
    [
        ("command", {"line": "mail ops"}),
        ("command", {"argv": ["mail", "ops"], "timeout": 3}),
        ("webhook", {"url": "https://hooks.example/x", "headers": {"A": "b"}}),
        ("apprise", {"url": "slack://token"}),
        ("bell", {}),
    ],
)
def test_a_sender_that_can_send_is_taken(sender, options):
    check_sender(sender, options)


@for_each(
    "sender, options, why",
    [
        ("pager", {}, "no sender"),
        ("command", {}, "argv or line"),
        ("command", {"line": "x", "argv": ["x"]}, "argv or line"),
        ("command", {"argv": "mail ops"}, "list of texts"),
        ("command", {"line": " "}, "not empty"),
        ("webhook", {"url": "file:///etc/passwd"}, "https://"),
        ("bell", {"url": "x"}, "no option 'url'"),
    ],
)
def test_a_sender_that_never_could_is_refused_with_the_reason(sender, options, why):
    with pytest.raises(ValueError, match=why):
        check_sender(sender, options)


def test_what_nobody_knows_the_end_of_is_a_page_for_each_task():
    """Each has to be found out about by itself, whatever they share."""
    unknown = [cause("r", DeadLetterKind.INDETERMINATE, None, "bank", "OPEN", task) for task in ("pay", "refund")]
    assert unknown == ["unknown:r/pay", "unknown:r/refund"]
