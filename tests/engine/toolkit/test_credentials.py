"""Refresh, then retry once; one renewal for all who wait for it; a second refusal escalates (004.33)."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import AuthError, Credential, Executor, Flow, TransientError, classify_http
from redrive.engine.core.failures.failure import failure_of_error
from redrive.engine.toolkit.credentials import is_refused


class Vault:
    """A token in a file, and how often it was renewed."""

    def __init__(self, folder: Path, renews_to: str = "new") -> None:
        self.token, self.renewals, self.renews_to = folder / "token", folder / "renewals", renews_to
        self.token.write_text("old")
        self.renewals.write_text("")

    def load(self) -> str:
        return self.token.read_text()

    def refresh(self) -> None:
        time.sleep(0.2)  # long enough for all the others to have been refused as well
        with self.renewals.open("a") as file:
            file.write("x")
        self.token.write_text(self.renews_to)

    @property
    def times(self) -> int:
        return len(self.renewals.read_text())

    def credential(self, name: str = "bank") -> Credential[str]:
        return Credential(name, load=self.load, refresh=self.refresh)


def ask_bank(token: str) -> str:
    if token != "new":
        raise AuthError("401 unauthorized")
    return "balance"


def test_a_credential_that_is_valid_is_never_renewed(tmp_path):
    vault = Vault(tmp_path)
    vault.token.write_text("new")
    assert "balance" == vault.credential().call(ask_bank)
    assert 0 == vault.times


def test_a_refused_credential_is_renewed_and_tried_once_more(tmp_path):
    vault = Vault(tmp_path)
    assert "balance" == vault.credential().call(ask_bank)
    assert 1 == vault.times


def test_a_second_refusal_is_a_real_one(tmp_path):
    vault, calls = Vault(tmp_path, renews_to="refused as well"), []

    def counting(token: str) -> str:
        calls.append(token)
        return ask_bank(token)

    with pytest.raises(AuthError):
        vault.credential().call(counting)
    assert (["old", "refused as well"], 1) == (calls, vault.times)


def test_what_was_renewed_a_moment_ago_is_not_renewed_again_and_the_error_says_so(tmp_path):
    vault = Vault(tmp_path, renews_to="refused as well")
    for _ in range(2):
        with pytest.raises(AuthError) as refused:
            vault.credential().call(ask_bank)
    assert 1 == vault.times
    failure = failure_of_error(refused.value)
    assert re.fullmatch(r"401 unauthorized; credential 'bank' was renewed \d+\.\d s ago, so not again", failure.message)


def test_how_long_it_counts_as_fresh_is_an_option(tmp_path):
    vault = Vault(tmp_path, renews_to="refused as well")
    bank = Credential("bank", load=vault.load, refresh=vault.refresh, fresh_seconds=0)
    for _ in range(2):
        with pytest.raises(AuthError):
            bank.call(ask_bank)
    assert 2 == vault.times
    with pytest.raises(ValueError, match="fresh_seconds is a number of seconds of at least 0, not -1"):
        Credential("bank", load=vault.load, refresh=vault.refresh, fresh_seconds=-1)


@pytest.mark.parametrize("error", [TransientError("503"), ValueError("no"), classify_http(403), KeyError("x")])
def test_other_errors_pass_through_and_renew_nothing(tmp_path, error):
    vault = Vault(tmp_path)

    def fails(token: str) -> str:
        raise error

    with pytest.raises(type(error)):
        vault.credential().call(fails)
    assert 0 == vault.times


def test_a_status_says_it_without_our_exceptions():
    class Foreign(Exception):
        def __init__(self, status: int) -> None:
            self.response = type("Response", (), {"status_code": status, "headers": {}})()

    assert is_refused(Foreign(401)) and is_refused(classify_http(401))
    assert not is_refused(Foreign(403)) and not is_refused(Foreign(500)) and not is_refused(classify_http(407))
    assert is_refused(AuthError("account 1403 is locked"))  # a number in a text is no status


def test_a_renewal_that_fails_is_reported_and_does_not_count(tmp_path):
    def broken() -> None:
        raise TransientError("the vault is sealed")

    vault = Vault(tmp_path)
    with pytest.raises(TransientError, match="sealed"):
        Credential("bank", load=vault.load, refresh=broken).call(ask_bank)
    assert "balance" == vault.credential().call(ask_bank)


# --- In a run -------------------------------------------------------------------------------------------------------


def banking(tmp_path: Path, vault: Vault) -> tuple[str, Any]:
    flow = Flow("f", max_parallel=6)
    bank = vault.credential()
    for number in range(6):
        flow.task(lambda: bank.call(ask_bank), name=f"t{number}", timeout=60)
    state = Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()

    def ask(sql: str) -> list[Any]:
        with sqlite3.connect(tmp_path / "state.db") as connection:
            return connection.execute(sql).fetchall()

    return state, ask


def test_six_tasks_that_are_refused_at_once_renew_it_once_and_spend_no_attempt(tmp_path):
    """004.33: single-flight across tasks, each of which is a process."""
    vault = Vault(tmp_path)
    state, ask = banking(tmp_path, vault)
    assert ("SUCCESS", 1) == (state, vault.times)
    assert [(6, 1)] == ask("SELECT count(*), max(attempt) FROM task WHERE state = 'SUCCESS'")
    assert 1 <= ask("SELECT count(*) FROM event WHERE kind = 'attempt.retry'")[0][0] <= 6


def test_a_credential_that_no_renewal_helps_pages_once_for_all_and_locks_no_account(tmp_path):
    """004.31, 004.32: two calls a task at most, one renewal for all."""
    vault = Vault(tmp_path, renews_to="refused as well")
    _, ask = banking(tmp_path, vault)
    assert 1 == vault.times
    assert {("DEAD_LETTER", "auth", 1)} == set(ask("SELECT state, dead_letter_kind, attempt FROM task"))
    assert [("critical", 6)] == ask("SELECT severity, count FROM page")
