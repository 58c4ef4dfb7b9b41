"""What ``redrive check`` sees in commands: missing programs, what goes on in the background, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Flow, FlowError, Param
from redrive.engine.check.flow_checks import check_spec
from redrive.engine.check.tasks import check_commands, check_pagers
from support.marks import for_each


def found(folder: Path, line: Any, **options: Any) -> dict[str, str]:
    flow = Flow("f")
    flow.command("t", line, timeout=60, **options)
    flow.path = str(folder / "flow.py")
    return {finding.rule: finding.message for finding in check_commands(flow.spec())}


@for_each(
    "line, options, rule",
    [
        ("no-such-program -x", {}, "program"),
        (["no-such-program"], {}, "program"),
        (["sh", "-c", "true"], {}, None),
        ("sh -c true", {"env": {"PATH": "/no/such/folder"}}, "program"),
        ("true", {"cwd": "no-such-folder"}, "cwd"),
        ("true", {"cwd": "."}, None),
        ("cat", {"stdin": Path("missing.sql")}, "stdin"),
        ("false || cat", {}, None),
        ("echo 'a | b'", {}, None),
        ("nohup sleep 9", {}, "background"),
        ("sleep 9 &", {}, "background"),
        ("setsid sleep 9 > log", {}, "background"),
        ("sleep 1 & sleep 2 & wait", {}, None),
        ("true 2>&1 && echo 'a & b'", {}, None),
        ("sh -c 'a' --password=hunter2", {}, "secret"),
        ("PGPASSWORD=hunter2 true", {}, "secret"),
        ("PGPASSWORD=$DB_PASSWORD true", {}, None),
        ("echo --token '$TOKEN' token=\"$TOKEN\"", {}, None),
        ("echo postgres://etl:hunter2@db1/x", {}, "secret"),
        ("echo https://host:80/x@y", {}, None),
        ("true", {"env": {"PGPASSWORD": "hunter2"}}, "secret"),
        ("true", {"env": {"PGPASSWORD": None, "PGHOST": "db1"}}, None),
    ],
)
def test_a_rule_finds_its_case_and_no_other(tmp_path: Path, line: Any, options: Any, rule: str | None) -> None:
    findings = found(tmp_path, line, **options)
    assert list(findings) == ([] if rule is None else [rule])
    assert "hunter2" not in str(findings)


@pytest.mark.parametrize("line", [["./x"], "./x", "true && ./x a"])
def test_a_script_whose_interpreter_is_not_there_is_reported(tmp_path: Path, line: Any) -> None:
    (tmp_path / "x").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    (tmp_path / "x").chmod(0o755)
    assert "ends in CRLF" in found(tmp_path, line)["program"]


def test_parents_with_one_variable_are_reported(tmp_path: Path) -> None:
    flow = Flow("f")
    for name in ("a-b", "a_b"):
        flow.command(name, "true", timeout=1)
    flow.command("t", "true", after=["a-b", "a_b"], timeout=1)
    assert [one.message for one in check_commands(flow.spec())] == [
        "several of its parents share the variable REDRIVE_RESULT_A_B: read $REDRIVE_INPUTS"
    ]


def test_a_secret_that_is_not_set_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IS_SET", "hunter2")
    monkeypatch.delenv("IS_MISSING", raising=False)
    flow = Flow("f", secrets=["IS_SET", "IS_MISSING", "password"], params={"password": None})
    flow.command("t", "true", timeout=1)
    (messages,) = (one for one in check_spec(flow.spec()) if one.rule == "secret")
    assert messages.message == "the variable IS_MISSING, a secret of the flow, is not set here"


def test_a_secret_parameter_is_a_text() -> None:
    with pytest.raises(FlowError, match="secret parameter 'pin' is a text"):
        Flow("f", secrets=["pin"], params={"pin": 7})


def test_a_typed_parameter_can_be_secret() -> None:
    assert Flow("f", secrets=["password"], params={"password": Param(str, None)}).declared.secrets == ("password",)
    with pytest.raises(FlowError, match="secret parameter 'pin' is a text"):
        Flow("f", secrets=["pin"], params={"pin": Param(int, 7)})


@for_each(
    "sender, options, message",
    [
        ("command", {"argv": ["no-such-mailer", "x"]}, "no page is sent by 'no-such-mailer': this program is not"),
        ("command", {"line": "no-such-mailer x | cat"}, "no page is sent by 'no-such-mailer': this program is not"),
        ("command", {"argv": ["sh", "-c", "true"]}, None),
        ("command", {"line": 'echo "$REDRIVE_PAGE_TITLE" >> pages.txt'}, None),
        ("webhook", {"url": "http://127.0.0.1:9/x"}, None),
    ],
)
def test_a_pager_that_is_not_there_is_a_warning(sender: Any, options: Any, message: str | None) -> None:
    flow = Flow("f")
    flow.command("a", "true", timeout=1)
    flow.page(sender, **options)
    found = [(one.level, one.message) for one in check_pagers(flow.spec())]
    assert [level for level, _ in found] == ([] if message is None else ["warning"])
    assert message is None or found[0][1].startswith(message)


def test_a_library_of_a_pager_that_is_not_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.engine.check.tasks.find_spec", lambda name: None)
    flow = Flow("f")
    flow.command("a", "true", timeout=1)
    flow.page("apprise", url="slack://x")
    (finding,) = check_pagers(flow.spec())
    assert finding.message == "the sender apprise needs a library: pip install 'redrive[notify]'"
