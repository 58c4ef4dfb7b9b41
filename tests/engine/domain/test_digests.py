"""The digests are those of ``hashlib``, whatever this Python was built with."""

from __future__ import annotations

import hashlib
import sys

import pytest
from redrive.engine.domain import text


@pytest.mark.parametrize("missing", [(), ("_sha1", "_sha2", "_sha256")])
def test_the_digests_are_those_of_hashlib(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    text._constructor.cache_clear()
    assert text.sha1_hex(b"text") == hashlib.sha1(b"text").hexdigest()
    assert text.sha256_hex(b"text") == hashlib.sha256(b"text").hexdigest()
    text._constructor.cache_clear()
