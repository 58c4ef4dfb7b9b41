"""What the function of a task says of itself: where it stands, and which results it asks for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from types import CodeType


def asked_for(function: Callable[..., object] | None, parents: Sequence[str]) -> tuple[str, ...]:
    """The parents that a function has a parameter without a default for (``runner/call.py`` matches them so)."""
    code = getattr(function, "__code__", None)
    takes_nothing = isinstance(code, CodeType) and not code.co_argcount + code.co_kwonlyargcount
    if function is None or not parents or (takes_nothing and not hasattr(function, "__wrapped__")):
        return ()  # reading a signature is slow, and most of a large flow stops here
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    asked = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    return tuple(parent for parent in parents if re.sub(r"\W", "_", parent) in asked)


def source_of(function: Callable[..., object] | None) -> str | None:
    """File and line, for people; None for what was not written in Python."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
