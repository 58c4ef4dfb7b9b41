"""Which errors repeat by their nature: tables of exception types, and the rule of poison in one sentence.

An error of the program (a wrong name, a division by zero) comes again as long as the code and its input stay. An error
of shape says that the data that was read is not as expected: a missing key, a page instead of JSON. It comes again as
well, unless the other side answers otherwise the next time, as after its maintenance. All other types may heal.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from enum import Enum

from ..outcome import Failure, FailureClass

#: The rule of ``decide.py``, for people. The README, the manual and ``RetryPolicy`` use the same words (a test).
POISON_RULE = (
    "An error that repeats by its type (KeyError, TypeError, ZeroDivisionError, ...) is poison at the second"
    " identical failure in a row with nothing changed between; an error about what was read (KeyError,"
    " JSONDecodeError, ...) in a task with a downstream is poison only if such failures span `poison_seconds`;"
    " once three siblings are poison by one failure, that failure is poison at once"
)


class Nature(Enum):
    """Why a failure comes again."""

    PROGRAM = "program"
    SHAPE = "shape"  # of what was read


#: Errors of the program, with their subclasses: as "package.Class", as in ``error_tables.EXCEPTIONS``.
PROGRAM_ERRORS = frozenset(
    [
        "builtins.ArithmeticError",
        "builtins.AttributeError",
        "builtins.ImportError",
        "builtins.NameError",
        "builtins.NotImplementedError",
        "builtins.RecursionError",
        "builtins.SyntaxError",
        "builtins.TypeError",
    ]
)

#: Errors about the shape of what was read, with their subclasses: UnicodeDecodeError and pydantic's are ValueErrors,
#: KeyError and IndexError are LookupErrors.
SHAPE_ERRORS = frozenset(
    [
        *("builtins.LookupError", "builtins.StopIteration", "builtins.ValueError", "decimal.InvalidOperation"),
        *("json.JSONDecodeError", "_csv.Error", "configparser.Error", "yaml.YAMLError", "struct.error"),
        *("xml.ParseError", "xml.ExpatError", "xml.SAXException", "lxml.XMLSyntaxError", "_pickle.UnpicklingError"),
        *("_lzma.LZMAError", "gzip.BadGzipFile", "tarfile.TarError", "zipfile.BadZipFile", "zlib.error"),
        *("google.DecodeError", "jsonschema.ValidationError", "marshmallow.ValidationError", "msgspec.MsgspecError"),
        "polars.PolarsError",
    ]
)

#: Errors of the program that are about the shape if their message fits: None, or a text in place of a mapping.
SHAPE_MESSAGES: Mapping[str, str] = {
    "builtins.TypeError": r"NoneType|indices must be|object is not (?:subscriptable|iterable)",
    "builtins.AttributeError": r"^'(?:NoneType|bool|bytes|dict|float|int|list|str)' object has no attribute",
}

#: The classes of which a type is evidence. A rule of the flow may name another class for it.
_JUDGED_BY_TYPE = frozenset([FailureClass.UNCLASSIFIED, FailureClass.VALIDATION, FailureClass.AMBIGUOUS])


def nature_of(failure: Failure) -> Nature | None:
    """Return why a failure comes again by its type; None: it may heal."""
    if failure.failure_class not in _JUDGED_BY_TYPE:
        return None
    if failure.error_type.startswith("signal:"):  # a crash, as by SIGSEGV and SIGABRT
        return Nature.PROGRAM if failure.failure_class is FailureClass.UNCLASSIFIED else None
    names = _type_names(failure)
    patterns = [SHAPE_MESSAGES[name] for name in names if name in SHAPE_MESSAGES]
    if not SHAPE_ERRORS.isdisjoint(names) or any(re.search(pattern, failure.message) for pattern in patterns):
        return Nature.SHAPE
    return None if PROGRAM_ERRORS.isdisjoint(names) else Nature.PROGRAM


def is_shape_error(failure: Failure) -> bool:
    """Return whether a failure is about the shape of what was read: perhaps the downstream answers otherwise soon."""
    return nature_of(failure) is Nature.SHAPE


def _type_names(failure: Failure) -> list[str]:
    """Return the classes of the exception as "package.Class", its own first."""
    types = failure.facts.get("types")
    if isinstance(types, list | tuple):
        return [_short_name(str(name)) for name in types]
    name = _short_name(failure.error_type)  # a record without facts
    builtin = getattr(builtins, name.removeprefix("builtins."), None)
    return [f"builtins.{kind.__name__}" for kind in builtin.__mro__] if isinstance(builtin, type) else [name]


def _short_name(name: str) -> str:
    """Return "json.JSONDecodeError" for "json.decoder.JSONDecodeError"; builtins may come without their module."""
    package, dot, _ = name.partition(".")
    return f"{package}.{name.rpartition('.')[2]}" if dot else f"builtins.{name}"
