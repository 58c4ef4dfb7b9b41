"""Flows, answers and tables for the tests of operator acts."""

from __future__ import annotations

from typing import Any

from redrive.engine.domain.event_payloads import AnswerFields

from ..store.conftest import StateFile

CHAIN = {"a": "", "b": "a", "c": "b"}
DIAMOND = {"a": "", "b": "", "c": "", "d": "b c", "e": "d"}


def results(answer: AnswerFields) -> dict[str, str]:
    return {name: result for name, result, _ in answer["results"]}


def sentence(answer: AnswerFields, name: str) -> str:
    return next(text for task, _, text in answer["results"] if task == name)


def ran(state_file: StateFile, name: str, state: str, **columns: Any) -> None:
    """Bring a task there as a run would."""
    state_file.move(name, "READY")
    state_file.claim(name)
    state_file.move(name, state, **columns)


def table(state_file: StateFile) -> list[tuple[Any, ...]]:
    return state_file.connection.execute("SELECT * FROM task ORDER BY name").fetchall()
