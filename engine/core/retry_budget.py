"""The retry budget of a downstream: a bucket of tokens, of which each retry costs one.

First tries never wait for it. Beside the breaker (``breaker.py``), which sees an outage, it limits what retries add to
a partial one. It is that of Finagle and Envoy: a share of the calls that succeed, plus a floor per second, so that a
run with nothing but retries left goes on.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from .spec import DownstreamSpec

_SECOND = 1_000_000


class Bucket(msgspec.Struct, frozen=True):
    """The retry budget of a downstream at the instant ``refilled_at``: a retry costs one token."""

    tokens: float
    refilled_at: int = 0


def new_bucket(spec: DownstreamSpec) -> Bucket:
    """Return a full bucket."""
    return Bucket(bucket_size(spec))


def bucket_size(spec: DownstreamSpec, successes: int = 0) -> float:
    """Return the tokens of a full bucket: at least one, and at least those that ``successes`` of the window brought.

    A bucket of a fixed size would lose what many calls a second bring, just before their retries are due.
    """
    return max(1.0, spec.bucket_capacity, spec.bucket_refund * successes)


def refill(bucket: Bucket, spec: DownstreamSpec, now: int, successes: int) -> Bucket:
    """Add the tokens of the time since ``refilled_at``. A clock that was set back adds none and loses none."""
    gained = max(0, now - bucket.refilled_at) / _SECOND * spec.bucket_per_second
    return Bucket(min(bucket_size(spec, successes), bucket.tokens + gained), now)


def spend_token(bucket: Bucket) -> Bucket:
    """Take a token, if there is one."""
    return replace(bucket, tokens=max(0.0, bucket.tokens - 1))


def refund(bucket: Bucket, spec: DownstreamSpec, successes: int) -> Bucket:
    """Add the tokens of one success, which is one of the ``successes`` of the window."""
    return replace(bucket, tokens=min(bucket_size(spec, successes), bucket.tokens + spec.bucket_refund))


def next_retry_at(bucket: Bucket, spec: DownstreamSpec) -> int | None:
    """Return when the next retry may start, in microseconds UTC; None: at once."""
    if bucket.tokens >= 1:
        return None
    return bucket.refilled_at + math.ceil((1 - bucket.tokens) / spec.bucket_per_second * _SECOND)
