"""Attempts of kind "command": a worker starts a shell with a line, or a program with its arguments."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from ..core.outcome import COMMAND_START_ERROR, FILE_ADVICE, KnownCauseError, unstored_result
from ..core.result_codec import UnstorableError, dump_result, plain_result
from ..core.spec import LOGICAL_TIME, CommandOptions, TaskSpec
from ..errors import PermanentError
from ..flow.source import FROM_FILE
from .protocol import NO_INPUTS, RESULT_LIMIT, SMALL_LIMIT, AttemptOrder, clean_text, write_all

#: How each value of ``shell=`` runs a line.
SHELLS: Mapping[str, tuple[str, ...]] = {"sh": ("/bin/sh", "-c"), "bash": ("bash", "-o", "pipefail", "-c")}

RESULT_FILE = "result"
INPUTS_FILE = "inputs.json"
SHOWN_CHARACTERS = 200  # of a result that is not JSON, in its error


def options_of(spec: TaskSpec) -> CommandOptions:
    """Return how the command of a task runs."""
    return spec.command_options or CommandOptions()


def argv_of(spec: TaskSpec) -> list[str]:
    """Return the program of a command and its arguments."""
    options = options_of(spec)
    return list(options.argv) if options.argv else [*SHELLS[options.shell], spec.command or ""]


def attempts_folder(executor_id: str, zygote: int) -> str:
    """Return the folder for files of the commands that a zygote (its pid) forks, which removes it at its end."""
    from tempfile import gettempdir  # here: it imports ``random``, which does work after each fork

    return os.path.join(gettempdir(), f"redrive-{executor_id}-{zygote}")


def remove_folders(executor_id: str) -> None:
    """Remove what killed zygotes of an executor that has ended left."""
    import glob
    import shutil

    for folder in glob.glob(f"{glob.escape(attempts_folder(executor_id, 0).removesuffix('0'))}*"):
        shutil.rmtree(folder, ignore_errors=True)


def prints_result(spec: TaskSpec) -> bool:
    """True if the result is the last line of stdout, which then is the result pipe: it carries no frames."""
    return spec.kind == "command" and options_of(spec).result == "last-line"


def has_stdout(order: AttemptOrder) -> bool:
    """True if the stdout of a command is the result pipe, apart from its stderr: it carries no frames."""
    return order.streams > 1 or prints_result(order.spec)


@cache
def inherited() -> tuple[dict[bytes, bytes], list[signal.Signals]]:
    """Return what programs inherit of this process: variables, and the signals that it ignores.

    The zygote asks before it forks, so that a worker starts none with what an earlier attempt has changed. Exec keeps
    signals ignored.
    Python ignores SIGPIPE, so ``yes | head -1`` would never end; nohup ignores SIGHUP, and ``&`` of a shell SIGQUIT.
    """
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    return dict(os.environb), ignored


class Program(NamedTuple):
    """A program that is ready to start. ``stdin``: a descriptor; None: that of this process."""

    task: str
    path: str
    words: list[bytes]
    environment: Mapping[bytes, bytes]
    stdin: int | None

    def spawn(self, stdout: int | None) -> int:
        """Start it in a session of its own, and return its pid. ``stdout``: a pipe; None: that of this process.

        Without a fork, whose copy of this process ``exec`` would drop. Raises OSError if it cannot be executed.
        """
        redirected = ((self.stdin, 0), (stdout, 1))
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in redirected if source is not None]
        try:
            return os.posix_spawn(
                self.path,
                self.words,
                self.environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=inherited()[1],
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise PermanentError(_too_large(self.task, self.words, self.environment)) from None
            if error.errno not in _NO_PROGRAM:
                raise
            raise _not_started(self.path, error.strerror) from None
        finally:
            if self.stdin is not None:
                os.close(self.stdin)


def prepare(order: AttemptOrder, variables: Mapping[bytes, bytes], folder: str) -> Program:
    """Change to the folder of a command, and find its program. ``variables``: of its task; ``folder``: of the flow.

    Raises OSError if the program, its folder or its input cannot be used.
    """
    options = options_of(order.spec)
    words = argv_of(order.spec)
    stdin = _open_stdin(options, folder, order.stdin)
    os.chdir(working_folder(options, folder))
    environment = {**_passed_on(inherited()[0], options), **variables, **_encoded(_variables(order))}
    for name, value in options.env.items():
        environment.pop(os.fsencode(name), None)
        environment.update({} if value is None else _encoded({name: value}))
    path = _path_of(words[0], environment)
    return Program(order.task, path, [_encode(word) for word in words], environment, stdin)


def _passed_on(inherited: Mapping[bytes, bytes], options: CommandOptions) -> Mapping[bytes, bytes]:
    """Return what a command gets of these variables: with ``"*": None`` in its ``env`` those of the flow's file."""
    if options.env.get("*", "") is not None:
        return inherited
    return {name: value for name, value in inherited.items() if os.fsdecode(name) in FROM_FILE}


def _path_of(word: str, environment: Mapping[bytes, bytes]) -> str:
    """Return the path of a program. Raises KnownCauseError if no folder of PATH has it."""
    if os.sep in word:
        return word
    import shutil  # by the zygote of a flow with commands, before the fork

    path = shutil.which(word, path=os.fsdecode(environment.get(b"PATH", os.defpath.encode())))
    if path is None:
        raise _not_started(word)
    return path


#: Another try does not help: a file or its interpreter is not there, may not be executed, or is no program.
_NO_PROGRAM = frozenset(
    [errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EISDIR]
)
_FIRST_LINE_BYTES = 256  # that the kernel reads of a script


def _not_started(program: str, error: str | None = None) -> KnownCauseError:
    is_there = error is not None and os.path.exists(program)
    otherwise = f"{program!r} cannot be executed: {error}" if is_there else f"there is no such program: {program!r}"
    why = start_problem(program) or otherwise
    return KnownCauseError(why, why, COMMAND_START_ERROR)


def start_problem(path: str, shown: str = "") -> str | None:
    """Return why the kernel does not execute a file, as far as its mode and its first line say; None: they do not.

    ``shown``: the path as the task names it.
    """
    shown = shown or path
    if not os.path.exists(path):
        return None
    if not os.path.isfile(path):
        return f"{shown!r} is no file that can be executed"
    if not os.access(path, os.X_OK):
        return f"{shown!r} may not be executed: chmod +x {shown}"
    with suppress(OSError), open(path, "rb") as file:
        return _script_problem(shown, file.readline(_FIRST_LINE_BYTES))
    return None


#: A program that a line names by its path: at the begin of the line or of a part of it.
_PATH_OF_PROGRAM = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else|exec|nice|nohup|time|sudo)\s)\s*(?:\w+=\S*\s+)*(\.{0,2}/[^\s;&|<>()'\"`$]+)",
    re.MULTILINE,
)


def line_problem(spec: TaskSpec, folder: str | None) -> str | None:
    """Return why a program that a command names by its path cannot be started; None: nothing is known of it."""
    options = options_of(spec)
    for word in options.argv[:1] or _PATH_OF_PROGRAM.findall(spec.command or ""):
        path = os.path.join(working_folder(options, folder), word)
        if os.path.isfile(path) and (problem := start_problem(path, word)) is not None:
            return problem
    return None


def _script_problem(path: str, first: bytes) -> str | None:
    """Return what is wrong with the first line of a file; None: nothing that can be seen here."""
    import shutil

    if not first.startswith(b"#!"):
        return None if first.startswith(b"\x7fELF") else f"{path!r} names no interpreter: begin it with #!/bin/sh"
    words = first[2:].decode("utf-8", "replace").split()
    named = words[1] if len(words) > 1 and os.path.basename(words[0]) == "env" and words[1][:1] != "-" else ""
    interpreter = named or (words[0] if words else "")
    if first.endswith(b"\r\n"):
        return f"the first line of {path!r} ends in CRLF, and there is no interpreter {interpreter + chr(13)!r}"
    is_there = shutil.which(interpreter) if named else os.path.exists(interpreter)
    return None if is_there else f"{path!r} names an interpreter that is not there: {interpreter!r}"


def working_folder(options: CommandOptions, folder: str | None) -> str:
    """Return the folder in which a command runs; ``folder``: that of the flow."""
    return os.path.join(folder or os.curdir, options.cwd or os.curdir)


def _open_stdin(options: CommandOptions, folder: str, otherwise: str) -> int | None:
    if options.stdin_path is not None:
        return os.open(os.path.join(folder, options.stdin_path), os.O_RDONLY)
    if options.stdin is not None:
        source = os.memfd_create("stdin")
        write_all(source, _encode(options.stdin))
        os.lseek(source, 0, os.SEEK_SET)
        return source
    if otherwise:
        source = os.open(otherwise, os.O_RDONLY | os.O_NONBLOCK)  # a pipe: its writer may have ended
        os.set_blocking(source, True)
        return source
    return None


def _variables(order: AttemptOrder) -> dict[str, str]:
    """Write the results of the parents into the folder of the attempt, and return the variables that name them."""
    try:
        os.mkdir(order.folder, 0o700)
    except FileNotFoundError:  # the first command of this zygote
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(order.folder), 0o700)
        os.mkdir(order.folder, 0o700)
    inputs = inputs_of(order)
    variables = result_variables(inputs)
    if inputs and not variables:
        print("redrive: the results of the parents are large: only the file $REDRIVE_INPUTS has them", flush=True)
    path = os.path.join(order.folder, INPUTS_FILE)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    write_all(file, json.dumps(inputs).encode() if inputs else b"{}")
    os.close(file)
    return {**variables, "REDRIVE_INPUTS": path, "REDRIVE_RESULT": os.path.join(order.folder, RESULT_FILE)}


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # UTF-8 in every locale: cron often has none


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {_encode(name): _encode(value) for name, value in variables.items()}


def _too_large(task: str, words: list[bytes], environment: Mapping[bytes, bytes]) -> str:
    largest, size = max(((name.decode(), len(value)) for name, value in environment.items()), key=lambda one: one[1])
    line = max(map(len, words))
    what = f"its line has {line} characters" if line > size else f"the variable {largest} has {size} bytes"
    return f"task {task!r} cannot start: the kernel takes no more text, and {what}; hand the data over in a file"


# --- The result, in the process that started the attempt --------------------------------------------------------------


class ResultError(ValueError):
    """A command left a result that cannot be used."""


def read_result(order: AttemptOrder, stdout_tail: bytes) -> str | None:
    """Return the result of a command that succeeded, encoded for the state file; None without one.

    One that is too large is a marker with that reason, as of a function.

    ``stdout_tail``: the end of its output, for ``result="last-line"``. Raises ResultError.
    """
    if prints_result(order.spec):
        lines = stdout_tail.decode("utf-8", "replace").strip().rsplit("\n", 1)
        return _parse(lines[-1], "the last line of its output", SMALL_LIMIT)
    return _parse(_read_file(os.path.join(order.folder, RESULT_FILE)), "what it wrote into $REDRIVE_RESULT")


def _read_file(path: str) -> str:
    """Return the text of a file, at most a little more than a result may have; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ResultError(f"$REDRIVE_RESULT cannot be read: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ResultError("$REDRIVE_RESULT is no longer a regular file: write JSON into it")
        return file.read(RESULT_LIMIT + 1).decode("utf-8", "replace").strip()


def _parse(text: str, where: str, limit: int = RESULT_LIMIT) -> str | None:
    if not text:
        return None
    if len(text.encode()) > limit:  # the program has done its work
        return unstored_result(f"{where} is over {limit} bytes{FILE_ADVICE}")
    try:
        return dump_result(json.loads(text))
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, UnstorableError) else "is not JSON"
        raise ResultError(f"{where} {why}: {clean_text(text, SHOWN_CHARACTERS)}") from None


# --- The variables that a task finds in its environment: one table of their names, and their values for one attempt ---
#
# A command gets the results of its parents as JSON: together in a file, and each in a variable while they are small,
# for the kernel refuses to start a program whose environment is too large (E2BIG).


_json = json.JSONEncoder(ensure_ascii=False).encode  # shared: ``json.dumps`` with settings makes an encoder each time

RESULTS_BYTES_MAX = 64 * 1024  # of all results together in variables


_NO_LETTER = re.compile("[^A-Z0-9]")  # here: each fork would compile it again


def variable_name(prefix: str, name: str) -> str:
    """Return ``REDRIVE_PARAM_DAY_OF`` for the prefix ``REDRIVE_PARAM_`` and the name ``day-of``."""
    return prefix + _NO_LETTER.sub("_", name.upper())


def variables_of(order: AttemptOrder) -> dict[str, str]:
    """Return the variables of a task of any kind."""
    params = {**order.params, **order.spec.params}
    logical_time = str(params.get(LOGICAL_TIME) or "")
    return {
        "REDRIVE_RUN_ID": order.run_id,
        "REDRIVE_TASK": order.task,
        "REDRIVE_ATTEMPT": str(order.attempt),
        "REDRIVE_IDEMPOTENCY_KEY": order.idempotency_key,
        "REDRIVE_LOGICAL_TIME": logical_time,
        "REDRIVE_DATE": logical_time.partition("T")[0] or order.date,
        "REDRIVE_PARAMS": _json(params),
        **{variable_name("REDRIVE_PARAM_", name): _raw_or_json(value) for name, value in params.items()},
    }


def encoded_variables(order: AttemptOrder) -> dict[bytes, bytes]:
    """Return the variables as bytes."""
    return _encoded(variables_of(order))


def _raw_or_json(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def inputs_of(order: AttemptOrder) -> dict[str, object]:
    """Return the results of the parents as plain JSON; parents without a result are left out."""
    if order.inputs == NO_INPUTS:
        return {}
    missing = {name for name, _ in order.missing}
    inputs: Mapping[str, object] = plain_result(order.inputs)
    return {name: value for name, value in inputs.items() if name not in missing}


def result_variables(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return a variable for each result; none if they are too large together."""
    texts = {variable_name("REDRIVE_RESULT_", name): json.dumps(value) for name, value in inputs.items()}
    return texts if sum(map(len, texts.values())) <= RESULTS_BYTES_MAX else {}
