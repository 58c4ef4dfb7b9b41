"""The table of actions: complete, without doubles, and the same on a shell line."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redrive.console import screens, widgets
from redrive.console.app.app import ConsoleApp
from redrive.console.cli.operate import requeue_options_of
from redrive.console.keys.actions import (
    ACTIONS,
    BY_NAME,
    FIXED,
    VIEW_CALLS,
    ActionEffect,
    ScreenName,
    actions_of,
    footer_of,
    shell_line,
)
from redrive.console.model.session_status import Link, SessionStatus
from redrive.console.present.schedules import NO_ACT
from redrive.console.sessions.session import LiveSession
from support.commands import all_commands
from support.marks import for_each
from textual.app import App
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

#: ``Command.act`` of console/sessions/session.py, but ``unpause``, which is the second press of ``pause``.
ACTS = {"requeue", "skip", "cancel", "extend", "pause", "hurry", "undo", "ack", "snooze", "breaker", "stop"}
ACTS |= {"requeue-rows", "discard-rows", "note", "abandon", "ack-run", "reload", "postpone", "approve", "reject"}


def test_names_are_given_once() -> None:
    assert len(BY_NAME) == len(ACTIONS) + len(FIXED)


def test_every_act_of_an_operator_can_be_reached() -> None:
    assert {action.act for action in ACTIONS if action.act} == ACTS


def test_an_action_that_sends_a_command_is_guarded() -> None:
    assert [action.name for action in ACTIONS if action.act and action.effect is ActionEffect.NONE] == []


def test_what_can_be_seen_is_explained() -> None:
    assert [action.name for action in ACTIONS if not action.help.endswith(".") and not action.help.endswith("?")] == []


@for_each("place", ScreenName)
def test_a_footer_names_what_works_there_and_how_to_get_help(place: ScreenName) -> None:
    footer = footer_of(place)
    assert set(footer) <= set(actions_of(place))
    assert {"help", "quit"} <= {action.name for action in footer}
    assert all(action.keys and action.label for action in footer)


def test_a_shell_line_does_the_same_as_the_command() -> None:
    line = shell_line(
        "requeue", "/x/revenue db.db", "run-1", ["load a", "b"], "it's fixed", {"rate_per_second": 5, "cascade": True}
    )
    assert line is not None
    words = "redrive|requeue|/x/revenue db.db@run-1|--cascade|--rate|5/s|--reason|it's fixed|--|load a|b"
    assert shlex.split(line) == words.split("|")


def test_a_shell_line_is_understood_by_the_command_line() -> None:
    far = shell_line("skip", "ssh://db1/x.db", tasks=["load"], ssh_arguments=["--ssh-option=Port=22"])
    assert far == "redrive skip ssh://db1/x.db --ssh-option=Port=22 -- load"
    line = shell_line("skip", "x.db", "run-1", ["--weird", "-x"], "why")
    assert line is not None
    words = shlex.split(line)
    command = all_commands()[words[1]]
    context = command.make_context(words[1], words[2:])
    assert context.params["words"] == ("x.db@run-1", "--weird", "-x")
    assert context.params["reason"] == "why"


def test_every_change_of_a_requeue_is_understood_as_it_was_said() -> None:
    options: dict[str, Any] = {
        "canary": True,
        "single_shot": True,
        "new_key": True,
        "cascade": True,
        "reset_count": False,
    }
    options |= {
        "rate_per_second": 2.0,
        "not_before": 90.0,
        "timeout": 1200.0,
        "params": {"day": "a b"},
    }
    line = shell_line("requeue", "x.db", "run-1", ["load"], "why", options)
    assert line is not None
    words = shlex.split(line)
    params = all_commands()["requeue"].make_context("requeue", words[2:]).params
    assert requeue_options_of(params) == options


def test_more_time_is_given_by_the_same_words() -> None:
    line = shell_line("extend", "x.db", "run-1", ["--load"], "nearly done", {"seconds": 600})
    assert line is not None
    words = shlex.split(line)
    context = all_commands()["extend"].make_context("extend", words[2:])
    assert (context.params["words"], context.params["duration"]) == (("x.db@run-1", "--load"), "600s")


def test_a_cause_is_named_by_its_fingerprint_and_not_by_its_tasks() -> None:
    line = shell_line("requeue", "x.db", tasks=["a"] * 2000, options={"fingerprint": "4a7c1d"})
    assert line == "redrive requeue x.db --fingerprint 4a7c1d"


def test_many_tasks_are_counted() -> None:
    line = shell_line("skip", "x.db", tasks=[f"t{number}" for number in range(60)])
    assert line is not None and line.endswith("# and 10 more")


def test_a_hostile_name_stays_a_word() -> None:
    """A real shell takes the line apart; nothing of the name is executed."""
    name = "x'; touch /tmp/pwned; echo \x1b[2J$(id) `id`\nrm -rf /"
    line = shell_line("skip", "x.db", tasks=[name])
    assert line is not None and "\x1b" not in line and "\n" not in line
    shown = subprocess.run(
        ["sh", "-c", f"redrive() {{ printf '%s|' \"$@\"; }}; {line}"], capture_output=True, text=True
    )
    words = shown.stdout.split("|")[:-1]
    assert len(words) == len(shlex.split(line)) - 1


@pytest.mark.parametrize("act", ["undo", "ack", "hurry"])
def test_what_the_shell_does_not_know_has_no_line(act: str) -> None:
    assert shell_line(act, "x.db") is None


# --- What an action calls -------------------------------------------------------------------------------------------


def views() -> Iterator[type[DOMNode]]:
    """Every screen and widget of the console."""
    for package in (screens, widgets):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            yield from (one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, DOMNode))


def test_every_action_has_a_handler_and_nothing_else_does() -> None:
    app = ConsoleApp(cast(LiveSession, SimpleNamespace(status=SessionStatus(Link.LIVE))))
    called = [*VIEW_CALLS, *app.calls, "suspend", "schedule", *NO_ACT]  # by every app, and by the list of state files
    assert sorted(called) == sorted(action.name for action in (*ACTIONS, *FIXED))


@for_each("name", VIEW_CALLS)
def test_a_method_of_a_view_exists_and_takes_what_it_is_given(name: str) -> None:
    """What the console itself handles is a typed call; a view and its method are found while the program runs."""
    call = VIEW_CALLS[name]
    classes = [one for one in views() if hasattr(one, call.method)]
    assert classes
    for one in classes:
        inspect.signature(getattr(one, call.method)).bind(object(), *call.arguments)


def test_no_method_of_a_view_that_is_called_is_one_of_textual() -> None:
    names = {call.method for call in VIEW_CALLS.values()}
    assert [name for name in sorted(names) if any(hasattr(one, name) for one in (App, Screen, Widget))] == []


def test_what_does_nothing_to_a_row_that_has_just_come_is_what_acts_at_once_in_a_list_that_moves() -> None:
    at_once = {"requeue", "hurry", "acknowledge", "acknowledge_page", "acknowledge_start"}
    assert {action.name for action in ACTIONS if action.needs_stable_cursor} == at_once


def test_keys_are_bound_in_the_table_alone() -> None:
    console = Path(inspect.getfile(ConsoleApp)).parents[1]
    bound = [path.name for path in console.rglob("*.py") if " Binding(" in path.read_text("utf-8")]
    assert bound == ["bars.py"]
