"""The version under the name that the engine uses; it stands in ``redrive/__init__.py``, once."""

from __future__ import annotations

from .. import __version__

VERSION = __version__
