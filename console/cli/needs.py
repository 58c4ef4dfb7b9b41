"""``redrive inbox``: what needs a human on a machine, in a file or in a run.

The rule stands in ``engine/statefile/needs.py``; here it meets the files that a command line means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from ...engine.domain.text import advised, counted, first_names, format_duration
from ...engine.errors import LinkError, RedriveError, StateFileError
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import ENDS, OF_RUNS, OF_SCHEDULES, Need, exit_code_of, needs_of
from ...engine.statefile.opening import open_readonly
from ...engine.statefile.state_files import FileRow
from ..present.needs import need_sentence, summary_sentence
from ..sessions.address import Endpoint, SshOptions, parse
from ..sessions.once import Use, finish, read_once
from ..sessions.session import FILE_QUERY, Query, Session, machine_now_us
from ..text.figures import FINGERPRINT_DIGITS
from ..text.text import is_remote, one_line
from . import options as shared
from .group import command
from .listings import PEACE_OF_RUN, cause_value, cause_without_tasks, inbox_of_run, inbox_queries, print_view
from .output import Shown, print_lines
from .state_files import file_row_of_session, files_of_machine, hosts_of

if TYPE_CHECKING:
    from ..sessions.ssh import SshSession

_RUNS_MAX = 20  # of a file; the others are counted
#: The commands that end a need.
_COMMANDS_OF_RUN = {**dict.fromkeys([*ENDS, NeedKind.CHANGED_EFFECTS], "ack"), NeedKind.HELD_ROWS: "systems rows"}
_COMMANDS_OF_FILE = {NeedKind.BREAKER: "systems breakers", NeedKind.PAGER: "systems pages"}


@command("inbox")
@shared.TargetWords(hosts=True).declare
@shared.json_option
@shared.follow_option
@click.option("--quiet", is_flag=True, help="Print nothing: the exit code says it.")
def print_inbox(file: shared.NamedFile, as_json: bool, follow: bool, quiet: bool) -> int:
    """Without FLOW: in all state files of this machine; of ssh://host: in all of that host.

    Dead letters and failures come by cause. Exit code 0: nothing, or only notices, which stay until `redrive ack`;
    1: a run has failed, or could not start; 3: something else waits; 69: a host could not be asked, or FLOW not be
    read. With --follow and @RUN: of one file, 0.
    """
    if quiet and (follow or as_json or file.run is not None):
        raise click.UsageError("--quiet prints nothing: leave --follow, --json and @RUN out")
    if file.hosts and follow:
        raise click.UsageError("--follow goes with one state file")
    if file.run is not None or follow:
        read, queries = partial(_lines_of_session, as_json=as_json), [FILE_QUERY, *inbox_queries()]
        return print_view(file.to_read(), read, follow=follow, as_json=as_json, queries=queries)
    needs, lines = _read(file, as_json=as_json, is_quiet=quiet)
    print_lines(lines)
    return exit_code_of(needs)


Place = tuple[str, Sequence[str]]  # the address of a file, and the arguments with which a command reaches it
NeedList = tuple[Sequence[Need], list[Shown]]


class _Files(NamedTuple):
    """The way to the files that are meant: ``begin`` asks ahead about the file at a path, ``read`` awaits a use with a
    session on it."""

    begin: Callable[[str, Sequence[Query]], None]
    read: Callable[[str, Use[list[Shown]]], Awaitable[list[Shown]]]


def _read(file: shared.NamedFile, *, as_json: bool, is_quiet: bool) -> NeedList:
    """Read the needs of the files that are meant, by one login per host, and make their lines."""
    target, hosts = hosts_of(file.name, file.hosts)

    async def answer(file_rows: Sequence[FileRow], files: _Files) -> NeedList:
        if target is not None and file_rows[0].has_file and file_rows[0].problem:
            open_readonly(file_rows[0].path).connection.close()  # it raises an error of its own if nobody may look
            raise StateFileError(file_rows[0].problem)
        needs = needs_of(file_rows, machine_now_us())
        return needs, [] if is_quiet else await _lines_of_files(file_rows, needs, files, file.ssh, as_json)

    async def of_session(session: Session) -> NeedList:
        files = _Files(lambda path, queries: session.prefetch(queries), lambda path, use: use(session))
        return await answer([await file_row_of_session(session)], files)

    if hosts:
        from .hosts import with_hosts  # here: it imports the event loop

        return with_hosts(hosts, file.ssh, lambda sessions, found: answer(found, _files_by(sessions)))
    if target is not None and is_remote(target):
        return read_once(Endpoint(target, file.ssh), of_session, [FILE_QUERY])

    async def read(path: str, use: Use[list[Shown]]) -> list[Shown]:
        return read_once(Endpoint(path), use)

    return finish(answer(files_of_machine(target, file.ssh), _Files(lambda path, queries: None, read)))


def _files_by(sessions: Mapping[str, SshSession]) -> _Files:
    """Read files through the sessions of their hosts; a session that was lost is not used again."""
    lost: dict[str, LinkError] = {}

    def target_of(path: str) -> str:
        return next(target for target in sessions if parse(target) == replace(parse(path), path=""))

    def begin(path: str, queries: Sequence[Query]) -> None:
        sessions[target_of(path)].open_ahead(path, queries)

    async def read(path: str, use: Use[list[Shown]]) -> list[Shown]:
        target = target_of(path)
        if target in lost:
            raise lost[target]
        try:
            await sessions[target].open_file(path)
            return await use(sessions[target])
        except LinkError as error:
            lost[target] = error
            raise

    return _Files(begin, read)


async def _lines_of_session(session: Session, *, as_json: bool) -> list[Shown]:
    run_id, file_row = session.run_id, await file_row_of_session(session)
    needs = needs_of([file_row], machine_now_us())
    if run_id is None:
        return await _lines_of_file(session, _plan(needs, file_row, as_json), as_json=as_json)
    need = next((one for one in needs if one.run_id == run_id), None)
    return await inbox_of_run(session, await session.part(run_id), need, as_json=as_json)


async def _lines_of_files(
    file_rows: Sequence[FileRow], needs: Sequence[Need], files: _Files, ssh: SshOptions, as_json: bool
) -> list[Shown]:
    now_us = {file_row.path: machine_now_us() + file_row.clock_offset_us for file_row in file_rows}
    is_only = len(file_rows) == 1 and file_rows[0].has_file
    summary = summary_sentence(needs, sum(file_row.has_file for file_row in file_rows))
    lines: list[Shown] = [] if is_only or as_json else [summary]
    unserved = [need for need in needs if need.kind is NeedKind.SCHEDULER_DEAD]
    if len(unserved) > 1 and not as_json:
        causes = dict.fromkeys(need.error for need in unserved)
        lines += [_unserved_line([need for need in unserved if need.error == cause]) for cause in causes]
        needs = [need for need in needs if need.kind is not NeedKind.SCHEDULER_DEAD]
    only = file_rows[0] if is_only else None
    paths = list(dict.fromkeys(need.path for need in needs)) if only is None else [only.path]
    plans = {path: _plan([need for need in needs if need.path == path], only, as_json) for path in paths}
    read = [path for path in paths if is_only or not all(need.kind in OF_SCHEDULES for need in plans[path].needs)]
    unreadable = {file_row.path for file_row in file_rows if file_row.problem is not None}  # their needs say why
    for path in read:
        files.begin(path, [query for run_id in plans[path].read for query in inbox_queries(run_id)])
    for path in paths:
        of_file, place = plans[path].needs, (path, ssh.arguments)
        if path not in read:
            lines += [_line_of_need(need, place, as_json, now_us[path]) for need in of_file]
            continue
        try:
            lines += await files.read(path, partial(_lines_of_file, plan=plans[path], as_json=as_json))
        except RedriveError as error:  # of one host or file; what the others need stands all the same
            kind = NeedKind.UNREACHABLE if isinstance(error, LinkError) else NeedKind.UNREADABLE
            is_said = kind is NeedKind.UNREADABLE and path in unreadable
            lost = [] if is_said else [Need(kind, path, 0, error=str(error))]
            lines += [_line_of_need(one, place, as_json, now_us[path]) for one in (*lost, *of_file)]
    return lines


def _unserved_line(needs: Sequence[Need]) -> str:
    """Join all schedules that wait for one supervisor in a line: that it is dead, or hangs, is one cause."""
    flows, now_us = [one.flow or one.path for one in needs], machine_now_us()
    due = [one.since for one in needs if 0 < one.since < now_us]
    first = f"; the first start was due {format_duration(now_us - min(due))} ago" if due else ""
    words = f"{counted(len(flows), 'schedule')} ({first_names(flows)})"
    hang = needs[0].error
    served = f"the supervisor of {words} {hang}" if hang else f"no process serves {words}: redrive serve starts one"
    return one_line(f"{served}{first}")


class _Plan(NamedTuple):
    """The needs of a file, and which of its runs are shown.

    Attributes:
        needs: what needs a human in it.
        runs: which are of interest, that one first.
        alike: of several that need the same for the same cause, each -> the latest, which stands for all.
        read: those of which the tasks are shown.
    """

    needs: Sequence[Need]
    runs: Sequence[str]
    alike: Mapping[str, str]
    read: Sequence[str]

    def need_of(self, run_id: str) -> Need | None:
        """The most urgent need of a run."""
        return next((need for need in self.needs if need.kind in OF_RUNS and need.run_id == run_id), None)


def _plan(needs: Sequence[Need], only: FileRow | None, as_json: bool) -> _Plan:
    """``only``: the file, if it is the only one that is shown: then also that its latest run needs nothing."""
    latest = only.latest.run_id if only is not None and only.latest is not None else None
    needing = [need.run_id for need in needs if need.kind in OF_RUNS]
    runs = [run_id for run_id in dict.fromkeys([latest, *needing]) if run_id is not None]
    alike = {} if as_json else _runs_alike(needs)
    plan = _Plan(needs, runs, alike, ())
    shown = [run_id for run_id in runs if run_id not in alike][:_RUNS_MAX]
    notices = {need.run_id for run_id in shown if (need := plan.need_of(run_id)) is not None and need.is_notice}
    return plan._replace(read=[run_id for run_id in shown if run_id == latest or run_id not in notices])


async def _lines_of_file(session: Session, plan: _Plan, *, as_json: bool) -> list[Shown]:
    """The lines of a file. Runs that need the same for the same cause are one block."""
    needs = plan.needs
    shown = [run_id for run_id in plan.runs if run_id not in plan.alike]
    place = session.address, session.ssh_arguments
    first = [need for need in needs if need.kind is NeedKind.STORAGE]  # what follows is older then
    peace = "nothing needs a human" if not needs else "" if first else PEACE_OF_RUN
    lines: list[Shown] = [_line_of_need(need, place, as_json, session.now_us()) for need in first]
    for run_id in shown[:_RUNS_MAX]:
        need = plan.need_of(run_id)
        if need is not None and run_id not in plan.read:
            lines.append(_line_of_need(need, place, as_json, session.now_us()))
            continue
        projection = await session.part(run_id)
        lines += await inbox_of_run(session, projection, need, as_json=as_json, peace=peace)
        others = [other for other in plan.runs if plan.alike.get(other) == run_id]
        if others and need is not None:
            lines.append(_same_in_line(others, need, place))
    if len(shown) > _RUNS_MAX and not as_json:
        lines.append(f"{len(shown) - _RUNS_MAX} more runs: {one_line(_advised('runs', place))}")
    rest = (need for need in needs if need.kind not in OF_RUNS and need.kind is not NeedKind.STORAGE)
    lines += [_line_of_need(need, place, as_json, session.now_us()) for need in rest]
    return lines if lines or as_json else ["nothing needs a human"]  # a schedule whose first run is still to come


def _runs_alike(needs: Sequence[Need]) -> Mapping[str, str]:
    """Run -> the latest run of its flow that needs the same for the same cause, if that is another."""
    facts: dict[str, list[tuple[object, ...]]] = {}
    for need in needs:
        if need.kind in OF_RUNS and need.run_id is not None and not need.is_notice:
            fact = (need.kind, need.fingerprint, need.counted, need.subject, need.error)
            facts.setdefault(need.run_id, [(need.flow,)]).append(fact)
    latest = {tuple(found): run_id for run_id, found in facts.items()}  # needs are in the order of their runs
    return {run_id: latest[tuple(found)] for run_id, found in facts.items() if latest[tuple(found)] != run_id}


def _same_in_line(others: Sequence[str], need: Need, place: Place) -> str:
    words = f"the same in {counted(len(others), 'other run')}, the first {others[0]}; all of them: "
    if need.kind in ENDS and need.flow is not None:
        return one_line(words + _advised("ack", place, need.run_id, "--all"))
    if need.fingerprint is None:
        return one_line(words + _advised("runs", place))
    cause = "--fingerprint", need.fingerprint[:FINGERPRINT_DIGITS], "--all-runs"
    return one_line(f"{words}{_advised('requeue', place, None, *cause)} --reason TEXT")


def _advised(command: str, place: Place, run_id: str | None = None, *options: str) -> str:
    path, ssh_arguments = place
    return advised(command, path, run_id, [*ssh_arguments, *options])


def _line_of_need(need: Need, place: Place, as_json: bool, now_us: int) -> str:
    """A need that is not about tasks: in one line, with the command that ends it. ``now_us``: by its host's clock."""
    address, _ = place
    sentence = need_sentence(need, now_us)
    if as_json:
        cause = cause_without_tasks(need.kind.value, f"{need.kind.value}: {sentence}", sentence, need.since)
        return cause_value(cause, need, {"run_id": need.run_id, "state_file": address, "executor": None})
    name = " ".join(filter(None, (need.flow, need.run_id)))
    place_text = f"{name} in {address}" if name else address
    command = _command_of(need, place)
    return one_line(f"{place_text}: {sentence}{f': {command}' if command else ''}")


def _command_of(need: Need, place: Place) -> str:
    """The command that ends a need; empty if its sentence names one, or if there is none."""
    if need.kind in _COMMANDS_OF_FILE:
        return _advised(_COMMANDS_OF_FILE[need.kind], place)
    if need.run_id is not None and need.kind in _COMMANDS_OF_RUN:
        return _advised(_COMMANDS_OF_RUN[need.kind], place, need.run_id)
    return ""
