"""Tests that trace or disturb system calls."""

from __future__ import annotations

import subprocess

import pytest


def _can_trace() -> bool:
    try:
        return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_strace = pytest.mark.skipif(not _can_trace(), reason="needs strace, and the right to trace")
