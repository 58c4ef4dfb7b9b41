"""Reads a task function: where it is defined, and which results it requires."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from types import CodeType

from ..domain.digests import sha256_hex

WRAPPERS_MAX = 50  # of one function, in case that they form a ring


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
    return tuple(parent for parent in parents if parameter_of(parent) in required)


def parameter_of(parent: str) -> str:
    """Return the name of the parameter that receives the result of a parent."""
    return parent if parent.isidentifier() else re.sub(r"\W", "_", parent)


def definition_site(function: Callable[..., object] | None) -> str | None:
    """Return "file:line" for people; None for a callable that is not written in Python."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def code_digest(function: Callable[..., object] | None) -> str | None:
    """Return a digest of the function's own code, without its place in the file; None if there is no Python code.

    It begins with the version of Python, because another version compiles the same text to other code.
    """
    code = getattr(_innermost(function), "__code__", None)
    return _digest(code) if isinstance(code, CodeType) else None


def _innermost(function: object) -> object:
    """Return the function that wrappers, partial objects and callable objects call in the end."""
    for _ in range(WRAPPERS_MAX):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if not callable(inner):
            break
        function = inner
    return function if hasattr(function, "__code__") else inspect.getattr_static(type(function), "__call__", None)


@functools.cache  # a loop makes many functions of one code object
def _digest(code: CodeType) -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}:{sha256_hex(_text_of(code).encode())[:12]}"


def _text_of(value: object) -> str:
    """Return a text that is equal for equal code, wherever it is defined."""
    if isinstance(value, CodeType):
        constants = [_text_of(constant) for constant in value.co_consts]
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_kwonlyargcount)
        return repr((value.co_code, constants, names))
    if isinstance(value, frozenset):
        return repr(sorted(map(repr, value)))
    return repr(value)
