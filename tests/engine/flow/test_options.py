"""Every option that a flow can give is refused where it is declared, by its name, with what it must be."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from redrive.engine import Flow, RetryPolicy, TaskDef
from redrive.engine.core.spec import DaskOptions, DownstreamSpec, ExpectedBy
from redrive.engine.errors import FlowError, OptionError
from redrive.engine.flow.options import DOWNSTREAM, TASK, TaskDefOptions
from support.marks import for_each

WRONG_TASKS: dict[str, list[Any]] = {
    "retry": ["x", 3, {}],
    "max_attempts": [0, -1, "3", 2.5, True, 10**30],
    "grace_seconds": ["5 moons", -1, math.nan, math.inf, None, True, 1e300, 10**400],
    "timeout": [0, -1, math.nan, math.inf, "0s", "soon", [], "9" * 400],
    "downstream": [5, "", "\0", "\ud800"],
    "pool": [5, "", "nowhere"],
    "memory": [0, "2 apples", "-1GB", True, math.inf, "0GB"],
    "cpus": [0, "1", -1, math.nan],
    "pool_slots": [0, "1", 1.0, 2],
    "idempotent": ["no", None, 1],
    "optional": ["no", 0],
    "rule": ["any", None, []],
    "owner": [5, ""],
    "max_losses": [0, "x", -1],
    "max_bad_rows": [-1, "x", 0.5],
    "max_bad_ratio": [2, "x", -0.5, math.nan],
    "strict_rows": ["yes"],
    "requires": [5, [None]],
    "after": [5, [None], [5], None],
    "name": [5, "", "\0", "\ud800"],
    "isolation": ["vm", None, []],
    "dask": [5, {"gpu": 1}, {"resources": {"GPU": 0}}, {"resources": ["GPU"]}, {"workers": "a"}, {"priority": "1"}, {}],
    "kind": ["x", "sensor", []],
    "command": ["ls", ""],
    "recheck_seconds": ["x", 0],
    "nonsense": [1],
}


@for_each("option, value", [(option, value) for option, values in WRONG_TASKS.items() for value in values])
def test_an_option_that_cannot_be_is_refused_by_its_name(option: str, value: Any) -> None:
    with pytest.raises(FlowError, match=rf"\b{option}\b|\b{option.partition('_')[0]}\b") as caught:
        Flow("f").task(**{option: value})(lambda: None)
    assert len(str(caught.value)) < 400


@for_each("option", sorted(TASK.keys() - {"kind", "parents", "timeout_seconds", "recheck_seconds"}))
def test_the_documents_own_form_is_held_to_the_same_table(option: str) -> None:
    """003: ``TaskDef(name, fn, parents, max_attempts, timeout_seconds)``, refused in its own line."""
    with pytest.raises(OptionError, match=option):
        values: dict[str, Any] = {"name": "a", "fn": print, option: object()}
        TaskDef(**values)


def test_every_option_is_in_its_table() -> None:
    given = {*inspect.signature(TaskDef).parameters} - {"fn", "options"} | {*TaskDefOptions.__annotations__}
    assert given == {*TASK}
    assert {*DownstreamSpec.__struct_fields__} == {*DOWNSTREAM, "name", "rules"}


def test_durations_may_be_texts_wherever_they_are_asked_for() -> None:
    flow = Flow("f", deadline="3h", dead_letter_ttl="8h")
    flow.task(lambda: None, name="a", timeout="1m", grace_seconds="5s")
    flow.downstream("api", open_seconds="2m", window_seconds="1m30s")
    flow.page("command", line="cat", timeout="10s")
    spec = flow.spec()
    assert (spec.deadline_seconds, spec.dead_letter_ttl) == (10800, 28800)
    assert (spec.tasks[0].timeout, spec.tasks[0].grace_seconds) == (60, 5)
    assert (spec.downstreams[0].open_seconds, spec.downstreams[0].window_seconds) == (120, 90)
    assert spec.pages[0]["timeout"] == 10


@for_each(
    "value, expected",
    [
        ("03:00", ExpectedBy(clock="03:00")),
        ("3:05", ExpectedBy(clock="03:05")),
        ("2h", ExpectedBy(7200)),
        ("+2h", ExpectedBy(7200)),
        (90, ExpectedBy(90)),
        (None, None),
    ],
)
def test_a_task_is_expected_by_a_time_of_day_or_after_a_duration(value: Any, expected: ExpectedBy | None) -> None:
    flow = Flow("f", timezone="Europe/Berlin")
    flow.task(lambda: None, name="a", expect_by=value)
    assert (flow.spec().tasks[0].expect_by, flow.spec().timezone) == (expected, "Europe/Berlin")


@for_each(
    "options, why",
    [
        ({"expect_by": "25:00"}, "expect_by is a time of day as '03:00', or a duration above 0 after the start"),
        ({"expect_by": 0}, "expect_by is a time of day"),
    ],
)
def test_expectations_are_held_to_their_types(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=f"task 'a': {why}"):
        Flow("f").task(lambda: None, name="a", **options)


@for_each(
    "value, expected",
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("512MB", 512 * 10**6), ("64kB", 64000), (4096, 4096), (None, None)],
)
def test_memory_is_a_number_of_bytes_or_a_text_with_a_unit(value: Any, expected: int | None) -> None:
    flow = Flow("f", memory="1GB", cpus=2)
    flow.command("a", "true", memory=value)
    flow.task(lambda: None, name="b", cpus=0.5)
    assert [(task.memory, task.cpus) for task in flow.spec().tasks] == [(expected, 2), (10**9, 0.5)]


@pytest.mark.parametrize("isolation", ["thread", "dask"])
def test_a_limit_that_nobody_would_hold_is_refused(isolation: Any) -> None:
    for options, word in (({"memory": "1GB"}, "memory="), ({"cpus": 1}, "cpus=")):
        with pytest.raises(FlowError, match=f"task 'a': {word} bounds a process"):
            Flow("f", **options).task(lambda: None, name="a", isolation=isolation)


def test_what_dask_reads_of_a_task_is_kept() -> None:
    flow = Flow("f")
    chosen = {"resources": {"GPU": 2, "A": 1}, "workers": ["etl2"], "priority": -3}
    flow.command("a", "true", isolation="dask", dask=chosen)
    assert flow.spec().tasks[0].dask == DaskOptions((("A", 1), ("GPU", 2)), ("etl2",), -3)


def test_a_declared_task_cannot_be_changed_past_its_checks() -> None:
    task: Any = Flow("f").add(TaskDef("a", print))
    for name, value in (("max_losses", 0), ("name", "b"), ("timeout_seconds", -1)):
        with pytest.raises(AttributeError):
            setattr(task, name, value)


def test_an_option_that_there_is_not_is_named_with_the_one_that_is_meant() -> None:
    with pytest.raises(OptionError, match="task 'a': there is no option 'max_atempts'; did you mean 'max_attempts'"):
        TaskDef("a", print, max_atempts=2)  # type: ignore[call-arg]


@for_each(
    "options, why",
    [
        ({"params": 5}, "params is a mapping"),
        ({"params": {1: 2}}, "params is a mapping"),
        ({"params": {"a": object()}}, "parameter 'a' is <object"),
        ({"params": {"a": math.nan}}, "parameter 'a' is nan"),
        ({"params": {"a": [1, {"b": math.inf}]}}, "parameter 'a' is"),
        ({"params": {"a": 10**30}}, "parameter 'a' is 1000"),
        ({"params": {"a": "\0"}}, "parameter 'a' holds a NUL"),
        ({"pools": {"p": 0}}, "pools is a mapping"),
        ({"pools": {"p": "x"}}, "pools is a mapping"),
        ({"pools": [1]}, "pools is a mapping"),
        ({"deadline": "x"}, "deadline is a duration"),
        ({"dead_letter_ttl": -1}, "dead_letter_ttl is a duration of 0 or more"),
        ({"max_parallel": 0}, "max_parallel is a whole number"),
        ({"max_parallel": 1.5}, "max_parallel is a whole number"),
        ({"max_parallel": True}, "max_parallel is a whole number"),
        ({"deadline": "1h", "deadline_action": "kill"}, "deadline_action is one of end, page, not 'kill'"),
        ({"deadline_action": "page"}, "deadline_action says nothing without a deadline"),
        (
            {"tags": ["x"]},
            "there is no option 'tags'; there are retry, memory, cpus, downstream, timeout, env, deadline, ",
        ),
        ({"retry": 3}, "retry is a RetryPolicy"),
        ({"timeout": 0}, "timeout is a duration above 0"),
        ({"downstream": ""}, "downstream is a text"),
    ],
)
def test_a_flow_is_held_to_its_table(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=f"flow 'f': {why}"):
        Flow("f", **options)


@for_each("name", [5, "", None, "\ud800", "n" * 201])
def test_a_flow_has_a_name(name: Any) -> None:
    with pytest.raises(OptionError, match="a flow needs a name"):
        Flow(name)


def test_the_name_of_a_task_has_a_limit() -> None:
    flow = Flow("n" * 200)
    flow.task(lambda: None, name="n" * 200)
    with pytest.raises(OptionError, match="at most 200 characters"):
        flow.task(lambda: None, name="n" * 201)


@for_each(
    "options, why",
    [
        ({"minimum_calls": "x"}, "minimum_calls is a whole number"),
        ({"failure_rate": 0}, "failure_rate is a finite number above 0 and at most 1"),
        ({"open_seconds": -1}, "open_seconds is a duration"),
        ({"window_seconds": 0}, "window_seconds is a duration above 0"),
        ({"probes": 0}, "probes is a whole number"),
        ({"on_open": "zz"}, "on_open is one of hold, fail, dead_letter, not 'zz'"),
        ({"metrics_only": "x"}, "metrics_only is True or False"),
        ({"bogus": 1}, "there is no option 'bogus'"),
        ({"rules": 5}, "rules is a list of mappings"),
        ({"rules": [5]}, "rules is a list of mappings"),
    ],
)
def test_a_downstream_is_held_to_its_table(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=f"downstream 'api': {why}"):
        Flow("f").downstream("api", **options)


def test_a_downstream_is_declared_once() -> None:
    flow = Flow("f")
    flow.downstream("api")
    with pytest.raises(FlowError, match="downstream 'api' is declared twice"):
        flow.downstream("api")


@for_each("what", [5, None, "text", object()])
def test_what_is_no_task_is_not_added(what: Any) -> None:
    with pytest.raises(OptionError, match="add takes a TaskDef"):
        Flow("f").add(what)


@for_each("line", ["", "  ", 5, None])
def test_a_command_is_a_text(line: Any) -> None:
    with pytest.raises(FlowError, match="command is"):
        Flow("f").command("c", line)


def test_a_value_whose_own_text_cannot_be_had_is_refused_all_the_same() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(OptionError, match="owner is a text that is not empty, or None, not a Shy"):
        Flow("f").task(lambda: None, name="a", owner=Shy())  # type: ignore[arg-type]


def test_a_long_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(OptionError) as caught:
        RetryPolicy(jitter="x" * 100_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


class Steps:
    """A flow as a class: each method is a task."""

    def __init__(self) -> None:
        self.flow = Flow("steps")
        self.flow.task(self.extract)
        self.flow.task(self.load, after=[self.extract], requires=self.extract)

    def extract(self) -> int:
        return 5

    def load(self, extract: int) -> None: ...


def test_methods_are_tasks() -> None:
    tasks = Steps().flow.spec().tasks
    assert [(task.name, task.parents, task.requires) for task in tasks] == [
        ("extract", (), ()),
        ("load", ("extract",), ("extract",)),
    ]


def test_a_method_of_another_object_is_another_task() -> None:
    steps, others = Steps(), Steps()
    steps.flow.task(print, after=others.extract)
    with pytest.raises(
        FlowError, match="comes after 'extract', a function that is not the one of task 'extract'; name"
    ):
        steps.flow.spec()


@for_each(
    "line, options, sentence",
    [
        ([], {}, "a line of the shell, or a list of a program and its arguments"),
        (["a", 1], {}, "a line of the shell, or a list"),
        ("true", {"shell": "zsh"}, "shell is one of sh, bash, or None, not 'zsh'"),
        (["true"], {"shell": "sh"}, "a list runs without a shell"),
        ("true", {"cwd": 3}, "cwd is a path: a text or a Path, or None, not 3"),
        ("true", {"env": {"A": 1}}, "env is a mapping of names of variables"),
        ("true", {"env": {"REDRIVE_EXECUTOR": None}}, "none begins with REDRIVE_"),
        ("true", {"env": {"A=B": "x"}}, "env is a mapping"),
        ("true", {"stdin": b"x"}, "stdin is a text, or a path"),
        ("true", {"result": "stdout"}, "result is one of file, last-line, not 'stdout'"),
    ],
)
def test_an_option_of_a_command_is_refused_in_words(line: Any, options: Any, sentence: str) -> None:
    with pytest.raises(FlowError) as refused:
        Flow("f").command("t", line, **options)
    assert sentence in str(refused.value)


def test_options_of_commands_are_no_options_of_functions() -> None:
    with pytest.raises(FlowError, match="no option 'cwd'"):
        Flow("f").task(print, cwd="/tmp")  # type: ignore[call-arg]
    with pytest.raises(FlowError, match=r"options of flow\.command"):
        Flow("f").add(TaskDef("t", print, cwd="/tmp"))


# --- Defaults of the flow and its groups --------------------------------------------------------------------------

THRICE, ONCE = RetryPolicy(max_attempts=3, base=7), RetryPolicy(max_attempts=1)


def test_tasks_inherit_from_their_group_then_from_the_flow_and_their_own_options_win() -> None:
    flow = Flow("f", retry=THRICE, timeout="10m", downstream="erp")
    flow.command("plain", "true")
    flow.command("own", "true", timeout=5, downstream=None, max_attempts=9)
    flow.task(lambda: None, name="unbounded", timeout=None, retry=None)
    flow.task(lambda: None, name="etl", kind="etl")
    flow.sensor(lambda: True, name="looks", every=5)
    with flow.group("extract", timeout=30, downstream="api") as extract:
        orders = flow.command("orders", "true")
        with flow.group("late", retry=ONCE, downstream=None):
            lines = flow.task(lambda: None, name="lines")
    flow.add(TaskDef("as_it_is", print))
    tasks = {task.name: task for task in flow.spec().tasks}
    assert {name: (task.timeout, task.downstream, task.retry.max_attempts) for name, task in tasks.items()} == {
        "plain": (600, "erp", 3),
        "own": (5, None, 9),
        "unbounded": (None, "erp", RetryPolicy().max_attempts),
        "etl": (1800, "erp", 3),
        "looks": (65, "erp", 3),
        "extract.orders": (30, "api", 3),
        "extract.late.lines": (30, None, 1),
        "as_it_is": (None, None, RetryPolicy().max_attempts),
    }
    assert tasks["own"].retry.base == 7, "max_attempts of the task changes nothing else of the policy of the flow"
    assert [tasks[name].group for name in ("plain", "extract.orders", "extract.late.lines")] == [
        None,
        "extract",
        "extract.late",
    ]
    assert orders == "extract.orders" and callable(lines)
    assert extract.tasks == ["extract.orders", "extract.late.lines"]
    assert flow.inherited["extract.late.lines"] == {
        "retry": "group 'extract.late'",
        "timeout": "group 'extract'",
        "downstream": "group 'extract.late'",
    }
    assert flow.inherited["own"] == {"retry": "the flow"} and "as_it_is" not in flow.inherited


def test_variables_of_the_flow_its_groups_and_a_command_are_added_up() -> None:
    flow = Flow("f", env={"PGHOST": "db1", "LANG": "C"})
    flow.command("plain", "true")
    flow.task(lambda: None, name="python")
    with flow.group("g", env={"LANG": None, "TZ": "UTC"}):
        flow.command("own", "true", env={"TZ": "CET"})
    found = {task.name: task.command_options.env for task in flow.spec().tasks if task.command_options}
    assert found == {
        "plain": {"PGHOST": "db1", "LANG": "C"},
        "g.own": {"PGHOST": "db1", "LANG": None, "TZ": "CET"},
    }
    assert flow.inherited == {"plain": {"env": "the flow"}, "python": {}, "g.own": {"env": "group 'g'"}}
    with pytest.raises(OptionError, match="task 'bad': env is a mapping of names of variables"):
        flow.command("bad", "true", env={"A": 1})  # type: ignore[dict-item]


def test_a_group_ends_with_its_block_also_after_an_error() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError), flow.group("g"):
        flow.command("a", "")
    assert flow.command("b", "true") == "b"


def test_a_child_of_a_group_gets_the_results_by_their_names() -> None:
    flow = Flow("f")
    with flow.group("extract") as extract:
        flow.task(lambda: 1, name="orders")
        flow.task(lambda: 2, name="lines")
    flow.task(lambda extract_orders, extract_lines: None, name="load", after=extract.tasks)
    assert flow.spec().tasks[-1].requires == ("extract.orders", "extract.lines")


@for_each(
    "name, options, why",
    [
        ("", {}, "a group: its name is a text that is not blank"),
        (" \t", {}, "a group: its name is a text that is not blank"),
        (5, {}, "a group: its name is a text that is not blank"),
        ("g", {"retry": 3}, "group 'g': retry is a RetryPolicy"),
        ("g", {"timeout": 0}, "group 'g': timeout is a duration above 0"),
        ("g", {"pool": "x"}, "group 'g': there is no option 'pool'; there are retry, memory, cpus, downstream, "),
    ],
)
def test_a_group_is_held_to_its_table(name: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why), Flow("f").group(name, **options):
        pass


@pytest.mark.parametrize("name", [" ", "\t\n", "\u2003"])
def test_a_task_whose_name_nobody_would_see_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="name is a text that is not blank"):
        Flow("f").task(lambda: 1, name=name)


@for_each(
    "options, meant",
    [
        ({"tmeout": 3}, "timeout"),
        ({"retry_delay": 5}, "retry"),
        ({"depends_on": "a"}, "after"),
        ({"trigger_rule": "all_done"}, "rule"),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_is_meant(options: Any, meant: str):
    with pytest.raises(OptionError, match=f"did you mean '{meant}'\\?$"):
        Flow("f").task(print, **options)


def test_the_option_for_retries_is_proposed_with_one_start_more():
    options: Any = {"retries": 3}
    sentence = r"did you mean 'max_attempts'\? It counts the first start: retries=3 is max_attempts=4\.$"
    with pytest.raises(OptionError, match=sentence):
        Flow("f").task(print, **options)


def test_an_option_of_a_flow_that_is_mistyped_or_of_another_scheduler_is_told_with_the_one_that_is_meant():
    for option, meant in (("deadine", "deadline"), ("cron", "schedule"), ("dagrun_timeout", "deadline")):
        options: Any = {option: 3}
        with pytest.raises(OptionError, match=f"no option '{option}'; did you mean '{meant}'\\?"):
            Flow("f", **options)


def test_an_option_that_is_wrong_has_the_name_that_was_written():
    elements: Any = [1, 2]
    with pytest.raises(OptionError, match="a map task: over is a task that returns the list, or the name of one, not "):
        Flow("f").map(over=elements)
    with pytest.raises(OptionError, match="a sensor: every is a duration above 0"):
        Flow("f").sensor(every=0)
