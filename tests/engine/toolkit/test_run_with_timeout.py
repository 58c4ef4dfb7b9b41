"""Document 000's own runner: its result, and its three errors in its own words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from redrive.engine.toolkit.run_with_timeout import run_with_timeout


def test_a_result_comes_back() -> None:
    captured = [1, 2]
    assert run_with_timeout(lambda: {"sum": sum(captured)}, 30) == {"sum": 3}
    assert run_with_timeout(lambda: None, None) is None


def test_a_task_that_hangs_is_a_timeout() -> None:
    def hang_forever() -> None:
        while True:
            time.sleep(1)

    with pytest.raises(TimeoutError, match=r"^task exceeded 0.3s$"):
        run_with_timeout(hang_forever, 0.3, grace_seconds=0.3)


def test_a_task_that_raises_is_a_runtime_error_with_what_it_raised() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
        run_with_timeout(lambda: 1 / 0, 30)


@pytest.mark.parametrize(
    ("end", "how"),
    [(lambda: os._exit(3), "exit code 3"), (lambda: os.kill(os.getpid(), signal.SIGSEGV), "ended by SIGSEGV")],
)
def test_a_child_that_dies_is_a_runtime_error(end: Callable[[], None], how: str) -> None:
    """000.22: the document's words come first, how it died follows."""
    with pytest.raises(RuntimeError, match=rf"^child died without sending result \({how}"):
        run_with_timeout(end, 30)
