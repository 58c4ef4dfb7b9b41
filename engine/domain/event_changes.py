"""Names for the field ``what`` of payloads: what changed.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""


class RunChange(object):
    """Names for ``RunChanged.what``."""

    CREATED = "created"
    OPENED = "opened"
    ENDED = "ended"
    CUT_OFF = "cut-off"
    REOPENED = "reopened"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    PAUSED = "paused"
    UNPAUSED = "unpaused"
    DEADLINE = "deadline"  # it has passed and ends the run
    POSTPONED = "postponed"  # the run has another deadline, or none
    CLOCK = "clock"
    PARAMS = "params"
    OPTIONS = "options"
    FLOW_CHANGED = "flow-changed"  # at the start of an executor
    FLOW_REFUSED = "flow-refused"  # the run is not resumed: an operator must accept the changed flow
    POOL_WAITS = "pool-waits"  # the pools of the machine that tasks wait for
    CODE_CHANGED = "code-changed"  # on the disk: the executor still uses the code that it loaded
    CODE_LOADED = "code-loaded"  # by a living executor
    CODE_REFUSED = "code-refused"  # it could not be loaded: the old code stays in use


class ExecutorChange(object):
    """Names for ``ExecutorChanged.what``."""

    STARTED = "started"
    STOPPED = "stopped"
    LOST = "lost"
    ZYGOTE_DIED = "zygote-died"
    THREADS_KILLED = "threads-killed"
    WORKER_RETIRED = "worker-retired"
    PING_FAILED = "ping-failed"


class PageChange(object):
    """Names for ``PageChanged.what``."""

    OPENED = "opened"
    FOLDED = "folded"
    WOKEN = "woken"
    SENT = "sent"
    SEND_FAILED = "send-failed"
    UNSENT = "unsent"  # the executor ended before a sender took it
    BELL = "bell"
    ACKED = "acked"
    SNOOZED = "snoozed"
    REARMED = "rearmed"
    RESOLVED = "resolved"


class RowsChange(object):
    """Names for ``RowsChanged.what``."""

    PROVISIONAL = "provisional"
    HELD = "held"
    REQUEUED = "requeued"
    DROPPED = "dropped"  # the attempt that set them aside failed; the next one reads them again
    DISCARDED = "discarded"  # by an operator
    PUT_BACK = "put back"


class ScheduleChange(object):
    """Names for ``ScheduleChanged.what``."""

    BEGUN = "begun"
    CHANGED = "changed"
    MISSED = "missed"
    LATE_START = "late-start"
    LATE_END = "late-end"


class CanaryEnd(object):
    """Names for ``CanaryEnded.what``."""

    RELEASED = "released"
    NOT_FIXED = "not-fixed"
    FAILED = "failed"


class StorageChange(object):
    """Names for ``StorageChanged.what``."""

    DEGRADED = "degraded"
    RECOVERED = "recovered"
    LOCK = "lock"


class OperatorNotice(object):
    """Names for ``OperatorActed.what``; an act with an answer has an ``act`` instead."""

    ATTACH = "attach"
    DETACH = "detach"
    BREAKER = "breaker"
