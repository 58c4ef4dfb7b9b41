"""The version of redrive, which is defined in ``redrive/__init__.py``."""

from __future__ import annotations

from .. import __version__

VERSION = __version__
