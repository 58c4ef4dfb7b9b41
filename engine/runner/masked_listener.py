"""Masks the secrets in all that one attempt reports: the one gate between an attempt and the executor's store.

Output is masked by ``Attempt`` before this gate, because the evidence of a failure quotes its end.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.outcome import Outcome, OutcomeKind
from ..core.results import unstored_result
from ..core.secret_mask import SecretMask
from ..domain.event_payloads import AttemptRetry, Payload
from .listener import AttemptListener, BadRow


class MaskedListener(AttemptListener):
    """Passes the reports of an attempt on, masked. A result or a checkpoint with a secret is not passed on at all."""

    def __init__(self, listener: AttemptListener, mask: SecretMask) -> None:
        self._mask = mask
        self._listener = listener

    def started(self, pid: int, start_ticks: int | None) -> None:
        """The process exists."""
        self._listener.started(pid, start_ticks)

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None:
        """The process exists on another host."""
        self._listener.started_remotely(host, pid, start_ticks)

    def output(self, data: bytes) -> None:
        """The task wrote to stdout or stderr; masked already."""
        self._listener.output(data)

    def progress(self, done: int, total: int | None) -> None:
        """The task reported its progress."""
        self._listener.progress(done, total)

    def retried(self, retry: AttemptRetry) -> None:
        """The code of the task retried a call."""
        self._listener.retried(self._mask.value(retry))

    def quarantined(self, row: BadRow) -> None:
        """The task set a row aside."""
        self._listener.quarantined(self._mask.value(row))

    def checkpointed(self, value: str) -> None:
        """The task stored JSON for the next attempt. Masked it would be another value, so it is left out."""
        secret = self._mask.find(value)
        if secret is None:
            self._listener.checkpointed(value)
        else:
            self._listener.output(f"redrive: the checkpoint was not stored: it holds {secret}\n".encode())

    def step(self, payload: Payload) -> None:
        """One step of the escalation happened."""
        self._listener.step(self._mask.value(payload))

    def ended(self, outcome: Outcome) -> None:
        """The attempt is over."""
        secret = None if outcome.result is None else self._mask.find(outcome.result)
        if secret is not None:
            outcome = replace(outcome, result=unstored_result(f"result holds {secret}"))
        is_clean = outcome.kind is OutcomeKind.SUCCESS and not outcome.attempt_columns.get("stack")  # numbers alone
        self._listener.ended(outcome if is_clean else self._mask.value(outcome))
