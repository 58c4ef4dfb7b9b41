"""Commands of the shell that are about a schedule: runs that nobody starts by hand."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option, params_of, serving_options


@click.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run.")
@serving_options
@click.option("--wait", is_flag=True, help="Stand by while another process serves the state file.")
def serve(flow: str, param: tuple[str, ...], **options: Any) -> int:
    """Start the runs of FLOW when its schedule says so, until SIGTERM."""
    from . import run
    from . import schedule as schedule_module

    return schedule_module.serve(flow, params_of(param), run.Manner(**options))


@click.command()
@click.argument("flow")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=click.IntRange(1, 1000), metavar="N")
@json_option
def schedule(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """When FLOW will run, there and here, and what the clocks do to that."""
    from . import schedule as schedule_module

    return schedule_module.show_schedule(flow, params_of(param), count, as_json)


@click.command()
@click.argument("flow")
@click.option("--from", "since", required=True, metavar="DATE", help="The first day, or time, by its clocks.")
@click.option("--to", "until", required=True, metavar="DATE", help="The last day, or time.")
@click.option("--dry-run", is_flag=True, help="Only show what would run.")
@click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="A parameter of every run.")
@serving_options
@json_option
def backfill(flow: str, since: str, until: str, param: tuple[str, ...], dry_run: bool, as_json: bool, **o: Any) -> int:
    """Run what FLOW's schedule has left out, the oldest first."""
    from . import run
    from . import schedule as schedule_module

    manner = run.Manner(**o)
    return schedule_module.backfill(flow, since, until, params_of(param), manner, dry_run=dry_run, as_json=as_json)
