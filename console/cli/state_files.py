"""The state files that a command line means: one that a person chooses on a host, or all of a machine.

Without a person at the terminal, several files are an error that names them: a guess could show the wrong run.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Sequence
from functools import partial

from ...engine.asyncio_log import run_with_log
from ...engine.domain.text import format_duration
from ...engine.errors import AddressError, LinkError
from ...engine.statefile.state_files import Offer, offer_of, offers
from ..model.runs import latest_code
from ..sessions import open as sessions
from ..sessions.address import Endpoint, SshOptions, parse
from ..sessions.session import Session, machine_now_us, row_of
from ..sessions.target import existing_target, is_one_file, is_remote, named_target
from ..text.text import echo, one_line


def choose_file(endpoint: Endpoint, *, to_act: bool = False) -> str:
    """The address of the only readable file, or of the file that the person chooses.

    ``to_act``: if files have something to do, the others are not candidates, as for state files of this machine.
    Raises AddressError, also for several files without a person; LinkError; KeyboardInterrupt at the end of input.
    """
    target = endpoint.target
    if parse(target).path:
        return target
    found = read_remote(endpoint)
    usable = [offer for offer in found if offer.problem is None]
    if to_act:
        usable = [offer for offer in usable if offer.has_work] or usable
    if len(usable) > 1:
        return usable[_prompt(target, usable)].path
    return usable[0].path if usable else target  # opening it reports the problem


def fleet_of(name: str | None, ssh: SshOptions, hosts: Sequence[str] = ()) -> sessions.FleetTarget | None:
    """The machines whose state files a command without the path of a file means; None if it means one file.

    Raises AddressError, LinkError.
    """
    if hosts:
        reached, _ = run_with_log(sessions.list_hosts(hosts, ssh, patience_seconds=sessions.OPEN_SECONDS))
        return sessions.FleetTarget(f"{len(reached)} hosts", reached)
    target = named_target(name)
    if target is None:
        return None if is_one_file(None) else sessions.FleetTarget("this machine")
    if not is_remote(target) or parse(target).path:
        return None

    async def read(options: SshOptions) -> tuple[SshOptions, Sequence[Offer]]:
        return options, await sessions.list_state_files(target, options)

    options, found = run_with_log(sessions.connect_with_sign_in(parse(target), ssh, read))
    is_one = all(offer.has_file for offer in found) and sum(offer.problem is None for offer in found) <= 1
    return None if is_one else sessions.FleetTarget(target, {target: options})


def read_remote(endpoint: Endpoint) -> Sequence[Offer]:
    """The state files of ``ssh://host``. Raises AddressError, LinkError."""

    def read(options: SshOptions) -> Awaitable[Sequence[Offer]]:
        return sessions.list_state_files(endpoint.target, options)

    return run_with_log(sessions.connect_with_sign_in(parse(endpoint.target), endpoint.ssh, read))


def _prompt(target: str, found: Sequence[Offer]) -> int:
    if not sessions.is_interactive():
        files = "; ".join(f"{offer.path} ({_describe(offer)})" for offer in found)
        raise AddressError(f"{target} has {len(found)} state files; name one of them: {files}")
    echo("State files over there, those with something to do first:", err=True)
    for number, offer in enumerate(found, start=1):
        echo(f"  {number}  {one_line(parse(offer.path).path)}  {one_line(_describe(offer))}", err=True)
    while True:
        echo("Which one? [1] ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt
        word = line.strip() or "1"
        if word.isdecimal() and 0 < int(word) <= len(found):
            return int(word) - 1


def _describe(offer: Offer) -> str:
    run = offer.latest
    if run is None:
        return "no run yet"
    age = format_duration(max(0, machine_now_us() - run.started_at))
    return f"{run.dag_name} · {run.run_id} · {latest_code(offer)} · started {age} ago"


# --- The files that a command line means -----------------------------------------------------------------------------


def files_of(name: str | None, ssh: SshOptions, hosts: Sequence[str] = ()) -> Sequence[Offer]:
    """Every state file of this machine or of the hosts that are named, or the one file that is named.

    Raises RedriveError if there is none, or if the one that is named cannot be read.
    """
    _, found = reached_files(name, ssh, hosts)
    if len(found) == 1 and not found[0].has_file and is_remote(found[0].path):
        raise LinkError(found[0].problem or "")
    return found


def reached_files(
    name: str | None, ssh: SshOptions, hosts: Sequence[str] = ()
) -> tuple[sessions.FleetTarget, Sequence[Offer]]:
    """Return the same files, and how their hosts are reached, with one login for all files of a host.

    A host that could not be reached is a row with the reason.
    """
    target = named_target(name)
    if not hosts and target is not None and is_remote(target) and not parse(target).path:
        hosts = (target,)
    if hosts:
        reached, found = run_with_log(sessions.list_hosts(hosts, ssh, is_shared=True))
        return sessions.FleetTarget("", reached), found
    return sessions.FleetTarget("this machine"), _files_of_machine(target, ssh)


def _files_of_machine(target: str | None, ssh: SshOptions) -> Sequence[Offer]:
    if target is None:
        found = offers()
        if not found:
            existing_target(None)  # raises
        return found
    if not is_remote(target):
        return [offer_of(target)]
    return [sessions.with_session(Endpoint(target, ssh), offer_of_session)]


async def offer_of_session(session: Session) -> Offer:
    """What the list of a host says about a file, read through a session."""
    offer = await session.read(partial(row_of, Offer), "offer")
    return offer._replace(path=session.address)
