"""A nightly pull of invoice events from an API.

Each error of the API is classified where it is raised. Transient ones are tried five times with full jitter, from 1 s
up to 60 s; an invalid invoice is set aside and the others go on; a refused credential stops the run at once and pages.

    redrive run invoices.py --param fail_percent=30 --param bad_percent=2 --param scale=0.01
"""

import random
import time

from redrive.engine import AuthError, Flow, RetryPolicy, classify_http

flow = Flow(
    "invoices",
    deadline="2h",
    params={"pages": 20, "fail_percent": 10, "bad_percent": 2, "token": "valid", "seed": 0, "scale": 1.0},
)
flow.page("bell")
flow.downstream("invoice-api", failure_rate=0.8, minimum_calls=10)

SCALE = flow.params["scale"]
PATIENT = RetryPolicy(max_attempts=5, base=1 * SCALE, cap=60 * SCALE, jitter="full")


def call_api(page, attempt):
    """Simulate the API: return a page of events, or raise the error of an HTTP status."""
    if flow.params["token"] != "valid":
        raise classify_http(401, body="token expired")
    dice = random.Random(f"{flow.params['seed']}/{page}/{attempt}") if flow.params["seed"] else random.Random()
    time.sleep(0.2 * SCALE)
    if dice.randrange(100) < flow.params["fail_percent"]:
        raise classify_http(*dice.choice([(503, None), (500, None), (429, 0.5 * SCALE)]))
    return [event(page, number, dice) for number in range(50)]


def event(page, number, dice):
    broken = dice.randrange(100) < flow.params["bad_percent"]
    return {"id": f"inv-{page:03}-{number:02}", "amount": None if broken else dice.randrange(1, 10_000) / 100}


def pull(page):
    def pull_page(ctx):
        loaded = 0
        for scope in ctx.rows(call_api(page, ctx.attempt), key="id"):
            with scope as invoice:
                loaded += load(invoice)
        return {"page": page, "loaded": loaded}

    return pull_page


def load(invoice):
    """Load one invoice; its id is the key of the table, so loading it twice is safe."""
    if not isinstance(invoice["amount"], float):
        raise ValueError(f"invoice {invoice['id']} has no amount")
    return 1


@flow.task(timeout=30, retry=RetryPolicy(max_attempts=1))
def check_credential():
    """Check the credential first and once: repeated failures would lock the account."""
    if flow.params["token"] != "valid":
        raise AuthError("invoice-api: 401 unauthorized", diagnostic="token expired; rotate it in the vault")


PAGES = [f"pull_{page:03}" for page in range(flow.params["pages"])]
for page, name in enumerate(PAGES):
    flow.task(
        pull(page),
        name=name,
        after=[check_credential],
        retry=PATIENT,
        timeout=60,
        downstream="invoice-api",
        max_bad_ratio=0.2,
        owner="billing",
    )


@flow.task(after=PAGES, timeout=120)
def summarize(ctx):
    loaded = sum(page["loaded"] for page in ctx.inputs.values())
    print(f"loaded {loaded} invoices of {len(ctx.inputs)} pages")
    return {"loaded": loaded}


# A separate task, so that a retry of the load never sends the message twice.
flow.command("tell_finance", "echo invoices are in", after=[summarize], timeout=30, max_attempts=1)
