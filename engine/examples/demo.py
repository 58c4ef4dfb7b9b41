"""A short flow that shows every kind of failure: ``redrive demo``.

A flaky API recovers on the third try; a hang ignores SIGTERM and is killed; a poisoned task fails the same way twice
and a partner refuses permanently, and both page; a sensor waits without a slot; a downstream fails three tasks, and its
breaker holds the next ones; three bad rows are set aside while their task goes on; a call inside a task is retried and
leaves only an event; a fan-out loads parts in parallel through a pool.

Failures depend on the number of the attempt, not on time: the run is the same on a slow machine. It lasts half a
minute, until it waits for a human.

To finish the run, requeue ``settle`` and the rows of ``load_customers`` (the data is fixed then), and skip
``fetch_invoices``.
"""

import signal
import time

from redrive.engine import Flow, NotReady, PermanentError, RetryPolicy, TransientError, retry

flow = Flow("demo", deadline="8h", deadline_action="page", max_parallel=6, pools={"warehouse": 2})
flow.page("bell")
flow.downstream("rates-api", failure_rate=0.3, minimum_calls=3, open_seconds=12, release_per_second=1)

QUICK = RetryPolicy(max_attempts=5, base=4, cap=12, jitter="equal")
RATES = {"USD": 1.08, "GBP": 0.85, "JPY": 158.2, "CHF": 0.97, "INR": 90.6}
REFUSED_FIRST = ("USD", "GBP", "JPY")  # three of seven calls in the worst order, which opens the breaker


@flow.task(timeout=30)
def fetch_orders(ctx):
    """Report progress; one page fails once, and the retry inside the task handles it."""
    failing = {5}

    @retry(retries=2, base=0.2, exceptions=(TimeoutError,), jitter=lambda delay: delay, deadline=10)
    def fetch(page):
        if page in failing:
            failing.remove(page)
            raise TimeoutError(f"page {page}: no answer")

    for page in range(1, 9):
        time.sleep(1.5)
        fetch(page)
        ctx.progress(page, 8)
    print("fetched 1,204 orders")
    return {"orders": 1204}


@flow.task(retry=QUICK, timeout=20, downstream="payments-api")
def fetch_payments(ctx):
    """Succeed on the third try."""
    time.sleep(2)
    if ctx.attempt < 3:
        raise ConnectionError("payments-api: connection reset by peer")
    print("fetched 1,187 payments")


@flow.task(retry=QUICK, timeout=9, grace_seconds=3)
def fetch_calendar(ctx):
    """Hang on the first try, and ignore SIGTERM."""
    if ctx.attempt == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("waiting for the bank holidays ...", flush=True)
        time.sleep(3600)
    time.sleep(2)


@flow.task(timeout=30)
def fetch_invoices(ctx):
    """Fail permanently."""
    time.sleep(3)
    if ctx.generation == 0:
        raise PermanentError("invoices-api: 403 forbidden", diagnostic="scope 'invoices:read' is missing")


@flow.sensor(every=5, retry=RetryPolicy(max_elapsed=600))
def partner_file(ctx):
    """Find the file on the third call."""
    if ctx.attempt < 3:
        raise NotReady(f"check {ctx.attempt}: nothing yet")
    return True


@flow.task(timeout=30, max_bad_ratio=0.2)
def load_customers(ctx):
    """Set three of forty rows aside, until a requeue finds them repaired."""
    customers = [{"id": f"c-{number:02}", "country": "DE"} for number in range(40)]
    if ctx.generation == 0:
        for broken in (7, 19, 33):
            del customers[broken]["country"]
    for scope in ctx.rows(customers, key="id"):
        with scope as customer:
            time.sleep(0.1)
            customer["country"].lower()


def quote(currency):
    def fetch(ctx):
        time.sleep(1)
        if ctx.attempt == 1 and currency in REFUSED_FIRST:
            raise TransientError("rates-api: 503 service unavailable")
        return RATES[currency]

    return fetch


QUOTES = [f"quote_{currency}" for currency in RATES]
for currency, name in zip(RATES, QUOTES, strict=True):
    flow.task(quote(currency), name=name, retry=QUICK, timeout=20, downstream="rates-api")


@flow.task(after=[fetch_orders, fetch_payments], timeout=60)
def clean_orders(fetch_orders):
    time.sleep(3)
    print(f"cleaned {fetch_orders['orders']} orders")


def load_part(number):
    def load():
        time.sleep(1.5 + 0.5 * number)
        print(f"part {number}: 300 rows")

    return load


PARTS = [f"load_part_{number}" for number in range(1, 5)]
for number, name in enumerate(PARTS, start=1):
    flow.task(load_part(number), name=name, after=[clean_orders], pool="warehouse", timeout=60)


@flow.task(after=[fetch_payments, fetch_calendar, *QUOTES], retry=QUICK, timeout=60)
def settle(ctx, quote_INR):
    """Fail the same way on every try (poison), until a requeue finds the data fixed."""
    time.sleep(2)
    payments = 0 if ctx.generation == 0 else 1187
    print(f"settling {payments} payments")
    return round(quote_INR * 100_000 / payments)


@flow.task(after=[*PARTS, settle, fetch_invoices, load_customers], timeout=120)
def report():
    time.sleep(3)


flow.command("notify", "echo 'report is ready'", after=[report, partner_file], timeout=30)
