"""The state file of a flow in the default folder: named after the flow, and never shared by two names."""

from __future__ import annotations

import os
import string
from pathlib import Path

import platformdirs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redrive.engine.errors import StateFileError
from redrive.engine.statefile import paths
from redrive.engine.store import flow_path
from support.marks import for_each

ODD = st.text(st.sampled_from("a_. -%2F0/\\\0é日e\u0301" + string.ascii_uppercase), min_size=1, max_size=6)
NAMES = ODD | st.text(min_size=1, max_size=300)


def stem_of(name: str) -> str:
    return Path(flow_path.path_of_flow(name)).name.removesuffix(paths.SUFFIX)


@for_each(
    "name, stem",
    [
        ("revenue", "revenue"),
        ("nightly-2.1_eu", "nightly-2.1_eu"),
        ("naïve", "naïve"),
        ("日本", "日本"),
        ("हिन्दी", "हिन्दी"),
        ("a b", "a%20b"),
        ("a  b", "a%20%20b"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("50%", "50%25"),
        ("line\nline", "line%0Aline"),
    ],
)
def test_letters_of_any_script_stay_and_what_no_file_name_holds_is_escaped(name: str, stem: str) -> None:
    assert stem_of(name) == stem


@given(NAMES, NAMES)
@example("a b", "a_b")
@example("a b", "a%20b")
@example("x" * 200 + "1", "x" * 200 + "2")
@example("x" * 200, stem_of("x" * 200))
@example("caf\u00e9", "cafe\u0301")
@example(".", "")
def test_two_names_never_share_a_file(one: str, other: str) -> None:
    if one != other:
        assert stem_of(one) != stem_of(other)


@given(NAMES)
def test_a_name_is_one_file_in_the_default_folder_that_every_file_system_takes(name: str) -> None:
    path = flow_path.path_of_flow(name)
    assert os.path.dirname(path) == paths.default_folder()
    assert len(os.fsencode(os.path.basename(path) + ".serve.lock")) <= 143
    assert not os.path.basename(path).startswith((".", "-wal")) and path.isprintable()


def test_a_user_without_a_home_is_told_and_gets_no_folder_named_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without HOME, of a uid without a name
    with pytest.raises(StateFileError, match="set HOME or XDG_STATE_HOME"):
        paths.default_folder()


@pytest.mark.parametrize("home", [None, "", "/srv/states", "/srv/states/"])
def test_the_default_folder_is_where_platformdirs_has_it(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """Not asked itself: the module goes over ssh to hosts where nothing is installed."""
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", home)
    assert Path(paths.default_folder()) == platformdirs.user_state_path("redrive")


def test_a_path_that_was_given_comes_first_then_the_variable_then_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def name() -> str:
        asked.append("name")
        return "revenue"

    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setenv(paths.STATE_VARIABLE, "/srv/night.db")
    assert flow_path.path_for_run("~/given.db", name) == "/home/ana/given.db"
    assert flow_path.path_for_run(None, name) == "/srv/night.db"
    assert asked == []  # the name may cost an import
    monkeypatch.delenv(paths.STATE_VARIABLE)
    assert flow_path.path_for_run(None, name) == flow_path.path_of_flow("revenue")


@for_each("given", ["", "ssh://far/x.db", ":memory:", "file:x.db?mode=memory"])
def test_what_no_run_can_write_is_refused(given: str) -> None:
    with pytest.raises(StateFileError):
        flow_path.path_for_run(given, lambda: "revenue")
