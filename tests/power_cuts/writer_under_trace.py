"""A program to be traced: a writer whose log starts again every few commits, and that says what it may say.

``python writer_under_trace.py STATE COMMITS``: every seventh commit is durable, and its number is printed then.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from redrive.engine.domain.event_payloads import StorageChanged
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database
from redrive.engine.store.writer import Writer

CHECKPOINT_PAGES = 24
PRINTED_EVERY = 7


def _item(number: int) -> Callable[[Transaction], int]:
    def item(transaction: Transaction) -> int:
        transaction.emit(StorageChanged(str(number), "x" * (number * 37 % 3000)))
        return number

    return item


async def _write(state: str, commits: int) -> None:
    connection = database.open_for_writing(state)
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    writer = Writer(connection, asyncio.get_running_loop(), lambda: 1)
    acknowledged: list[asyncio.Task[None]] = []
    for number in range(1, commits + 1):
        if number % PRINTED_EVERY == 0:
            acknowledged.append(asyncio.create_task(_print_number(writer, number)))
            await asyncio.sleep(0)
        else:
            await writer.submit(_item(number))
    await asyncio.gather(*acknowledged)
    await writer.close()
    os.write(1, f"{commits}\n".encode())


async def _print_number(writer: Writer, number: int) -> None:
    await writer.submit(_item(number), durable=True)
    os.write(1, f"{number}\n".encode())


asyncio.run(_write(sys.argv[1], int(sys.argv[2])))
