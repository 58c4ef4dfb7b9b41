"""The start of ``redrive``, also as ``python -m redrive.console``: Ctrl-C while it imports is a sentence, too."""

import sys


def main() -> None:
    try:
        from .cli.main import main as run  # here: most of the time of a short command

        run()
    except KeyboardInterrupt:
        sys.stderr.write("redrive: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
