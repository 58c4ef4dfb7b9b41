"""``ssh://host`` names no file: what that host has is offered, on the terminal, before a screen is drawn on it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from ..present.durations import brief
from ..present.text import one_line
from ..sessions.address import parse
from ..sessions.signing_in import has_person, with_answers
from ..sessions.ssh import Offer, offers
from ..sessions.ssh_options import SshOptions


def choose_file(target: str, python: str | None, ssh_option: Sequence[str]) -> str:
    """Return the address of the file that is meant. Asks only where there are several and somebody to ask.

    Raises AddressError, LinkError; KeyboardInterrupt when the person leaves.
    """
    address = parse(target)
    if address.path or not has_person():
        return target
    options = SshOptions(python or "python3", tuple(ssh_option))
    found = asyncio.run(with_answers(address, options, lambda options: offers(target, options)))
    usable = [offer for offer in found if offer.trouble is None]
    return usable[_ask(usable)].address if len(usable) > 1 else target


def _ask(found: Sequence[Offer]) -> int:
    print("State files over there, the latest first:", file=sys.stderr)
    for number, offer in enumerate(found, start=1):
        print(f"  {number}  {one_line(_told(offer))}", file=sys.stderr)
    while True:
        print("Which one? [1] ", end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline()
        if not said:
            raise KeyboardInterrupt
        word = said.strip() or "1"
        if word.isdecimal() and 0 < int(word) <= len(found):
            return int(word) - 1


def _told(offer: Offer) -> str:
    age = brief(max(0, time.time_ns() // 1000 - offer.written_at))
    run = f"{offer.dag_name} · {offer.run_id} · {offer.state}" if offer.run_id else "no run yet"
    return f"{parse(offer.address).path}  {run} · written {age} ago"
