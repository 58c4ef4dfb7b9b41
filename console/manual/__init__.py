"""The manual: one Markdown page per topic in this folder, for ``redrive help`` and the console.

The first line of a page is ``# topic: what it explains``. Tables may be wider than the text around them; their
cells are aligned when the page is shown. The tests run the examples of all pages.
"""

from __future__ import annotations

import difflib
from importlib import resources
from typing import NamedTuple

from ...engine.errors import RedriveError

#: The topics in the order in which a newcomer needs them.
TOPICS = (
    *("flow", "results", "params", "shell", "groups", "secrets", "repository", "testing"),
    *("states", "retries", "poison", "timeouts", "inbox", "approvals", "parts", "logs", "pagers", "metrics", "code"),
    *("schedules", "deadlines", "cron", "import", "systemd", "deploying", "state-files", "upgrades", "ssh", "dask"),
    *("commands", "keys", "words", "json", "exit-codes", "environment", "recipes", "changes"),
)


class UnknownTopic(RedriveError):
    """The manual has no page of this name."""

    def __init__(self, name: str) -> None:
        close = difflib.get_close_matches(name, TOPICS, n=1)
        hint = f"; the closest is {close[0]}" if close else ""
        super().__init__(f"the manual has no topic {name!r}{hint}; redrive help lists the topics")


class Topic(NamedTuple):
    """A page: its name, one line about it, and its whole Markdown text."""

    name: str
    summary: str
    text: str


def load_topic(name: str) -> Topic:
    """Read the page of a topic. Raises UnknownTopic."""
    if name not in TOPICS:
        raise UnknownTopic(name)
    text = resources.files(__package__).joinpath(f"{name}.md").read_text("utf-8")
    heading = text.partition("\n")[0]
    return Topic(name, heading.partition(": ")[2], text)


def load_topics() -> list[Topic]:
    """Read all pages, in the order of ``TOPICS``."""
    return [load_topic(name) for name in TOPICS]
