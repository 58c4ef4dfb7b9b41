"""Stylesheets of Textual, parsed once for all consoles of a test process.

Textual parses every sheet again for each view that a console shows for the first time: a fifth of a test's time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet


@cache
def _parsed_with(variables: frozenset[tuple[str, str]]) -> dict[Any, Any]:
    """Styles that were parsed with these variables: as ``Stylesheet._parse_cache``."""
    return {}


def share_parsed_stylesheets(patch: pytest.MonkeyPatch) -> None:
    """Give every stylesheet the cache of its variables. Rules are read and never changed."""
    original_init, original_set = Stylesheet.__init__, Stylesheet.set_variables

    def share(sheet: Stylesheet) -> None:
        sheet._parse_cache = _parsed_with(frozenset(sheet._variables.items()))  # type: ignore[assignment]

    def init(sheet: Stylesheet, *, variables: dict[str, str] | None = None) -> None:
        original_init(sheet, variables=variables)
        share(sheet)

    def set_variables(sheet: Stylesheet, variables: dict[str, str]) -> None:
        sheet._parse_cache = {}  # type: ignore[assignment]  # the original clears it
        original_set(sheet, variables)
        share(sheet)

    patch.setattr(Stylesheet, "__init__", init)
    patch.setattr(Stylesheet, "set_variables", set_variables)
