"""Options that several commands share, so that the same word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from ...engine.core.durations import parse_duration

Command = Callable[..., object]


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator; help shows them in this order."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def params_of(given: Iterable[str]) -> dict[str, str]:
    """What several ``--param NAME=VALUE`` say. Raises UsageError."""
    params: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--param {item!r}: write name=value")
        if not is_storable(item):
            raise click.UsageError(f"--param {name!r}: its bytes are no UTF-8; write a text")
        if name in params:
            raise click.UsageError(f"--param {name!r} is given twice: {params[name]!r} and {value!r}")
        params[name] = value
    return params


def is_storable(text: str) -> bool:
    """False for bytes of the command line that are no UTF-8: nothing could keep them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


state_option = click.option("--state", "state", metavar="TARGET", help="State file, or ssh://[user@]host[:port]/path.")
target_argument = click.argument("target", required=False)
run_option = click.option("--run", "run_id", metavar="RUN", help="Which run; the latest if left out.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value a line.")
follow_option = click.option("--follow", is_flag=True, help="Go on with what happens.")
reason_option = click.option("--reason", metavar="TEXT", default="", help="Why; it goes into the journal.")
ssh_options = options(
    click.option("--python", "python", metavar="PATH", help="The Python over there (>= 3.6); default python3."),
    click.option("--ssh-option", "ssh_option", multiple=True, metavar="OPTION", help="Passed on to ssh as -o OPTION."),
)
reading_options = options(target_argument, state_option, run_option, json_option, ssh_options)
running_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--plain", is_flag=True, help="One line per event instead of the console."),
    click.option("--detach", is_flag=True, help="Start the executor and return at once."),
    click.option("--stay", is_flag=True, help="When blocked, wait for an operator instead of ending."),
    click.option("--wait", is_flag=True, help="Wait for another executor to leave the state file."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True),
)
serving_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True),
)
acting_options = options(
    click.argument("names", nargs=-1, metavar="TASK..."),
    state_option,
    run_option,
    click.option("--fingerprint", metavar="FP", help="All tasks that failed this way."),
    click.option("--downstream", metavar="NAME", help="Of those, only tasks that call this one."),
    reason_option,
    click.option("--dry-run", is_flag=True, help="Print exactly what it would change, and change nothing."),
    json_option,
    ssh_options,
)
requeue_options = options(
    click.option("--canary", is_flag=True, help="One first; the others when it has succeeded, at the rate."),
    click.option("--rate", metavar="N/s", help="Spread them: so many a second."),
    click.option("--not-before", metavar="DURATION", help="Wait so long first."),
    click.option("--at", metavar="TIME", help="Not before this time: 06:00, or 2026-04-25T06:00."),
    click.option("--timeout", metavar="DURATION", help="Another timeout, this time."),
    click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another parameter, this time."),
    click.option("--single-shot", is_flag=True, help="One try only."),
    click.option("--keep-count", is_flag=True, help="Failures so far still count: no fresh budget."),
    click.option("--new-key", is_flag=True, help="Another idempotency key: what it did before is to be done again."),
    click.option("--cascade", is_flag=True, help="Run the descendants that had succeeded again as well."),
)
simulating_options = options(
    click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Which to compare; all if left out."),
    click.option("--seed", type=int, default=0, show_default=True, help="For dice that fall the same way again."),
    json_option,
)


def seconds_of(text: str) -> float:
    """A duration that somebody typed. Raises click.UsageError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
