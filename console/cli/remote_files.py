"""Lets the operator choose a state file of a host, for an address without a path (``ssh://host``).

Without a person at the terminal, several files are an error that names them: a guess could show the wrong run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from ...engine.errors import AddressError
from ..sessions.address import parse
from ..sessions.sign_in import connect_with_sign_in, is_interactive
from ..sessions.ssh import RemoteStateFile, list_state_files
from ..sessions.ssh_options import SshOptions
from ..text.durations import brief
from ..text.printing import echo
from ..text.text import one_line


def choose_file(target: str, python: str | None, ssh_option: Sequence[str], *, to_act: bool = False) -> str:
    """The address of the only readable file, or of the file that the person chooses.

    ``to_act``: if files have something to do, the others are no candidates, as for state files of this machine.
    Raises AddressError, also for several files without a person; LinkError; KeyboardInterrupt at the end of input.
    """
    address = parse(target)
    if address.path:
        return target
    options = SshOptions(python or "python3", tuple(ssh_option))
    found = asyncio.run(connect_with_sign_in(address, options, lambda options: list_state_files(target, options)))
    usable = [offer for offer in found if offer.trouble is None]
    if to_act:
        usable = [offer for offer in usable if offer.has_work] or usable
    if len(usable) > 1:
        return usable[_ask(target, usable)].address
    return usable[0].address if usable else target  # opening it reports the problem


def _ask(target: str, found: Sequence[RemoteStateFile]) -> int:
    if not is_interactive():
        files = "; ".join(f"{offer.address} ({_describe(offer)})" for offer in found)
        raise AddressError(f"{target} has {len(found)} state files; name one of them: {files}")
    echo("State files over there, those with something to do first:", err=True)
    for number, offer in enumerate(found, start=1):
        echo(f"  {number}  {one_line(parse(offer.address).path)}  {one_line(_describe(offer))}", err=True)
    while True:
        echo("Which one? [1] ", err=True, nl=False)
        said = sys.stdin.readline()
        if not said:
            raise KeyboardInterrupt
        word = said.strip() or "1"
        if word.isdecimal() and 0 < int(word) <= len(found):
            return int(word) - 1


def _describe(offer: RemoteStateFile) -> str:
    if not offer.run_id:
        return "no run yet"
    age = brief(max(0, time.time_ns() // 1000 - offer.started_at))
    return f"{offer.dag_name} · {offer.run_id} · {offer.state} · started {age} ago"
