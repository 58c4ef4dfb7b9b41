"""Check commands before a run: what is missing on this machine, and what makes a failure look like a success.

Commands are read and never executed: a check may run on a machine where the tasks must not run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

from ..core.spec import FlowSpec, TaskSpec
from ..flow.finding import Finding
from ..flow.flow_file_source import split_target
from ..runner.command import SHELLS, argv_of, options_of, working_folder
from ..runner.task_environment import variable_name

_NAME = re.compile(r"[A-Za-z0-9_./+-]+")
_SECRET = re.compile(
    r"""(?ix) (?: pass(?:word|wd)? | secret | token | api[_-]?key ) ["']? \s* = \s* ["']? (?![\s"'$`]) .
    | ://[^\s/@:$]*:(?!\$)[^\s/@]+@ """
)
_SECRET_NAME = re.compile(r"(?i)(pass(word|wd)?|secret|token|api_?key)$")
_SQL_SCRIPT = re.compile(r"-[a-zA-Z]*f|--file(=.*)?|<")
_SQL_COMMAND = re.compile(r"-[a-zA-Z]*c|--command(=.*)?")


def check_commands(flow: FlowSpec) -> list[Finding]:
    """Return the findings of all commands, task by task."""
    root = os.path.dirname(split_target(flow.path)[0]) if flow.path else os.curdir
    return [
        Finding("warning", name, message, task.name)
        for task in flow.tasks
        if task.kind == "command"
        for name, rule in RULES
        for message in rule(task, root)
    ]


# --- What is missing ------------------------------------------------------------------------------------------------


def _program(task: TaskSpec, root: str) -> Iterator[str]:
    """Check the shell, and the first word if it is clearly the name of a program."""
    options, first = options_of(task), argv_of(task)[0]
    path = options.env.get("PATH") or os.environ.get("PATH")
    if shutil.which(first, path=path) is None:
        yield f"the {'program' if options.argv else 'shell'} {first!r} is not on this machine"
        return
    word = None if options.argv else _first_word(task.command or "")
    if word is not None and not _is_known_to_shell(SHELLS[options.shell], word, path):
        yield f"the program {word!r} is not on this machine"


def _first_word(line: str) -> str | None:
    try:
        first = shlex.split(line, comments=True)[0]
    except (ValueError, IndexError):
        return None
    return first if _NAME.fullmatch(first) else None


@cache
def _is_known_to_shell(shell: tuple[str, ...], word: str, path: str | None) -> bool:
    """True for programs, keywords and built-in commands of the shell."""
    environment = os.environ if path is None else {**os.environ, "PATH": path}
    line = [*shell, 'command -v -- "$1" >/dev/null', shell[0], word]
    return subprocess.run(line, check=False, env=environment).returncode == 0


def _cwd(task: TaskSpec, root: str) -> Iterator[str]:
    options = options_of(task)
    if options.cwd is not None and not os.path.isdir(working_folder(options, root)):
        yield f"its folder {options.cwd!r} is not on this machine; cwd is relative to the folder of the flow file"


def _stdin(task: TaskSpec, root: str) -> Iterator[str]:
    path = options_of(task).stdin_path
    if path is not None and not os.path.exists(os.path.join(root, path)) and not task.parents:
        yield f"its input {path!r} is not on this machine; stdin is relative to the folder of the flow file"


# --- What hides a failure -------------------------------------------------------------------------------------------


def _argv(task: TaskSpec) -> list[str]:
    """Return the words of a command, with operators of the shell as words of their own."""
    options = options_of(task)
    if options.argv:
        return list(options.argv)
    lexer = shlex.shlex(task.command or "", posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed, as in a here-document
        return []


def _psql(task: TaskSpec, root: str) -> Iterator[str]:
    words = _argv(task)
    calls = [position for position, word in enumerate(words) if os.path.basename(word) == "psql"]
    if not calls or "ON_ERROR_STOP" in " ".join(words):
        return
    options = options_of(task)
    given = words[calls[0] + 1 :]
    commands = sum(1 for word in given if _SQL_COMMAND.fullmatch(word))  # a single one fails by itself
    has_input = (options.stdin is not None or options.stdin_path is not None) and not commands
    if has_input or commands > 1 or any(_SQL_SCRIPT.fullmatch(word) for word in given):
        yield "psql goes on after an error in SQL, and can end with exit code 0: add -v ON_ERROR_STOP=1"


def _pipe(task: TaskSpec, root: str) -> Iterator[str]:
    options = options_of(task)
    if not options.argv and options.shell == "sh" and "|" in _argv(task) and "pipefail" not in (task.command or ""):
        yield 'only the last program of its pipe counts: shell="bash" fails when one of them fails'


# --- What gives a secret away ---------------------------------------------------------------------------------------


def _secret(task: TaskSpec, root: str) -> Iterator[str]:
    if any(_SECRET.search(word) for word in (task.command or "", *options_of(task).argv)):
        yield (
            "a secret is written in its command line, which ps and the state file show: read it from a variable of "
            'the environment, and declare the variable: Flow(secrets=["PGPASSWORD"])'
        )
    for name, value in options_of(task).env.items():
        if value and _SECRET_NAME.search(name):
            yield (
                f"the value of {name} is written in the flow: set the variable where redrive is started, and declare "
                f"it: Flow(secrets=[{name!r}])"
            )


def _same_variable(task: TaskSpec, root: str) -> Iterator[str]:
    names = Counter(variable_name("REDRIVE_RESULT_", parent) for parent in task.parents)
    for name in (name for name, count in names.items() if count > 1):
        yield f"several of its parents share the variable {name}: read $REDRIVE_INPUTS"


RULES: tuple[tuple[str, Callable[[TaskSpec, str], Iterator[str]]], ...] = (
    ("program", _program),
    ("cwd", _cwd),
    ("stdin", _stdin),
    ("psql", _psql),
    ("pipe", _pipe),
    ("secret", _secret),
    ("variable", _same_variable),
)
