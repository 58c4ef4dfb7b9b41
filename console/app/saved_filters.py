"""The operator's saved filters: ``filters.toml`` in the configuration folder, one line per filter.

::

    "slow loads" = "load !timeout"
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from ...engine.errors import RedriveError
from ..keys.keymap import key_file


class SavedFiltersError(RedriveError):
    """The file of filters cannot be read."""


def filter_file() -> Path:
    """The path of ``filters.toml``."""
    return key_file().with_name("filters.toml")


def load_filters() -> dict[str, str]:
    """Name -> filter, in the order of the file. Raises SavedFiltersError."""
    path = filter_file()
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SavedFiltersError(f"{path} cannot be read: {error}") from error
    return {name: text for name, text in found.items() if isinstance(text, str)}


def save_filter(name: str, text: str) -> None:
    """Save a filter under a name; an empty one forgets the name. Raises SavedFiltersError, OSError."""
    filters = {**load_filters(), name: text}
    path = filter_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{_quoted(known)} = {_quoted(saved)}\n" for known, saved in filters.items() if saved]
    path.write_text("".join(lines), encoding="utf-8")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
