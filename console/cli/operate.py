"""The acts of operators as commands: on tasks (``requeue``, ``skip``, ...), on the run, and on causes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from datetime import time as time_of_day
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import click

from ...engine.core.outcome import FailureClass
from ...engine.core.projection import RunProjection, RunRow, TaskRow
from ...engine.domain.acts import (
    BY_NAME,
    NEEDS_REASON,
    REFUSED,
    RUNNING,
    STARTS_WORK,
    STOPPABLE,
    Answer,
    Command,
    Target,
    TargetResult,
)
from ...engine.domain.events import Json
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from ...engine.domain.text import counted, format_duration
from ...engine.errors import RedriveError
from ...engine.statefile.dry_run import ActPreview
from ...engine.statefile.lists import OPERATOR_ACTS
from ..feed.trials import RuleTrial, trial_rows, try_rule
from ..model.replay import last_undoable
from ..present.runs import describe_executor_loss, place_line, resume_command
from ..sessions.address import Endpoint
from ..sessions.open import is_interactive, with_session
from ..sessions.session import RunSummary, Session, SessionStatus, new_command
from ..text.text import echo, echo_json, echo_lines, one_line, shorten
from .main import ExitCode, code_of_answers, command
from .options import (
    NamedFile,
    complete_causes,
    complete_tasks,
    fingerprint_option,
    json_option,
    options,
    params_of,
    reading_options,
    reason_option,
    run_option,
    run_options,
    seconds_of,
    ssh_options,
    state_option,
)
from .output import with_schema

# --- Which tasks a bulk act means: globs over names, the class of the failure, and the state -------------------------
#
# A bulk act shows its preview first, and is sent with ``--yes`` or after a question at the terminal.


#: The states that a bulk act means unless ``--only`` names others; a task that is named in full is meant in any state.
BULK_STATES: Mapping[str, AbstractSet[TaskState]] = {
    "requeue": NEEDS_HUMAN,
    "skip": NEEDS_HUMAN,
    "approve": frozenset([TaskState.READY]),
    "reject": frozenset([TaskState.READY]),
    "cancel": STOPPABLE,
    "extend": frozenset([TaskState.RUNNING]),
}
_GLOB_CHARACTERS = frozenset("*?[")


class NoSuchCauseError(RedriveError):
    """No task of a run failed with the fingerprint."""


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """The filters of a bulk act. ``failure_class``: of the latest failure; ``states``: instead of ``BULK_STATES``."""

    failure_class: str | None = None
    states: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.failure_class is not None or bool(self.states)


EVERY_TASK = BulkFilter()


def names_in_bulk(
    projection: RunProjection, act: str, patterns: Sequence[str], filters: BulkFilter
) -> list[str] | None:
    """The tasks of a bulk act, in the order of the flow; None: only full names are given, so it is not a bulk act.

    Raises RedriveError if no task is meant.
    """
    globs = [pattern for pattern in patterns if pattern not in projection.tasks and _GLOB_CHARACTERS & set(pattern)]
    if not globs and not filters:
        return None
    states = {TaskState(state) for state in filters.states} or BULK_STATES[act]
    exact = set(patterns) - set(globs)
    missing = sorted(exact - projection.tasks.keys())
    if missing:
        raise RedriveError(f"run {projection.run.run_id} has no task {missing[0]!r}; see: redrive tasks")

    def is_meant(row: TaskRow) -> bool:
        if filters.failure_class not in (None, row.failure_class):
            return False
        if row.name in exact:
            return not filters.states or row.state in states
        is_matched = not patterns or any(fnmatchcase(row.name, glob) for glob in globs)
        return is_matched and row.state in states

    names = [row.name for row in sorted(projection.tasks.values(), key=lambda row: row.position) if is_meant(row)]
    if not names:
        words = [*map(repr, patterns), *([f"class {filters.failure_class}"] if filters.failure_class else [])]
        which = f" that fits {' '.join(words)}" if words else ""
        raise RedriveError(f"no task of run {projection.run.run_id}{which} is {' or '.join(sorted(states))}")
    return names


def names_like(projection: RunProjection, patterns: Sequence[str]) -> list[str]:
    """The tasks of the given names and globs, in the order of the flow. Raises RedriveError if one fits no task."""
    found: set[str] = set()
    for pattern in patterns:
        names = {pattern} & projection.tasks.keys() or {name for name in projection.tasks if fnmatchcase(name, pattern)}
        if not names:
            raise RedriveError(f"run {projection.run.run_id} has no task {pattern!r}; see: redrive tasks")
        found |= names
    return [row.name for row in sorted(projection.tasks.values(), key=lambda row: row.position) if row.name in found]


def require_consent(act: str, count: int, runs: int = 1) -> None:
    """Ask at the terminal whether to go on. Raises UsageError without a terminal, Abort if the answer is no."""
    words = f"{BY_NAME[act].verb} {counted(count, 'task')}{f' of {runs} runs' if runs > 1 else ''}"
    if not is_interactive():
        raise click.UsageError(f"this would {words}: check it with --dry-run, and repeat it with --yes")
    echo(f"{words[0].upper()}{words[1:]}? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


# --- Operate ---------------------------------------------------------------------------------------------------------
#


PREVIEW_CELLS = 200  # of a line above the question; --dry-run prints all names


class ActPlace(NamedTuple):
    """Where an act was applied. ``run``: as it was before; None for acts on the whole file."""

    address: str
    status: SessionStatus
    run: RunRow | None


def place_of(session: Session, run: RunRow | None) -> ActPlace:
    """The place of an act, with the status of its session as of now."""
    return ActPlace(session.address, session.status, run)


@dataclass(frozen=True, slots=True)
class ActRequest:
    """An act as it was typed.

    Attributes:
        act: its name, as ``requeue``.
        names: tasks and globs; empty for an act on the run.
        run_id: None: the run that the state file shows by default.
        fingerprint, downstream: the tasks of this cause, in place of names.
        filters: of the tasks that globs mean.
        options: of the act.
    """

    act: str
    names: Sequence[str] = ()
    run_id: str | None = None
    reason: str = ""
    fingerprint: str | None = None
    downstream: str | None = None
    filters: BulkFilter = EVERY_TASK
    options: Mapping[str, Json] = field(default_factory=dict)


class _BuiltCommand(NamedTuple):
    command: Command
    run: RunRow
    is_bulk: bool


def send_action(
    endpoint: Endpoint,
    request: ActRequest,
    *,
    as_json: bool,
    dry_run: bool = False,
    yes: bool = False,
    hints: bool = True,
) -> int:
    """Send an act and print the result of each task. Exit code 1 if nothing was done.

    ``dry_run``: print the changes without sending the act. ``yes``: a bulk act needs no consent. ``hints``: print how
    to start an executor, if none runs.
    """
    if dry_run:
        return _preview_action(endpoint, request, as_json=as_json)
    require_reason(request.act, request.reason)

    async def use(session: Session) -> tuple[Answer, ActPlace]:
        built = await _build_command(session, request)
        if built.is_bulk:
            preview = await session.preview(built.command)
            for line in (place_line(built.run, session.address), *preview_lines(preview)):
                echo(shorten(one_line(line), PREVIEW_CELLS), err=True)
            if not yes:
                await asyncio.to_thread(require_consent, request.act, len(built.command.targets))
        return await session.send(built.command), place_of(session, built.run)

    answer, place = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    if hints:
        print_resume_hint(request.act, answer, place)
    return code_of_answers(answer)


def _preview_action(endpoint: Endpoint, request: ActRequest, *, as_json: bool) -> int:
    async def use(session: Session) -> tuple[ActPreview, ActPlace]:
        built = await _build_command(session, request)
        return await session.preview(built.command), place_of(session, built.run)

    preview, place = with_session(endpoint, use)
    print_preview(preview, as_json, place)
    return ExitCode.SUCCESS if preview.ok else ExitCode.FAILED


class _Plan(NamedTuple):
    """An act on one of several runs, and its preview."""

    endpoint: Endpoint
    command: Command
    preview: ActPreview
    place: ActPlace


def act_on_all_runs(file: NamedFile, request: ActRequest, *, as_json: bool, dry_run: bool, yes: bool) -> int:
    """Send an act on one cause in every run that it holds: of the named file, or of all files of the machine.

    One preview and one question stand before all of them. Raises RedriveError if the cause holds no run.
    """
    from .state_files import files_of

    plans: list[_Plan] = []
    for offer in files_of(file.name, file.ssh):
        endpoint, run_ids = Endpoint(offer.path, file.ssh), [*dict.fromkeys(one.run_id for one in offer.dead_letters)]
        if run_ids:
            plans += with_session(endpoint, partial(_plans_of, endpoint=endpoint, run_ids=run_ids, request=request))
    if not plans:
        raise RedriveError(f"no run waits with fingerprint {request.fingerprint}; see: redrive inbox")
    if dry_run:
        for plan in plans:
            print_preview(plan.preview, as_json, plan.place)
        return ExitCode.SUCCESS if all(plan.preview.ok for plan in plans) else ExitCode.FAILED
    require_reason(request.act, request.reason)
    for plan in plans:
        for line in (place_line(plan.place.run, plan.place.address), *preview_lines(plan.preview)):
            echo(shorten(one_line(line), PREVIEW_CELLS), err=True)
    if not yes:
        require_consent(request.act, sum(len(plan.command.targets) for plan in plans), len(plans))
    answers = [_send_plan(plan) for plan in plans]
    for plan, answer in zip(plans, answers, strict=True):
        print_answer(answer, as_json, plan.place)
    hints = (_resume_hint(request.act, answer, plan.place) for plan, answer in zip(plans, answers, strict=True))
    for hint in dict.fromkeys(filter(None, hints)):
        echo(hint, err=True)
    return code_of_answers(*answers)


async def _plans_of(session: Session, endpoint: Endpoint, run_ids: Sequence[str], request: ActRequest) -> list[_Plan]:
    plans: list[_Plan] = []
    for run_id in run_ids:
        try:
            built = await _build_command(session, replace(request, run_id=run_id))
        except NoSuchCauseError:
            continue
        preview = await session.preview(built.command)
        plans.append(_Plan(endpoint, built.command, preview, place_of(session, built.run)))
    return plans


def _send_plan(plan: _Plan) -> Answer:
    return with_session(plan.endpoint, lambda session: session.send(plan.command))


async def _build_command(session: Session, request: ActRequest) -> _BuiltCommand:
    projection = await session.snapshot(request.run_id)
    bulk = names_in_bulk(projection, request.act, request.names, request.filters)
    names = request.names if bulk is None else bulk
    targets = select_targets(projection, names, request.fingerprint, request.downstream)
    command = new_command(request.act, projection.run.run_id, targets, request.reason, request.options)
    return _BuiltCommand(command, projection.run, bulk is not None)


def print_resume_hint(act: str, answer: Answer, place: ActPlace) -> None:
    """Print how to start an executor for the run, if the act needs one and none runs it."""
    hint = _resume_hint(act, answer, place)
    if hint:
        echo(hint, err=True)


def _resume_hint(act: str, answer: Answer, place: ActPlace) -> str:
    run, status = place.run, place.status
    if run is None or not answer.ok or act not in STARTS_WORK or status.has_executor_of(run):
        return ""
    if status.service_pid is not None:
        return f"redrive serve (pid {status.service_pid}) goes on with it"
    why = describe_executor_loss(run, status, time.time_ns() // 1000)
    return one_line(f"{why}; go on with: {resume_command(run, status, place.address)}")


def require_reason(act: str, reason: str) -> None:
    """Raise UsageError if the act needs a reason and has none."""
    if act in NEEDS_REASON and not reason.strip():
        raise click.UsageError("say why with --reason TEXT: it is kept with the act")


def json_of(option: str, text: str) -> Json:
    """Parse a JSON value. Raises UsageError if it is invalid."""
    try:
        value: Json = json.loads(text)
        return value
    except ValueError as error:
        raise click.UsageError(f"{option}: not JSON ({error}); write 42, '{{\"rows\": 0}}' or '\"a text\"'") from None


def select_targets(
    projection: RunProjection, names: Sequence[str], fingerprint: str | None, downstream: str | None = None
) -> tuple[Target, ...]:
    """The tasks with their states and generations, so that the act changes no task that has moved since.

    ``downstream``: of the tasks with the fingerprint only those that call it. Raises RedriveError.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in projection.tasks:
            raise RedriveError(f"run {projection.run.run_id} has no task {name!r}; see: redrive tasks")
    rows = [projection.tasks[name] for name in names]
    if fingerprint is not None:
        rows = [row for row in projection.tasks.values() if row.state in NEEDS_HUMAN and _failed_like(row, fingerprint)]
        rows = [row for row in rows if downstream in (None, _downstream(row))]
        if not rows:
            calling = f" and calls {downstream}" if downstream is not None else ""
            raise NoSuchCauseError(
                f"no task of run {projection.run.run_id} failed with fingerprint {fingerprint}{calling}"
            )
        _demand_one_cause(rows, fingerprint)
    return tuple(Target(row.name, str(TaskState(row.state)), row.generation) for row in rows)


def _demand_one_cause(rows: Iterable[TaskRow], fingerprint: str) -> None:
    """Raise RedriveError if the first digits of a fingerprint match several causes."""
    causes = {_marks(row)[-1] for row in rows if fingerprint not in _marks(row)}
    if len(causes) > 1:
        named = ", ".join(sorted(causes)[:5])
        raise RedriveError(f"{fingerprint} fits {len(causes)} causes ({named}); give more digits")
    called = sorted({_downstream(row) or "none" for row in rows})
    if len(called) > 1:
        named = ", ".join(called[:5])
        raise RedriveError(
            f"{fingerprint} fits {len(called)} causes, one for each downstream ({named}); add --downstream NAME,"
            " or name the tasks"
        )


def _downstream(row: TaskRow) -> str | None:
    return row.spec.downstream if row.spec is not None else None


def _failed_like(row: TaskRow, fingerprint: str) -> bool:
    return any(mark.startswith(fingerprint) for mark in _marks(row))


def _marks(row: TaskRow) -> list[str]:
    """The fingerprints of the latest failure: strict, then loose."""
    latest = row.attempts.get(row.attempt)
    marks = [row.failure_fingerprint, latest.fingerprint_loose if latest is not None else None]
    return [mark for mark in marks if mark]


def print_answer(answer: Answer, as_json: bool, place: ActPlace) -> None:
    """Print the place of the act and the answer of the engine, one line per task."""
    if as_json:
        value = {
            "state_file": place.address,
            "run_id": None if place.run is None else place.run.run_id,
            "ok": answer.ok,
            "message": answer.message,
            "results": _result_objects(answer.results),
        }
        echo_json(with_schema("answer", value))
        return
    echo(place_line(place.run, place.address))
    lines = [f"{task}: {message}" for task, _, message in answer.results]
    echo_lines(map(one_line, lines))
    if not lines and answer.message:
        echo(one_line(answer.message), err=not answer.ok)
    elif len(lines) > 1 or (lines and ";" in answer.message and answer.message not in lines):
        echo(one_line(answer.message))  # the totals, and the effects on other tasks


def _result_objects(results: Iterable[TargetResult]) -> list[dict[str, str]]:
    return [{"task": task, "result": outcome, "message": sentence} for task, outcome, sentence in results]


# --- Options of requeue -------------------------------------------------------------------------------------------


#: Parameters of the command ``requeue`` that ``requeue_options_of`` reads.
REQUEUE_OPTIONS = (
    *("canary", "rate", "not_before", "at", "timeout"),
    *("param", "single_shot", "keep_count", "new_key", "same_key", "cascade"),
)


_REQUEUE_FLAGS = ("canary", "cascade", "single_shot", "new_key", "same_key")


def requeue_options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the act. Raises UsageError for invalid values."""
    if given["not_before"] and given["at"]:
        raise click.UsageError("either --not-before or --at")
    found: dict[str, object] = {name: True for name in _REQUEUE_FLAGS if given[name]}
    if given["rate"]:
        found["rate_per_second"] = _rate(given["rate"])
    if given["not_before"]:
        found["not_before"] = seconds_of(given["not_before"], "--not-before")
    if given["at"]:
        found["not_before"] = seconds_until(given["at"], datetime.now().astimezone())
    if given["timeout"]:
        found["timeout"] = seconds_of(given["timeout"], "--timeout")
    if given["param"]:
        found["params"] = params_of(given["param"])
    if given["keep_count"]:
        found["reset_count"] = False
    return found


def postpone_options_of(when: str) -> dict[str, float]:
    """The options of ``postpone``: a duration from now, a time, or "never". Raises UsageError."""
    if when == "never":
        return {}
    instant = _next(when, now := datetime.now().astimezone()) or _instant(when)
    seconds = seconds_of(when.removeprefix("+")) if instant is None else (instant - now).total_seconds()
    if seconds <= 0:
        raise click.UsageError(f"{when!r} has passed: write a duration, as 1h, a time to come, as 06:00, or never")
    return {"seconds": seconds}


def seconds_until(text: str, now: datetime) -> float:
    """Seconds until the next such time of day in this machine's zone, or until a date and time. Raises UsageError."""
    instant = _next(text, now) or _instant(text)
    if instant is None:
        raise click.UsageError(f"--at {text!r}: write a time of day, as 06:00, or an instant, as 2026-04-25T06:00")
    seconds = (instant - now).total_seconds()
    if seconds < 0:
        raise click.UsageError(f"--at {text!r} has passed")
    return seconds


def _next(text: str, now: datetime) -> datetime | None:
    try:
        clock = time_of_day.fromisoformat(text.strip().zfill(5))  # 6:00 is 06:00
    except ValueError:
        return None
    # Wall clocks, not hours: between today's 06:00 and tomorrow's there may be 23 or 25.
    today, tomorrow = (datetime.combine(now.date() + timedelta(days=days), clock).astimezone() for days in (0, 1))
    return today if today > now else tomorrow


def _instant(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        return None


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


#: Fields of a preview -> words, in the order of the output.
_KINDS = (
    ("run_again", "would run again"),
    ("answered", "would be answered"),
    ("skipped", "would be skipped"),
    ("cancelled", "would be cancelled"),
    ("unblocked", "would no longer be stopped"),
    ("held_back", "would wait again"),
    ("stopped", "would be stopped below"),
    ("stale", "ran before, and would be stale"),
)


def print_preview(preview: ActPreview, as_json: bool, place: ActPlace) -> None:
    """Print the complete preview, so that it can be compared with what happens later."""
    if as_json:
        where = {"state_file": place.address, "run_id": None if place.run is None else place.run.run_id}
        found = {**preview._asdict(), "results": _result_objects(preview.results)}
        echo_json(with_schema("preview", {"dry_run": True, **where, **found}))
        return
    echo(place_line(place.run, place.address))
    echo_lines(map(one_line, preview_lines(preview)))
    changed = any(getattr(preview, kind) for kind, _ in _KINDS) or any(
        outcome == RUNNING for _, outcome, _ in preview.results
    )
    echo("dry run: nothing was changed" if changed else "dry run: nothing would change")


def preview_lines(preview: ActPreview) -> Iterator[str]:
    """One line for each kind of change, then the refusals."""
    for kind, words in _KINDS:
        names: Sequence[str] = getattr(preview, kind)
        if names:
            yield f"{words} ({len(names)}): {', '.join(names)}"
    yield from preview.notes
    for task, outcome, sentence in preview.results:
        if outcome == RUNNING:
            yield f"{task}: is running, and its attempt would be ended"
        elif outcome == REFUSED:
            yield f"{task}: {sentence}"
    for name, holder in preview.stay_blocked:
        yield f"{name}: would stay stopped because of {holder or 'a task above it'}"
    if not preview.results and preview.message:
        yield preview.message


# --- The commands on tasks, and those on a run -----------------------------------------------------------------------


acting_options = options(
    click.argument("names", nargs=-1, metavar="TASK...", shell_complete=complete_tasks),
    state_option,
    run_option,
    click.option(
        "--fingerprint",
        metavar="FP",
        help="All tasks that failed with this fingerprint.",
        shell_complete=complete_causes,
    ),
    click.option("--downstream", metavar="NAME", help="With --fingerprint: only tasks that call this."),
    click.option(
        "--all-runs",
        is_flag=True,
        help="With --fingerprint: in every run, of all state files of this machine unless --state names one.",
    ),
    click.option(
        "--class",
        "failure_class",
        type=click.Choice([str(one) for one in FailureClass]),
        help="Only tasks whose latest failure has this class.",
    ),
    click.option(
        "--only",
        multiple=True,
        type=click.Choice([str(one) for one in TaskState], case_sensitive=False),
        help="Only tasks in this state; repeatable.",
    ),
    click.option("--yes", is_flag=True, help="Several tasks by glob, --class, --only or --all-runs: do not ask."),
    reason_option,
    click.option("--dry-run", is_flag=True, help="Print the changes without making them."),
    json_option,
    ssh_options,
)
requeue_options = options(
    click.option("--canary", is_flag=True, help="One task first; the others when it has succeeded, at the rate."),
    click.option("--rate", metavar="N/s", help="At most N starts per second."),
    click.option("--not-before", metavar="DURATION", help="Start after this time."),
    click.option("--at", metavar="TIME", help="Not before this time: 06:00, or 2026-04-25T06:00."),
    click.option("--timeout", metavar="DURATION", help="A timeout for this generation alone."),
    click.option(
        "--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter for this generation alone."
    ),
    click.option("--single-shot", is_flag=True, help="One attempt only."),
    click.option("--keep-count", is_flag=True, help="Keep the failure count: no fresh budget."),
    click.option("--new-key", is_flag=True, help="A new idempotency key: repeat effects of earlier attempts."),
    click.option("--same-key", is_flag=True, help="Repeat an effect that has happened, with its idempotency key."),
    click.option("--cascade", is_flag=True, help="Also run successful descendants again."),
)


@command("requeue")
@acting_options
@requeue_options
def requeue(file: NamedFile, **options: object) -> int:
    """TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only."""
    extra = requeue_options_of({name: options.pop(name) for name in REQUEUE_OPTIONS})
    return _act("requeue", file, extra, options)


@command("skip")
@acting_options
@click.option("--substitute", metavar="JSON", help="What the children get instead of the result.")
def skip(file: NamedFile, substitute: str | None, **options: object) -> int:
    """TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only."""
    extra = {} if substitute is None else {"substitute": json_of("--substitute", substitute)}
    return _act("skip", file, extra, options)


@command("approve")
@acting_options
def approve(file: NamedFile, **options: object) -> int:
    """TASK waits for an approval (`redrive help approvals`)."""
    return _act("approve", file, {}, options)


@command("reject")
@acting_options
def reject(file: NamedFile, **options: object) -> int:
    """TASK waits for an approval (`redrive help approvals`): it fails, and what depends on it does not run."""
    return _act("reject", file, {}, options)


@command("cancel")
@acting_options
def cancel(file: NamedFile, **options: object) -> int:
    """TASK may be a glob, as 'load_*': it means tasks that have not ended, or the states given with --only."""
    return _act("cancel", file, {}, options)


@command("extend")
@click.argument("names", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks)
@click.argument("duration", metavar="DURATION")
@reason_option
@run_options
def extend(file: NamedFile, duration: str, **options: object) -> int:
    return _act("extend", file, {"seconds": seconds_of(duration)}, {"fingerprint": None, "yes": True, **options})


@command("postpone")
@click.argument("when", metavar="DURATION|TIME|never")
@reason_option
@run_options
def postpone(file: NamedFile, when: str, run_id: str | None, reason: str, as_json: bool) -> int:
    """What the old one has cancelled runs again."""
    return _act_on_run("postpone", file, run_id, reason, as_json, postpone_options_of(when))


@command("pause")
@reading_options
@reason_option
def pause(file: NamedFile, run_id: str | None, reason: str, as_json: bool) -> int:
    return _act_on_run("pause", file, run_id, reason, as_json)


@command("unpause")
@reading_options
@reason_option
def unpause(file: NamedFile, run_id: str | None, reason: str, as_json: bool) -> int:
    return _act_on_run("unpause", file, run_id, reason, as_json)


def _act(act: str, file: NamedFile, extra: Mapping[str, Json], options: dict[str, Any]) -> int:
    all_runs = options.pop("all_runs", False)
    printed = {name: options.pop(name) for name in ("as_json", "dry_run", "yes") if name in options}
    filters = BulkFilter(options.pop("failure_class", None), options.pop("only", ()))
    request = ActRequest(act, filters=filters, options=extra, **options)
    if bool(request.names or filters) == bool(request.fingerprint):
        raise click.UsageError("name tasks, or give --fingerprint, --class or --only")
    if request.names and request.downstream:
        raise click.UsageError("--downstream goes with --fingerprint")
    if not all_runs:
        return send_action(file.to_change(), request, **printed)
    if request.fingerprint is None or request.run_id is not None:
        raise click.UsageError("--all-runs goes with --fingerprint, and without --run")
    return act_on_all_runs(file, request, **printed)


def _act_on_run(
    act: str,
    file: NamedFile,
    run_id: str | None,
    reason: str,
    as_json: bool,
    options: Mapping[str, Json] | None = None,
) -> int:
    request = ActRequest(act, run_id=run_id, reason=reason, options=options or {})
    return send_action(file.to_change(), request, as_json=as_json)


# --- ``redrive abandon``: ends unfinished runs that will not be resumed ----------------------------------------------


@command("abandon")
@click.argument("names", nargs=-1, metavar="RUN...")
@state_option
@click.option("--run", "run_ids", multiple=True, metavar="RUN", help="A run to end, as the argument.")
@click.option("--all", "everything", is_flag=True, help="Every unfinished run that no executor runs.")
@click.option(
    "--older-than", metavar="DURATION", help="With --all: only runs that started longer ago than this, as 2d."
)
@reason_option
@json_option
@ssh_options
def abandon_runs(
    file: NamedFile,
    names: tuple[str, ...],
    run_ids: tuple[str, ...],
    everything: bool,
    older_than: str | None,
    reason: str,
    as_json: bool,
) -> int:
    if bool(names + run_ids) == everything:
        raise click.UsageError("name runs, or give --all")
    if older_than and not everything:
        raise click.UsageError("--older-than goes with --all")
    age_us = round(seconds_of(older_than) * 1e6) if older_than else 0

    async def use(session: Session) -> list[tuple[Answer, ActPlace]]:
        summaries = await session.runs()
        if not everything:
            chosen = _named(summaries, names + run_ids)
        else:
            own = session.status.executor_run_id if session.status.executor_alive else None
            chosen = _chosen(summaries, own, time.time_ns() // 1000 - age_us)
        return [
            (await session.send(new_command("abandon", one.run.run_id, (), reason)), place_of(session, one.run))
            for one in chosen
        ]

    answers = with_session(file.to_change(), use)
    for answer, place in answers:
        print_answer(answer, as_json, place)
    if not answers and not as_json:
        echo("no run is unfinished without an executor")
    return code_of_answers(*(answer for answer, _ in answers))


def _chosen(summaries: Iterable[RunSummary], own_run_id: str | None, started_before: int) -> list[RunSummary]:
    return [
        one
        for one in summaries
        if one.run.ended_at is None and one.run.run_id != own_run_id and one.run.started_at <= started_before
    ]


def _named(summaries: Iterable[RunSummary], run_ids: Iterable[str]) -> list[RunSummary]:
    known = {one.run.run_id: one for one in summaries}
    for run_id in run_ids:
        if run_id not in known:
            raise RedriveError(f"there is no run {run_id!r} in this state file; see: redrive runs")
    return [known[run_id] for run_id in dict.fromkeys(run_ids)]


# --- ``redrive undo`` ------------------------------------------------------------------------------------------------


@command("undo")
@reading_options
@click.option("--dry-run", is_flag=True, help="Only say which act it would be.")
@reason_option
def undo_last(file: NamedFile, run_id: str | None, as_json: bool, dry_run: bool, reason: str) -> int:
    """Tasks that have moved since stay as they are."""

    async def use(session: Session) -> tuple[Answer, ActPlace]:
        rows = await session.query(OPERATOR_ACTS)
        found = last_undoable([row for row in rows if run_id in (None, row.run_id)])
        if found is None:
            of_run = "this file" if run_id is None else f"run {run_id}"
            raise RedriveError(f"there is no act in {of_run} that can be taken back; see: redrive events")
        event, acted = found
        runs = [one.run for one in await session.runs() if one.run.run_id == event.run_id]
        place = place_of(session, runs[0] if runs else None)
        ago = format_duration(time.time_ns() // 1000 - event.at)
        what = f"{acted.act} by {event.actor} {ago} ago ({acted.answer.get('message')})"
        if dry_run:
            return Answer(True, f"would take back: {what}"), place
        answer = await session.send(new_command("undo", event.run_id, (), reason, {"command": event.command_id}))
        return answer._replace(message=f"{what}: {answer.message}"), place

    answer, place = with_session(file.to_change(), use)
    print_answer(answer, as_json, place)
    if not dry_run and not as_json:
        print_resume_hint("undo", answer, place)
    return code_of_answers(answer)


# --- ``redrive note`` and ``classify`` -------------------------------------------------------------------------------
#
# ``redrive note`` and ``redrive classify``: notes on a cause, and a classification rule from its failures.


_NAMED_MAX = 5
_LABEL_CELLS = 9


@command("note")
@click.argument("text")
@fingerprint_option
@click.option("--downstream", metavar="NAME", help="Only for tasks that call this; default: all tasks.")
@run_options
def send_note(
    file: NamedFile, text: str, fingerprint: str, downstream: str | None, run_id: str | None, as_json: bool
) -> int:
    async def use(session: Session) -> tuple[Answer, ActPlace]:
        projection = await session.snapshot(run_id)
        options = {"fingerprint": cause_of(projection, fingerprint), "downstream": downstream, "text": text}
        command = new_command("note", projection.run.run_id, options=options)
        return await session.send(command), place_of(session, projection.run)

    answer, place = with_session(file.to_change(), use)
    print_answer(answer, as_json, place)
    return code_of_answers(answer)


def cause_of(projection: RunProjection, digits: str) -> str:
    """The loose fingerprint of this run that starts with ``digits``; without a match ``digits`` itself, for other runs.

    Raises RedriveError if several fingerprints match.
    """
    attempts = [attempt for row in projection.tasks.values() for attempt in row.attempts.values()]
    marks = {(one.fingerprint_loose, one.fingerprint) for one in attempts if one.fingerprint_loose}
    found = {loose for loose, strict in marks if loose.startswith(digits) or (strict or "").startswith(digits)}
    if digits in found or not found:
        return digits
    if len(found) > 1:
        named = ", ".join(sorted(found)[:_NAMED_MAX])
        raise RedriveError(f"{digits} fits {len(found)} causes ({named}); give more digits")
    return found.pop()


@command("classify")
@fingerprint_option
@click.option(
    "--as",
    "failure_class",
    required=True,
    type=click.Choice(["transient", "permanent", "ambiguous", "validation", "auth"]),
    help="The class of such failures.",
)
@click.option("--downstream", metavar="NAME", help="The rule's downstream; default: that of the failed tasks.")
@click.option(
    "--when",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="A condition instead of the proposed ones: status=409.",
)
@run_options
def print_rule(
    file: NamedFile,
    run_id: str | None,
    fingerprint: str,
    failure_class: str,
    downstream: str | None,
    conditions: Sequence[str],
    as_json: bool,
) -> int:
    chosen = conditions_of(conditions)

    async def use(session: Session) -> RuleTrial:
        projection = await session.snapshot(run_id)
        loose = cause_of(projection, fingerprint)
        return await try_rule(session, projection, loose, FailureClass(failure_class), downstream, chosen)

    found = with_session(file.to_read(), use)
    if as_json:
        effect = asdict(found.effect)
        value = {"rule": found.rule, "downstream": found.downstream, "flow": found.text, "effect": effect}
        echo_json(with_schema("rule", value))
        return 0
    for label, text in trial_rows(found):
        echo(f"{label:{_LABEL_CELLS}}{text}")
    return 0


def conditions_of(words: Sequence[str]) -> dict[str, object]:
    """The conditions of a rule, from words as ``status=409``. Raises UsageError for invalid words."""
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"--when {word!r}: write NAME=VALUE, as status=409")
        try:
            found[name] = int(value) if name in ("status", "exit_code", "signal") else value
        except ValueError:
            raise click.UsageError(f"--when {word!r}: {name} is a number") from None
    return found
