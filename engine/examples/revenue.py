"""Six tasks, one of which meets a flaky payments API.

redrive run revenue.py --param fail_percent=40 --param seed=7
"""

import random
import time

from redrive.engine import Flow, RetryPolicy, TransientError

flow = Flow("revenue", params={"fail_percent": 40, "seed": 0, "scale": 1.0})


def work(seconds: float) -> None:
    time.sleep(seconds * flow.params["scale"])


@flow.task
def extract_orders():
    work(0.4)


@flow.task(retry=RetryPolicy(max_attempts=5, base=1, cap=30))
def extract_payments(ctx):
    work(0.5)
    dice = random.Random(f"{flow.params['seed']}/{ctx.attempt}") if flow.params["seed"] else random
    if dice.random() < flow.params["fail_percent"] / 100:
        raise TransientError("payments API answered 503")


@flow.task(after=extract_orders)
def clean_orders():
    work(0.3)


@flow.task(after=extract_payments)
def clean_payments():
    work(0.3)


@flow.task(after=[clean_orders, clean_payments])
def aggregate_revenue():
    work(0.4)


@flow.task(after=aggregate_revenue)
def load_dashboard():
    work(0.2)
