"""``python -m redrive`` is the ``redrive`` command."""

from .console.cli.main import main

if __name__ == "__main__":
    main()
