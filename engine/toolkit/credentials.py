"""Credentials that are refreshed when they are refused: refresh, then retry once.

A refused credential is not a transient error: trying it again can lock the account. A refreshed credential is worth
exactly one more try. A second refusal goes to the engine, which opens the breaker of the task's downstream and pages.

    bank = Credential("bank", load=read_token, refresh=rotate_token)

    @flow.task(downstream="bank")
    def pull(): return bank.call(lambda token: fetch(token))

If many tasks are refused at the same time, one of them refreshes, across all processes of this user. The others wait
and use the new credential.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from platformdirs import user_state_path

from ..core.failures.classify import classify
from ..core.failures.facts import extract_facts
from ..core.outcome import FailureClass
from ..errors import TaskError
from .retry import report_retry

T = TypeVar("T")
R = TypeVar("R")

UNAUTHORIZED = 401
MAX_ATTEMPTS = 2
FRESH_SECONDS = 60.0


class Credential(Generic[T]):
    """A credential that many tasks use. When it is refused, one of them renews it, and each tries once more.

    The others wait for the renewal, across all processes of this user. No secret is kept here.

    Parameters:
        name: text: the same name is the same credential in all processes.
        load: returns what is valid now; called before each try.
        refresh: renews it where ``load`` finds it (a vault, a file, a token endpoint).
        fresh_seconds: seconds, 0 or more: what was renewed within this time and is refused is not renewed again, as a
            loop of renewals can lock an account. Shorter for tokens that expire within a minute.

    Example:
        >>> from redrive.engine import AuthError
        >>> vault = {"token": "old"}
        >>> bank = Credential("bank", load=lambda: vault["token"], refresh=lambda: vault.update(token="new"))
        >>> def fetch(token):
        ...     if token != "new":
        ...         raise AuthError("401 unauthorized")
        ...     return f"fetched with the {token} token"
        >>> bank.call(fetch)
        'fetched with the new token'
    """

    def __init__(
        self, name: str, *, load: Callable[[], T], refresh: Callable[[], object], fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        if not fresh_seconds >= 0:  # also refuses NaN
            raise ValueError(f"fresh_seconds is a number of seconds of at least 0, not {fresh_seconds!r}")
        self.name = name
        self._fresh_seconds = fresh_seconds
        self._load = load
        self._refresh = refresh
        self._lock_path = (
            user_state_path("redrive") / "credentials" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"
        )

    def call(self, function: Callable[[T], R]) -> R:
        """Call a function with the credential; where that is refused, renew it and call once more.

        A refusal is HTTP status 401, or an error of class "auth" without a status: with 403 (RFC 9110, 15.5.4) the
        server knows who asks, and another token of the same name does not help.

        Raises:
            Exception: what ``function`` raised, or what ``refresh`` raised. A second refusal, and one of what was
                renewed less than ``fresh_seconds`` ago, is final; a note on the exception says so.
        """
        version_before, started = self._version(), time.monotonic()
        try:
            return function(self._load())
        except Exception as error:
            self._refresh_after(error, version_before, started)
        return function(self._load())

    def _refresh_after(self, error: Exception, version_before: int, started: float) -> None:
        """Refresh; raise ``error`` if a refresh cannot help."""
        if not is_refused(error):
            raise error
        age_seconds = self._refresh_once(version_before)
        if age_seconds is not None:
            error.add_note(f"credential {self.name!r} was renewed {age_seconds:.1f} s ago, so not again")
            raise error
        report_retry(f"credential {self.name}", 1, MAX_ATTEMPTS, error, 0.0, time.monotonic() - started)

    # --- One refresh at a time ---------------------------------------------------------------------------------------

    def _refresh_once(self, version_before: int) -> float | None:
        """Refresh, unless another task has done so since ``version_before``.

        Returns the age in seconds of a refused credential that is too fresh to be refreshed again, else None.
        """
        with self._locked(fcntl.LOCK_EX) as descriptor:
            version, refreshed_at = _read(descriptor)
            if version != version_before:
                return None
            age_seconds = time.time() - refreshed_at
            if age_seconds < self._fresh_seconds:
                return age_seconds
            self._refresh()
            _write(descriptor, version + 1, time.time())
            return None

    def _version(self) -> int:
        """Return how often it was refreshed; waits while a refresh is running."""
        with self._locked(fcntl.LOCK_SH) as descriptor:
            return _read(descriptor)[0]

    @contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield descriptor
        finally:
            os.close(descriptor)


def is_refused(error: BaseException) -> bool:
    """Return whether an exception says that the credential is refused and that a new one might not be."""
    status = error.http_status if isinstance(error, TaskError) else extract_facts(error).status
    if status is not None:
        return status == UNAUTHORIZED
    return classify(error).failure_class is FailureClass.AUTH


def _read(descriptor: int) -> tuple[int, float]:
    """Return how often the credential was refreshed, and when last (seconds UTC)."""
    try:
        version, refreshed_at = json.loads(os.pread(descriptor, 100, 0))
        return int(version), float(refreshed_at)
    except (ValueError, TypeError):  # a new file, or truncated by a crash
        return 0, 0.0


def _write(descriptor: int, version: int, refreshed_at: float) -> None:
    data = json.dumps([version, refreshed_at]).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
