"""The process decides, the clock only asks (003.40, 003.41)."""

from redrive.engine.domain.liveness import HEARTBEAT_SECONDS, SILENT_SECONDS, SWEEP_SECONDS, Liveness, check_liveness
from support.marks import for_each


def test_a_heartbeat_is_written_every_10_seconds_the_sweep_comes_every_60_and_silence_begins_after_90():
    """003.40: the documents' three numbers."""
    assert (10, 60, 90) == (HEARTBEAT_SECONDS, SWEEP_SECONDS, SILENT_SECONDS)


@for_each(
    "there, suspect, promised, silent, expected",
    [
        (True, False, True, 5, Liveness.FINE),
        (True, False, True, 95, Liveness.SILENT),  # 003.41: a pause of the interpreter is no death
        (True, True, True, 3600, Liveness.SILENT),
        (True, False, False, 3600, Liveness.FINE),  # it never promised a heartbeat
        (False, False, True, 1, Liveness.SUSPECT),  # the news of its end may be on the way
        (False, True, True, 1, Liveness.LOST),  # the clock is not even asked
        (False, True, False, 0, Liveness.LOST),
    ],
)
def test_only_a_process_that_is_gone_is_lost(there, suspect, promised, silent, expected):
    assert expected is check_liveness(there, suspect, promised, silent)
