"""Options that the help does not list are not suggested either."""

from __future__ import annotations

import pytest
from support.commands import run_redrive


@pytest.mark.parametrize(("typed", "hidden"), [("--rune", "'--run'"), ("--stat", "'--state'")])
def test_a_hidden_option_is_not_suggested_for_a_mistyped_one(typed: str, hidden: str) -> None:
    refused = run_redrive("requeue", "f", "t", typed, "x")
    assert refused.returncode == 2 and typed in refused.stderr and hidden not in refused.stderr


def test_an_option_of_the_help_is_suggested() -> None:
    refused = run_redrive("requeue", "f", "t", "--reasn", "x")
    assert refused.returncode == 2 and "'--reason'" in refused.stderr


def test_the_help_of_a_command_ends_with_what_reaches_a_host_and_the_help_itself() -> None:
    assert [line.split()[0] for line in run_redrive("inbox", "--help").stdout.splitlines()[-4:]] == [
        "--python",
        "--ssh-option",
        "--become",
        "-h,",
    ]
