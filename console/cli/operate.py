"""Sends the act of a command: the tasks that it means, the preview and the question, the sending, the answer."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import click

from ...engine.core.projection import RunProjection, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.waiting import waits_for_approval
from ...engine.domain import acts
from ...engine.domain.events import Json
from ...engine.domain.rows import RunRow
from ...engine.domain.states import NEEDS_HUMAN, TaskState, may_have_happened
from ...engine.domain.text import advised, counted, first_names
from ...engine.errors import RedriveError
from ...engine.executor.run_options import RunOptions
from ...engine.statefile.lists import NeedKind
from ..keys.actions import ANSWERS
from ..model.board import Board
from ..model.preview import PREVIEWS
from ..model.session_status import SessionStatus, runner_of
from ..model.times import parse_time
from ..present.executors import executor_loss, resume_command, service_advice
from ..present.preview import changes_anything, consequences
from ..present.runs import place_line
from ..sessions.address import Endpoint
from ..sessions.once import with_session
from ..sessions.session import LiveSession, Session, answer_before, given_ids, new_command
from ..text.text import echo, echo_json, echo_lines, is_interactive, one_line, shorten
from .group import ExitCode, code_of_answers
from .options import NamedFile, NoSuchTaskError, params_of, seconds_of
from .output import with_schema
from .run import ExecutorStart, detach, require_here

# --- Which tasks a bulk act means: globs over names, the class of the failure, and the state -------------------------
#
# A bulk act, and a requeue that may repeat an effect, show their preview first. They are sent with ``--yes``, or after
# a question at the terminal.


#: The states that a bulk act means unless ``--only`` names others; a task that is named in full is meant in any state.
BULK_STATES: Mapping[str, AbstractSet[TaskState]] = {
    "requeue": NEEDS_HUMAN,
    "skip": NEEDS_HUMAN,
    "approve": frozenset([TaskState.READY]),
    "reject": frozenset([TaskState.READY]),
    "cancel": acts.STOPPABLE,
    "extend": frozenset([TaskState.RUNNING]),
}
_GLOB_CHARACTERS = frozenset("*?[")


class NoSuchCauseError(RedriveError):
    """No task of a run failed with the fingerprint."""


@dataclass(frozen=True, slots=True)
class ActRequest:
    """An act as it was typed, and how it is sent.

    Attributes:
        act: its name, as ``requeue``.
        names: tasks and globs; empty for an act on the run.
        run_id: None: the run that the session was opened for.
        fingerprint, downstream: the tasks of this cause, in place of names.
        failure_class: only tasks whose latest failure has it.
        only: only tasks in these states, in place of ``BULK_STATES``.
        options: of the act; None: its build finds them.
        dry_run: print the changes without sending the act.
        yes: the operator has consented.
        resume: start an executor, if none runs; ``hints``: else print how to start one.
    """

    act: str
    names: Sequence[str] = ()
    reason: str = ""
    run_id: str | None = None
    fingerprint: str | None = None
    downstream: str | None = None
    failure_class: str | None = None
    only: tuple[str, ...] = ()
    options: Mapping[str, Json] | None = field(default_factory=dict)
    as_json: bool = False
    dry_run: bool = False
    yes: bool = False
    resume: bool = False
    hints: bool = True

    @property
    def has_filter(self) -> bool:
        """Whether it means tasks by what they are, also without a name."""
        return self.failure_class is not None or bool(self.only)


def names_in_bulk(projection: RunProjection, request: ActRequest) -> list[str] | None:
    """The tasks of a bulk act, in the order of the flow; None: only full names are given, so it is not a bulk act.

    Raises RedriveError if no task is meant.
    """
    act, patterns, failure_class = request.act, request.names, request.failure_class
    globs = [pattern for pattern in patterns if pattern not in projection.tasks and _GLOB_CHARACTERS & set(pattern)]
    exact = set(patterns) - set(globs)
    if missing := sorted(exact - projection.tasks.keys()):
        raise NoSuchTaskError(projection, missing[0])
    if not globs and not request.has_filter:
        return None
    states = {TaskState(state) for state in request.only} or BULK_STATES[act]

    def is_meant(row: TaskRow) -> bool:
        if failure_class not in (None, row.failure_class):
            return False
        if row.name in exact:
            return not request.only or row.state in states
        is_matched = not patterns or any(fnmatchcase(row.name, glob) for glob in globs)
        is_asked = act not in ANSWERS.values() or waits_for_approval(row)
        return is_matched and is_asked and row.state in states

    names = [row.name for row in sorted(projection.tasks.values(), key=lambda row: row.position) if is_meant(row)]
    if not names:
        words = [*map(repr, patterns), *([f"class {failure_class}"] if failure_class else [])]
        which = f" that fits {' '.join(words)}" if words else ""
        is_what = "waits for an approval" if act in ANSWERS.values() else f"is {' or '.join(sorted(states))}"
        raise RedriveError(f"no task of run {projection.run.run_id}{which} {is_what}")
    return names


def require_consent(act: str, count: int, runs: int = 1) -> None:
    """Ask at the terminal whether to go on. Raises UsageError without a terminal, Abort if the answer is no."""
    words = f"{acts.BY_NAME[act].verb} {counted(count, 'task')}{f' of {runs} runs' if runs > 1 else ''}"
    if not is_interactive():
        raise click.UsageError(f"this would {words}: check it with --dry-run, and repeat it with --yes")
    echo(f"{words[0].upper()}{words[1:]}? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


# --- The preview, the question, the sending and the answer -----------------------------------------------------------


PREVIEW_CELLS = 200  # of a line above the question; --dry-run prints all names


class ActPlace(NamedTuple):
    """The file and the run that an act was applied to. ``run``: as it was before; None: the whole file; ``now_us``: by
    the clock there."""

    address: str
    status: SessionStatus
    run: RunRow | None
    now_us: int = 0

    @property
    def json_fields(self) -> dict[str, str | None]:
        return {"state_file": self.address, "run_id": None if self.run is None else self.run.run_id}


def place_of(session: Session, run: RunRow | None) -> ActPlace:
    """The place of an act, with the status of its session as of now."""
    return ActPlace(session.address, session.status, run, session.now_us())


Acted = tuple[acts.Answer, ActPlace]


def act_on(endpoint: Endpoint, use: Callable[[LiveSession], Awaitable[Acted]], *, as_json: bool) -> Acted:
    """Act through a session, and print the answer."""
    answer, place = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    return answer, place


async def acted_before(
    session: Session, act: str, names: Sequence[str], reason: str, options: Mapping[str, Json] | None
) -> Acted | None:
    """The answer to an act whose id the operator gives again; None: it is a new one. ``options`` None: any."""
    answer = await answer_before(session, act, names, reason, options)
    return None if answer is None else (answer, place_of(session, None))


class BuiltCommand(NamedTuple):
    """A command, and the run that it changes."""

    command: acts.Command
    run: RunRow
    needs_consent: bool = False
    foreseen: acts.ActPreview = acts.ActPreview(True, "")  # by the whole run, where its rules are known here
    resume_lines: Sequence[str] = ()  # about the executor that goes on with the run then

    async def preview(self, session: Session) -> acts.ActPreview:
        """The preview of the command, with the tasks that may go on or are held then."""
        own = self.foreseen
        return (await session.preview(self.command))._replace(
            held=own.held, released=own.released, needed_by=own.needed_by
        )


Build = Callable[[Session], Awaitable[BuiltCommand]]


def send_action(endpoint: Endpoint, request: ActRequest, build: Build | None = None) -> int:
    """Send an act and print the result of each task. Exit code 1 if nothing was done.

    ``build``: makes the command; None: of the tasks.
    """
    if request.resume:
        require_here("resume", endpoint.target)
    build = build or partial(_build_command, request=request)
    if request.dry_run:
        return _preview_command(endpoint, build, request)

    resume_lines: Sequence[str] = ()

    async def use(session: Session) -> Acted:
        nonlocal resume_lines
        exact = [name for name in request.names if not _GLOB_CHARACTERS & set(name)]
        if before := await acted_before(session, request.act, exact, request.reason, request.options):
            return before
        built = await _with_resume_lines(await build(session), session, request)
        require_reason(request.act, request.reason)  # after what it names is known to exist
        if built.needs_consent:
            _show_preview(await built.preview(session), place_of(session, built.run))
            echo_lines(built.resume_lines, err=True)
            if not request.yes:
                from asyncio import to_thread  # here: listings import this module, and have no event loop

                await to_thread(require_consent, request.act, len(built.command.targets))
        else:
            resume_lines = built.resume_lines
        return await session.send(built.command), place_of(session, built.run)

    answer, place = act_on(endpoint, use, as_json=request.as_json)
    if request.resume and answer.ok and place.run is not None and not _is_run(place.status, place.run):
        echo_lines(resume_lines, err=True)
        return detach(ExecutorStart(None, place.address, place.run.run_id, RunOptions(resume=True)))
    if request.hints:
        print_resume_hints(request.act, (answer, place))
    return code_of_answers(answer)


def _is_run(status: SessionStatus, run: RunRow) -> bool:
    return status.has_executor_of(run) or status.is_served(run)


async def _with_resume_lines(built: BuiltCommand, session: Session, request: ActRequest) -> BuiltCommand:
    """Add what an executor runs that goes on with the run after a command. Raises RedriveError if none could start."""
    from ...engine.executor.resume_plan import plan_resume, require_accepted

    if not request.resume or _is_run(session.status, built.run):
        return built
    try:
        run_again = (await session.preview(built.command)).run_again
        plan = await plan_resume(session.address, built.run.run_id, run_again=run_again)
        require_accepted(plan)
    except RedriveError:
        echo("nothing was changed, because no executor could go on:", err=True)
        raise
    lines = [f"then an executor goes on with {built.run.run_id}", *plan.code_lines(), *plan.difference_lines()]
    return built._replace(resume_lines=[*map(one_line, lines)])


def _preview_command(endpoint: Endpoint, build: Build, request: ActRequest) -> ExitCode:
    """Print what a command would change. Exit code 1: nothing."""

    async def use(session: Session) -> tuple[acts.ActPreview, ActPlace]:
        built = await _with_resume_lines(await build(session), session, request)
        echo_lines(built.resume_lines, err=True)
        return await built.preview(session), place_of(session, built.run)

    preview, place = with_session(endpoint, use)
    print_preview(preview, request.as_json, place)
    return ExitCode.SUCCESS if preview.ok else ExitCode.FAILED


class _Plan(NamedTuple):
    """An act on one of several runs, and its preview."""

    endpoint: Endpoint
    command: acts.Command
    preview: acts.ActPreview
    place: ActPlace


def act_on_all_runs(file: NamedFile, request: ActRequest) -> int:
    """Send an act on one cause in every run that it holds: of the named file, or of all files of the machine.

    One preview and one question stand before all of them. Raises RedriveError if the cause holds no run.
    """
    from .state_files import files_of

    if given_ids.get() is not None:
        raise click.UsageError("--command-id goes with one run, and not with --all-runs")
    plans: list[_Plan] = []
    for file_row in files_of(file.name, file.ssh):
        endpoint = Endpoint(file_row.path, file.ssh)
        if run_ids := [*dict.fromkeys(one.run_id for one in file_row.rows_of(NeedKind.DEAD_LETTERS))]:
            plans += with_session(endpoint, partial(_plans_of, endpoint=endpoint, run_ids=run_ids, request=request))
    if not plans:
        inbox = advised("inbox", file.name or "")
        raise RedriveError(f"no run waits with fingerprint {request.fingerprint}; see: {inbox}")
    if request.dry_run:
        for plan in plans:
            print_preview(plan.preview, request.as_json, plan.place)
        return ExitCode.SUCCESS if all(plan.preview.ok for plan in plans) else ExitCode.FAILED
    require_reason(request.act, request.reason)
    for plan in plans:
        _show_preview(plan.preview, plan.place)
    if not request.yes:
        require_consent(request.act, sum(len(plan.command.targets) for plan in plans), len(plans))
    acted = [(with_session(plan.endpoint, methodcaller("send", plan.command)), plan.place) for plan in plans]
    for answer, place in acted:
        print_answer(answer, request.as_json, place)
    print_resume_hints(request.act, *acted)
    return code_of_answers(*(answer for answer, _ in acted))


async def _plans_of(session: Session, endpoint: Endpoint, run_ids: Sequence[str], request: ActRequest) -> list[_Plan]:
    plans: list[_Plan] = []
    for run_id in run_ids:
        try:
            built = await _build_command(session, replace(request, run_id=run_id))
        except NoSuchCauseError:
            continue
        preview = await built.preview(session)
        plans.append(_Plan(endpoint, built.command, preview, place_of(session, built.run)))
    return plans


async def _build_command(session: Session, request: ActRequest) -> BuiltCommand:
    projection = await session.snapshot(request.run_id or session.run_id)
    bulk = names_in_bulk(projection, request)
    names = request.names if bulk is None else bulk
    targets = select_targets(projection, names, request.fingerprint, request.downstream)
    command = new_command(request.act, projection.run.run_id, targets, request.reason, request.options or {})
    is_bulk = bulk is not None or (request.fingerprint is not None and len(targets) > 1)
    built = BuiltCommand(command, projection.run, is_bulk or _may_repeat(command, projection))
    if request.act not in PREVIEWS:
        return built
    is_abandoned, meant = not session.status.executor.alive, [target.task for target in targets]
    return built._replace(foreseen=PREVIEWS[request.act](Board(projection), meant, is_abandoned=is_abandoned))


def _may_repeat(command: acts.Command, projection: RunProjection) -> bool:
    """Whether the act runs a task again that may have happened, as an effect whose process died."""
    rows = [projection.tasks[target.task] for target in command.targets]
    return command.act == "requeue" and any(may_have_happened(row.state, row.dead_letter_kind) for row in rows)


def print_resume_hints(act: str, *acted: Acted) -> None:
    """Print how to start an executor for each run, if the act needs one and none runs it."""
    hints = (_resume_hint(act, answer, place) for answer, place in acted)
    echo_lines(dict.fromkeys(filter(None, hints)), err=True)


def _resume_hint(act: str, answer: acts.Answer, place: ActPlace) -> str:
    run, status = place.run, place.status
    if run is None or not answer.ok or act not in acts.STARTS_WORK or status.has_executor_of(run):
        return ""
    runner = runner_of(run, status)
    if runner.service_pid is not None:
        return service_advice(runner)
    why = executor_loss(runner, place.now_us).sentence
    return one_line(f"{why}; go on with: {resume_command(run, status, place.address)}")


def require_reason(act: str, reason: str) -> None:
    """Raise UsageError if the act needs a reason and has none."""
    if act in acts.NEEDS_REASON and not reason.strip():
        raise click.UsageError("say why with --reason TEXT: it is kept with the act")


def select_targets(
    projection: RunProjection, names: Sequence[str], fingerprint: str | None, downstream: str | None = None
) -> tuple[acts.Target, ...]:
    """The tasks with their states and generations, so that the act changes no task that has moved since.

    ``downstream``: of the tasks with the fingerprint only those that call it. Raises RedriveError.
    """
    rows = [projection.tasks[name] for name in dict.fromkeys(names)]
    if fingerprint is not None:
        rows = [row for row in projection.tasks.values() if row.state in NEEDS_HUMAN]
        rows = [row for row in rows if any(one.startswith(fingerprint) for one in _fingerprints_of(row))]
        rows = [row for row in rows if downstream in (None, spec_of(row).downstream)]
        if not rows:
            calling = f" and calls {downstream}" if downstream is not None else ""
            raise NoSuchCauseError(
                f"no task of run {projection.run.run_id} failed with fingerprint {fingerprint}{calling}"
            )
        _demand_one_cause(rows, fingerprint)
    return tuple(acts.Target(row.name, str(TaskState(row.state)), row.generation) for row in rows)


def _demand_one_cause(rows: Iterable[TaskRow], fingerprint: str) -> None:
    """Raise RedriveError if the first digits of a fingerprint match several causes."""
    refuse_several(fingerprint, {_fingerprints_of(row)[-1] for row in rows if fingerprint not in _fingerprints_of(row)})
    called = sorted({spec_of(row).downstream or "none" for row in rows})
    if len(called) > 1:
        named = first_names(called)
        raise RedriveError(
            f"{fingerprint} fits {len(called)} causes, one for each downstream ({named}); add --downstream NAME,"
            " or name the tasks"
        )


def refuse_several(digits: str, fingerprints: Collection[str]) -> None:
    """Raise RedriveError if the first digits of a fingerprint match several."""
    if len(fingerprints) > 1:
        named = first_names(sorted(fingerprints))
        raise RedriveError(f"{digits} fits {len(fingerprints)} causes ({named}); give more digits")


def _fingerprints_of(row: TaskRow) -> list[str]:
    """The fingerprints of the latest failure: strict, then loose."""
    latest = row.latest
    both = (row.failure_fingerprint, latest.fingerprint_loose if latest is not None else None)
    return [one for one in both if one]


def print_answer(answer: acts.Answer, as_json: bool, place: ActPlace) -> None:
    """Print the place of the act and the answer of the engine, one line per task."""
    if as_json:
        fields = {"ok": answer.ok, "message": answer.message, "results": _result_objects(answer.results)}
        echo_json(with_schema("answer", {**place.json_fields, **fields}))
        return
    echo(place_line(place.run, place.address))
    lines = [f"{task}: {message}" for task, _, message in answer.results]
    echo_lines(map(one_line, lines))
    if not lines and answer.message:
        echo(one_line(answer.message), err=not answer.ok)
    elif len(lines) > 1 or (lines and ";" in answer.message and answer.message not in lines):
        echo(one_line(answer.message))  # the totals, and the effects on other tasks


def _result_objects(results: Iterable[acts.TargetResult]) -> list[dict[str, str]]:
    return [{"task": task, "result": outcome, "message": sentence} for task, outcome, sentence in results]


# --- Options of requeue -------------------------------------------------------------------------------------------


#: Parameters of the command ``requeue`` that ``requeue_options_of`` reads.
REQUEUE_OPTIONS = (*acts.REQUEUE_FLAGS, "rate", "not_before", "timeout", "param", "keep_count")


def requeue_options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the act. Raises UsageError for invalid values."""
    found: dict[str, object] = {
        **{flag: given[flag] for flag in acts.REQUEUE_FLAGS},
        "rate_per_second": given["rate"] and _rate(given["rate"]),
        "not_before": given["not_before"] and seconds_until(given["not_before"], datetime.now().astimezone())[0],
        "timeout": given["timeout"] and seconds_of(given["timeout"], "--timeout"),
        "params": params_of(given["param"]),
    }
    count = {"reset_count": False} if given["keep_count"] else {}
    return {name: value for name, value in found.items() if value} | count


def postpone_options_of(when: str) -> dict[str, float]:
    """The options of ``postpone``: a duration from now, a time, or "never". Raises UsageError."""
    if when == "never":
        return {}
    seconds, is_time = seconds_until(when, datetime.now().astimezone())
    return {"seconds": seconds, "is_time": True} if is_time else {"seconds": seconds}


def seconds_until(text: str, now: datetime) -> tuple[float, bool]:
    """Seconds until the next such time of day in this machine's zone, until a date and time, or of a duration.

    Returns also whether it is a time, and no duration. Raises UsageError.
    """
    try:
        instant = parse_time(text, since=now + timedelta.resolution)
        seconds = (instant - now).total_seconds()
    except (ValueError, OverflowError):
        instant, seconds = None, _lasting(text)
    if seconds <= 0:
        raise click.UsageError(f"{text!r} has passed: write a duration, as 1h, or a time to come, as 06:00")
    return seconds, instant is not None


def _lasting(text: str) -> float:
    try:
        return seconds_of(text.removeprefix("+"))
    except click.UsageError:
        raise click.UsageError(
            f"{text!r} is no duration, as 1h, and no time to come, as 06:00 or 2026-04-25T06:00"
        ) from None


def _rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise click.UsageError(f"--rate {text!r}: write a number above 0 a second, as 5/s")
    return rate


# --- Dry run ------------------------------------------------------------------------------------------------------


def print_preview(preview: acts.ActPreview, as_json: bool, place: ActPlace) -> None:
    """Print the complete preview, so that it can be compared with what happens later."""
    if as_json:
        found = {**preview._asdict(), "results": _result_objects(preview.results)}
        echo_json(with_schema("preview", {"dry_run": True, **place.json_fields, **found}))
        return
    echo(place_line(place.run, place.address))
    echo_lines(map(one_line, preview_lines(preview)))
    echo("dry run: nothing was changed" if changes_anything(preview) else "dry run: nothing would change")


def _show_preview(preview: acts.ActPreview, place: ActPlace) -> None:
    """Print the preview above a question, or in its place."""
    for line in (place_line(place.run, place.address), *preview_lines(preview)):
        echo(shorten(one_line(line), PREVIEW_CELLS), err=True)


def preview_lines(preview: acts.ActPreview) -> Iterator[str]:
    """A line for each kind of change, then the refusals."""
    for words, names in consequences(preview):
        yield f"{words} ({len(names)}): {', '.join(names)}"
    yield from preview.notes
    for task, outcome, sentence in preview.results:
        if outcome == acts.RUNNING:
            yield f"{task}: is running, and its attempt would be ended"
        elif outcome == acts.REFUSED:
            yield f"{task}: {sentence}"
    if not preview.results and preview.message:
        yield preview.message
