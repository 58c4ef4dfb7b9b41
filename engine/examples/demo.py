"""One flow with every failure mode in it, short enough to watch: ``redrive demo``.

A flaky API heals on the third try, a hang ignores SIGTERM and is killed, a poisoned task fails the same way twice, a
partner refuses for good, a sensor waits without a slot, a fan-out loads parts side by side. Requeue ``settle`` (the data
is fixed then) and skip ``fetch_invoices``, and the run comes to its end.
"""

import signal
import time

from redrive.engine import Flow, NotReady, PermanentError, RetryPolicy

flow = Flow("demo", deadline="10m", pools={"warehouse": 2})
QUICK = RetryPolicy(max_attempts=5, base=1.5, cap=6, jitter="equal")


@flow.task
def fetch_orders(ctx):
    for done in range(1, 9):
        time.sleep(0.15)
        ctx.progress(done, 8)
    print("fetched 1,204 orders")
    return {"orders": 1204}


@flow.task(retry=QUICK, timeout=20, downstream="payments-api")
def fetch_payments(ctx):
    """Heals on the third try."""
    time.sleep(0.4)
    if ctx.attempt < 3:
        raise ConnectionError("payments-api: connection reset by peer")
    print("fetched 1,187 payments")


@flow.task(retry=QUICK, timeout=3, grace_seconds=2)
def fetch_rates(ctx):
    """Hangs the first time, deaf to SIGTERM."""
    if ctx.attempt == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("waiting for the rates feed ...", flush=True)
        time.sleep(3600)
    time.sleep(0.5)


@flow.task
def fetch_invoices(ctx):
    """Refused for good."""
    time.sleep(0.6)
    if ctx.generation == 0:
        raise PermanentError("invoices-api: 403 forbidden", diagnostic="scope 'invoices:read' is missing")


@flow.sensor(every=2)
def partner_file(ctx):
    """Is there at the third look."""
    if ctx.attempt < 3:
        raise NotReady(f"look {ctx.attempt}: nothing yet")
    return True


@flow.task(after=[fetch_orders, fetch_payments], timeout=60)
def clean_orders(fetch_orders):
    time.sleep(0.8)
    print(f"cleaned {fetch_orders['orders']} orders")


def load_part(number: int):
    def load():
        time.sleep(0.5 + 0.2 * number)
        print(f"part {number}: 300 rows")

    return load


PARTS = [f"load_part_{number}" for number in range(1, 5)]
for number, name in enumerate(PARTS, start=1):
    flow.task(load_part(number), name=name, after=[clean_orders], pool="warehouse", timeout=60)


@flow.task(after=[fetch_payments, fetch_rates], retry=QUICK)
def settle(ctx):
    """Poisoned: the same line divides by the same zero, until the data is fixed and the task requeued."""
    time.sleep(0.4)
    rates = {"EUR": 1.0, "INR": 0.0 if ctx.generation == 0 else 0.011}
    print("settling 1,187 payments")
    return round(1187 / rates["INR"])


@flow.task(after=[*PARTS, settle, fetch_invoices], timeout=120)
def revenue_report():
    time.sleep(0.8)


flow.command("notify", "echo 'report is ready'", after=[revenue_report, partner_file], timeout=30)
