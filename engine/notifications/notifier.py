"""Sends pages: beside the loop, from the outbox that ``store/pages.py`` fills, to the senders that the flow names.

Every page goes out at least once, with a key by which a receiver knows a repetition. A sender that fails or hangs holds
up nobody, neither the run nor the other senders: its error is stored and told, and it is asked again, less and less
often. What is not sent when the executor ends stays in the outbox for the next one (SPEC 4.13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..clock import Clock
from ..core.cause_history import last_time, memory_of, noted
from ..core.outcome import FailureClass
from ..core.paging import SEVERITIES, STORM_WINDOW_US, Plan, plan_sending
from ..core.policy import RetryPolicy, draw
from ..domain.event_payloads import PageChange, PageChanged
from ..domain.events import Event
from ..errors import StorageError
from ..statefile.changes.transitions import Journal
from ..store import pages
from .senders import Sender, make_senders

#: How long a sender that failed is left alone.
RESEND = RetryPolicy(base=5.0, cap=300.0, jitter="equal")
CLOSE_SECONDS = 15.0  # a little more than a sender may take: the page that ended the run must still go out
ERROR_CHARACTERS = 500

_NEWS = frozenset([PageChange.OPENED, PageChange.FOLDED, PageChange.SNOOZED, PageChange.WOKEN])

Submit = Callable[[Callable[[Journal], Any]], "asyncio.Future[Any]"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the pages come from; part of every message."""

    flow: str
    run_id: str
    state: str  # path of the state file


@dataclass(slots=True)
class _Delivery:
    """One message under way. ``owed``: the senders that did not take it yet, by their number."""

    ids: tuple[int, ...]
    how: str  # page or digest
    owed: set[int]
    tries: int = 0
    due_at: float = 0.0  # on the loop's clock
    is_on_its_way: bool = False
    told: dict[int, int] = field(default_factory=dict)  # page -> the count that it says

    @property
    def waits(self) -> bool:
        """For its instant: some sender has not taken it, and none is being asked."""
        return bool(self.owed) and not self.is_on_its_way


class Notifier:
    """Runs from ``start`` to ``close``. Without senders it does nothing: the pages wait in the inbox."""

    def __init__(self, declared: Sequence[Mapping[str, object]], origin: Origin, submit: Submit, clock: Clock) -> None:
        self._senders: list[Sender] = make_senders(declared, self._ring)
        self._origin = origin
        self._submit = submit
        self._clock = clock
        self._under_way: list[_Delivery] = []
        self._sent: list[int] = []  # when messages of their own went out, within the storm window
        self._digest_at: int | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin with what is in the outbox already."""
        if self._senders:
            self._task = asyncio.get_running_loop().create_task(self._serve())
            self._task.add_done_callback(self._report)

    def take(self, events: Iterable[Event]) -> None:
        """Listen to the executor."""
        if any(isinstance(event.payload, PageChanged) and event.payload.what in _NEWS for event in events):
            self._wake.set()

    async def close(self, patience_seconds: float = CLOSE_SECONDS) -> None:
        """Send what is due now and leave; waits for no sender longer than ``patience_seconds``."""
        if self._task is None:
            return
        self._closing = True
        self._wake.set()
        _, pending = await asyncio.wait([self._task], timeout=patience_seconds)
        late = pending | self._sending
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _report(self, task: asyncio.Task[None]) -> None:
        """A fault of our own is told like any other of the loop's; the run goes on without pages."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, StorageError):
            context = {"message": "the sender of pages ended", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    # --- Round by round --------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._sent = await self._submit(lambda journal: pages.recently_sent(journal.connection, journal.at))
        while True:
            last = self._closing
            self._wake.clear()
            look_again_at = await self._round()
            if last:
                break
            await self._rest(look_again_at)
        if self._sending:
            await asyncio.wait(self._sending)

    async def _round(self) -> int | None:
        """Set off all that is due. Answers with the instant (microseconds UTC) of the next thing that only waits."""
        run_id = self._origin.run_id
        # Before the outbox is read: what arrives while it is would look there as if nobody had sent it.
        self._under_way = [one for one in self._under_way if one.owed or one.is_on_its_way]
        outbox = await self._submit(lambda journal: pages.read_outbox(journal, run_id))
        open_ids = {page.id for page in outbox if page.state == "open"}
        self._under_way = [one for one in self._under_way if open_ids.issuperset(one.ids)]
        held = {page_id for one in self._under_way for page_id in one.ids}
        now = self._clock.now_us()
        plan = plan_sending((page for page in outbox if page.id not in held), self._sent, self._digest_at, now)
        self._begin(plan, now)
        clock = asyncio.get_running_loop().time()
        for one in self._under_way:
            if one.waits and one.due_at <= clock:
                self._set_off(one)
        return plan.look_again_at

    def _set_off(self, delivery: _Delivery) -> None:
        """Have it delivered beside all others, of which one may hang."""
        delivery.is_on_its_way = True
        task = asyncio.get_running_loop().create_task(self._deliver(delivery))
        self._sending.add(task)
        task.add_done_callback(self._report)
        task.add_done_callback(self._sending.discard)

    def _begin(self, plan: Plan, now: int) -> None:
        everybody = range(len(self._senders))
        self._under_way += [_Delivery((page_id,), "page", set(everybody)) for page_id in plan.single]
        self._sent = [at for at in self._sent if at > now - STORM_WINDOW_US] + [now] * len(plan.single)
        if plan.digest:
            self._digest_at = now
            self._under_way.append(_Delivery(plan.digest, "digest", set(everybody)))

    async def _rest(self, look_again_at: int | None) -> None:
        loop = asyncio.get_running_loop()
        waits = [one.due_at - loop.time() for one in self._under_way if one.waits]
        if look_again_at is not None:
            waits.append((look_again_at - self._clock.now_us()) / 1e6)
        try:
            async with asyncio.timeout(max(0.0, min(waits)) if waits else None):
                await self._wake.wait()
        except TimeoutError:
            return

    # --- One message -----------------------------------------------------------------------------------------------

    async def _deliver(self, delivery: _Delivery) -> None:
        messages = await self._submit(lambda journal: pages.read_messages(journal.connection, delivery.ids))
        delivery.told = {message["id"]: message["count"] for message in messages}
        if delivery.how == "page":
            message = page_message(messages[0], self._origin)
        else:
            message = digest_message(messages, self._origin, self._clock.now_us())
        delivery.tries += 1
        await asyncio.gather(*(self._send(delivery, number, message) for number in sorted(delivery.owed)))
        if delivery.owed:
            wait, _ = draw(RESEND, delivery.tries - 1, None, self._clock.uniform)
            delivery.due_at = asyncio.get_running_loop().time() + wait
        else:
            await self._submit(lambda journal: pages.write_sent(journal, delivery.told, delivery.how))
        delivery.is_on_its_way = False
        self._wake.set()

    async def _send(self, delivery: _Delivery, number: int, message: Mapping[str, object]) -> None:
        sender = self._senders[number]
        try:
            await sender.send(message)
        except Exception as raised:  # a library's or a person's program: whatever it is, it is why
            error = (str(raised) or type(raised).__name__)[:ERROR_CHARACTERS]
            ids, tries = delivery.ids, delivery.tries
            await self._submit(lambda journal: pages.write_send_error(journal, ids, sender.name, error, tries))
        else:
            delivery.owed.discard(number)

    async def _ring(self, ids: Sequence[int]) -> None:
        await self._submit(lambda journal: pages.ring(journal, ids))


# --- What a message says -------------------------------------------------------------------------------------------


def page_message(page: Mapping[str, object], origin: Origin) -> dict[str, object]:
    """One page for senders: its columns, ``kind``, ``key``, ``flow``, ``state``, and ``text`` for people."""
    message = {**page, "kind": "page", "ids": [page["id"]], "flow": origin.flow, "state": origin.state}
    message["text"] = "\n".join(_page_lines(page, origin))
    return message


def digest_message(found: Sequence[Mapping[str, Any]], origin: Origin, now: int) -> dict[str, Any]:
    """Several pages in one message: those beyond the storm cap, and those that have grown since they were told."""
    failures = sum(page["count"] for page in found)
    causes = f"{len(found)} cause{'' if len(found) == 1 else 's'}"
    lines = [f"[{page['severity']}] {page['title']}: {page['count']} so far" for page in found]
    return {
        "kind": "digest",
        "key": f"digest/{origin.run_id}/{now}",
        "ids": [page["id"] for page in found],
        "severity": min((page["severity"] for page in found), key=SEVERITIES.index),
        "title": f"{origin.flow}: {causes}, {failures} failure{'' if failures == 1 else 's'}",
        "flow": origin.flow,
        "run_id": origin.run_id,
        "state": origin.state,
        "count": failures,
        "pages": [page_message(page, origin) for page in found],
        "text": "\n".join([*lines, f"redrive inbox {origin.state}"]),
    }


def _page_lines(page: Mapping[str, Any], origin: Origin) -> list[str]:
    body = page["body"]
    where = origin.flow if page["run_id"] is None else f"{origin.flow}, run {page['run_id']}"
    lines = [f"[{page['severity']}] {page['title']}", f"{where}: {body.get('why')}"]
    said = (body.get("error") if body.get("class") == FailureClass.TIMEOUT else "", body.get("diagnostic"))
    lines += [str(text) for text in said if text] or [str(text) for text in (body.get("error"),) if text]
    if body.get("changed") is not None:
        lines.append(f"changed between the last two attempts: {', '.join(body['changed']) or 'nothing'}")
    lines += _remembered(page)
    if body.get("held"):
        lines.append("1 task below is held up" if body["held"] == 1 else f"{body['held']} tasks below are held up")
    if body.get("deadline_at"):
        lines.append(f"the run is due at {datetime.fromtimestamp(body['deadline_at'] // 1_000_000).astimezone():%H:%M}")
    if body.get("owner"):
        lines.append(f"owner: {body['owner']}")
    return [*lines, str(body.get("command") or "")]


def _remembered(page: Mapping[str, Any]) -> list[str]:
    """What came of it the last time, and what people wrote on it."""
    if not page["body"].get("memory"):
        return []
    memory, now_us = memory_of(page["body"]["memory"]), page["created_at"]
    before = last_time(memory, now_us)
    return [*([before] if before else []), *(noted(note, now_us) for note in memory.notes)]
