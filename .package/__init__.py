"""redrive runs DAGs of tasks durably on one machine and shows them in the terminal.

Two packages: ``redrive.engine`` (define and run flows; start with ``help(redrive.engine)``) and ``redrive.console``
(the command ``redrive``, also ``python -m redrive``). This package itself imports neither.
"""

__version__ = "0.1.0"
