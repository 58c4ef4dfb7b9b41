"""What happened, as rows that can be read: events and operators' acts, each with the command line that does the same."""

from __future__ import annotations
