"""What acts: attempts as processes of their own, from fork to reaped.

The executor holds a ``Runner`` (``client.py``). It talks to one zygote (``zygote.py``), which imported the flow
once and forks an attempt for each start (``child.py``, ``command.py``, ``host.py``). The executor's side of one
attempt, with its deadline and the ladder of the kill, is ``attempt.py``. Nothing is imported here: the zygote must
stay small.
"""
