"""``python -m redrive`` is the ``redrive`` command."""

from .console.__main__ import main

if __name__ == "__main__":
    main()
