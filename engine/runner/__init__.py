"""Runs attempts as processes, from fork to reap.

- Start: the executor calls ``Runner.launch`` (``runner.py``). It asks the zygote, a process that imported the
  flow once.
- Fork: ``zygote/zygote.py``. The child runs ``child.py``, the warm worker ``worker_loop.py``, or the host of threads
  ``thread_host.py``.
- Frames, output, deadline and end: ``attempt.py``. Its backend: ``forked_process.py``, ``workers.py``, ``threads.py``.
- Kill of strays, found by the executor's token in their environment: ``reaper.py``.
- Outcome: ``core/failures/attempt_end.py``.

Nothing is imported here: the zygote must stay small.
"""
