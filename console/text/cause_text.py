"""What a fingerprint is made of, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


def fields_text(fields: Iterable[Sequence[str]], dot: str = "·") -> str:
    """The fields of a fingerprint: ``type httpx.HTTPStatusError · place fetch.py:get · status 404``."""
    return f" {dot} ".join(" ".join(field).rstrip() for field in fields)


def detail_text(fingerprint_detail: str, dot: str = "·") -> str:
    """The fields in the detail of a fingerprint, as an attempt stores it in JSON; empty without one."""
    detail = json.loads(fingerprint_detail) if fingerprint_detail else {}
    return fields_text(detail.get("fields") or (), dot)
