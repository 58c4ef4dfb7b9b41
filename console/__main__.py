"""``python -m redrive.console`` is the ``redrive`` command."""

from .cli import main

main()
