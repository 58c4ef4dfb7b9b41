"""The entry point of ``redrive``: errors become sentences and exit codes.

An error for people is one sentence on stderr; a traceback is a bug.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from typing import NoReturn

import click

from ...engine import errors
from .group import ExitCode, cli, code_of_error, code_of_usage, discard_output

_LACK = "the limit of memory or processes is reached: raise it (ulimit -v, ulimit -u, MemoryMax, TasksMax)"
_FILES = "no more files can be opened: raise the limit of open files (ulimit -n)"
_LIMITS = {errno.EMFILE: _FILES, errno.ENFILE: _FILES, errno.ENOMEM: _LACK}
_COLLECTOR = (10_000, 50, 100)  # few collections: Python's own take a third of the time of a report of 100,000 tasks


def main() -> None:
    """The ``redrive`` command."""
    gc.set_threshold(*_COLLECTOR)
    _open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cron's locale may not encode names of tasks
    try:
        sys.exit(_run())
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (click.Abort, KeyboardInterrupt):  # click.Abort: Ctrl-C; click has ended the line of the ^C
        _exit_with("interrupted", ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(code_of_usage(error))
    except errors.RedriveError as error:
        explain(error)
        sys.exit(code_of_error(error))
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # of getcwd: every other call names its file
            _exit_with("the current folder was removed: change to another one", ExitCode.BAD_USAGE)
        if error.errno in _LIMITS:
            _exit_with(_LIMITS[error.errno], ExitCode.BAD_USAGE)
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EFBIG):
            raise
        discard_output()
        _exit_with(f"the output cannot be written: {error.strerror}", ExitCode.FAILED)
    except MemoryError:
        _exit_with(_LACK, ExitCode.BAD_USAGE)
    except RuntimeError as error:
        hidden = error.__context__  # asyncio starts a thread to end its others
        if isinstance(hidden, errors.RedriveError):
            explain(hidden)
            sys.exit(code_of_error(hidden))
        if "can't start new thread" not in str(error):
            raise
        _exit_with(_LACK, ExitCode.BAD_USAGE)
    finally:
        gc.freeze()  # else the collections at the end of the interpreter take a sixth of a short command


def _run() -> int | None:
    """Run the command, or complete one. Raises CorruptFileError for a failure that a malformed state file explains."""
    if "_REDRIVE_COMPLETE" in os.environ:
        from . import completion  # noqa: F401 - registers how each shell completes
    try:
        code: int | None = cli.main(standalone_mode=False)
        return code
    except (click.ClickException, click.exceptions.Exit, click.Abort, errors.RedriveError, OSError):
        raise
    except Exception:
        from ..sessions.file_session import require_known_values

        require_known_values()
        raise


def _open_standard_descriptors() -> None:
    """Open a closed stdin, stdout or stderr on /dev/null; otherwise the next opened file would get its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))  # it was None


def _exit_with(sentence: str, code: ExitCode) -> NoReturn:
    click.echo(f"redrive: {sentence}", err=True)
    sys.exit(code)


def explain(error: errors.RedriveError) -> None:
    """Print an error as one sentence, after the traceback of an import that failed."""
    from ..text.text import echo

    if isinstance(error, errors.FlowImportError) and error.traceback:
        for line in error.traceback.rstrip().splitlines():
            echo(line.replace("\t", "    "), err=True)
    echo(f"redrive: {str(error).replace(chr(10), ' ')}", err=True)
