"""Commands for the time before a run: the manual, a first flow, checks, retry policies, rules."""

from __future__ import annotations

from typing import Any

import click

from .main import cli
from .options import (
    NamedFile,
    complete_topics,
    fingerprint_option,
    json_option,
    options,
    params_of,
    run_options,
    seconds_of,
)

simulating_options = options(
    click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Which to compare; default: all."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers."),
    json_option,
)


@cli.command("help")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.pass_context
def help_(context: click.Context, topic: str | None) -> None:
    """Print a page of the manual, or its topics."""
    from .main import print_topic

    print_topic(cli, context, topic)


@cli.command()
@click.argument("name", metavar="FILE", default="first_flow.py")
def new(name: str) -> None:
    """Write a first flow that runs, to a new file."""
    from .check import write_new_flow

    write_new_flow(name)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, tasks, runs and causes: eval "$(redrive completion bash)"."""
    from .options import print_script

    print_script(cli, shell)


@cli.command()
@click.option("--base", default="2s", show_default=True, metavar="DURATION", help="The ceiling of the first wait.")
@click.option("--cap", default="10m", show_default=True, metavar="DURATION", help="The highest ceiling.")
@click.option("--factor", default=2.0, show_default=True, help="Multiplies each ceiling.")
@click.option("--attempts", default=10, show_default=True, type=click.IntRange(1, 1000), help="Attempts in all.")
@click.option("--jitter", default="full", show_default=True, help="none, full, equal, decorrelated, add50, or all.")
@click.option("--timeout", metavar="DURATION", help="Timeout of one attempt, for the worst case.")
@click.option("--grace", default="0s", metavar="DURATION", help="Between SIGTERM and SIGKILL.")
@click.option("--deadline", metavar="DURATION", help="Compared with the worst case.")
@click.option(
    "--clients", default=0, type=click.IntRange(0, 1_000_000), metavar="N", help="Plot the retries of N clients."
)
@click.option("--seed", type=int, help="Of the random numbers.")
@json_option
def backoff(base: str, cap: str, factor: float, attempts: int, jitter: str, **options: Any) -> int:
    """Every wait of a retry policy, their sums, the worst case, and their spread."""
    from .lab import BackoffExperiment, policy_of, print_backoff

    timeout, grace, deadline = (options.pop(name) for name in ("timeout", "grace", "deadline"))
    experiment = BackoffExperiment(
        timeout=seconds_of(timeout) if timeout else None,
        grace_seconds=seconds_of(grace),
        deadline=seconds_of(deadline) if deadline else None,
        **options,
    )
    policy = policy_of(max_attempts=attempts, base=seconds_of(base), cap=seconds_of(cap), factor=factor)
    return print_backoff(policy, jitter, experiment)


@cli.group()
def simulate() -> None:
    """Simulate the load of a retry policy: many tasks on one server, or clients that contend for a row."""


@simulate.command()
@click.option(
    "--scenario", default="herd-5000", show_default=True, metavar="NAME", help="Or herd-100, -500, -1000, -12000."
)
@click.option("--attempts", default=3, show_default=True, type=click.IntRange(1, 1000), help="For the column 'lost'.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 1000), help="Simulations to average.")
@click.option("--base", metavar="DURATION", help="Instead of the scenario's.")
@click.option("--cap", metavar="DURATION", help="Instead of the scenario's.")
@simulating_options
def herd(base: str | None, cap: str | None, **options: Any) -> int:
    """Tasks that all call the same server when it comes back."""
    from .lab import print_herd

    return print_herd(seconds_of(base) if base else None, seconds_of(cap) if cap else None, **options)


@simulate.command()
@click.option(
    "--clients", multiple=True, type=click.IntRange(1, 10_000), metavar="N", help="Number of clients; repeatable."
)
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1, 1000), help="Simulations to average.")
@simulating_options
def contention(**options: Any) -> int:
    """Clients that write one row, each until it succeeds once: the model of Brooker's post (AWS, 2015)."""
    from .lab import print_contention

    return print_contention(**options)


@cli.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", "state", metavar="PATH", help="Compare timeouts and waits with earlier runs.")
@click.option("--verbose", is_flag=True, help="The checklist and the worst case of every task.")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too: for a pipeline that releases the flow.")
@json_option
def check(flow: str, param: tuple[str, ...], **options: Any) -> int:
    """Validate FLOW without running it."""
    from .check import check_flow

    return check_flow(flow, params_of(param), **options)


@cli.command()
@click.argument("flow")
@click.option(
    "--down", multiple=True, metavar="NAME=10m@2m", help="A downstream fails; NAME=30%:10m: a share of calls."
)
@click.option("--fail", multiple=True, metavar="TASK=503x3", help="A status, an exception or exit:75, so many times.")
@click.option("--hang", multiple=True, metavar="TASK[=ATTEMPT]", help="Attempts end at their timeout.")
@click.option("--slow", multiple=True, metavar="TASK=4x", help="Or TASK=+30s.")
@click.option("--crash", multiple=True, metavar="5m[/10s]", help="The executor is killed, and resumed later.")
@click.option("--disk-full", "disk_full", multiple=True, metavar="10m@2m", help="The state file takes no write.")
@click.option("--takes", multiple=True, metavar="TASK=40s", help="Instead of the median of earlier runs, or 1 s.")
@click.option("--result", "results", multiple=True, metavar="TASK=JSON", help="What it returns; no task runs.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--state", "state", metavar="PATH", help="Where earlier runs are.")
@click.option("--at", metavar="TIME", help="When the night begins: 2026-03-28T22:00+01:00.")
@click.option("--until", default="1d", show_default=True, metavar="DURATION", help="When a run is stopped.")
@click.option("--nights", default=1, show_default=True, type=click.IntRange(1, 100_000), help="More print a table.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the dice; of the first of many nights.")
@click.option("--show", "shows", is_flag=True, help="Open the night in the console.")
@click.option("--keep", metavar="PATH", help="Where the state file of the night is kept.")
@json_option
def rehearse(flow: str, param: tuple[str, ...], **given: Any) -> int:
    """Play FLOW in virtual time with faults: no task runs, hours take seconds."""
    from .check import Rehearsal, rehearse

    names = ("down", "fail", "hang", "slow", "crash", "disk_full")
    faults = {name.replace("_", "-"): given.pop(name) for name in names}
    options = {name: given.pop(name) for name in ("nights", "shows", "keep", "as_json")}
    return rehearse(Rehearsal(flow, params_of(param), faults=faults, **given), **options)


@cli.command()
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
def classify(file: NamedFile, **options: Any) -> int:
    """Propose a classification rule for a failure, and show its effect on the past; changes nothing."""
    from .operate import print_rule

    return print_rule(file.to_read(), **options)
