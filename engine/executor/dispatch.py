"""Dispatch: commits the claims of all that may start and have room, then launches what the commit gave us.

Who may start, and in which order, is the ledger's to say (``core/ready_queue.py``); whether a downstream may be called now,
its breaker's (``downstreams.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core.breaker import Candidate, choose_probe
from ..core.dispatch_rules import Room
from ..core.downstreams import Downstreams
from ..core.projection import missing_inputs
from ..statefile.changes.transitions import Journal
from ..store import claims
from ..store.claims import Claim, ClaimOrder
from ..store.expiry import expire
from .attempts import AttemptDesk
from .commit import Commit
from .opening import OpenRun
from .run_view import Standing


class Dispatcher:
    """Asked by the loop, turn by turn, for the one commit that starts something."""

    def __init__(self, opened: OpenRun, standing: Standing, downstreams: Downstreams, desk: AttemptDesk) -> None:
        self._runner = opened.runner
        self._claimant = opened.claimant
        self._median_seconds = opened.median_seconds
        self._standing = standing
        self._downstreams = downstreams
        self._desk = desk
        self._room = Room(standing.ledger, downstreams, standing.flow.pools, standing.ask_again_at)

    def next_commit(self) -> Commit | None:
        """What to commit now; None: nothing may start."""
        if not self._runner.is_open:
            return None
        if expired := self._standing.expired():
            return Commit(lambda journal: expire(journal, self._standing.fold.run.run_id, expired))
        if turned_away := dict(self._room.turned_away()):
            return self._turn_away(turned_away)
        ledger, free = self._standing.ledger, self._free_slots()
        picked = self._pick_probes(free)
        picked += ledger.pick(free - len(picked), self._room.admits)
        self._want_leaked_slots(len(picked) == free)
        promote = {name: self._standing.fold.tasks[name].generation for name in ledger.promotable}
        return self._start(promote, picked) if picked or promote else None

    # --- Starting --------------------------------------------------------------------------------------------------

    def _start(self, promote: Mapping[str, int], picked: Sequence[str]) -> Commit:
        """Make READY all whose parents are satisfied, claim those that there is room for, and launch these."""
        run_id, claimant, orders = self._standing.fold.run.run_id, self._claimant, self._orders(picked)

        def item(journal: Journal) -> list[Claim]:
            return claims.dispatch(journal, run_id, promote, orders, claimant)

        # What happens to the world must not have happened without a trace: that it began is on the disk before it does.
        durable = any(order.spec.effect for order in orders)
        return Commit(item, lambda taken: self._launch_all(picked, taken), durable)

    def _launch_all(self, picked: Sequence[str], taken: Sequence[Claim]) -> None:
        self._standing.ledger.claimed(picked)
        self._downstreams.withdraw(set(picked) - {claim.name for claim in taken})
        for claim in taken:
            self._launch(claim)

    def _orders(self, names: Iterable[str]) -> list[ClaimOrder]:
        tasks = self._standing.fold.tasks
        return [ClaimOrder(name, tasks[name].generation, self._standing.spec(name)) for name in names]

    def _launch(self, claim: Claim) -> None:
        fold, spec = self._standing.fold, self._standing.spec(claim.name)
        self._desk.launch(
            claim,
            spec,
            self._standing.flow.params,
            {parent: fold.tasks[parent].result for parent in fold.parents.get(claim.name, ())},
            missing=missing_inputs(fold, claim.name),
            is_probe=self._downstreams.is_probe(claim.name),
            rules=self._downstreams.rules(spec.downstream),
        )
        if fold.tasks[claim.name].cancel_requested_at is not None:  # in the same commit as the claim
            self._desk.cancel(claim.name, "cancelled before it started")

    # --- Room ------------------------------------------------------------------------------------------------------

    def _free_slots(self) -> int:
        run, runner = self._standing.fold.run, self._runner
        if run.paused_since is not None:
            return 0
        slots = min(run.max_parallel, runner.attempts_max)
        # By processes, not by rows: who has ended is not in the file yet, and whoever follows shares its commit.
        taken = len(self._desk.sitters) + len(self._standing.ledger.claiming) + runner.leaked_slots
        return max(0, slots - taken)

    def _want_leaked_slots(self, are_all_used: bool) -> None:
        runner = self._runner
        if runner.leaked_slots:
            is_paused = self._standing.fold.run.paused_since is not None
            runner.want_slots(are_all_used and not is_paused and self._standing.ledger.has_startable)

    # --- Finding out -----------------------------------------------------------------------------------------------

    def _pick_probes(self, count: int) -> list[str]:
        """Who shall find out whether a downstream is back: not the most urgent, for it may well fail."""
        picked: list[str] = []
        for downstream in self._downstreams.specs:
            while len(picked) < count and self._downstreams.wants_probe(downstream):
                candidate = choose_probe(map(self._candidate, self._standing.ledger.startable(downstream)))
                if candidate is None or not self._room.admits(self._standing.fold.tasks[candidate.name]):
                    break
                self._standing.ledger.take(candidate.name)
                picked.append(candidate.name)
        return picked

    def _candidate(self, name: str) -> Candidate:
        return Candidate(name, self._standing.spec(name).idempotent, self._median_seconds.get(name))

    # --- Turning away ----------------------------------------------------------------------------------------------

    def _turn_away(self, names: Mapping[str, str]) -> Commit:
        run_id, orders = self._standing.fold.run.run_id, self._orders(names)

        def item(journal: Journal) -> None:
            for order in orders:
                claims.turn_away(journal, run_id, order, names[order.name])

        return Commit(item)
