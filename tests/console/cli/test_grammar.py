"""The words of commands: FLOW[@RUN] and tasks are read by one function, and what we print is read by it as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redrive.console.cli.group import GONE, MOVED, cli
from redrive.console.sessions.target import (
    AmbiguousTargetError,
    LocalMachine,
    NamedTargets,
    name_run,
    name_words,
    one_run,
)
from redrive.engine.domain.text import place_words
from redrive.engine.errors import RedriveError
from redrive.engine.statefile.lists import RunName, runs_named
from support.commands import all_commands
from support.marks import for_each


@dataclass
class There(LocalMachine):
    """A machine with these flows, and tasks in state files."""

    flows: Sequence[str] = ()
    tasks: dict[str, str] = field(default_factory=dict)  # task -> a file that has it

    def is_file(self, word: str) -> bool:
        return word in self.flows

    def files_with(self, tasks: Sequence[str], *, acts: bool) -> Sequence[str]:
        return sorted({self.tasks[task] for task in tasks}) if all(task in self.tasks for task in tasks) else []

    def meant(self, word: str) -> str:
        return "; did you mean 'revenue'?" if word == "revenu" and "revenue" in self.flows else ""


#: A word, the flows and files that there are, and what it names: FLOW and RUN.
RUN_WORDS: list[tuple[str, Sequence[str], tuple[str | None, str | None]]] = [
    ("revenue", ["revenue"], ("revenue", None)),
    ("revenue@-1", ["revenue"], ("revenue", "-1")),
    ("revenue@2026-04-25", ["revenue"], ("revenue", "2026-04-25")),
    ("revenue@-1", ["revenue", "revenue@-1"], ("revenue@-1", None)),  # an existing whole name wins
    ("a@b", ["a@b"], ("a@b", None)),
    ("a@b@c", ["a@b"], ("a@b", "c")),  # the last @ counts
    ("a@b@c", [], ("a@b", "c")),
    ("@-1", ["revenue"], (None, "-1")),
    ("@2026", [], (None, "2026")),
    ("/var/a@b/night.db", ["/var/a@b/night.db"], ("/var/a@b/night.db", None)),
    ("/var/a@b/night.db@r1", ["/var/a@b/night.db"], ("/var/a@b/night.db", "r1")),
    ("/var/night.db@r@1", ["/var/night.db@r"], ("/var/night.db@r", "1")),
    ("ssh://host", [], ("ssh://host", None)),
    ("ssh://ana@host", [], ("ssh://ana@host", None)),
    ("ssh://ana@host/", [], ("ssh://ana@host/", None)),
    ("ssh://ana@host/night.db", [], ("ssh://ana@host/night.db", None)),
    ("ssh://ana@host/night.db@-1", [], ("ssh://ana@host/night.db", "-1")),
    ("ssh://ana@host:22/~/a@b.db@r", [], ("ssh://ana@host:22/~/a@b.db", "r")),
    ("ssh://ana@host/@-1", [], ("ssh://ana@host/", "-1")),
    ("ssh://ana@eu@host/night.db", [], ("ssh://ana@eu@host/night.db", None)),
]


@for_each("word, flows, named", RUN_WORDS)
def test_a_word_names_a_flow_and_a_run(word: str, flows: Sequence[str], named: tuple[str | None, str | None]) -> None:
    assert name_run(word, There(flows)) == NamedTargets(*named)


@pytest.mark.parametrize("word", ["revenue@", "ssh://host/night.db@", "@"])
def test_an_at_without_a_run_is_refused(word: str) -> None:
    with pytest.raises(RedriveError, match="names no run behind the @"):
        name_run(word, There(["revenue"]))


MACHINE = There(["revenue", "load", "a@b"], {"load": "night.db", "clean": "night.db", "/x": "night.db", "e@-1": "x.db"})

#: Words, and what a reading takes them for: FLOW, RUN, tasks, and the file of a task that the flow hides.
WORDS: list[tuple[str, NamedTargets]] = [
    ("", NamedTargets()),
    ("revenue", NamedTargets("revenue")),
    ("revenue clean", NamedTargets("revenue", None, ("clean",))),
    ("revenue revenue", NamedTargets("revenue", None, ("revenue",))),
    ("revenue@-1 clean load", NamedTargets("revenue", "-1", ("clean", "load"))),
    ("clean", NamedTargets(None, None, ("clean",))),
    ("clean revenue", NamedTargets(None, None, ("clean", "revenue"))),  # only the first word is a flow
    ("cl*", NamedTargets(None, None, ("cl*",))),
    ("nosuch", NamedTargets(None, None, ("nosuch",))),
    ("nosuch@-1", NamedTargets(None, None, ("nosuch@-1",))),
    ("e@-1", NamedTargets(None, None, ("e@-1",))),
    ("@-1", NamedTargets(None, "-1")),
    ("@-1 clean", NamedTargets(None, "-1", ("clean",))),
    ("load", NamedTargets("load", also="night.db")),
    ("load clean", NamedTargets("load", None, ("clean",), also="night.db")),
    ("load load", NamedTargets("load", None, ("load",))),
    ("load@-1", NamedTargets("load", "-1")),
    ("a@b clean", NamedTargets("a@b", None, ("clean",))),
    ("./gone.db clean", NamedTargets("./gone.db", None, ("clean",))),  # a path is no task
    ("gone.db clean", NamedTargets("gone.db", None, ("clean",))),
    ("/x", NamedTargets(None, None, ("/x",))),  # unless there is such a task
    ("ssh://host clean", NamedTargets("ssh://host", None, ("clean",))),
    ("ssh://host/x@-1 clean", NamedTargets("ssh://host/x", "-1", ("clean",))),
]
#: What could be meant in two ways; an act refuses it.
BOTH = {"load", "load clean"}


@for_each("words, named", WORDS)
def test_a_reading_takes_the_flow(words: str, named: NamedTargets) -> None:
    assert name_words(words.split(), MACHINE) == named


@for_each("words, named", WORDS)
def test_an_act_refuses_what_is_both(words: str, named: NamedTargets) -> None:
    if words in BOTH:
        with pytest.raises(AmbiguousTargetError, match="'load' is a flow, and a task as well"):
            name_words(words.split(), MACHINE, acts=True)
    else:
        assert name_words(words.split(), MACHINE, acts=True) == named


@pytest.mark.parametrize("acts", [True, False])
def test_a_mistyped_flow_is_answered_with_the_one_that_is_meant(acts: bool) -> None:
    with pytest.raises(RedriveError, match="no flow or task 'revenu'; did you mean 'revenue'"):
        name_words(["revenu", "clean"], MACHINE, acts=acts)


names = st.text(st.sampled_from("ab@-./: é"), min_size=1, max_size=8)


@given(names, names)
@example("ssh://ana@host/~/night.db", "r")
@example("/x/a@b.db", "-1")
def test_what_is_printed_names_the_same_file_and_run(state: str, run: str) -> None:
    words = place_words(state, run)
    if len(words) == 1:
        assert name_run(words[0], There([state])) == NamedTargets(state, run)
    else:
        assert words == [state, "--run", run] and "@" in run


RUNS = [
    RunName("night", "revenue", "RUNNING", None),
    RunName("2026-04-26T02:00+0530", "revenue", "FAILED", "2026-04-26"),
    RunName("again", "revenue", "SUCCESS", "2026-04-25"),
    RunName("2026-04-25T02:00+0530", "revenue", "FAILED", "2026-04-25"),
    RunName("night-2", "revenue", "SUCCESS", None),
]


@for_each(
    "word, found",
    [
        ("night", ["night"]),  # an id wins over a beginning
        ("night-", ["night-2"]),
        ("ni", ["night", "night-2"]),
        ("latest", ["night"]),
        ("-0", ["night"]),
        ("-1", ["2026-04-26T02:00+0530"]),
        ("-4", ["night-2"]),
        ("-5", []),
        ("2026-04-26", ["2026-04-26T02:00+0530"]),
        ("2026-04-25", ["again", "2026-04-25T02:00+0530"]),
        ("2026-04-25T", ["2026-04-25T02:00+0530"]),
        ("again", ["again"]),
        ("x", []),
    ],
)
def test_a_run_is_named_by_its_place_its_id_or_its_day(word: str, found: list[str]) -> None:
    assert [run.run_id for run in runs_named(word, RUNS)] == found
    if len(found) == 1:
        assert one_run(word, RUNS, "night.db") == found[0]
    else:
        with pytest.raises(RedriveError) as raised:
            one_run(word, RUNS, "night.db")
        assert all(f"{name} (" in str(raised.value) for name in found), "the list of what fits"


# --- One type for all commands ---------------------------------------------------------------------------------------


def _leaves(command: click.Command) -> list[click.Command]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [leaf for one in below for leaf in _leaves(one)] or [command]


#: Commands whose words are no FLOW[@RUN], and what they are.
OTHER_WORDS = {
    **dict.fromkeys(("run", "check", "rehearse", "backfill", "serve"), "PROGRAM"),
    **dict.fromkeys(("exec", "new", "help", "completion", "demo", "metrics", "systems pools"), "no flow"),
    **dict.fromkeys(
        ("backoff", "import crontab", "import dagu", "import systemd", "simulate herd", "simulate contention"),
        "no flow",
    ),
}


def test_every_command_reads_its_words_by_one_type() -> None:
    from redrive.console.cli.options import TargetWords

    for name, command in all_commands().items():
        for leaf in _leaves(command):
            words = [one for one in leaf.params if isinstance(one, click.Argument)]
            path = name if leaf is command else f"{name} {leaf.name}"
            if path in OTHER_WORDS or name == "schedule":  # those of a schedule are of flows that are served
                assert not any(isinstance(one.type, TargetWords) for one in words), path
            else:
                assert isinstance(words[0].type, TargetWords), f"{path} reads words of its own"


def test_words_that_moved_are_commands_no_more() -> None:
    commands = all_commands().keys()
    assert not (MOVED.keys() | GONE.keys()) & commands
    assert {words[0] for words in MOVED.values()} <= commands
    assert {line.split()[1] for line in GONE.values()} <= commands
    assert cli.name == "cli"
