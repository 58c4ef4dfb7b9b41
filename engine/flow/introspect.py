"""Reads a task function: where it is defined, and which results it requires."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from types import CodeType


def required_parents(function: Callable[..., object] | None, parents: Sequence[str]) -> tuple[str, ...]:
    """Return parents for which ``function`` has a parameter without a default, by the rule of ``runner/call.py``."""
    code = getattr(function, "__code__", None)
    has_no_parameters = isinstance(code, CodeType) and not code.co_argcount + code.co_kwonlyargcount
    if function is None or not parents or (has_no_parameters and not hasattr(function, "__wrapped__")):
        return ()  # reading a signature is slow, and most of a large flow stops here
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    return tuple(parent for parent in parents if re.sub(r"\W", "_", parent) in required)


def definition_site(function: Callable[..., object] | None) -> str | None:
    """Return "file:line" for people; None for a callable that is not written in Python."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
