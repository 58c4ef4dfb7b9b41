"""The same act from a shell: the command lines of the journal, of ``copy`` and of answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...engine.domain.acts import ACTS, Scope
from ..text.text import one_line

#: Acts that have a shell command of the same name -> whether the command takes task names.
_SHELL_COMMANDS: Mapping[str, bool] = {
    act.name: act.scope is Scope.TASKS
    for act in ACTS
    if act.shell == act.name and act.scope in (Scope.TASKS, Scope.RUN)
}
_SHELL_NAMES_MAX = 50


def shell_line(
    act: str,
    target: str,
    run: str | None = None,
    tasks: Sequence[str] = (),
    reason: str = "",
    options: Mapping[str, Any] | None = None,
) -> str | None:
    """The shell command line for a ``Command``, safe to paste; None if the command line has no such command.

    Args:
        act: ``Command.act``.
        target: state file or ssh address.
        tasks: names; of more than 50 the rest is a count in a comment, unless ``options`` has a ``fingerprint``.
        options: ``fingerprint``, the options of a requeue, ``seconds`` of ``extend`` and ``postpone``.
    """
    if act not in _SHELL_COMMANDS:
        return None
    options = options or {}
    words = ["redrive", act]
    fingerprint = options.get("fingerprint")
    words += ["--state", target]
    words += ["--run", run] if run else []
    words += ["--fingerprint", str(fingerprint)] if fingerprint else []
    words += _requeue_arguments(options) if act == "requeue" else []
    words += ["--substitute", json.dumps(options["substitute"])] if "substitute" in options else []
    words += ["--reason", reason] if reason else []
    if _SHELL_COMMANDS[act] and not fingerprint:
        words += ["--", *tasks[:_SHELL_NAMES_MAX]]
    words += [f"{options['seconds']:g}s"] if act in ("extend", "postpone") and "seconds" in options else []
    words += ["never"] if act == "postpone" and "seconds" not in options else []
    line = shlex.join(_printable_arguments(words))
    unnamed = 0 if fingerprint else len(tasks) - _SHELL_NAMES_MAX
    return f"{line}  # and {unnamed} more" if unnamed > 0 else line


def _requeue_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    for flag in ("canary", "single_shot", "new_key", "same_key", "cascade"):
        if options.get(flag):
            yield f"--{flag.replace('_', '-')}"
    if options.get("reset_count") is False:
        yield "--keep-count"
    for option, name, unit in (
        ("--rate", "rate_per_second", "/s"),
        ("--not-before", "not_before", "s"),
        ("--timeout", "timeout", "s"),
    ):
        if options.get(name):
            yield from (option, f"{options[name]:g}{unit}")
    for name, value in sorted((options.get("params") or {}).items()):
        yield from ("--param", f"{name}={value}")


def _printable_arguments(words: Iterable[str]) -> Iterator[str]:
    """Remove line breaks and control characters from names and reasons."""
    return (one_line(word) for word in words)
