"""The text of flow files that an import writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ...engine.core.secret_mask import SHORTEST


@dataclass(frozen=True, slots=True)
class FlowText:
    """A file to write: its name, with a suffix if that is not ``.py``, and its text.

    Attributes:
        env: its file of variables, if some of them may be secret.
        changed: the line that it runs, with what the flow does itself; empty if it is that of the crontab.
        remarks: what an operator has to know that the flow does not say.
    """

    name: str
    text: str
    env: FlowText | None = None
    changed: str = ""
    remarks: Sequence[str] = ()


def text_of(path: Path) -> str | None:
    """The text of a file that is there already; None if there is none, or it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


_LINE_CHARACTERS = 100


class Expression(str):
    """A value that a call has as it is, and not as a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def call_text(function: str, arguments: Sequence[object], options: Mapping[str, object]) -> str:
    """The text of a call in Python, in one line if it is short; options that are None are left out."""
    words = [repr(one) for one in arguments]
    words += [f"{name}={value!r}" for name, value in options.items() if value is not None]
    line = f"{function}({', '.join(words)})"
    return (
        line if len(line) <= _LINE_CHARACTERS else f"{function}(\n" + "".join(f"    {word},\n" for word in words) + ")"
    )


def file_text(comments: Sequence[str], calls: Sequence[str]) -> str:
    """The text of a flow file: comments, then the calls that make the flow."""
    return "\n".join([*comments, "", "from redrive.engine import Flow", "", *calls, ""])


def shell_duration(text: object) -> str | None:
    """A duration as ``90s``, of what is in seconds without a unit; None if there is none."""
    return f"{text}s" if text and str(text)[-1].isdigit() else str(text) if text else None


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
_NAME_CHARACTERS = 60  # a file has a name of at most 255 bytes


def plain_name(text: str) -> str:
    """A name of a flow and its file, which hides no module of Python; empty if nothing is left of it."""
    name = _NOT_PLAIN.sub("_", text)[:_NAME_CHARACTERS].strip("_")
    return f"{name}_job" if name in sys.stdlib_module_names or name == "redrive" else name


def numbered(name: str) -> Iterator[str]:
    """Yield the name, then ``name_2``, ``name_3`` and so on."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


#: The name of a variable whose value may be a secret.
SECRET_NAME = re.compile(r"PASS|PWD.|SECRET|TOKEN|KEY|CREDENTIAL|_DSN|_URL$", re.IGNORECASE)


def secret_names(variables: Mapping[str, str]) -> list[str]:
    """The names of the variables whose values are masked in logs."""
    return [name for name, value in variables.items() if SECRET_NAME.search(name) and len(value) >= SHORTEST]


def env_text(variables: Mapping[str, str]) -> str:
    """The text of a file of variables, whose values are in quotes."""
    values = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in variables.items()}
    return "".join(f"{name}='{value}'\n" for name, value in values.items())
