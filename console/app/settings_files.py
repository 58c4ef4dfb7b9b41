"""The operator's saved filters and choice of columns: a file of each in the configuration folder.

``filters.toml`` has one line per filter, ``columns.toml`` one per list::

    "slow loads" = "load !timeout"

    runs = ["done", "started", "took"]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ...engine.errors import RedriveError
from ..keys.keymap import key_file
from ..model.columns import ColumnChoice

_FILTERS, _COLUMNS = "filters.toml", "columns.toml"


class SettingsFileError(RedriveError):
    """A file of settings cannot be read."""


def settings_file(name: str) -> Path:
    """The path of a file beside that of the keys."""
    return key_file().with_name(name)


def load_filters() -> dict[str, str]:
    """Name -> filter, in the order of the file. Raises SettingsFileError."""
    return {name: text for name, text in _load(_FILTERS).items() if isinstance(text, str)}


def save_filter(name: str, text: str) -> None:
    """Save a filter under a name; an empty one removes the name. Raises SettingsFileError, OSError."""
    filters = {**load_filters(), name: text}
    _save(_FILTERS, {known: saved for known, saved in filters.items() if saved})


def load_columns() -> ColumnChoice:
    """The choice of the file; without a file every list shows all columns. Raises SettingsFileError."""
    lists = {name: columns for name, columns in _load(_COLUMNS).items() if isinstance(columns, list)}
    return ColumnChoice({name: [str(column) for column in columns] for name, columns in lists.items()})


def save_columns(choice: ColumnChoice) -> None:
    """Save a choice. Raises OSError."""
    _save(_COLUMNS, choice.as_dict())


def _load(name: str) -> dict[str, object]:
    path = settings_file(name)
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsFileError(f"{path} cannot be read: {error}") from error


def _save(name: str, values: Mapping[str, object]) -> None:
    path = settings_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{_quoted(key)} = {_quoted(value)}\n" for key, value in values.items()]
    path.write_text("".join(lines), encoding="utf-8")


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
