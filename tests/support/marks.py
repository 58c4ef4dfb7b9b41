"""Matrices of which the default run takes the first cases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def parametrize_mostly_long(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    quick: int = 1,
    ids: Sequence[str] | Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """As ``pytest.mark.parametrize``; the cases behind the first ``quick`` ones are marked ``long``."""
    single = len(names.split(",") if isinstance(names, str) else names) == 1
    cases = [
        value if number < quick else pytest.param(*([value] if single else value), marks=pytest.mark.long)
        for number, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, cases, ids=ids)


def needs(program: str) -> pytest.MarkDecorator:
    """Refuse a test in one sentence where this program is missing. Such a test is marked ``long`` as well."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program}")


def scaled(count: int) -> int:
    """How many drawn cases a long test tries: ``count`` times $REDRIVE_TEST_SCALE, a whole number, by default 1."""
    return count * int(os.environ.get("REDRIVE_TEST_SCALE", "1"))
