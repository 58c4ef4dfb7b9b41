"""The manual: every page is listed, fits a terminal, and its examples do what it says.

An example is a fenced block. ``python`` blocks compile, and a block whose first line is ``# name.py`` is saved as that
file. ``console`` blocks are sessions: each line ``$ command`` runs in the page's folder with bash, and the lines below
are its output, where ``...`` stands for any text. In ``crontab`` and ``ini`` blocks, times and commands are parsed.
"""

from __future__ import annotations

import configparser
import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import cronsim
from redrive.console import manual
from redrive.console.manual import page_lines
from redrive.console.text.pieces import plain
from redrive.engine.toolkit.send_buffer import SendSettings
from support.commands import REDRIVE, all_commands, run_redrive, startup_variables
from support.marks import for_each, parametrize_mostly_long
from support.waiting import LIMIT_SECONDS

COLUMNS_MAX = 74  # the dialog of the console on a terminal of 80 columns
SHELL_SYNTAX = re.compile(r"[|&;<>$`*?]")
#: Those that take longer to import than an example to run.
WITHOUT_PLUGINS = "-p no:hypothesispytest -p no:syrupy -p no:textual-snapshot -p no:xdist -p no:asyncio -p no:timeout"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    language: str
    text: str


def examples_of(text: str) -> list[Example]:
    return [Example(*found.groups()) for found in FENCE.finditer(text)]


class Shell:
    """Runs lines with bash as a user does: own home, state and folder, with ``redrive`` and this Python on the path."""

    def __init__(self, home: Path, program: Sequence[str] = REDRIVE) -> None:
        self.program = program
        self.folder = home / "work"
        self.folder.mkdir()
        (home / "bin").mkdir()
        for program in ("redrive", "pytest"):
            path = home / "bin" / program
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {program} "$@"\n')
            path.chmod(0o755)
        self._own = {
            "PATH": f"{home}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "COLUMNS": "120",
            "PYTEST_ADDOPTS": WITHOUT_PLUGINS,
        }

    def run(self, line: str) -> str:
        words = shlex.split(line)
        is_plain = words[0] == "redrive" and not SHELL_SYNTAX.search(line)
        if is_plain and self.program is REDRIVE:
            served = run_redrive(*words[1:], cwd=self.folder, env=startup_variables(os.environ) | self._own)
            return served.stderr + served.stdout
        done = subprocess.run(
            [*self.program, *words[1:]] if is_plain else ["bash", "-c", line],
            cwd=self.folder,
            env=self._own | {"PYTHONPATH": ":".join(path for path in sys.path if path), "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        return done.stdout


class Command(NamedTuple):
    line: str
    expected: str


def commands_of(session: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        while line.endswith("\\"):
            more, _, expected = expected.partition("\n")
            line = f"{line[:-1]}{more.strip()}"
        yield Command(line, expected)


@for_each("topic", manual.TOPICS)
def test_a_page_names_its_topic_and_fits_a_terminal(topic):
    page = manual.load_topic(topic)
    assert page.text.startswith(f"# {topic}: ") and page.summary
    assert not [text for line in page_lines(page.text) if len(text := plain(line).rstrip()) > COLUMNS_MAX]


@for_each("topic", manual.TOPICS)
def test_no_code_of_a_page_is_broken_over_lines(topic):
    """A back-quote belongs to another one of its line: the code in a terminal would begin and end at wrong places."""
    prose = FENCE.sub("", manual.load_topic(topic).text)
    assert [line for line in prose.splitlines() if line.count("`") % 2] == []


def test_every_page_is_a_topic():
    pages = {path.stem for path in Path(manual.__file__).parent.glob("*.md")}
    assert pages == set(manual.TOPICS)


def test_pages_refer_to_topics_and_commands_that_exist():
    for topic in manual.load_topics():
        for name in re.findall(r"`redrive help ([a-z-]+)`", topic.text):
            assert name in manual.TOPICS or name in all_commands(), f"{topic.name} refers to {name}"
        for name in re.findall(r"(?:`|\$ |ExecStart=\S*)redrive ([a-z]+)", topic.text):
            assert name in all_commands(), f"{topic.name}: redrive {name}"


def test_the_page_of_variables_has_those_of_sends():
    """002.18 to 002.22."""
    read = set(re.findall(r"\bREDRIVE_[A-Z_]+", SendSettings.from_environment.__doc__ or ""))
    text = manual.load_topic("environment").text
    assert len(read) == 5 and [name for name in read if f"| `{name}` |" not in text] == []


#: What another try of the example of a page replaces: a slow machine does not come to the line that the page names
#: within the time after which the task is ended, or stands still in the quarter of a second in which it is examined.
LATER = {"deadlines": [("3s", "20s")], "timeouts": [("for the last 2s", "for the last 3s"), ("2s", "10s")]}
LATER_TRIES = 4
AT_LEISURE = """
import sys
from pytest import MonkeyPatch
from redrive.console.__main__ import main
from support.processes import inspect_at_leisure
inspect_at_leisure(MonkeyPatch())
sys.exit(main())
"""


@parametrize_mostly_long("topic", manual.TOPICS, quick=7)
def test_the_examples_of_a_page_work(topic, tmp_path):
    page = manual.load_topic(topic).text
    last = LATER_TRIES if topic in LATER else 0
    for number in range(last + 1):
        home = tmp_path / str(number)
        home.mkdir()
        try:
            program = (sys.executable, "-P", "-c", AT_LEISURE) if number else REDRIVE
            check_examples(topic, page, Shell(home, program))
        except AssertionError:
            if number == last:
                raise
            if number == 0:
                for old, new in LATER[topic]:
                    page = page.replace(old, new)
        else:
            break


def check_examples(topic: str, text: str, shell: Shell) -> None:
    checker = doctest.OutputChecker()
    for example in examples_of(text):
        if example.language == "python":
            check_python(example.text, shell)
        elif example.language == "console":
            for command in commands_of(example.text):
                output = shell.run(command.line)
                flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
                assert checker.check_output(command.expected, output, flags), (
                    f"$ {command.line}\nexpected:\n{command.expected}\nprinted:\n{output}"
                )
        elif example.language == "crontab":
            check_crontab(example.text)
        elif example.language == "ini":
            check_unit(example.text)
        else:
            assert example.language in ("text", "json"), f"{topic}: an example in {example.language!r} is not checked"


def check_python(text: str, shell: Shell) -> None:
    named = re.match(r"# ([\w/]+\.\w+)\n", text)
    if named is not None:
        path = shell.folder / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    compile(text, "the manual", "exec")


def check_crontab(text: str) -> None:
    for line in text.splitlines():
        if not line or line.startswith("#") or re.match(r"\w+=", line):
            continue
        fields = line.split(None, 5)
        assert next(cronsim.CronSim(" ".join(fields[:5]), datetime.now(UTC)))
        check_arguments(fields[5])


def check_unit(text: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(text)
    for section in unit.values():
        if "execstart" in section:
            check_arguments(section["execstart"])


def check_arguments(line: str) -> None:
    """The ``redrive`` command in a line has a known name and known options."""
    words = shlex.split(line)
    start = next(place for place, word in enumerate(words) if word.rpartition("/")[2] == "redrive")
    name, *arguments = words[start + 1 :]
    end = next((place for place, word in enumerate(arguments) if word in (">", ">>", "2>&1", "||", "&&", "|")), None)
    command = all_commands()[name]
    command.make_context(name, arguments[:end], resilient_parsing=False)
