"""Attaches to a state file and acts, again and again, until its standard input ends; then prints what it did."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import select
import sys
from pathlib import Path

from redrive.console.sessions.local import LocalSession
from redrive.engine.domain.acts import Command, Target
from redrive.engine.errors import RedriveError

ACTS = ("pause", "unpause", "requeue", "skip", "hurry", "extend", "cancel", "undo", "pause", "unpause")


def attached_path(state: str) -> Path:
    """The file that is there once the follower has attached."""
    return Path(f"{state}.attached")


async def observe(path: str, attaches_max: int, acts_max: int) -> dict[str, int]:
    counts, dice, ids = {"attaches": 0, "acts": 0, "refused": 0}, random.Random(7), itertools.count()
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        if counts["attaches"] >= attaches_max:
            await asyncio.sleep(0.05)
            continue
        try:
            session = await LocalSession.open(path, read_only=False)
        except RedriveError:  # the first run has not begun
            await asyncio.sleep(0.05)
            continue
        try:
            await _attach(session, acts_max // attaches_max, counts, dice, ids)
            if counts["attaches"]:
                attached_path(path).touch()
        finally:
            await session.close()
    return counts


async def _attach(
    session: LocalSession, acts: int, counts: dict[str, int], dice: random.Random, ids: itertools.count[int]
) -> None:
    try:
        projection = await session.snapshot()
    except RedriveError:
        return
    if not session.status.executor.alive or projection.run.ended_at is not None:
        return
    counts["attaches"] += 1
    for act in dice.choices(ACTS, k=acts):
        await asyncio.sleep(0.005)
        row = dice.choice(list(projection.tasks.values()))
        targets = () if act in ("pause", "unpause", "undo") else (Target(row.name, str(row.state), row.generation),)
        known: dict[str, dict[str, object]] = {
            "extend": {"seconds": 1},
            "undo": {"command": f"{os.getpid()}-{next(ids)}"},
        }
        command = Command(
            f"{os.getpid()}-{next(ids)}",
            act,
            projection.run.run_id,
            targets,
            "ana@ops",
            "long life",
            known.get(act, {}),
        )
        try:
            answer = await session.send(command)
        except RedriveError:
            counts["refused"] += 1
            continue
        counts["acts"] += 1
        counts["refused"] += not answer.ok
    await session.send(
        Command(f"{os.getpid()}-{next(ids)}", "unpause", projection.run.run_id, (), "ana@ops", "go on", {})
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(observe(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
