"""The file of variables of a flow, ``Flow(env_file=".env")``: read for each run, so that a new password counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError

if TYPE_CHECKING:
    from ..core.spec import FlowSpec
    from .source import Place


def use_env_file(flow: str, name: str, declared_at: Place | None) -> str:
    """Put the variables of a file into the environment of this process, and return its absolute path.

    ``name``: relative to the file that declares the flow. Raises OptionError if it cannot be read.
    """
    folder = Path(declared_at[0]).parent if declared_at is not None else Path()
    path = (folder / name).resolve()
    os.environ.update(_read(flow, path))
    return str(path)


def environment_of(flow: FlowSpec) -> Mapping[str, str]:
    """Return the environment that the tasks of a flow have, for a process that has not made the flow itself.

    Raises OptionError if the file cannot be read any more.
    """
    return os.environ if flow.env_file is None else {**os.environ, **_read(flow.name, Path(flow.env_file))}


def _read(flow: str, path: Path) -> dict[str, str]:
    from dotenv import dotenv_values  # here: only flows with such a file pay for it

    try:
        with path.open(encoding="utf-8") as file:
            values = dotenv_values(stream=file, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"flow {flow!r}: env_file {str(path)!r} cannot be read: {why}") from None
    return {variable: value for variable, value in values.items() if value is not None}
