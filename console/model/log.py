"""An attempt's output as lines that can be read: from pieces that end anywhere, as they come, from either end."""

from __future__ import annotations
