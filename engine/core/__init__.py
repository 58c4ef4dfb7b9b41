"""Decisions: values in, values out; no clock, disk, event loop, thread or random numbers of its own.

Where to find a decision:
    ready_queue, dispatch_rules     which task starts next, and whether it has capacity
    failures.classify               whether a failure is permanent; failures.error_tables: by code and exception type
    decide                          what follows an attempt: retry, dead letter, failure, ...
    policy, deadline                the delay before a retry (backoff and jitter), and when a deadline shortens it
    breaker, downstreams            whether a downstream may be called
    run_outcome                     when a run ends, and how
    projection, explain             the state of a run from its events; why a task is not running
"""
