"""Options of a task that its stored spec leaves out if they are the default.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

MAX_ATTEMPTS = 3
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
