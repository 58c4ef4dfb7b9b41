"""Sends pages in the background, from the outbox of ``store/pages.py`` to the senders of the flow.

Every page is sent at least once, with a deduplication key. A sender that fails or hangs blocks neither the run nor the
other senders: its error is stored and emitted, and it is retried with backoff. Unsent pages stay in the outbox for the
next executor (SPEC 4.13).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..clock import Clock
from ..core import causes
from ..core.outcome import FailureClass
from ..core.policy import RetryPolicy, draw_delay
from ..domain.event_payloads import ClockMoved, PageChange, PageChanged, RunChange, RunChanged
from ..domain.events import Event
from ..domain.rows import FailingSender, PageRow
from ..domain.states import RunState
from ..domain.text import counted, printable, shell_command
from ..errors import StorageError
from ..store import pages
from ..store.writer import Writer
from . import machine_pages
from .machine_pages import Member, PageClaim
from .senders import Sender, SendError, get, make_senders

#: Backoff after a failed sending.
RESEND_POLICY = RetryPolicy(base=5.0, cap=300.0, jitter="equal")
CLOSE_SECONDS = 15.0  # longer than the timeout of a sender, so that the last page is still sent
ERROR_CHARACTERS = 500
BUSY_TRIES = 4  # after so many a page is sent, although another flow tries to page the same receiver

_WAKING_CHANGES = frozenset(
    [PageChange.OPENED, PageChange.FOLDED, PageChange.SNOOZED, PageChange.WOKEN, PageChange.REOPENED]
)


def _is_waking(event: Event) -> bool:
    return isinstance(event.payload, PageChanged) and event.payload.what in _WAKING_CHANGES


class MessageOrigin(msgspec.Struct, frozen=True):
    """The run that pages come from; part of every message."""

    flow: str
    run_id: str
    state: str  # path of the state file


class _Delivery(msgspec.Struct):
    """A message in delivery. ``pending``: indexes of the senders that have not accepted it."""

    ids: tuple[int, ...]
    how: str  # page, digest or reminder
    pending: set[int]
    tries: int = 0
    due_at: float = 0.0  # on the loop's clock
    is_in_flight: bool = False
    told_by: str | None = None  # the flow whose page has told a receiver of the cause
    reported_since: int | None = None  # microseconds UTC: an earlier page of another flow tells nothing of this one

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for ``due_at``: some sender is pending, and no sending is in flight."""
        return bool(self.pending) and not self.is_in_flight


class Notifier:
    """Runs from ``start`` to ``close``. Without senders it is idle: the pages stay in the inbox.

    ``machine_folder``: where flows tell one another what they have paged; None: they do not.
    """

    def __init__(
        self,
        declared: Sequence[Mapping[str, object]],
        origin: MessageOrigin,
        writer: Writer,
        clock: Clock,
        machine_folder: str | None = None,
    ) -> None:
        self._senders: list[Sender] = make_senders(declared, self._ring)
        # By sender: what it is known by to other flows; None: a bell, which rings in consoles of this run.
        self._receivers = [
            None if one["sender"] == "bell" else str(causes.declared_sender(one)["hash"]) for one in declared
        ]
        self._machine_folder = machine_folder
        self._origin = origin
        self._submit = writer.submit
        self._clock = clock
        self._deliveries: list[_Delivery] = []
        self.failing: dict[str, FailingSender] = {}  # by sender: what its latest try met
        self._sent: list[int] = []  # when single pages were sent within the storm window, in microseconds UTC
        self._digest_at: int | None = None
        self._wake = asyncio.Event()
        self._is_closing = False
        self._on_idle: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._delivery_tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start sending, including pages that are in the outbox already."""
        if self._senders:
            self._task = asyncio.get_running_loop().create_task(self._serve())
            self._task.add_done_callback(self._report)

    def handle_events(self, events: Iterable[Event]) -> None:
        """Wake up for new or changed pages; what was sent was sent as long ago as before a step of the clock."""
        for event in events if self._senders else ():
            if isinstance(event.payload, ClockMoved):
                self._shift_clock(event.payload.moved_us)
            if _is_waking(event):
                self._wake.set()

    def _shift_clock(self, moved_us: int) -> None:
        self._sent = [at + moved_us for at in self._sent]
        if self._digest_at is not None:
            self._digest_at += moved_us
        self._wake.set()

    @property
    def is_running(self) -> bool:
        """Whether the flow has a sender, so that pages are sent."""
        return self._task is not None and not self._task.done()

    def send_last(self, on_idle: Callable[[], None] | None) -> None:
        """Send what is unsent without waiting for a digest or a long backoff, and call ``on_idle`` once all is sent.

        None: the run goes on, and pages wait for their time again.
        """
        self._on_idle = on_idle
        for delivery in self._deliveries:
            delivery.tries = delivery.due_at = 0
        self._wake.set()

    async def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Send the due pages and stop, within ``timeout_seconds``; what is left is emitted as UNSENT."""
        if self._task is None:
            return
        self._is_closing = True
        self._wake.set()
        _, pending = await asyncio.wait([self._task], timeout=timeout_seconds)
        late = pending | self._delivery_tasks
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        if timeout_seconds:
            with contextlib.suppress(StorageError):
                await self._submit(lambda transaction: pages.emit_unsent(transaction, self._origin.run_id))

    def _report(self, task: asyncio.Task[None]) -> None:
        """Report a failed task to the loop's exception handler; the run continues without pages."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, StorageError):
            context = {"message": "the sender of pages ended", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    # --- Rounds ----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._sent = await self._submit(lambda transaction: pages.recently_sent(transaction.connection, transaction.at))
        self._digest_at = await self._submit(
            lambda transaction: pages.last_sent_at(transaction.connection, "digest", transaction.at)
        )
        while True:
            last, on_idle = self._is_closing, self._on_idle
            self._wake.clear()
            next_due_at = await self._send_due()
            if last:
                break
            if on_idle is not None and not any(one.pending or one.is_in_flight for one in self._deliveries):
                on_idle()
            await self._wait(next_due_at)
        if self._delivery_tasks:
            await asyncio.wait(self._delivery_tasks)

    async def _send_due(self) -> int | None:
        """Start all due deliveries. Return when the next page is due, in microseconds UTC; None: none is waiting."""
        run_id = self._origin.run_id
        # Before the outbox is read: a delivery that completes during the read would look unsent there.
        self._deliveries = [delivery for delivery in self._deliveries if delivery.pending or delivery.is_in_flight]
        outbox = await self._submit(lambda transaction: pages.read_outbox(transaction, run_id))
        reminder = await self._submit(lambda transaction: pages.next_reminder(transaction.connection, transaction.at))
        open_ids = {page.id for page in outbox if page.state == "open"}.union(reminder.ids if reminder else ())
        self._deliveries = [delivery for delivery in self._deliveries if open_ids.issuperset(delivery.ids)]
        held = {page_id for delivery in self._deliveries for page_id in delivery.ids}
        now = self._clock.now_us()
        unheld = (page for page in outbox if page.id not in held)
        plan = causes.plan_sending(unheld, self._sent, self._digest_at, now, is_last=self._on_idle is not None)
        self._add_deliveries(plan, now)
        remind_at = self._remind(reminder, now)
        clock = asyncio.get_running_loop().time()
        for delivery in self._deliveries:
            if delivery.is_waiting and delivery.due_at <= clock:
                self._start_delivery(delivery)
        return min((at for at in (plan.next_check_at, remind_at) if at is not None), default=None)

    def _remind(self, reminder: causes.Reminder | None, now: int) -> int | None:
        """Add the delivery of a reminder that is due; return when one that is not due yet will be."""
        if reminder is None or any(one.how == "reminder" for one in self._deliveries):
            return None
        if not causes.is_reminder_due(reminder, now, is_last=self._on_idle is not None):
            return reminder.due_at
        self._deliveries.append(_Delivery(reminder.ids, "reminder", set(range(len(self._senders)))))
        return None

    def _start_delivery(self, delivery: _Delivery) -> None:
        """Deliver concurrently, because a delivery may hang."""
        delivery.is_in_flight = True
        task = asyncio.get_running_loop().create_task(self._deliver(delivery))
        self._delivery_tasks.add(task)
        task.add_done_callback(self._report)
        task.add_done_callback(self._delivery_tasks.discard)

    def _add_deliveries(self, plan: causes.SendPlan, now: int) -> None:
        all_senders = range(len(self._senders))
        self._deliveries += [_Delivery((page_id,), "page", set(all_senders)) for page_id in plan.single]
        self._sent = [at for at in self._sent if at > now - causes.STORM_WINDOW_US] + [now] * len(plan.single)
        if plan.digest:
            self._digest_at = now
            self._deliveries.append(_Delivery(plan.digest, "digest", set(all_senders)))

    async def _wait(self, next_due_at: int | None) -> None:
        loop = asyncio.get_running_loop()
        waits = [delivery.due_at - loop.time() for delivery in self._deliveries if delivery.is_waiting]
        if next_due_at is not None:
            waits.append((next_due_at - self._clock.now_us()) / 1e6)
        try:
            async with asyncio.timeout(max(0.0, min(waits)) if waits else None):
                await self._wake.wait()
        except TimeoutError:
            return

    # --- One message -----------------------------------------------------------------------------------------------

    async def _deliver(self, delivery: _Delivery) -> None:
        found = await self._submit(  # once the pages, and the events that they report, are on the disk
            lambda transaction: pages.read_pages(transaction.connection, delivery.ids), durable=True
        )
        counts = {page.id: page.counted for page in found}
        if delivery.how == "page":
            page = found[0]
            delivery.reported_since = await self._submit(
                lambda transaction: pages.reported_since(transaction.connection, page)
            )
            message = page_message(page, self._origin)
        else:
            message = digest_message(found, self._origin, self._clock.now_us(), delivery.how)
        delivery.tries += 1
        await asyncio.gather(*(self._send(delivery, number, message) for number in sorted(delivery.pending)))
        if delivery.pending:
            retry_index = max(delivery.tries - 1, 0)  # ``send_last`` may have begun to count anew meanwhile
            wait, _ = draw_delay(RESEND_POLICY, retry_index, None, self._clock.uniform)
            delivery.due_at = asyncio.get_running_loop().time() + wait
        else:
            told_by = delivery.told_by
            await self._submit(lambda transaction: pages.write_sent(transaction, counts, delivery.how, told_by))
        delivery.is_in_flight = False
        self._wake.set()

    async def _send(self, delivery: _Delivery, number: int, message: Mapping[str, object]) -> None:
        sender = self._senders[number]
        found = await self._claim(delivery, number, message)
        if found.told_by is not None:
            delivery.told_by = found.told_by
            delivery.pending.discard(number)
        if found.told_by is not None or found.is_busy:
            return
        if found.others:
            message = {**message, "text": f"{message['text']}\n{printable('also in flows ' + ', '.join(found.others))}"}
        try:
            await sender.send(message)
        except asyncio.CancelledError:
            machine_pages.release(found)
            raise
        except Exception as raised:  # senders run third-party code, which may raise any error
            machine_pages.release(found)
            error = note_failure(self.failing, sender.name, raised, self._clock.now_us())
            ids, tries = delivery.ids, delivery.tries
            await self._submit(lambda transaction: pages.write_send_error(transaction, ids, sender.name, error, tries))
        else:
            machine_pages.confirm(found, self._member(message), self._clock.now_us())
            self.failing.pop(sender.name, None)
            delivery.pending.discard(number)

    async def _claim(self, delivery: _Delivery, number: int, message: Mapping[str, object]) -> PageClaim:
        """Ask whether another flow has paged the receiver about this cause, or does so now."""
        body, receiver = message.get("body"), self._receivers[number]
        fingerprint = body.get("fingerprint") if isinstance(body, Mapping) else None
        if self._machine_folder is None or receiver is None or not fingerprint or delivery.tries > BUSY_TRIES:
            return PageClaim()
        words = (self._machine_folder, str(fingerprint), receiver, self._member(message), self._clock.now_us())
        return await asyncio.to_thread(machine_pages.claim, *words, delivery.reported_since)

    def _member(self, message: Mapping[str, object]) -> Member:
        return Member(self._origin.flow, self._origin.state, str(message.get("cause")))

    async def _ring(self, ids: Sequence[int]) -> None:
        await self._submit(lambda transaction: pages.emit_bell(transaction, ids))


# --- Messages ------------------------------------------------------------------------------------------------------


def note_failure(failing: dict[str, FailingSender], sender: str, raised: Exception, now: int) -> str:
    """Note that a sender fails, since its first failure after its last success; return why."""
    error = (str(raised) or type(raised).__name__)[:ERROR_CHARACTERS]
    failing[sender] = FailingSender(sender, error, failing[sender].since if sender in failing else now)
    return error


def message_of(origin: MessageOrigin, kind: str, lines: Iterable[str], **fields: object) -> dict[str, object]:
    """Return a message as senders get it: the fields that all have, and those of its kind."""
    place = {"flow": origin.flow, "run_id": origin.run_id, "state": origin.state}
    return {"kind": kind, **place, **fields, "text": printable("\n".join(lines))}


#: The columns of a page that senders get.
_COLUMNS = ("id", "cause", "episode", "severity", "title", "run_id", "task", "created_at", "updated_at", "body", "key")


def page_message(page: PageRow, origin: MessageOrigin) -> dict[str, object]:
    """Return a page as a message: columns, ``kind``, ``key``, ``flow``, ``state``, and a readable ``text``."""
    columns = {name: getattr(page, name) for name in _COLUMNS}
    return message_of(origin, "page", _page_lines(page, origin), **columns, count=page.counted, ids=[page.id])


def digest_message(
    found: Sequence[PageRow], origin: MessageOrigin, now: int, kind: str = "digest"
) -> dict[str, object]:
    """Return several pages as one message: pages beyond the storm limit, and pages whose count has grown; as a
    "reminder" those that wait for a decision."""
    failures = sum(page.counted for page in found)
    named = f"{counted(len(found), 'cause')}{' undecided' if kind == 'reminder' else ''}"
    lines = [f"[{page.severity}] {page.title}: {page.counted} so far" for page in found]
    return message_of(
        origin,
        kind,
        [*lines, shell_command(["redrive", "inbox", origin.state])],
        key=f"{kind}/{origin.run_id}/{now}",
        ids=[page.id for page in found],
        severity=min((page.severity for page in found), key=causes.SEVERITIES.index),
        title=f"{origin.flow}: {named}, {counted(failures, 'failure')}",
        count=failures,
        pages=[page_message(page, origin) for page in found],
    )


def _page_lines(page: PageRow, origin: MessageOrigin) -> list[str]:
    body = causes.parse_body(page.body)
    where = origin.flow if page.run_id is None else f"{origin.flow}, run {page.run_id}"
    lines = [f"[{page.severity}] {page.title}", f"{where}: {body.why}"]
    is_error_shown = body.failure_class == FailureClass.TIMEOUT or not body.diagnostic
    lines += [text for text in (body.error if is_error_shown else None, body.diagnostic) if text]
    if body.changed is not None:
        lines.append(f"changed between the last two attempts: {', '.join(body.changed) or 'nothing'}")
    if body.memory is not None:
        before = causes.describe_last_incident(body.memory, page.created_at)
        lines += [
            *([before] if before else []),
            *(causes.describe_note(note, page.created_at) for note in body.memory.notes),
        ]
    if body.held:
        lines.append("1 task below is held up" if body.held == 1 else f"{body.held} tasks below are held up")
    if body.deadline_at:
        lines.append(f"the run is due at {datetime.fromtimestamp(body.deadline_at // 1_000_000).astimezone():%H:%M}")
    if body.breaker and body.breaker not in str(body.why):
        lines.append(f"breaker of {body.downstream}: {body.breaker}")
    if body.owner:
        lines.append(f"owner: {body.owner}")
    return [*lines, *filter(None, dict.fromkeys((body.attach, body.command)))]


# --- Sends in the background what may be lost after a few tries: pings, and notices of success -----------------------


TRIES = 3
RETRY_POLICY = RetryPolicy(base=1.0, cap=4.0, jitter="equal")


class BackgroundSends:
    """Sends with ``TRIES`` tries each. ``on_failed(sentence)`` reports one that was given up."""

    def __init__(self, uniform: Callable[[float, float], float], on_failed: Callable[[str], None]) -> None:
        self._uniform = uniform
        self._on_failed = on_failed
        self._latest: dict[str, asyncio.Task[None]] = {}  # by receiver

    def start(self, receiver: str, what: str, send: Callable[[], Awaitable[None]]) -> None:
        """Send to a receiver after what was sent to it before. ``what``: words for the report, without secrets."""
        work = self._send(what, send, self._latest.get(receiver))
        self._latest[receiver] = asyncio.get_running_loop().create_task(work)

    async def close(self, timeout_seconds: float) -> None:
        """Wait for the sends, at most for ``timeout_seconds``."""
        if self._latest:
            _, pending = await asyncio.wait(self._latest.values(), timeout=timeout_seconds)
            for task in pending:
                task.cancel()

    async def _send(self, what: str, send: Callable[[], Awaitable[None]], earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        why = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(draw_delay(RETRY_POLICY, number - 1, None, self._uniform)[0])
            try:
                await send()
                return
            except SendError as error:
                why = str(error)
            except Exception as error:  # its text may hold the URL
                why = type(error).__name__
        self._on_failed(f"{what} not accepted after {TRIES} tries: {why}")


# --- Pings: requests of a URL at the start and the end of each run, for a dead man's switch --------------------------
#
# They follow healthchecks.io (https://healthchecks.io/docs/http_api/): ``/start`` and ``/fail`` after the path, and
# the URL itself for success. Errors are emitted without the URL, which is a secret.


_PLACEHOLDER = "{event}"


class PingEvent(StrEnum):
    """The event that a ping reports; the word in place of ``{event}``."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"


def url_for(url: str, event: PingEvent) -> str:
    """Return the URL to request for an event."""
    if _PLACEHOLDER in url:
        return url.replace(_PLACEHOLDER, event)
    if event is PingEvent.SUCCESS:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{event}"))


def ping_event_of(event: Event, run_id: str) -> PingEvent | None:
    """Return what an event means for the switch: the end of the run, or that it waits for a human."""
    payload = event.payload
    if event.run_id != run_id or not isinstance(payload, RunChanged):
        return None
    if payload.what == RunChange.ENDED:
        return PingEvent.SUCCESS if event.new == RunState.SUCCESS else PingEvent.FAIL
    return PingEvent.FAIL if payload.what == RunChange.BLOCKED else None


class Pinger:
    """Sends pings in the background, to each URL in order."""

    def __init__(self, urls: Sequence[str], sends: BackgroundSends) -> None:
        self._urls = urls
        self._sends = sends

    def handle_events(self, events: Iterable[Event], run_id: str) -> None:
        """Send the pings that the events of the run call for."""
        for event in events if self._urls else ():
            ping = ping_event_of(event, run_id)
            if ping is not None:
                self.send(ping)

    def send(self, event: PingEvent) -> None:
        """Request each URL; a start that is not accepted yet delays the end, so that they arrive in order."""
        for url in self._urls:
            self._sends.start(url, f"ping {event!s} to {urlsplit(url).hostname}", partial(get, url_for(url, event)))
