"""The state files that a command line means: the one that is named, or all of a machine or of several hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ...engine.errors import LinkError
from ...engine.statefile.state_files import Offer, offer_of, offers
from ..sessions.address import Endpoint, SshOptions, parse
from ..sessions.once import read_once
from ..sessions.session import Session, row_of
from ..sessions.target import existing_target, is_remote, named_target


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
) -> tuple[Mapping[str, SshOptions], Sequence[Offer]]:
    """Return the same files, and how their hosts are reached, with one login for all files of a host.

    A host that could not be reached is a row with the reason.
    """
    target = named_target(name)
    if not hosts and target is not None and is_remote(target) and not parse(target).path:
        hosts = (target,)
    if hosts:
        from .hosts import reach  # here: it imports the event loop

        return reach(hosts, ssh)
    return {}, _files_of_machine(target, ssh)


def _files_of_machine(target: str | None, ssh: SshOptions) -> Sequence[Offer]:
    if target is None:
        found = offers()
        if not found:
            existing_target(None)  # raises
        return found
    if not is_remote(target):
        return [offer_of(target)]
    return [read_once(Endpoint(target, ssh), offer_of_session)]


async def offer_of_session(session: Session) -> Offer:
    """What the list of a host says about a file, read through a session."""
    offer = await session.read(partial(row_of, Offer), "offer")
    return offer._replace(path=session.address)
