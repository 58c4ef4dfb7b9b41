"""Commands that start runs, at once or by a schedule."""

from __future__ import annotations

import os
from difflib import get_close_matches
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
@click.option("--stop-runs", is_flag=True, help="SIGTERM stops the runs in order as well, as for a container.")
def serve(sources: tuple[str, ...], param: tuple[str, ...], stop_runs: bool, **options: Any) -> int:
    """Start the runs of all flows in FOLDERS and files when their schedules say so, until SIGTERM.

    Without a FOLDER: the working folder. New, changed and removed files are noticed. Each run has an executor of its
    own, which goes on after SIGTERM; a file that cannot be read stops its own flows alone.
    """
    from .run import run_arguments
    from .schedule import serve_flows

    if len(sources) != 1 and (param or options["state"]):
        raise click.UsageError("--param and --state go with one flow")
    return serve_flows(sources or (".",), run_arguments(params_of(param), **options), stops_runs=stop_runs)


class ScheduleGroup(click.Group):
    """``redrive schedule FLOW`` is short for ``redrive schedule next FLOW``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line; a word that is none is a flow, unless it is a command with a typing error."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        close = [] if os.path.exists(args[0]) else get_close_matches(args[0], self.commands, n=2)
        if close:
            raise click.UsageError(
                f"there is no flow file {args[0]!r} (Did you mean {' or '.join(map(repr, close))}?)", ctx
            )
        return super().resolve_command(ctx, ["next", *args])


flow_argument = click.argument("flow", metavar="FLOW")
optional_flow = click.argument("flow", metavar="[FLOW]", required=False)
all_option = click.option("--all", "all_flows", is_flag=True, help="All flows of this machine.")


@cli.group(cls=ScheduleGroup, invoke_without_command=True)
@json_option
@click.pass_context
def schedule(context: click.Context, as_json: bool) -> int | None:
    """All schedules of this machine: next, last and usual run, and what holds them up; or the next runs of one FLOW."""
    if context.invoked_subcommand is not None:
        return None
    from .schedule_acts import print_schedules

    return print_schedules(as_json)


@schedule.command("next")
@flow_argument
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=click.IntRange(1, 1000), metavar="N")
@json_option
def schedule_next(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """The next runs of FLOW in its time zone and here, with changes of daylight saving time."""
    from .schedule import print_schedule

    return print_schedule(flow, params_of(param), count, as_json)


@schedule.command("pause")
@optional_flow
@all_option
@click.option("--until", metavar="TIME", help="As 06:00 or 2h; default: until unpause.")
def schedule_pause(flow: str | None, all_flows: bool, until: str | None) -> int:
    """Start no runs of FLOW; a run that goes on is not touched."""
    from .schedule_acts import pause_schedules

    return pause_schedules(flow, until, all_flows=all_flows)


@schedule.command("unpause")
@optional_flow
@all_option
def schedule_unpause(flow: str | None, all_flows: bool) -> int:
    """End a pause; runs that were due meanwhile are started as misfire= of the flow says."""
    from .schedule_acts import unpause_schedules

    return unpause_schedules(flow, all_flows=all_flows)


@schedule.command("skip-next")
@flow_argument
@click.option("--undo", is_flag=True, help="Take the skip back.")
def schedule_skip(flow: str, undo: bool) -> int:
    """Do not start the next run of FLOW; the one after it starts."""
    from .schedule_acts import skip_next_run

    return skip_next_run(flow, undo=undo)


@schedule.command("start")
@flow_argument
@click.option("--at", metavar="TIME", help="The logical time of the run, as of a missed one; default: now.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of the run.")
def schedule_start(flow: str, at: str | None, param: tuple[str, ...]) -> int:
    """Start a run of FLOW now, by its supervisor, also while the schedule is paused."""
    from .schedule_acts import start_now

    return start_now(flow, at, params_of(param))


@schedule.command("dismiss")
@flow_argument
@click.argument("at", nargs=-1, metavar="[TIME]...")
def schedule_dismiss(flow: str, at: tuple[str, ...]) -> int:
    """Remove missed runs of FLOW from the list; without a TIME all of them."""
    from .schedule_acts import dismiss_missed

    return dismiss_missed(flow, at)


@schedule.command("acknowledge")
@flow_argument
def schedule_acknowledge(flow: str) -> int:
    """Say that the failed start of FLOW is known; it is tried again all the same."""
    from .schedule_acts import acknowledge_start

    return acknowledge_start(flow)


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
