"""``python -m redrive.console`` is the ``redrive`` command."""

from .cli.main import main

main()
