"""Matrices of which the default run takes the first cases."""

from __future__ import annotations

import inspect
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
    daily: int | None = None,
    ids: Sequence[str] | Callable[[Any], str] | None = None,
    indirect: bool = False,
) -> pytest.MarkDecorator:
    """As ``pytest.mark.parametrize``; the cases behind the first ``quick`` ones are marked ``long``.

    Those behind the first ``daily`` ones are marked ``weekly`` as well: more draws of what the others try.
    """
    single = len(names.split(",") if isinstance(names, str) else names) == 1
    cases = [
        pytest.param(*([value] if single else value), marks=marks)
        if (marks := _marks_of(number, quick, daily))
        else value
        for number, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, cases, ids=ids, indirect=indirect)


def _marks_of(number: int, quick: int, daily: int | None) -> list[pytest.MarkDecorator]:
    is_weekly = daily is not None and number >= daily
    return [pytest.mark.long] * (number >= quick) + [pytest.mark.weekly] * is_weekly


def for_each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, in one test that reports every case that fails.

    For cases that need no fixture of their own: pytest spends more time on a case than such a test does.
    """
    cases = list(values)
    keys = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        def whole(*own: Any, **fixtures: Any) -> None:
            assert cases
            failures = []
            for case in cases:
                try:
                    test(*own, **fixtures, **dict(zip(keys, case if len(keys) > 1 else [case], strict=True)))
                except Exception as error:
                    error.add_note(f"{names} = {case!r}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)

        others = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        vars(whole).update(vars(test), __signature__=signature.replace(parameters=others))
        whole.__name__, whole.__qualname__ = test.__name__, test.__qualname__
        whole.__module__, whole.__doc__ = test.__module__, test.__doc__
        return whole

    return decorate


def needs(program: str) -> pytest.MarkDecorator:
    """Refuse a test in one sentence where this program is missing. Such a test is marked ``long`` as well."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program}")


def scaled(count: int) -> int:
    """The number of drawn cases that a long test tries: ``count`` times $REDRIVE_TEST_SCALE (a whole number, 1)."""
    return count * int(os.environ.get("REDRIVE_TEST_SCALE", "1"))
