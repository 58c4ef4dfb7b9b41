"""A host behind a real sshd: what is tried here has no stand-in."""

from __future__ import annotations

import pytest
from support.ssh_host import HAS_SSHD, SshHost


@pytest.fixture
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SshHost:
    """The host ``far`` of ``ssh://far/...``."""
    if not HAS_SSHD:
        pytest.skip("there is no ssh, or no sshd")
    host: SshHost = request.getfixturevalue("far_host")
    monkeypatch.setenv("REDRIVE_SSH", host.program)
    return host
