"""The public API: what users read about it, what their type checker says, and that its examples run."""

from __future__ import annotations

import ast
import doctest
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import redrive.engine
from redrive.engine import Flow, RetryPolicy, TaskDef
from redrive.engine.analysis.load_models import SCENARIOS
from redrive.engine.core.causes import SENDER_OPTIONS
from redrive.engine.core.failures import classify
from redrive.engine.core.outcome import FailureClass
from redrive.engine.errors import OptionError
from redrive.engine.flow import options as options_module
from redrive.engine.flow.flow import DEFAULT_TIMEOUTS, KEYWORDS
from redrive.engine.flow.options import (
    DOWNSTREAM,
    TASK,
    TASK_OPTIONS,
    ClassificationRuleOptions,
    DownstreamOptions,
    PageOptions,
    SenderKind,
    TaskOptions,
    WorkKind,
)
from support.commands import all_commands
from support.marks import for_each

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"redrive.console": ROOT / "console", "redrive.engine": ROOT / "engine"}
USER_FLOW = Path(__file__).with_name("user_flow.py.txt")

#: Modules whose public names users read about.
MODULES = (
    "redrive.engine",
    "redrive.engine.toolkit.send_buffer",
    "redrive.engine.runner.context",
    "redrive.engine.core.failures.classify",
    "redrive.engine.core.policy",
    "redrive.engine.toolkit.retry",
    "redrive.engine.toolkit.credentials",
    "redrive.engine.errors",
    "redrive.engine.executor.run_end",
    "redrive.engine.executor.executor",
    "redrive.engine.executor.run_options",
    "redrive.engine.flow.flow",
    "redrive.engine.flow.flow",
    "redrive.engine.flow.options",
    "redrive.engine.flow.task_def",
    "redrive.engine.toolkit.send_buffer",
    "redrive.engine.toolkit.retry",
    "redrive.engine.toolkit.run_with_timeout",
)
PUBLIC = {name: getattr(redrive.engine, name) for name in redrive.engine.__all__}
EXAMPLE_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# --- The examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_run(module: str) -> None:
    results = doctest.testmod(import_module(module), extraglobs=PUBLIC, optionflags=EXAMPLE_FLAGS)
    assert results.attempted
    assert not results.failed, "the lines above say which"


def test_the_examples_of_all_public_names_are_run() -> None:
    assert {public.__module__ for public in PUBLIC.values()} <= set(MODULES)


# --- What users read ------------------------------------------------------------------------------------------------


def _written_in(base: type) -> Iterator[tuple[str, Any]]:
    """The members of a class of this package."""
    yield from vars(base).items() if base.__module__.startswith("redrive.") else ()


def _docstrings() -> Iterator[tuple[str, str]]:
    """(name, docstring) of every public name, and of every public method that is written here."""
    for name, public in PUBLIC.items():
        yield name, public.__doc__ or ""
        if inspect.isclass(public):
            written = {method: value for base in reversed(public.__mro__) for method, value in _written_in(base)}
            for method, value in written.items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function.__doc__ or ""


@for_each("name, text", _docstrings())
def test_every_public_name_says_in_one_sentence_what_it_does(name: str, text: str) -> None:
    first = text.split("\n\n")[0]
    assert re.search(r"[.:!]$", first.strip()), f"{name} has no first sentence"


def test_every_parameter_of_a_public_function_is_described() -> None:
    functions = {name: public for name, public in PUBLIC.items() if inspect.isfunction(public)}
    functions |= {name: getattr(Flow, name) for name in ("task", "sensor", "command", "downstream", "page")}
    classes = ("Credential", "Executor", "Flow", "RetryPolicy", "RunOptions", "SendBuffer", "TaskDef")
    texts = {name: function.__doc__ for name, function in functions.items()}
    texts |= {name: PUBLIC[name].__doc__ for name in classes}
    signatures = functions | {name: PUBLIC[name] for name in classes}
    missing = [
        f"{name}: {parameter}"
        for name, function in signatures.items()
        for parameter in inspect.signature(function).parameters
        if parameter not in ("self", "fn", "options") and not re.search(rf"\b{parameter}\b", texts[name] or "")
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("method", "options"), [("task", TaskOptions), ("downstream", DownstreamOptions), ("page", PageOptions)]
)
def test_every_option_of_a_flow_is_described(method: str, options: Any) -> None:
    text = getattr(Flow, method).__doc__
    assert [name for name in options.__annotations__ if not re.search(rf"\b{name}\b", text)] == []


def test_the_package_describes_every_public_name_and_help_shows_it() -> None:
    text = redrive.engine.__doc__ or ""
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", text)] == []
    assert 20 <= len(text.splitlines()) <= 45
    shown = pydoc.plain(pydoc.render_doc(redrive.engine))
    assert [name for name in PUBLIC if not re.search(rf"^    (class )?{name}\(", shown, re.MULTILINE)] == []
    assert dir(redrive.engine) == sorted(redrive.engine.__all__)


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flwo'"):
        getattr(redrive.engine, "Flwo")  # noqa: B009  # a type checker refuses the plain form


DOCUMENT = re.compile(r"\bdocuments? 0|\bdocument's\b|\bthe documents\b", re.IGNORECASE)


@pytest.mark.long
def test_nothing_that_users_read_names_a_document_of_ours() -> None:
    read = dict(_docstrings()) | {name: import_module(name).__doc__ or "" for name in MODULES} | dict(_help_texts())
    assert [name for name, text in read.items() if DOCUMENT.search(text)] == []
    assert [place for place, text in _texts() if DOCUMENT.search(text)] == []


def _help_texts() -> Iterator[tuple[str, str]]:
    """What ``--help`` prints, of every command."""

    def walk(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
        yield name, command.get_help(click.Context(command, info_name=name))
        for below in getattr(command, "commands", {}).values():
            yield from walk(below, f"{name} {below.name}")

    for name, command in all_commands().items():
        yield from walk(command, f"redrive {name}")


def _texts() -> Iterator[tuple[str, str]]:
    """Every text in the sources that is no docstring: messages are among them. Of the examples, everything."""
    for folder in PACKAGES.values():
        for path in sorted(folder.rglob("*.py")):
            if path.parent.name == "examples":
                yield str(path), path.read_text()
                continue
            tree = ast.parse(path.read_text())
            own = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
                    yield f"{path}:{node.lineno}", node.value


def test_the_help_names_every_scenario() -> None:
    text = dict(_help_texts())["redrive simulate herd"]
    assert [name for name in SCENARIOS if name.removeprefix("herd") not in text] == []


# --- Options: what is typed is what is checked ----------------------------------------------------------------------


def test_the_typed_options_are_those_that_are_checked() -> None:
    assert set(TaskOptions.__annotations__) == set(TASK_OPTIONS)
    assert set(DownstreamOptions.__annotations__) == {*DOWNSTREAM, "rules"}
    assert set(PageOptions.__annotations__) == set().union(
        *(needed | other for needed, other in SENDER_OPTIONS.values())
    )
    assert set(get_args(SenderKind)) == set(SENDER_OPTIONS)
    assert set(get_args(WorkKind)) == set(DEFAULT_TIMEOUTS)


def test_the_typed_rules_are_those_that_are_read() -> None:
    assert set(ClassificationRuleOptions.__annotations__) == {
        *classify.ClassificationRule.__struct_fields__,
        "class",
    } - {"failure_class"}
    for name in FailureClass:
        assert f'"{name}"' in inspect.getsource(options_module).partition("class DownstreamOptions")[0]


@pytest.mark.parametrize(
    ("kind", "method"),
    [("python", Flow.task), ("map", Flow.map), ("sensor", Flow.sensor), ("command", Flow.command)],
)
def test_the_other_keywords_are_those_of_the_signature(kind: Any, method: Callable[..., Any]) -> None:
    parameters = inspect.signature(method).parameters.values()
    assert [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] == list(KEYWORDS[kind])


_UNKNOWN = ["tmeout", *sorted(TASK.keys() - {*TASK_OPTIONS, "name", "kind"})]


@for_each(
    "method, option",
    [
        (method, option)
        for method in ("task", "sensor", "command")
        for option in _UNKNOWN
        if method != "command" or option not in KEYWORDS["command"]
    ],
)
def test_what_has_another_name_here_is_no_option(method: str, option: str) -> None:
    words = ("load", "true") if method == "command" else (print,)
    listed = "there are .*after, .*retry, .*timeout"
    with pytest.raises(OptionError, match=f"no option '{option}'; (did you mean '.*'|{listed})"):
        getattr(Flow("f"), method)(*words, **{option: 3})


def test_the_typed_signature_of_a_policy_is_that_of_its_fields() -> None:
    """Durations may be given as texts, and are kept as seconds: so the signature is written out."""
    tree = ast.parse(inspect.getsource(RetryPolicy))
    (written,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    names = [argument.arg for argument in written.args.args[1:]]
    defaults = [ast.literal_eval(default) for default in written.args.defaults]
    assert list(zip(names, defaults, strict=True)) == [(one.name, one.default) for one in fields(RetryPolicy)]


def test_a_policy_is_derived_from_another_as_any_dataclass() -> None:
    derived = replace(RetryPolicy(base=4), cap="10m")  # type: ignore[arg-type]  # texts are parsed
    assert (derived.base, derived.cap) == (4.0, 600.0)


def test_most_parameters_are_named() -> None:
    for public, most in ((Flow, 1), (PUBLIC["Executor"], 4)):
        by_position = [
            one for one in inspect.signature(public).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        assert len(by_position) == most
    first = ["name", "fn", "parents", "max_attempts", "timeout_seconds"]
    assert [*inspect.signature(TaskDef).parameters] == [*first, "options"]


# --- What a type checker says ---------------------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.long
def test_a_strict_type_checker_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "user_flow.py"
    copy.write_text(USER_FLOW.read_text())
    command = [sys.executable, "-m", "mypy", "--strict", str(copy)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    errors = re.findall(r"^.*user_flow\.py:(\d+): error: (.*)  \[(.*)\]$", output, re.MULTILINE)
    found = sorted((int(line), code, message) for line, message, code in errors)
    wanted = sorted(_errors_wanted(USER_FLOW.read_text()))
    assert {line for line, _, _ in found} == {line for line, _, _ in wanted}, output
    assert {error[:2] for error in wanted} <= {error[:2] for error in found}, output  # some versions add a second one
    assert [words for _, _, words in wanted if not any(words in message for _, _, message in found)] == []


def _errors_wanted(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, code, words) as the comments say."""
    for number, line in enumerate(text.splitlines(), 1):
        for comment in line.split("  # error: ")[1:]:
            code, words = re.fullmatch(r"\[([a-z-]+)\] (.*)", comment.strip()).groups()
            yield number, code, words


def test_a_class_that_is_looked_for_in_the_package_is_told_with_its_place() -> None:
    with pytest.raises(ImportError, match=r"^write: from redrive\.engine import Flow$"):
        exec("from redrive import Flow")
    with pytest.raises(ImportError, match="cannot import name 'Flowe' from 'redrive'"):
        exec("from redrive import Flowe")
    assert not hasattr(redrive, "retry") and redrive.__version__
