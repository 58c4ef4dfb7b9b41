"""The operator's choice of columns: ``columns.toml`` in the configuration folder, one line per list.

::

    runs = ["done", "started", "took"]
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from ...engine.errors import RedriveError
from ..keys.keymap import key_file
from ..model.columns import ColumnChoice


class ColumnFileError(RedriveError):
    """The file of columns cannot be read."""


def column_file() -> Path:
    """The path of ``columns.toml``."""
    return key_file().with_name("columns.toml")


def load_columns() -> ColumnChoice:
    """The choice of the file; without a file every list shows all columns. Raises ColumnFileError."""
    path = column_file()
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        return ColumnChoice()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ColumnFileError(f"{path} cannot be read: {error}") from error
    lists = {name: columns for name, columns in found.items() if isinstance(columns, list)}
    return ColumnChoice({name: [str(column) for column in columns] for name, columns in lists.items()})


def save_columns(choice: ColumnChoice) -> None:
    """Save a choice. Raises OSError."""
    path = column_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {json.dumps(columns)}\n" for name, columns in choice.as_dict().items()]
    path.write_text("".join(lines), encoding="utf-8")
