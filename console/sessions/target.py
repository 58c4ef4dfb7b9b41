"""The words ``[FLOW[@RUN]] [TASK]...`` of a command, and the state file that it means.

FLOW is a path, the name of a flow or ``ssh://...``; left out, ``REDRIVE_STATE`` or the default file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...engine.domain.text import REMOTE, did_you_mean, first_names, place_words, shell_command
from ...engine.errors import NotFoundError, RedriveError
from ...engine.statefile.paths import STATE_VARIABLE, SUFFIX, default_paths, supervisor_path
from ...engine.store.flow_path import check_state_name, follow_link, path_for_run, path_of_flow
from ..text.text import is_remote

if TYPE_CHECKING:
    from ...engine.statefile.lists import RunName
    from ...engine.statefile.state_files import ActTargets


# --- The grammar -----------------------------------------------------------------------------------------------------
#
# One function reads the words of all commands. The first word is FLOW[@RUN] or a task:
#
#   is a flow | is a task | reading                     | act
#   ----------+-----------+-----------------------------+-----------------------------
#   yes       | no        | that flow                   | that flow
#   no        | yes or no | tasks of the default file   | tasks of the default file
#   yes       | yes       | that flow, with a notice    | refused, with both commands
#
# A word that is ssh://... or looks like a path is a flow unless it is a task; ssh://... is never a task.


_NAMED_MAX = 5
_EMPTY = "the name of the state file is empty; name one, or leave it out"
_PATH_BEGINNINGS = ("/", "./", "../", "~")


class NamedTargets(NamedTuple):
    """The words of a command, as they are read.

    Attributes:
        state: a flow, a path, ``ssh://...``; None: the default.
        run: as it was typed; None: the latest.
        tasks: names and globs.
        also: a state file with a task of the name that was read as the flow.
    """

    state: str | None = None
    run: str | None = None
    tasks: tuple[str, ...] = ()
    also: str | None = None


def name_run(word: str, machine: LocalMachine) -> NamedTargets:
    """Read ``FLOW[@RUN]``: the whole word if there is such a file, else what the last ``@`` divides.

    In ``ssh://`` words ``@`` counts only behind the first ``/`` of the path, and the host knows what is a file.
    """
    if not word:
        raise RedriveError(_EMPTY)
    begin = 0
    if is_remote(word):
        slash = word.find("/", len(REMOTE))
        begin = len(word) if slash < 0 else slash
    flow, at, run = word[begin:].rpartition("@")
    if not at or (not begin and machine.is_file(word)):
        return NamedTargets(word)
    if not run:
        raise RedriveError(f"{word!r} names no run behind the @: write @-1, or the beginning of a run or of its day")
    return NamedTargets(word[:begin] + flow or None, run)


def name_words(words: Sequence[str], machine: LocalMachine, *, acts: bool = False) -> NamedTargets:
    """Read ``[FLOW[@RUN]] [TASK]...``. Raises RedriveError, AmbiguousTargetError."""
    if not words:
        return NamedTargets()
    first, *rest = words
    named = name_run(first, machine)
    is_path = _is_path(first)
    is_flow = is_remote(first) or (named.run is not None and named.state is None) or machine.is_file(named.state or "")
    if is_remote(first):
        return named._replace(tasks=tuple(rest))
    if not (is_flow or is_path):
        if (meant := machine.meant(first)) and not machine.files_with([first], acts=acts):
            raise RedriveError(f"there is no flow or task {first!r}{meant}")
        return NamedTargets(tasks=tuple(words))
    files = () if first in rest else machine.files_with(words if acts else [first], acts=acts)
    if not files:
        return named._replace(tasks=tuple(rest))
    if not is_flow:
        return NamedTargets(tasks=tuple(words))
    if acts:
        raise _ambiguous_word(first, named, files)
    return named._replace(tasks=tuple(rest), also=files[0])


def _is_path(word: str) -> bool:
    return word.startswith(_PATH_BEGINNINGS) or word.endswith(SUFFIX)


def one_run(word: str, runs: Sequence[RunName], *place: str) -> str:
    """The id of the run that RUN means, of the runs of a file. Raises NotFoundError; RedriveError if several fit.

    ``place``: the words that name the file on a command line.
    """
    from ...engine.statefile.lists import runs_named

    found = runs_named(word, runs)
    if len(found) == 1:
        return found[0].run_id
    if not found:
        lists = f"; `{shell_command(['redrive', 'runs', *place])}` lists the runs"
        meant = did_you_mean(word, [run.run_id for run in runs]) or lists
        raise NotFoundError(f"there is no run {word!r} in this state file{meant}")
    listed = first_names(found, _NAMED_MAX, lambda run: f"{run.run_id} ({run.state})")
    raise RedriveError(f"@{word} fits {len(found)} runs: {listed}")


def run_in(path: str, word: str) -> str:
    """The run of a state file of this machine that RUN means. Raises NotFoundError, RedriveError."""
    from ...engine.statefile.lists import RUN_NAMES, query
    from ...engine.store import database

    with database.reading(path) as connection:
        return one_run(word, query(connection, RUN_NAMES, {}), path)


class AmbiguousTargetError(RedriveError):
    """An act could mean several state files. ``choices``: for each, its words in place of ``typed``, and what it is.

    ``typed``: the word that is replaced; None: the choice is added as the first.
    """

    def __init__(self, message: str, typed: str | None, choices: Iterable[tuple[Sequence[str], str]]) -> None:
        super().__init__(message)
        self._typed, self._choices = typed, [*choices]

    def commands(self, command: Sequence[str], words: Sequence[str]) -> Iterator[str]:
        """The line ``redrive`` + ``command`` + ``words`` once for each choice."""
        from ..text.text import one_line

        place = words.index(self._typed) if self._typed in words else None
        before, after = ((), words) if place is None else (words[:place], words[place + 1 :])
        for chosen, what in self._choices:
            yield f"  {shell_command(['redrive', *command, *before, *chosen, *after])}  # {one_line(what)}"


def _ambiguous_word(word: str, named: NamedTargets, files: Sequence[str]) -> AmbiguousTargetError:
    flow = place_words(MACHINE.path_of(named.state or ""), named.run)
    tasks = [((file, word), f"the task in {file}") for file in files[:_NAMED_MAX]]
    return AmbiguousTargetError(
        f"{word!r} is a flow, and a task as well: name the state file", word, [(flow, "the flow"), *tasks]
    )


class LocalMachine:
    """The state files of this machine, read when they are asked for."""

    def is_file(self, word: str) -> bool:
        """Whether the word names a state file that is there, by its path or by its flow."""
        return bool(word) and (os.path.exists(path_of_flow(word)) or _is_state_file(os.path.expanduser(word)))

    def is_place(self, word: str) -> bool:
        """Whether the word can only be a state file, which may be missing."""
        return is_remote(word) or _is_path(word) or self.is_file(word)

    def path_of(self, word: str) -> str:
        """The path of a state file that is named."""
        return os.path.abspath(_default_path_of(word) or os.path.expanduser(word))

    def files_with(self, tasks: Sequence[str], *, acts: bool) -> Sequence[str]:
        """The state files that a command without FLOW could mean, and that have all these tasks."""
        from ...engine.statefile.state_files import ActTargets, file_rows, has_targets

        try:
            paths = [file_row.path for file_row in file_rows() if file_row.has_file][: None if acts else 1]
        except RedriveError:
            return []
        return [path for path in paths if has_targets(path, ActTargets((), tasks))]

    def meant(self, word: str) -> str:
        """The flow that a mistyped word may mean, as the end of a sentence; empty if there is none."""
        if word.endswith(".py"):
            return ": a flow is named by its name, not by its program; redrive fleet lists them"
        flows = [os.path.basename(one).removesuffix(SUFFIX) for one in default_paths()]
        return "" if os.sep in word else did_you_mean(word, flows)


MACHINE = LocalMachine()


def _is_state_file(path: str) -> bool:
    """Whether there is a file of SQLite, or one that is named as a state file."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return path.endswith(SUFFIX) or file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return True  # opening it says why


_SQLITE = b"SQLite format 3\0"


# --- The state file --------------------------------------------------------------------------------------------------


def is_host(target: str | None) -> bool:
    """Whether the target is a host, without the path of a file."""
    if target is None or not is_remote(target):
        return False
    from .address import parse  # here: most commands stay on this machine

    return not parse(target).path


def has_state() -> bool:
    """Whether this machine has a state file, or schedules: some flow may never have started."""
    return named_target(None) is not None or bool(default_paths()) or os.path.exists(supervisor_path())


def is_one_file(target: str | None) -> bool:
    """Whether a command means one state file of this machine, and no list of them; ``target``: its argument, if any.

    A machine with schedules has a list.
    """
    named = named_target(target)
    if named is not None:
        return not is_remote(named)
    return len(default_paths()) <= 1 and not os.path.exists(supervisor_path())


def state_for_flow(flow: str, params: Mapping[str, object], state: str | None) -> str:
    """Return the state file that a run of this flow file writes. Raises RedriveError, FlowError."""
    return path_for_run(state, lambda: _name_of(flow, params), flow)


def _name_of(flow: str, params: Mapping[str, object]) -> str:
    from ...engine.flow.source import declared_name  # imported here, because both slow down the start

    name = declared_name(flow)
    if name is not None:
        return name
    from ...engine.asyncio_log import log_asyncio
    from ...engine.executor.resume_plan import flow_name_of

    log_asyncio()
    return flow_name_of(flow, params)


def existing_target(target: str | None) -> str:
    """Return the state file that a command reads. Raises RedriveError when there is none."""
    return named_target(target) or _default_path()


def acting_target(target: str | None, targets: ActTargets | None = None, run: str | None = None) -> str:
    """Return the state file that a command changes. Raises RedriveError, AmbiguousTargetError.

    A default is taken only if no other state file could be meant: it is the only one, the only one with something to
    do, or of those the only one that has the ``targets``, else of all files.
    """
    named = named_target(target)
    if named is not None:
        return named
    from ...engine.statefile.state_files import file_rows, has_targets
    from ..model.runs import describe_latest
    from .session import machine_now_us

    usable = [file_row for file_row in file_rows() if file_row.problem is None]
    working = [file_row for file_row in usable if file_row.has_work]
    candidates = working or usable
    if len(candidates) > 1 and targets is not None:
        fitting = (
            [file_row for file_row in group if has_targets(file_row.path, targets)] for group in (working, usable)
        )
        candidates = next(filter(None, fitting), [])
        if not candidates:
            raise RedriveError(f"none of {len(usable)} state files has {targets}; see: redrive fleet")
    if len(candidates) > 1:
        which = "have something to do" if candidates[0].has_work else "are in the default place"
        now_us = machine_now_us()
        choices = ((place_words(file_row.path, run), describe_latest(file_row, now_us)) for file_row in candidates)
        raise AmbiguousTargetError(f"{len(candidates)} state files {which}: name one", run and f"@{run}", choices)
    return candidates[0].path if candidates else _default_path()


def _default_path() -> str:
    from ...engine.statefile.state_files import default_path  # here: SQLite would delay the first frame

    return default_path()


def named_target(target: str | None) -> str | None:
    """Return the state file, flow or host that is named, also by REDRIVE_STATE; None: the default place."""
    if target == "":  # an empty shell variable must not select a file by accident
        raise RedriveError(_EMPTY)
    given = target or os.environ.get(STATE_VARIABLE)
    if not given:
        return None
    check_state_name(given)
    if is_remote(given):
        return given
    if target and (path := _default_path_of(target)) is not None:
        return follow_link(path)
    if target and _is_mistyped(target):
        meant = MACHINE.meant(target) or "; redrive fleet lists them"
        raise RedriveError(f"there is no flow or state file {target!r}{meant}")
    return follow_link(os.path.expanduser(given))


def _default_path_of(flow: str) -> str | None:
    """Return the state file in the default place of a flow; None: the word is that of a state file, or there is none.

    A word that is the path of a folder, or of another file, is read as the name of a flow.
    """
    if _is_state_file(flow):
        return None
    path = path_of_flow(flow)
    return path if os.path.exists(path) else None


def _is_mistyped(word: str) -> bool:
    """Whether a word that is no flow is no path either: it has no sign of one, or is a program."""
    return word.endswith(".py") or not (os.path.lexists(word) or os.sep in word or _is_path(word))
