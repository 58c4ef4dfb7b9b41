"""The command for each state file that a command without one could mean."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ...engine.statefile.on_demand.offers import Offer
from ..text.text import one_line


def candidate_lines(offers: Sequence[Offer], words: Sequence[str]) -> Iterator[str]:
    """The command ``redrive`` + ``words`` once for each file, with the run that it would change."""
    for offer in offers:
        command = shlex.join(["redrive", *words[:1], "--state", offer.path, *words[1:]])
        run = f"{offer.dag_name} {offer.run_id} {offer.state}" if offer.run_id else "no run yet"
        yield f"  {one_line(command)}  # {one_line(run)}"
