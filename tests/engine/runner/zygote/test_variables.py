"""The variables of one attempt after another: what programs see, what is restored, and that memory does not grow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from redrive.engine.runner.child import AttemptVariables

NAME, OTHER = "REDRIVE_TEST_ONE", "REDRIVE_TEST_TWO"
MANY = 50_000  # values: with setenv, 5 MB


def seen() -> list[str | None]:
    """Return both variables as this process and a program have them, which must agree."""
    own = [os.environ.get(name) for name in (NAME, OTHER)]
    script = f"import os; print([os.environ.get(name) for name in ({NAME!r}, {OTHER!r})])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{own}\n"
    return own


def encoded(**values: str) -> dict[bytes, bytes]:
    return {name.encode(): text.encode() for name, text in values.items()}


def test_programs_see_the_variables_of_the_latest_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTHER, "before")
    monkeypatch.delenv(NAME, raising=False)
    variables = AttemptVariables()
    for one, two in (("a", "b"), ("longer " * 100, ""), ("c", "d")):
        assert variables.set(encoded(**{NAME: one, OTHER: two}))
        assert seen() == [one, two]
    assert variables.set(encoded(**{NAME: "alone"}))
    assert seen() == ["alone", "before"]
    assert variables.set(encoded(**{NAME: "e", OTHER: "f"}))
    assert seen() == ["e", "f"]
    variables.restore()
    assert seen() == [None, "before"]


def test_a_refused_value_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "before")
    variables = AttemptVariables()
    assert variables.set(encoded(**{NAME: "a"}))
    assert not variables.set(encoded(**{NAME: "null\0byte"}))
    assert seen()[0] == "before"


def test_memory_does_not_grow_with_the_attempts() -> None:
    """Of a process of its own, whose heap nothing else changes."""
    script = f"""
import os
from redrive.engine.runner.child import AttemptVariables
variables = AttemptVariables()
def pages():
    return int(open("/proc/self/statm").read().split()[1])
variables.set({{b"NAME": b"%060d" % 0}})
before = pages()
for number in range({MANY}):
    variables.set({{b"NAME": b"%060d" % number}})
print((pages() - before) * os.sysconf("SC_PAGE_SIZE"))
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 1_000_000
