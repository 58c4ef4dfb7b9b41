"""The entry point of ``redrive``: runs a command, and turns errors into sentences and exit codes.

The commands are in ``commands``: the group imports the module of a command when the command runs, and a command imports
what does its work in its body, so that only commands that draw import Textual. Exit codes are in ``exit_codes.py``. An
error for people is one sentence on stderr; a traceback is a bug.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys

import click

from ...engine.errors import FlowImportError, RedriveError
from .commands.group import cli
from .exit_codes import ExitCode, code_of_error

__all__ = ["cli", "main"]


def main() -> None:
    """The ``redrive`` command."""
    _open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cron's locale may not encode names of tasks
    try:
        sys.exit(_run())
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:  # Ctrl-C; click has ended the line of the ^C
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.BAD_USAGE)
    except KeyboardInterrupt:
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        sys.exit(ExitCode.SUCCESS)
    except RedriveError as error:
        _explain(error)
        sys.exit(code_of_error(error))
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # of getcwd: every other call names its file
            click.echo("redrive: the current folder was removed: change to another one", err=True)
            sys.exit(ExitCode.BAD_USAGE)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            click.echo("redrive: no more files can be opened: raise the limit of open files (ulimit -n)", err=True)
            sys.exit(ExitCode.BAD_USAGE)
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest of the buffer would fail again
        click.echo(f"redrive: the output cannot be written: {error.strerror}", err=True)
        sys.exit(ExitCode.FAILED)
    finally:
        gc.freeze()  # else the collections at the end of the interpreter take a sixth of a short command


def _run() -> int | None:
    """Run the command. Raises CorruptFileError for a failure that a malformed state file explains."""
    try:
        code: int | None = cli.main(standalone_mode=False)
        return code
    except (click.ClickException, click.exceptions.Exit, click.Abort, RedriveError, OSError):
        raise
    except Exception:
        from ..sessions.open import require_known_values

        require_known_values()
        raise


def _open_standard_descriptors() -> None:
    """Open a closed stdin, stdout or stderr on /dev/null; otherwise the next opened file would get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def _explain(error: RedriveError) -> None:
    from ..text.printing import echo

    if isinstance(error, FlowImportError) and error.traceback:
        for line in error.traceback.rstrip().splitlines():
            echo(line.replace("\t", "    "), err=True)
    echo(f"redrive: {str(error).replace(chr(10), ' ')}", err=True)
