"""``--dry-run``: what an act would change, task by task, worked out by the act itself on a copy; nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ..text.text import one_line

#: What the engine's preview answers with, in the order in which it is told.
_KINDS = (
    ("run_again", "would run again"),
    ("skipped", "would be skipped"),
    ("cancelled", "would be cancelled"),
    ("unblocked", "would no longer be stopped"),
    ("held_back", "would wait again"),
    ("stopped", "would be stopped below"),
    ("stale", "ran before, and would be stale"),
)


def print_preview(preview: Mapping[str, Any], as_json: bool) -> None:
    """The whole set, not a sum of it: somebody may want to compare it with what happens then."""
    if as_json:
        click.echo(json.dumps({"dry_run": True, **preview}, ensure_ascii=False))
        return
    for line in lines_of(preview):
        click.echo(one_line(line))


def lines_of(preview: Mapping[str, Any]) -> Iterator[str]:
    """One line for each kind of change, then what would be refused."""
    changed = False
    for key, words in _KINDS:
        names: Sequence[str] = preview[key]
        if names:
            changed = True
            yield f"{words} ({len(names)}): {', '.join(names)}"
    for task, result, sentence in preview["results"]:
        if result == "running":
            changed = True
            yield f"{task}: is running, and its attempt would be ended"
        elif result == "refused":
            yield f"{task}: {sentence}"
    for name, holder in preview["stay_blocked"]:
        yield f"{name}: would stay stopped because of {holder or 'a task above it'}"
    if not preview["results"] and preview["message"]:
        yield str(preview["message"])
    yield "dry run: nothing was changed" if changed else "dry run: nothing would change"
