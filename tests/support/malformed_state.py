"""Alters a state file as no redrive would: cells of wrong types, odd JSON, edges to nobody, missing rows."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

VALUES = (
    *(None, -1, 0, 1, 5, 2**31, 2**63 - 1, -(2**63), 3.5, float("inf"), b"\xff\x00", b""),
    *("", "x", "[1]", "{}", '{"a":1}', "null", "[", '"x"', "1e999", "NaN", "[" * 5000, "true", "RUNNING", "PENDING"),
    *(
        "a" * 100_000,
        '{"retry":5}',
        '{"map":{"over":"first"}}',
        '{"name":5}',
        "[[1,2],[3]]",
        '{"x":{"y":[1,{"z":null}]}}',
    ),
)
_LESS = ("task", "attempt", "event", "edge", "page", "executor", "meta", "breaker", "log")


def alter(path: Path, seed: int) -> list[object]:
    """Alter some cells and rows, drawn from the seed; return what was done."""
    dice, done = random.Random(seed), list[object]()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            table, column = dice.choice(_cells(connection))
            value = dice.choice(VALUES)
            where = "" if dice.random() < 0.5 else f" WHERE rowid % {dice.randint(2, 5)} = 0"
            done.append(_try(connection, f"UPDATE {table} SET {column} = ?{where}", (value,)))
        if dice.random() < 0.2:
            rows = f"DELETE FROM {dice.choice(_LESS)} WHERE rowid % 2 = 0"
            edge = "INSERT INTO edge (run_id, child, parent) SELECT run_id, ?, ? FROM run"
            ends = dice.choice((("ghost", "first"), ("first", "below"), ("below", "ghost")))
            done.append(_try(connection, *dice.choice(((rows, ()), (edge, ends)))))
    return done


def _cells(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    ).fetchall()
    filled = [name for (name,) in tables if connection.execute(f"SELECT 1 FROM {name}").fetchone() is not None]
    return [(name, column[1]) for name in filled for column in connection.execute(f"PRAGMA table_info({name})")]


def _try(connection: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> object:
    try:
        connection.execute(sql, values)
    except sqlite3.Error as error:  # a NOT NULL, a UNIQUE, or a table without rowids
        return error
    return sql, str(values)[:60]
