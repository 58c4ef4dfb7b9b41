"""Two extracts, a check that waits for both, and a shell command.

redrive run first_flow.py
redrive run first_flow.py --param day=2026-01-31
"""

from redrive.engine import Flow, RetryPolicy

flow = Flow("first_flow", deadline="1h", params={"day": "2026-01-01"})


@flow.task(timeout=30, retry=RetryPolicy(max_attempts=5, base=2, cap="1m"))
def extract_orders(day):
    print("orders of", day)
    return {"rows": 120}


@flow.task(timeout=30, retry=RetryPolicy(max_attempts=5, base=2, cap="1m"))
def extract_payments(day):
    print("payments of", day)
    return {"rows": 118}


@flow.task(after=[extract_orders, extract_payments], timeout=60)
def compare(extract_orders, extract_payments):
    missing = extract_orders["rows"] - extract_payments["rows"]
    print(missing, "orders are not paid")
    return missing


flow.command("report", 'echo "report of $REDRIVE_PARAM_DAY"', after=[compare], timeout=60)
