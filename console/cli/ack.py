"""``redrive ack``: bad ends of runs that need nobody any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click

from ...engine.core.projection import RunRow
from ...engine.domain.acts import Answer
from ...engine.domain.rows import RunFacts
from ...engine.errors import RedriveError
from ...engine.statefile.lists import NeedKind, RunName, runs_named
from ..present.schedules import ack_command
from ..sessions.address import Endpoint, SshOptions
from ..sessions.once import with_session
from ..sessions.session import Session, new_command
from ..text.text import echo
from . import options as shared
from .group import code_of_answers, command
from .operate import ActPlace, place_of, print_answer
from .state_files import files_of

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class _Ending:
    """A run whose bad end nobody has acknowledged, in its file."""

    path: str
    run: RunFacts


@command("ack")
@shared.Words(acts=True, several=True, old_run=True).declare
@click.option("--all", "everything", is_flag=True, help="All runs of the flow; without a word, of all flows.")
@shared.reason_option
@shared.json_option
def acknowledge_runs(files: list[shared.NamedFile], everything: bool, reason: str, as_json: bool) -> int:
    if not everything and not all(file.name or file.run for file in files):
        raise click.UsageError("name a run or a flow, or give --all")
    named = [(file.ssh, one) for file in files for one in _meant(file, everything=everything)]
    if everything:  # one act for all runs of a flow, so that one undo takes it back
        named = list({(one.path, one.run.dag_name): (ssh, one) for ssh, one in reversed(named)}.values())
    options = {"whole_flow": True} if everything else {}
    answers = [_acknowledge(one, ssh, reason, options, as_json) for ssh, one in dict.fromkeys(named)]
    if not answers and not as_json:
        echo("no run is to be acknowledged")
    return code_of_answers(*answers)


def _meant(file: shared.NamedFile, *, everything: bool) -> list[_Ending]:
    """The ends that a word means: of a run, of a flow, or of all."""
    found: list[_Ending] = []
    for offer in files_of(file.name, file.ssh):
        runs = [run for run in offer.runs if run.ended_at is not None]
        known = {run.run_id for run in offer.runs}
        runs += [
            RunFacts(one.run_id, one.flow, 0)
            for one in offer.rows_of(NeedKind.CHANGED_EFFECTS)
            if one.run_id not in known
        ]
        found += [_Ending(offer.path, run) for run in runs]
    if file.run is not None:
        names = [RunName(one.run.run_id, one.run.dag_name, one.run.state or "", None) for one in found]
        meant = {run.run_id for run in runs_named(file.run, names)}
        of_flow = [one for one in found if one.run.dag_name == file.run]  # its file has another name
        matching = [one for one in found if one.run.run_id in meant] or of_flow
    else:
        matching = found
    word = "@".join(filter(None, (file.name, file.run)))
    if not matching and not everything:
        raise RedriveError(f"no run or flow {word!r} is to be acknowledged; see: redrive inbox")
    if len(matching) > 1 and not everything:
        commands = "; ".join(ack_command(one.path, one.run.run_id) for one in matching[:_NAMED_MAX])
        raise RedriveError(f"{word!r} means {len(matching)} runs: give --all for all of them, or name one: {commands}")
    return matching


def _acknowledge(one: _Ending, ssh: SshOptions, reason: str, options: Mapping[str, object], as_json: bool) -> Answer:
    async def use(session: Session) -> tuple[Answer, ActPlace]:
        answer = await session.send(new_command("ack-run", one.run.run_id, (), reason, options))
        return answer, place_of(session, RunRow(one.run.run_id, one.run.dag_name))

    answer, place = with_session(Endpoint(one.path, ssh), use)
    print_answer(answer, as_json, place)
    return answer
