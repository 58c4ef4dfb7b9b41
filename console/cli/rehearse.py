"""``redrive rehearse``: plays a flow in virtual time with faults, and shows the night as its timeline.

No task runs: each returns what its children need and takes as long as it usually does. So a rehearsal calls nobody.
"""

from __future__ import annotations

import builtins
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import click

from ...engine.core.spec import FlowSpec, declared_task
from ...engine.domain.text import first_names, format_seconds
from ...engine.flow.import_output import printed_afterwards
from ...engine.flow.loading import load_flow
from ...engine.statefile.durations import DurationStats, duration_stats
from ...engine.store import database
from ...engine.store.flow_path import path_for_run
from ...engine.testing import Night, crash, down, error, exits, hang, play
from ...engine.testing.faults import DownstreamFault, Fault, http_error
from ...engine.testing.playing import START
from ..text.figures import number
from ..text.text import echo_json, echo_lines
from .group import command
from .options import json_of, json_option, param_option, params_of, seconds_of
from .output import with_schema

USUAL_SECONDS = 1.0  # of a task without earlier runs
LIST_LENGTH = 10  # of a task that is mapped over
_WINDOW = r"(?P<lasts>[^@:]+)(?:@(?P<at>.+))?"


@command("rehearse")
@click.argument("flow", metavar="PROGRAM")
@click.option("--down", multiple=True, metavar="NAME=10m@2m", help="A downstream fails; NAME=30%:10m: of 30% of calls.")
@click.option("--fail", multiple=True, metavar="TASK=503x3", help="Or TimeoutError, exit:75, hang, so often.")
@click.option("--crash", multiple=True, metavar="5m[/10s]", help="The executor is killed, and resumed later.")
@click.option("--result", "results", multiple=True, metavar="TASK=JSON", help="What it returns; no task runs.")
@param_option("A parameter that the flow declares.")
@click.option("--state", metavar="PATH", help="Where earlier runs are.")
@click.option("--at", metavar="TIME", help="When the night begins: 2026-03-28T22:00+01:00.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the dice.")
@click.option("--keep", metavar="PATH", help="Where the state file of the night is kept.")
@json_option
def rehearse(
    flow: str,
    results: Sequence[str],
    param: Sequence[str],
    state: str | None,
    at: str | None,
    seed: int,
    keep: str | None,
    as_json: bool,
    **words: Sequence[str],
) -> int:
    with printed_afterwards():
        loaded = load_flow(flow, params_of(param))
    spec = loaded.spec()
    faults = faults_of(words, spec)
    night = play(
        loaded,
        faults=faults,
        durations=_usual_seconds(spec, flow, state),
        results=_stub_results(spec) | dict(map(_result, results)),
        at=at or START,
        seed=seed,
    )
    if keep is not None:
        night.save(keep)
    if as_json:
        echo_json(with_schema("rehearsal", _facts(night, seed, faults)))
    else:
        echo_lines(_night_lines(night, faults))
    return night.exit_code


def _stub_results(spec: FlowSpec) -> dict[str, object]:
    """Return what each task returns: a list where it is mapped over, true from a sensor, else nothing."""
    mapped = {task.map.over for task in spec.tasks if task.map is not None}
    return {
        task.name: list(range(LIST_LENGTH)) if task.name in mapped else True if task.kind == "sensor" else None
        for task in spec.tasks
    }


def _usual_seconds(spec: FlowSpec, flow: str, state: str | None) -> dict[str, object]:
    """Return how long each task takes: the median of its earlier runs."""
    path = path_for_run(state, lambda: spec.name, flow)
    known: Mapping[str, DurationStats] = {}
    if state is not None or os.path.exists(path):
        with database.reading(path) as connection:
            known = duration_stats(connection, spec.name)
    return {task.name: known[task.name].p50_us / 1e6 if task.name in known else USUAL_SECONDS for task in spec.tasks}


def _result(word: str) -> tuple[str, object]:
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"--result {word!r}: write TASK=JSON")
    return name, json_of("--result", value)


# --- Faults ----------------------------------------------------------------------------------------------------------


def faults_of(words: Mapping[str, Sequence[str]], spec: FlowSpec) -> list[Fault]:
    """Read the options that name faults. Raises UsageError."""
    failures = [_fail(word, spec) for word in words.get("fail", ())]
    return [*failures, *map(_down, words.get("down", ())), *map(_crash, words.get("crash", ()))]


def _match(option: str, pattern: str, word: str, form: str) -> re.Match[str]:
    found = re.fullmatch(pattern, word)
    if found is None:
        raise click.UsageError(f"--{option} {word!r}: write {form}")
    return found


def _down(word: str) -> Fault:
    found = _match("down", rf"(?P<name>[^=]+)=(?:(?P<share>\d+)%:)?{_WINDOW}", word, "NAME=10m@2m, or NAME=30%:10m@2m")
    share = int(found["share"] or 100) / 100
    return down(found["name"], found["at"] or 0, seconds_of(found["lasts"], "--down"), share=share)


def _fail(word: str, spec: FlowSpec) -> Fault:
    form = "TASK=503x3: a status, an exception as TimeoutError, exit:75 or hang, and how often"
    found = _match("fail", r"(?P<task>[^=]+)=(?P<what>\d{3}|exit:\d+|[A-Za-z_]\w*?)(?:x(?P<times>\d+))?", word, form)
    task, what, times = found["task"], found["what"], int(found["times"]) if found["times"] else None
    own = declared_task(spec.tasks, task)
    if what in ("hang", "timeout"):
        return hang(task, times=times)
    if what.startswith("exit:"):
        return exits(task, int(what[5:]), times=times)
    if what.isdigit() and own is not None and own.kind == "command":
        return exits(task, 22, stderr=f"curl: (22) The requested URL returned error: {what}\n", times=times)
    if what.isdigit():
        return error(task, lambda: http_error(task, int(what)), times=times)
    kind = getattr(builtins, what, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise click.UsageError(f"--fail {word!r}: Python has no exception {what!r}; write {form}")
    return error(task, kind, times=times)


def _crash(word: str) -> Fault:
    found = _match("crash", r"(?P<at>[^/]+)(?:/(?P<lasts>.+))?", word, "5m, or 5m/1h if nobody resumes it for an hour")
    return crash("executor", found["at"], seconds_of(found["lasts"] or "10s", "--crash"))


# --- One night -------------------------------------------------------------------------------------------------------


def _night_lines(night: Night, faults: Sequence[Fault]) -> list[str]:
    lines = [_sentence(night, faults), "", *night.timeline.splitlines()]
    for cause in night.inbox:
        lines += ["", f"{cause.title}: {first_names(cause.tasks)}", f"  {cause.evidence}"]
    pages = [f"page: {page.title}: {page.body['why']}" for page in night.pages]
    return [*lines, *([""] if pages else []), *pages]


def _sentence(night: Night, faults: Sequence[Fault]) -> str:
    took = format_seconds(night.seconds)
    counts = Counter(night.states.values())
    states = ", ".join(f"{number(count)} {state}" for state, count in counts.most_common())
    outages = _healed_outages(night, faults)
    healed = [f", {format_seconds(night.healed_after(name))} after {name} was well again" for name in outages]
    return f"{night.state} after {took}{''.join(healed)}: {states}; {number(night.starts())} starts"


def _healed_outages(night: Night, faults: Sequence[Fault]) -> list[str]:
    """The downstreams whose outage ended before the run succeeded."""
    if night.state != "SUCCESS":
        return []
    found = (fault for fault in faults if isinstance(fault, DownstreamFault) and fault.when.lasts is not None)
    return sorted({fault.downstream for fault in found})


def _facts(night: Night, seed: int, faults: Sequence[Fault]) -> dict[str, object]:
    """Return one night as a line of JSON."""
    return {
        "flow": night.projection.run.dag_name,
        "seed": seed,
        "state": night.state,
        "exit_code": night.exit_code,
        "seconds": round(night.seconds, 3),
        "healed_seconds": round(night.healed_after(), 3) if _healed_outages(night, faults) else None,
        "starts": night.starts(),
        "pages": len(night.pages),
        "tasks": dict(Counter(night.states.values())),
    }
