"""What attempts run on: the interpreter and the packages that it finds, as one short hash.

Told by names and versions, not by contents: two hosts with the same packages have the same image, an upgrade between
two attempts has not.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable

_INSTALLED = (".dist-info", ".egg-info")


def environment_hash(folders: Iterable[str] | None = None) -> str:
    """Twelve hex digits. ``folders``: where packages are looked for; by default where this interpreter does."""
    packages = {name for folder in (sys.path if folders is None else folders) for name in _packages(folder)}
    image = [sys.version, platform.machine(), *sorted(packages)]
    return hashlib.sha256("\n".join(image).encode(errors="surrogateescape")).hexdigest()[:12]


def _packages(folder: str) -> list[str]:
    """Installed packages as their folders are named: ``requests-2.31.0.dist-info``."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(_INSTALLED)] if folder else []
    except OSError:
        return []  # an archive, or a folder that is only mentioned
