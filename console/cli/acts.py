"""The acts of operators as commands: on tasks (``requeue``, ``skip``, ...), on the run, and on causes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from ...engine.core.outcome import FailureClass
from ...engine.core.projection import RunProjection
from ...engine.domain.acts import REFUSED, ActPreview, Answer
from ...engine.domain.events import Json
from ...engine.domain.rows import RunFacts, RunRow
from ...engine.domain.states import TaskState
from ...engine.domain.text import advised
from ...engine.errors import RedriveError
from ...engine.statefile.lists import OPERATOR_ACTS, NeedKind, RunName, runs_named
from ..model.replay import last_undoable
from ..present.act_results import describe_past_act
from ..sessions.address import Endpoint
from ..sessions.once import with_session
from ..sessions.session import Session, given_ids, listed_events, new_command
from ..text.text import echo
from . import operate
from . import options as shared
from .group import code_of_answers, command
from .state_files import files_of

_consent_options = shared.options(
    click.option("--yes", is_flag=True, help="Do not ask, for several tasks or one that may have happened."),
    shared.reason_option,
    shared.dry_run_option,
    click.option("--resume", is_flag=True, help="Then start an executor for the run, if none runs it."),
    shared.json_option,
)
acting_options = shared.options(
    shared.to_tasks,
    shared.cause_option("All tasks that failed with this fingerprint."),
    click.option("--downstream", metavar="NAME", help="With --fingerprint: only tasks that call this."),
    click.option("--all-runs", is_flag=True, help="With --fingerprint: in every run of FLOW, or of all state files."),
    click.option(
        "--class",
        "failure_class",
        metavar="CLASS",
        type=click.Choice([str(one) for one in FailureClass]),
        help="Only tasks whose latest failure has this class, as timeout: redrive help retries.",
    ),
    click.option(
        "--only",
        multiple=True,
        metavar="STATE",
        type=click.Choice([str(one) for one in TaskState], case_sensitive=False),
        help="Only tasks in this state, as FAILED; repeatable.",
    ),
    _consent_options,
)
answering_options = shared.options(shared.TargetWords(tasks=True, acts=True, needed="task").declare, _consent_options)
run_options = shared.options(shared.of_run, shared.reason_option, shared.json_option)


requeue_options = shared.options(
    click.option("--canary", is_flag=True, help="One task first; the others when it has succeeded, at the rate."),
    click.option("--rate", metavar="N/s", help="At most N starts per second."),
    click.option("--not-before", metavar="DURATION|TIME", help="Start after 1h, or at 06:00 or 2026-04-25T06:00."),
    click.option("--timeout", metavar="DURATION", help="A timeout for this generation alone."),
    shared.param_option("A parameter for this generation alone."),
    click.option("--single-shot", is_flag=True, help="One attempt only."),
    click.option("--keep-count", is_flag=True, help="Keep the failure count: no fresh budget."),
    click.option("--new-key", is_flag=True, help="A new idempotency key: repeat effects of earlier attempts."),
    click.option("--same-key", is_flag=True, help="Repeat an effect that has happened, with its idempotency key."),
    click.option("--cascade", is_flag=True, help="Also run successful descendants again."),
)


@command("requeue")
@acting_options
@requeue_options
def requeue(file: shared.NamedFile, **options: Any) -> int:
    """TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only."""
    extra = operate.requeue_options_of({name: options.pop(name) for name in operate.REQUEUE_OPTIONS})
    return _act("requeue", file, extra, **options)


@command("skip")
@acting_options
@click.option("--substitute", metavar="JSON", help="What the children get instead of the result.")
def skip(file: shared.NamedFile, substitute: str | None, **options: Any) -> int:
    """TASK may be a glob, as 'load_*': it means tasks that need a human, or the states given with --only."""
    extra = {} if substitute is None else {"substitute": shared.json_of("--substitute", substitute)}
    return _act("skip", file, extra, **options)


_COMMANDS_SHOWN = 5  # in the sentence that asks which run is meant

# --- Acts without options of their own; those on a run need no more help ----------------------------------------------


def _declare_act(act: str, declared: shared.CommandDecorator, text: str = "") -> None:
    @declared
    def act_on_it(file: shared.NamedFile, **given: Any) -> int:
        return (_act if text else _act_on_run)(act, file, {}, **given)

    command(act, text)(act_on_it)


_WAITS = "TASK waits for an approval (`redrive help approvals`)."
_EACH = "TASK may be a glob, as 'load_*': it means tasks that have not ended, or the states given with --only."
_declare_act("pause", run_options)
_declare_act("unpause", run_options)
_declare_act("approve", answering_options, _WAITS)
_declare_act("reject", answering_options, f"{_WAITS} What depends on it does not run.")
_declare_act("cancel", acting_options, _EACH)


@command("extend")
@shared.TargetWords(tasks=True, acts=True, needed="task").declare
@click.argument("duration", metavar="DURATION")
@shared.reason_option
@shared.json_option
def extend(file: shared.NamedFile, duration: str, **given: Any) -> int:
    """As: redrive extend load 10m"""
    return _act("extend", file, {"seconds": shared.seconds_of(duration, "DURATION")}, yes=True, **given)


# --- The commands on a run -------------------------------------------------------------------------------------------


@command("postpone")
@run_options
@click.argument("when", metavar="DURATION|TIME|never")
def postpone(file: shared.NamedFile, when: str, **given: Any) -> int:
    """Tasks that the old one has cancelled run again."""
    return _act_on_run("postpone", file, operate.postpone_options_of(when), **given)


def _act(act: str, file: shared.NamedFile, options: Mapping[str, Json], *, all_runs: bool = False, **given: Any) -> int:
    """Act on the tasks that are meant. ``options``: of the act itself; ``given``: the others."""
    request = operate.ActRequest(act, file.tasks, options=options, **given)
    if bool(request.names or request.has_filter) == bool(request.fingerprint):
        raise click.UsageError("name tasks, or give --fingerprint, --class or --only")
    if request.names and request.downstream:
        raise click.UsageError("--downstream goes with --fingerprint")
    if not all_runs:
        return operate.send_action(file.to_change(request.fingerprint), request)
    if request.fingerprint is None or file.run is not None:
        raise click.UsageError("--all-runs goes with --fingerprint, and without a run")
    if request.resume:
        raise click.UsageError("--resume goes with one run, and not with --all-runs")
    return operate.act_on_all_runs(file, request)


def _act_on_run(act: str, file: shared.NamedFile, options: Mapping[str, Json], **given: Any) -> int:
    return operate.send_action(file.to_change(), operate.ActRequest(act, options=options, **given))


# --- ``redrive abandon``: ends unfinished runs that will not be resumed ----------------------------------------------


@command("abandon")
@shared.TargetWords(acts=True, several=True, old_run=True).declare
@click.option("--all", "everything", is_flag=True, help="Every unfinished run of FLOW that no executor runs.")
@shared.reason_option
@shared.json_option
def abandon_runs(files: list[shared.NamedFile], everything: bool, reason: str, as_json: bool) -> int:
    """The run is ABANDONED. Clean-ups are not cancelled: redrive resume or serve runs them, and a second abandon ends
    them.
    """
    if everything and any(file.run is not None for file in files):
        raise click.UsageError("name runs, or give --all, and not both")
    if not everything and not (files and all(file.name or file.run for file in files)):
        raise click.UsageError("name runs, or give --all")

    async def use(session: Session) -> list[operate.Acted]:
        summaries = await session.runs()
        if not everything:
            chosen = [one for one in summaries if one.run.run_id == session.run_id]
        else:
            own = session.status.executor.run_id if session.status.executor.alive else None
            chosen = [one for one in summaries if one.run.ended_at is None and one.run.run_id != own]
        return [
            (await session.send(new_command("abandon", one.run.run_id, (), reason)), operate.place_of(session, one.run))
            for one in chosen
        ]

    endpoints = [file.to_change() for file in files]
    if not everything:  # all of them exist before the first is ended
        runs = [with_session(one, lambda session: session.part(session.run_id, ())) for one in endpoints]
        endpoints = [one._replace(run=found.run.run_id) for one, found in zip(endpoints, runs, strict=True)]
    answers = [answer for endpoint in dict.fromkeys(endpoints) for answer in with_session(endpoint, use)]
    for answer, place in answers:
        operate.print_answer(answer, as_json, place)
    if not answers and not as_json:
        echo("no run is unfinished without an executor")
    return code_of_answers(*(answer for answer, _ in answers))


# --- ``redrive ack``: bad ends of runs that need nobody any more ------------------------------------------------------


@command("ack")
@shared.TargetWords(acts=True, several=True, old_run=True).declare
@click.option("--all", "everything", is_flag=True, help="All runs of the flow; without a word, of all flows.")
@shared.reason_option
@shared.json_option
def acknowledge_runs(files: list[shared.NamedFile], everything: bool, reason: str, as_json: bool) -> int:
    """`redrive inbox` no longer lists them."""
    if not everything and not all(file.name or file.run for file in files):
        raise click.UsageError("name a run or a flow, or give --all")
    options = {"whole_flow": True} if everything else {}
    if given_ids.get() is not None and files[0].name is not None:
        again = partial(operate.acted_before, act="ack-run", names=(), reason=reason, options=options)
        if before := with_session(files[0].to_read(), again):
            operate.print_answer(before[0], as_json, before[1])
            return code_of_answers(before[0])
    ends = [end for file in files for end in _ends_meant(file, everything=everything)]
    if everything:  # one act for all runs of a flow, so that one undo takes it back
        ends = list({(endpoint, run.dag_name): (endpoint, run) for endpoint, run in reversed(ends)}.values())

    async def use(session: Session, run: RunFacts) -> operate.Acted:
        answer = await session.send(new_command("ack-run", run.run_id, (), reason, options))
        return answer, operate.place_of(session, RunRow(run.run_id, run.dag_name))

    distinct = dict.fromkeys(ends)
    answers = [operate.act_on(endpoint, partial(use, run=run), as_json=as_json)[0] for endpoint, run in distinct]
    if not answers and not as_json:
        echo("no run is to be acknowledged")
    return code_of_answers(*answers)


def _ends_meant(file: shared.NamedFile, *, everything: bool) -> list[tuple[Endpoint, RunFacts]]:
    """The ends that nobody has acknowledged and that a word means: of a run, of a flow, or of all."""
    found: list[tuple[Endpoint, RunFacts]] = []
    for file_row in files_of(file.name, file.ssh):
        runs = {run.run_id: run for run in file_row.runs}
        changed = (one for one in file_row.rows_of(NeedKind.CHANGED_EFFECTS) if one.run_id not in runs)
        ended = [run for run in runs.values() if run.ended_at is not None]
        ended += [RunFacts(one.run_id, one.flow, 0) for one in changed]
        found += [(Endpoint(file_row.path, file.ssh), run) for run in ended]
    matching = found
    if file.run is not None:
        names = [RunName(run.run_id, run.dag_name, run.state or "", None) for _, run in found]
        meant = {run.run_id for run in runs_named(file.run, names)}
        of_flow = [end for end in found if end[1].dag_name == file.run]  # its file has another name
        matching = [end for end in found if end[1].run_id in meant] or of_flow
    word = "@".join(filter(None, (file.name, file.run)))
    if not matching and not everything:
        raise RedriveError(f"no run or flow {word!r} is to be acknowledged; see: {advised('inbox', file.name or '')}")
    if len(matching) > 1 and not everything:
        commands = "; ".join(
            advised("ack", endpoint.target, run.run_id) for endpoint, run in matching[:_COMMANDS_SHOWN]
        )
        raise RedriveError(f"{word!r} means {len(matching)} runs: give --all for all of them, or name one: {commands}")
    return matching


# --- ``redrive undo`` ------------------------------------------------------------------------------------------------


@command("undo")
@shared.of_run
@click.option("--dry-run", is_flag=True, help="Only say which act it would be, or why it is too late.")
@shared.reason_option
@shared.json_option
def undo_last(file: shared.NamedFile, as_json: bool, dry_run: bool, reason: str) -> int:
    """Of one run, or of any. Tasks that have moved since stay as they are."""

    async def use(session: Session) -> operate.Acted:
        run_id = session.run_id
        if before := await operate.acted_before(session, "undo", (), reason, None):
            return before
        acts = await listed_events(session, OPERATOR_ACTS)
        found = last_undoable([act for act in acts if run_id in (None, act.run_id)])
        if found is None:
            of_run = "this file" if run_id is None else f"run {run_id}"
            events = advised("events", session.address, run_id, session.ssh_arguments)
            raise RedriveError(f"there is no act in {of_run} that can be taken back; see: {events}")
        event, acted = found
        what = describe_past_act(event, acted, session.now_us())
        undoing = new_command("undo", event.run_id, (), reason, {"command": event.command_id})
        if dry_run:
            answer = _foreseen(await session.preview(undoing), what)
        else:
            undone = await session.send(undoing)
            answer = undone._replace(message=f"{what}: {undone.message}")
        runs = [one.run for one in await session.runs() if one.run.run_id == event.run_id]
        return answer, operate.place_of(session, runs[0] if runs else None)

    answer, place = operate.act_on(file.to_change(), use, as_json=as_json)
    run = place.run  # as before the undone act
    is_at_rest = run is not None and (run.ended_at is not None or run.blocked_since is not None)
    if not dry_run and not as_json and not is_at_rest:
        operate.print_resume_hints("undo", (answer, place))
    return code_of_answers(answer)


def _foreseen(preview: ActPreview, what: str) -> Answer:
    if not preview.ok:
        return Answer(False, f"{what}: {preview.message}")
    stays = [f"{task} {sentence}" for task, outcome, sentence in preview.results if outcome == REFUSED]
    return Answer(True, "; ".join([f"would take back: {what}", *stays]))


# --- ``redrive note``: notes on a cause -------------------------------------------------------------------------------


@command("note")
@shared.of_run
@click.argument("text")
@shared.cause_option("Of the cause, from `redrive inbox`.", required=True)
@click.option("--downstream", metavar="NAME", help="Only for tasks that call this; default: all tasks.")
@shared.json_option
def send_note(file: shared.NamedFile, text: str, fingerprint: str, downstream: str | None, as_json: bool) -> int:
    """It is shown with the cause in this run and later ones."""

    async def use(session: Session) -> operate.Acted:
        projection = await session.snapshot(session.run_id)
        options = {"fingerprint": _whole_fingerprint(projection, fingerprint), "downstream": downstream, "text": text}
        command = new_command("note", projection.run.run_id, options=options)
        return await session.send(command), operate.place_of(session, projection.run)

    return code_of_answers(operate.act_on(file.to_change(), use, as_json=as_json)[0])


def _whole_fingerprint(projection: RunProjection, digits: str) -> str:
    """The loose fingerprint of this run that starts with ``digits``; without a match ``digits`` itself, for other runs.

    Raises RedriveError if several fingerprints match.
    """
    attempts = [attempt for row in projection.tasks.values() for attempt in row.attempts.values()]
    pairs = {(one.fingerprint_loose, one.fingerprint) for one in attempts if one.fingerprint_loose}
    found = {loose for loose, strict in pairs if loose.startswith(digits) or (strict or "").startswith(digits)}
    if digits in found or not found:
        return digits
    operate.refuse_several(digits, found)
    return found.pop()
