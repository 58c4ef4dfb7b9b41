"""redrive runs DAGs of tasks durably on one machine and shows them in the terminal.

Two packages: ``redrive.engine`` (define and run flows; start with ``help(redrive.engine)``) and ``redrive.console``
(the command ``redrive``, also ``python -m redrive``). This package itself imports neither.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name):
        """Say where ``Flow`` and its like are."""
        if name in ("Executor", "Flow", "Param", "RetryPolicy"):
            raise ImportError(f"write: from redrive.engine import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
