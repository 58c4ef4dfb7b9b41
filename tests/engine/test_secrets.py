"""Secrets in whole runs: nothing that a task prints, raises or returns brings them into the state file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from support.commands import run_redrive

SECRET = "hunter2-Größe/7"
PARAM = "param-secret-9"
TOLD = """
import os, subprocess, sys, threading
from redrive.engine import Flow, RetryPolicy

flow = Flow("f", secrets=["PGPASSWORD", "password"], params={"password": None, "day": "x"})
ONCE = RetryPolicy(max_attempts=1)
SECRET = os.environ["PGPASSWORD"]
print("importing with", SECRET)

@flow.task(retry=ONCE)
def prints():
    data = SECRET.encode()
    os.write(1, b"first " + data[:5])
    os.write(1, data[5:] + b" last\\n")
    print("repr", repr(SECRET), "url", "postgres://etl:" + "sesame@db1/x", flow.params["password"], file=sys.stderr)

@flow.task(retry=ONCE)
def raises(ctx):
    try:
        raise ValueError("inner " + SECRET)
    except ValueError as error:
        raise RuntimeError(f"cannot connect with {SECRET} {ctx.params['password']}") from error

@flow.task(retry=ONCE)
def returns():
    return {"token": SECRET}

@flow.task(retry=ONCE)
def leaves(ctx):
    ctx.checkpoint({"token": SECRET})
    with next(iter(ctx.rows([{"id": SECRET}], key="id"))):
        raise ValueError(SECRET)

@flow.task(retry=ONCE, timeout=1)
def hangs():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", SECRET])

flow.command("shell", 'echo "$PGPASSWORD $REDRIVE_PARAM_PASSWORD"; echo "bad $PGPASSWORD" >&2; exit 3', retry=ONCE)
flow.command("line", f"echo {SECRET} | wc -c", env={"TOKEN": SECRET}, retry=ONCE)
flow.command("result", 'echo "\\\\"$PGPASSWORD\\\\"" > $REDRIVE_RESULT', retry=ONCE)
"""


def run(folder: Path, *words: str, secret: str | None = SECRET, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PGPASSWORD": secret or ""}
    return run_redrive(*words, cwd=folder, env=environment, **options)


def test_no_byte_of_a_secret_reaches_the_state_file(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(TOLD)
    (tmp_path / "password").write_text(PARAM + "\n")
    words = ("run", "flow.py", "--plain", "--output", "--state", "s.db", "--param", "password=@password")
    printed = run(tmp_path, *words)
    with sqlite3.connect(tmp_path / "s.db") as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM event").fetchall()  # keeps the WAL
        printed_again = run(tmp_path, *words)
        files = [path for path in tmp_path.iterdir() if path.name.startswith("s.db")]
        assert "s.db-wal" in [path.name for path in files]
        stored = b"".join(path.read_bytes() for path in files)
    listings = [run(tmp_path, name, "s.db", "--json").stdout for name in ("runs", "tasks", "inbox", "events", "pages")]
    for secret in (SECRET, SECRET[:9], PARAM, "sesame"):
        assert secret.encode() not in stored
        assert json.dumps(secret)[1:-1].encode() not in stored
        assert all(secret not in text for text in (printed.stdout, printed.stderr, printed_again.stdout, *listings))
    rows = {row["name"]: row for row in map(json.loads, listings[1].splitlines())}
    assert "cannot connect with ***PGPASSWORD*** ***password***" in rows["raises"]["error"]
    assert rows["returns"]["result"] == {"redrive:not-stored": "result holds the secret PGPASSWORD"}
    assert (rows["line"]["state"], rows["hangs"]["error"][:12]) == ("SUCCESS", "task exceede")
    assert b"first ***PGPASSWORD*** last" in stored and b"postgres://etl:***@db1/x ***password***" in stored


def test_a_run_without_its_secret_is_refused_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(TOLD)
    refused = run(tmp_path, "run", "flow.py", "--plain", "--state", "s.db", "--param", "password=x")
    assert (refused.returncode, "the secret password has under 4 characters" in refused.stderr) == (2, True)
    refused = run(tmp_path, "run", "flow.py", "--plain", "--state", "s.db")
    assert (refused.returncode, "--param password=@FILE" in refused.stderr) == (2, True)
    refused = run(tmp_path, "run", "flow.py", "--plain", "--state", "s.db", "--param", "password=long", secret=None)
    assert (refused.returncode, "needs the variable PGPASSWORD" in refused.stderr) == (2, True)
    assert not (tmp_path / "s.db").exists()


ON_STDIN = ("run", "flow.py", "--plain", "--state", "s.db", "--param", "password=-")
SMALL = """
from redrive.engine import Flow
flow = Flow("f", secrets=["password"], params={"password": None})

@flow.task(max_attempts=1)
def reads(password):
    assert password == "changed-1", "wrong"
"""


def run_with_wrong_password(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ("run", "flow.py", "--plain", "--state", "s.db", "--param", "password=-")
    return run(folder, *command, input="wrong-one\n", stdin=None)


@pytest.mark.long
def test_a_secret_parameter_is_given_again_with_each_resume(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SMALL)
    first = run_with_wrong_password(tmp_path)
    assert first.returncode in (1, 3), first.stderr
    run(tmp_path, "requeue", "s.db", "reads", "--reason", "again")
    without = run(tmp_path, "resume", "s.db", "--plain")
    assert (without.returncode, "needs its secret parameter 'password'" in without.stderr) == (2, True)
    given = run(tmp_path, "resume", "s.db", "--plain", "--param", "password=-", input="changed-1\n", stdin=None)
    assert given.returncode == 0, given.stdout
    assert "***password***" in run(tmp_path, "runs", "s.db", "--json").stdout


def test_a_secret_parameter_of_one_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SMALL)
    run_with_wrong_password(tmp_path)
    refused = run(tmp_path, "requeue", "s.db", "reads", "--param", "password=changed-1", "--reason", "x")
    assert refused.returncode != 0
    assert "parameter 'password' is secret" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("value", "sentence"), [("@missing", "cannot be read: No such file"), ("@bytes", "not valid UTF-8")]
)
def test_a_value_that_cannot_be_read_is_a_sentence(tmp_path: Path, value: str, sentence: str) -> None:
    (tmp_path / "flow.py").write_text(SMALL)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    refused = run(tmp_path, "run", "flow.py", "--plain", "--param", f"password={value}")
    assert (refused.returncode, sentence in refused.stderr) == (2, True), refused.stderr


def test_two_signs_begin_a_value_with_one(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SMALL.replace('"changed-1"', '"@bob-the-user"'))
    assert (
        run(tmp_path, "run", "flow.py", "--plain", "--state", "s.db", "--param", "password=@@bob-the-user").returncode
        == 0
    )
