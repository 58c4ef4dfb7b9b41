"""Commands that start runs, at once or by a schedule."""

from __future__ import annotations

from typing import Any

import click

from .main import cli
from .options import (
    NamedFile,
    file_to_change,
    json_option,
    named_once,
    options,
    params_of,
    run_option,
    ssh_options,
    state_option,
    target_argument,
)

durability_option = click.option(
    "--durability",
    type=click.Choice(["normal", "full"]),
    default="normal",
    show_default=True,
    envvar="REDRIVE_DURABILITY",
    help="Which changes wait for the disk: those that are reported, or all.",
)
running_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--plain", is_flag=True, help="One line per event instead of the console."),
    click.option("--output", is_flag=True, help="The output of the tasks, between the lines of --plain."),
    click.option("--quiet", is_flag=True, help="For cron: print nothing unless the run needs a human."),
    click.option("--detach", is_flag=True, help="Start the executor in the background."),
    click.option("--stay", is_flag=True, help="When blocked, wait for an operator instead of ending."),
    click.option("--wait", is_flag=True, help="Wait for another executor to leave the state file."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    durability_option,
)
serving_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    durability_option,
)


@cli.command()
@click.argument("flow")
@click.option("--run-id", "run_id", metavar="ID", help="Name of the run; an existing run is resumed.")
@click.option(
    "--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of the flow; @FILE or - reads it."
)
@click.option("--accept-changes", is_flag=True, help="As for resume, if the run exists.")
@running_options
def run(flow: str, run_id: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Run FLOW: a Python file or a module, with :NAME if it makes several flows."""
    from .run import run_arguments, run_flow

    return run_flow(flow, run_id, run_arguments(params_of(param), **options))


@cli.command()
@target_argument
@run_option
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another value from now on.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although the flow changed: unfinished tasks that are gone are skipped, finished results stay.",
)
@click.option("--trust", is_flag=True, help="Run the flow file also if other users may have written it.")
@click.option("--deadline", metavar="DURATION|TIME|never", help="Another deadline first, as redrive postpone gives it.")
@running_options
def resume(target: str | None, run_id: str | None, param: tuple[str, ...], deadline: str | None, **options: Any) -> int:
    """Start an executor for an unfinished run."""
    from .executor import resume_run
    from .run import run_arguments

    state = file_to_change(named_once(target, options.pop("state")))
    return resume_run(state, run_id, run_arguments(params_of(param), **options), deadline)


@cli.command()
@click.argument("run_id", metavar="RUN")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another value than RUN had.")
@click.option("--trust", is_flag=True, help="Run the flow file also if other users may have written it.")
@running_options
def rerun(run_id: str, param: tuple[str, ...], **options: Any) -> int:
    """Start a new run with the parameters and the scheduled time of RUN, which has ended.

    To run tasks of RUN itself again: redrive requeue '*' --only success --run RUN.
    """
    from .executor import rerun_run
    from .run import run_arguments

    state = file_to_change(options.pop("state"))
    return rerun_run(state, run_id, run_arguments(params_of(param), **options))


@cli.command()
@running_options
def demo(**options: Any) -> int:
    """A built-in flow with every failure mode."""
    from .run import run_arguments, run_demo

    return run_demo(run_arguments({}, **options))


@cli.command()
@target_argument
@state_option
@run_option
@click.option("--read-only", is_flag=True, help="Send no commands.")
@ssh_options
def attach(file: NamedFile, run_id: str | None, read_only: bool) -> int:
    """Open the console on a state file, here or over ssh.

    Without a TARGET, and with ssh://host alone, the console shows the list of all state files if there are several.
    """
    from .attach import attach_console

    return attach_console(file, run_id, read_only=read_only)


@cli.command()
@click.argument("sources", nargs=-1, metavar="[FOLDER|FLOW]...")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run, for one FLOW.")
@serving_options
@click.option("--wait", is_flag=True, help="Stand by while another process serves the flows.")
def serve(sources: tuple[str, ...], param: tuple[str, ...], **options: Any) -> int:
    """Start the runs of all flows in FOLDERS and files when their schedules say so, until SIGTERM.

    Without a FOLDER: the working folder. New, changed and removed files are noticed. Each run has an executor of its
    own, which goes on after SIGTERM; a file that cannot be read stops its own flows alone.
    """
    from .run import run_arguments
    from .schedule import serve_flows

    if len(sources) != 1 and (param or options["state"]):
        raise click.UsageError("--param and --state go with one flow")
    return serve_flows(sources or (".",), run_arguments(params_of(param), **options))


@cli.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=click.IntRange(1, 1000), metavar="N")
@json_option
def schedule(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """The next runs of FLOW in its time zone and here, with changes of daylight saving time."""
    from .schedule import print_schedule

    return print_schedule(flow, params_of(param), count, as_json)


@cli.command()
@click.argument("flow")
@click.option("--from", "since", required=True, metavar="DATE", help="The first day, or time, in its zone.")
@click.option("--to", "until", required=True, metavar="DATE", help="The last day, or time.")
@click.option("--again", is_flag=True, help="Also dates whose run has ended.")
@click.option("--dry-run", is_flag=True, help="Only show what would run.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run.")
@serving_options
@json_option
def backfill(
    flow: str, since: str, until: str, param: tuple[str, ...], again: bool, dry_run: bool, as_json: bool, **o: Any
) -> int:
    """Run FLOW for scheduled times that have no run, the oldest first."""
    from .run import run_arguments
    from .schedule import backfill_flow

    return backfill_flow(
        flow, since, until, run_arguments(params_of(param), **o), again=again, dry_run=dry_run, as_json=as_json
    )
