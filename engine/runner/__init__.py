"""Runs attempts as processes, from fork to reap.

- Start: the executor calls ``Runner.start`` (``zygote/client.py``). It asks the zygote, a process that imported the
  flow once.
- Fork: ``zygote/fork_loop.py``. The child runs ``child.py``, the warm worker ``worker/loop.py``, or the
  host of threads ``thread/host.py``.
- Deadline and kill of an attempt: ``process_attempt.py``, ``ForkedAttempt._escalate`` (stack, SIGTERM, grace, SIGKILL).
- Kill of strays, found by the executor's token in their environment: ``kill.py``.
- Outcome: ``outcome_of_exit.py``.

Nothing is imported here: the zygote must stay small.
"""
