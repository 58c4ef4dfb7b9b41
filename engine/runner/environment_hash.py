"""A short hash of the interpreter and its installed packages, by name and version, not by content.

Two hosts with the same packages have the same hash; an upgrade between two attempts changes it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable

_INSTALLED = (".dist-info", ".egg-info")


def environment_hash(folders: Iterable[str] | None = None) -> str:
    """Return twelve hex digits. ``folders``: where packages are installed; ``sys.path`` by default."""
    packages = {name for folder in (sys.path if folders is None else folders) for name in _packages(folder)}
    facts = [sys.version, platform.machine(), *sorted(packages)]
    return hashlib.sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()[:12]


def _packages(folder: str) -> list[str]:
    """Return the metadata folders of installed packages: ``requests-2.31.0.dist-info``."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(_INSTALLED)] if folder else []
    except OSError:
        return []  # an archive, or a folder that does not exist
