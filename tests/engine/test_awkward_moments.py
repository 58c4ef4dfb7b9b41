"""What happens when two things happen at once: each of these hung a run, or lost what somebody wanted, once."""

import json
import logging
import os
import resource
import signal
import socket
import sqlite3
import threading
import time
import uuid
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, PermanentError, RedriveError, RetryPolicy, RunOptions
from redrive.engine.agent import command_client, executor_socket
from redrive.engine.domain.acts import parse_command
from redrive.engine.domain.event_payloads import OperatorActed
from redrive.engine.domain.events import EventKind
from redrive.engine.errors import FlowError, StorageError
from redrive.engine.flow.loading import load_flow
from redrive.engine.runner.runner import Runner
from redrive.engine.statefile import operator_actions
from redrive.engine.store import claims
from support.commands import quoted, run_redrive, start_redrive, with_file
from support.marks import parametrize_mostly_long
from support.processes import socket_address
from support.waiting import wait_until

AGAIN = RetryPolicy(max_attempts=3, base=0.05, cap=0.05, jitter="none", poison_after=None)


def executor(tmp_path: Path, flow: Flow | str, **more) -> Executor:
    options = more.pop("options", {})
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db", options=RunOptions(**options), **more)


def table(tmp_path: Path, columns: str = "state") -> dict:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        rows = connection.execute(f"SELECT name, {columns} FROM task ORDER BY position")
        return {name: values[0] if len(values) == 1 else tuple(values) for name, *values in rows}


def run_state(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute("SELECT state FROM run").fetchone()[0]


def command(act: str, *targets, **more) -> dict:
    targets = [list(target) for target in targets]  # type: ignore[assignment]
    who = {"id": uuid.uuid4().hex, "actor": "ana@host", "reason": "why"}
    return {**who, "act": act, "run_id": "r", "targets": targets, **more}


def act(tmp_path: Path, act: str, *targets, **more):
    return command_client.send_blocking(
        str(tmp_path / "state.db"), parse_command(command(act, *targets, **more))
    ).as_json()


class When:
    """A listener that does something beside the loop, once, when an event of this kind comes."""

    def __init__(self, kind: str, new: str | None, task: str | None, do) -> None:
        self._wanted = (kind, new, task)
        self._thread: threading.Thread | None = None
        self._do = do

    def __call__(self, events) -> None:
        found = any((event.kind, event.new, event.task) == self._wanted for event in events)
        if found and self._thread is None:
            self._thread = threading.Thread(target=self._do)
            self._thread.start()


def test_a_task_that_fails_while_its_parent_runs_again_waits_for_it_and_the_run_ends_blocked(tmp_path):
    flow, go_on = Flow("f"), tmp_path / "go-on"

    @flow.task
    def parent(ctx):
        if ctx.generation:
            raise PermanentError("no longer")

    @flow.task(after=parent, retry=AGAIN)
    def child():
        while not go_on.exists():
            time.sleep(0.01)
        raise OSError("without a good parent")

    def requeue():
        assert act(tmp_path, "requeue", ("parent", "SUCCESS", 0))["ok"]
        go_on.touch()

    result = executor(tmp_path, flow, on_events=When("task", "RUNNING", "child", requeue)).run_result()
    assert result.blocked
    assert {"parent": "DEAD_LETTER", "child": "PENDING"} == table(tmp_path)


def test_a_task_that_fails_while_its_parent_runs_again_is_stopped_when_that_fails(tmp_path):
    flow, go_on = Flow("f"), tmp_path / "go-on"

    @flow.task(retry=RetryPolicy(max_attempts=1))
    def parent(ctx):
        if ctx.generation:
            raise OSError("no longer")

    @flow.task(after=parent, retry=AGAIN)
    def child():
        while not go_on.exists():
            time.sleep(0.01)
        raise OSError("without a good parent")

    class Both:
        requeued = When("task", "RUNNING", "child", lambda: act(tmp_path, "requeue", ("parent", "SUCCESS", 0)))
        failed = When("task", "FAILED", "parent", go_on.touch)

        def __call__(self, events):
            self.requeued(events)
            self.failed(events)

    assert "FAILED" == executor(tmp_path, flow, on_events=Both()).run_result().state
    assert {"parent": ("FAILED", None), "child": ("UPSTREAM_FAILED", "parent")} == table(tmp_path, "state, blocked_by")


def test_a_cancel_during_the_grace_of_a_timeout_is_not_answered_by_a_retry(tmp_path):
    flow, ignores, go_on = Flow("f"), tmp_path / "ignores", tmp_path / "go-on"

    @flow.task(timeout=1, grace_seconds=60, retry=RetryPolicy(max_attempts=100, base=0.05, cap=0.05, poison_after=None))
    def hangs():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ignores.touch()
        while not go_on.exists():
            time.sleep(0.01)

    def cancel():
        assert act(tmp_path, "cancel", ("hangs", "RUNNING", 0))["ok"]
        attempts.append(table(tmp_path, "attempt")["hangs"])
        go_on.touch()

    attempts, when = [], When(EventKind.ATTEMPT_SIGTERM, None, "hangs", cancel)
    listen = lambda events: when(events) if ignores.exists() else None  # noqa: E731  # else SIGTERM ends the attempt
    assert "FAILED" == executor(tmp_path, flow, on_events=listen).run_result().state
    assert {"hangs": ("CANCELLED", attempts[0])} == table(tmp_path, "state, attempt")


def test_a_cancel_that_is_committed_together_with_the_claim_is_not_lost(tmp_path, monkeypatch):
    """The task counts as running, and there is no process to end yet."""
    dispatch = claims.dispatch

    def dispatch_and_cancel(transaction, *arguments):
        taken = dispatch(transaction, *arguments)
        for claim in taken:
            operator_actions.apply(transaction, parse_command(command("cancel", (claim.task, "RUNNING", 0))))
        return taken

    monkeypatch.setattr(claims, "dispatch", dispatch_and_cancel)
    flow = Flow("f")
    flow.task(lambda: time.sleep(60), name="long", timeout=100)
    assert "FAILED" == executor(tmp_path, flow).run_result().state
    assert {"long": ("CANCELLED", 1)} == table(tmp_path, "state, attempt")


@pytest.mark.parametrize(("idempotent", "state"), [(True, "RETRYING"), (False, "DEAD_LETTER")])
def test_an_executor_that_stops_half_way_through_what_may_not_happen_twice_asks_a_human(tmp_path, idempotent, state):
    """003.32, and Ctrl-C is no better than a crash."""
    flow = Flow("f")
    began = tmp_path / "began"
    flow.task(lambda: began.touch() or time.sleep(60), name="pay", idempotent=idempotent, timeout=100, grace_seconds=1)

    def stop():
        wait_until(began.exists)
        assert act(tmp_path, "stop", options={"how": "now"})["ok"]

    result = executor(tmp_path, flow, on_events=When("task", "RUNNING", "pay", stop)).run_result()
    assert result.interrupted
    assert {"pay": state} == table(tmp_path)


def test_an_attempt_that_no_zygote_forks_is_lost_and_spends_no_budget(tmp_path, monkeypatch):
    launch, refused = Runner.launch, []

    def launch_without_zygote_once(self, order, listener, on_started, on_failed, *, is_apart=False):
        if refused:
            launch(self, order, listener, on_started, on_failed, is_apart=is_apart)
        else:
            refused.append(order.task)
            on_failed(ProcessLookupError("the zygote is gone"))

    monkeypatch.setattr(Runner, "launch", launch_without_zygote_once)
    flow = Flow("f")
    flow.task(lambda: None, name="only", retry=RetryPolicy(max_attempts=1, base=0.05))
    assert "SUCCESS" == executor(tmp_path, flow).run_result().state
    assert {"only": (2, 0, 1)} == table(tmp_path, "attempt, failures, losses")


def test_nothing_is_claimed_while_there_is_nobody_to_fork_it(tmp_path):
    flow = tmp_path / "flow.py"
    flow.write_text("""
import os, signal, time
from redrive.engine import Flow, RetryPolicy
flow = Flow("f")
def body(ctx):
    if ctx.task == "t3" and ctx.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.02)
for number in range(12):
    flow.task(body, name=f"t{number}", retry=RetryPolicy(max_attempts=1, base=0.05))
""")
    assert "SUCCESS" == executor(tmp_path, str(flow), options={"max_parallel": 3}).run_result().state
    assert {0} == set(table(tmp_path, "failures").values())


def test_a_listener_that_raises_does_not_put_the_run_to_sleep(tmp_path):
    """As a printer does whose stdout is full, closed, or in ASCII."""
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    flow.task(lambda: None, name="b", after="a")

    def listen(events):
        raise OSError("no space left on device")

    assert "SUCCESS" == executor(tmp_path, flow, on_events=listen).run_result().state


SIXTY_AT_A_TIME = """
import time
from redrive.engine import Flow

flow = Flow("f", max_parallel=60)
for number in range(60):
    flow.task(lambda: time.sleep(0.05), name=f"t{number}", timeout=60)
"""


@pytest.mark.long
def test_no_more_attempts_run_at_a_time_than_there_are_descriptors_for(tmp_path):
    """Out of descriptors the link to the zygote is cut, and everything that runs is lost, again and again."""
    (tmp_path / "flow.py").write_text(SIXTY_AT_A_TIME)
    words = ("run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--plain")
    started = start_redrive(*words, prefix=("sh", "-c", 'ulimit -n 120 && exec "$@"', "sh"))
    output, _ = started.communicate()
    assert started.returncode == 0, output
    assert {1} == set(table(tmp_path, "attempt").values())


@pytest.mark.parametrize("bad", [{"act": ["pause"]}, {"options": ["not", "a", "mapping"]}, {"targets": 5}])
def test_a_command_that_makes_no_sense_is_answered_and_the_line_stays_open(tmp_path, bad):
    flow, answers = Flow("f"), []
    flow.task(lambda: time.sleep(60), name="long", timeout=100)

    def converse():
        with socket.socket(socket.AF_UNIX) as line, line.makefile("rwb") as stream:
            with socket_address(tmp_path / "state.db.sock") as address:
                line.connect(address)
            command = {"id": "1", "act": "requeue", "run_id": "r", "actor": "ana@host", "reason": "why", **bad}
            for request in (command, {"act": "ping"}):
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                answers.append(json.loads(stream.readline()))
        act(tmp_path, "stop", options={"how": "now"})

    executor(tmp_path, flow, on_events=When("task", "RUNNING", "long", converse)).run()
    assert [False, True] == [answer["ok"] for answer in answers]


def test_a_fault_in_an_act_is_one_sentence_for_the_operator_and_a_traceback_in_the_log(tmp_path, monkeypatch, caplog):
    """The connection used to be dropped: the console waited half a minute and never learned why."""

    def fail(transaction, command):
        transaction.emit(OperatorActed("half done"), "r")
        raise KeyError("what nobody thought of")

    monkeypatch.setattr(operator_actions, "apply", fail)
    monkeypatch.setattr(logging.getLogger("asyncio"), "propagate", True)  # as in a program that no command started
    flow, answers, go_on = Flow("f"), [], tmp_path / "go-on"

    @flow.task
    def waits():
        while not go_on.exists():
            time.sleep(0.01)

    def pause():
        answers.append(act(tmp_path, "pause"))
        go_on.touch()

    assert "SUCCESS" == executor(tmp_path, flow, on_events=When("task", "RUNNING", "waits", pause)).run()
    assert not answers[0]["ok"]
    assert "what nobody thought of" in answers[0]["message"] and "nothing is changed" in answers[0]["message"]
    assert "KeyError" in caplog.text
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert (
            []
            == connection.execute("SELECT 1 FROM event WHERE kind = 'operator' AND data LIKE '%half done%'").fetchall()
        )


# --- A disk that refuses ------------------------------------------------------------------------------------------


def in_a_child(work) -> int:
    """The exit code of a process that does this; 99 if it raises."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.long
def test_a_run_whose_file_cannot_be_written_says_so_at_once_and_can_be_stopped(tmp_path):
    """It used to say nothing and to ignore SIGTERM until the disk had room again."""
    flow = Flow("f")
    for number in range(8):
        flow.task(lambda: print("x" * 200_000), name=f"t{number}")

    def stop(events):
        sentences = [event.payload.sentence for event in events if event.kind == EventKind.STORAGE]
        if sentences:
            (tmp_path / "said").write_text(sentences[0])
            os.kill(os.getpid(), signal.SIGTERM)

    def run_on_a_small_disk() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        try:
            executor(tmp_path, flow, on_events=stop, handle_signals=True).run()
        except StorageError:
            return 0
        return 1

    assert 0 == in_a_child(run_on_a_small_disk)
    assert "state.db" in (tmp_path / "said").read_text()
    assert "SUCCESS" == executor(tmp_path, flow).run()


@pytest.mark.long
def test_commands_are_refused_and_not_kept_waiting_while_the_file_cannot_be_written(tmp_path):
    flow, answers = Flow("f"), []
    for number in range(8):
        flow.task(lambda: print("x" * 200_000), name=f"t{number}")

    def pause_and_stop():
        answers.append(act(tmp_path, "pause"))
        act(tmp_path, "stop", options={"how": "now"})

    def run_on_a_small_disk() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        refuse = When(EventKind.STORAGE, None, None, pause_and_stop)
        try:
            executor(tmp_path, flow, on_events=refuse).run()
        except StorageError:
            refused = [answer for answer in answers if not answer["ok"] and "nothing is changed" in answer["message"]]
            return 0 if refused else 2
        return 1

    assert 0 == in_a_child(run_on_a_small_disk)


def test_a_lock_that_cannot_be_written_is_one_sentence(tmp_path):
    flow = Flow("f")
    flow.task(lambda: None, name="a")

    def run_on_a_full_disk() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            executor(tmp_path, flow).run()
        except StorageError:
            return 0
        return 1

    assert 0 == in_a_child(run_on_a_full_disk)


# --- A flow that has changed ---------------------------------------------------------------------------------------


def test_a_new_task_opens_a_run_that_had_ended_and_decides_how_it_ends(tmp_path):
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    assert "SUCCESS" == executor(tmp_path, flow).run()

    @flow.task(after="a", retry=RetryPolicy(max_attempts=1))
    def b():
        raise OSError("no")

    assert "FAILED" == executor(tmp_path, flow).run()
    assert "FAILED" == run_state(tmp_path)


def test_tasks_with_other_parents_than_before_are_stopped_or_freed_by_these(tmp_path):
    """One that would try again under a parent that has failed kept the run from ending."""

    def make(parents_of_retried: list[str], parents_of_stopped: list[str]) -> Flow:
        flow = Flow("f")

        @flow.task(retry=RetryPolicy(max_attempts=1))
        def bad():
            raise OSError("no")

        @flow.task(after=parents_of_retried, retry=RetryPolicy(base=600, cap=600, jitter="none"))
        def retried():
            raise OSError("not now")

        flow.task(lambda: None, name="stopped", after=parents_of_stopped)
        return flow

    def stop():
        wait_until(lambda: table(tmp_path)["bad"] == "FAILED")
        assert act(tmp_path, "stop", options={"how": "now"})["ok"]

    first = executor(tmp_path, make([], ["bad"]), on_events=When("task", "RETRYING", "retried", stop)).run_result()
    assert first.interrupted
    states = table(tmp_path)
    assert ("RETRYING", "FAILED", "UPSTREAM_FAILED") == (states["retried"], states["bad"], states["stopped"])
    assert "FAILED" == executor(tmp_path, make(["bad"], [])).run()
    assert {"bad": "FAILED", "retried": "UPSTREAM_FAILED", "stopped": "SUCCESS"} == table(tmp_path)


def params_of(tmp_path: Path) -> dict:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return json.loads(connection.execute("SELECT params FROM run").fetchone()[0])


def read_params(tmp_path: Path) -> list[dict]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        rows = connection.execute("SELECT data FROM event WHERE kind = 'run' ORDER BY seq")
        params = [json.loads(data) for (data,) in rows]
    return [
        {key: request for key, request in data.items() if key not in ("what", "set")}
        for data in params
        if data["what"] == "params"
    ]


DAYS = """
from redrive.engine import Flow, TransientError, RetryPolicy
flow = Flow("f", params={params})

@flow.task(retry=RetryPolicy(max_attempts=3, base=0.01))
def a(ctx):
    if not ctx.params.get("go"):
        raise {error}("not yet")
    return dict(ctx.params)
"""


def write_days(tmp_path: Path, params: str, error: str = "ZeroDivisionError") -> str:
    (tmp_path / "flow.py").write_text(DAYS.format(params=params, error=error))
    return str(tmp_path / "flow.py")


@pytest.mark.long
def test_a_parameter_given_to_an_existing_run_is_kept_and_reported(tmp_path):
    """It used to be handed to the tasks and forgotten: the next resume ran with the old one again."""
    flow = write_days(tmp_path, "{'day': 1, 'go': False}")
    executor(tmp_path, flow).run()
    executor(tmp_path, flow, options={"params": {"day": "2"}}).run()
    assert {"day": 2, "go": False} == params_of(tmp_path)
    executor(tmp_path, flow).run()
    assert [{"changed": {"day": [1, 2]}}] == read_params(tmp_path)
    act(tmp_path, "requeue", ("a", table(tmp_path)["a"], 0))
    assert "SUCCESS" == executor(tmp_path, flow, options={"params": {"go": "yes"}}).run()
    assert '{"day":2,"go":true}' == table(tmp_path, "result")["a"]


def test_a_run_keeps_its_values_and_lives_with_a_flow_that_declares_others(tmp_path):
    """A parameter that the flow had lost made resume exit with 2."""
    executor(
        tmp_path, write_days(tmp_path, "{'day': 1, 'zone': 'eu', 'go': False}"), options={"params": {"day": 5}}
    ).run()
    executor(tmp_path, write_days(tmp_path, "{'day': 9, 'depth': 3, 'go': False}")).run()
    assert {"day": 5, "depth": 3, "go": False} == params_of(tmp_path)
    assert [{"added": {"depth": 3}, "removed": {"zone": "eu"}}] == read_params(tmp_path)
    with pytest.raises(RedriveError, match="no parameter 'zone'"):
        executor(tmp_path, write_days(tmp_path, "{'day': 9}"), options={"params": {"zone": "us"}}).run()


def test_the_same_failure_with_other_parameters_is_not_yet_poison(tmp_path):
    """Something changed between the attempts: it is counted from one again."""
    flow = write_days(tmp_path, "{'day': 1, 'go': False}")
    stop = When("task", "RETRYING", "a", lambda: act(tmp_path, "stop", options={"how": "now"}))
    slow = Path(flow).read_text().replace("base=0.01", "base=600, cap=600, jitter='none'")
    Path(flow).write_text(slow)
    assert executor(tmp_path, flow, on_events=stop).run_result().interrupted
    act(tmp_path, "hurry", ("a", "RETRYING", 0))
    again = When("task", "RETRYING", "a", lambda: act(tmp_path, "stop", options={"how": "now"}))
    result = executor(tmp_path, flow, options={"params": {"day": "2"}}, on_events=again).run_result()
    assert result.interrupted and {"a": ("RETRYING", 2)} == table(tmp_path, "state, failures")
    act(tmp_path, "hurry", ("a", "RETRYING", 0))
    assert executor(tmp_path, flow).run_result().blocked
    assert {"a": ("DEAD_LETTER", "poison")} == table(tmp_path, "state, dead_letter_kind")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        body = json.loads(connection.execute("SELECT body FROM page").fetchone()[0])
        hashes = [hash for (hash,) in connection.execute("SELECT params_hash FROM attempt ORDER BY attempt")]
    assert hashes[0] != hashes[1] == hashes[2] and body["changed"] == []


# --- One sentence each ---------------------------------------------------------------------------------------------

BAD_FLOWS = {
    "Flow('f', max_parallel=0)": "max_parallel",
    "Flow('f', max_parallel='4')": "max_parallel",
    "Flow('f', pools={'p': 'many'})": "pools",
    "Flow('f', params={'big': 2**70})": "'big'",
    "Flow('f', params={'thing': object()})": "'thing'",
    "Flow('f', params={'half': '\\ud800'})": "'half'",
    "Flow('half \\ud800')": "text",
    "Flow(5)": "text",
}
BAD_TASKS = {
    "owner=5": "task 'a': owner is a text",
    "retry=3": r"task 'a': retry is a RetryPolicy, as retry=RetryPolicy\(max_attempts=3\)",
    "name='\\ud800'": "name is a text",
}


@parametrize_mostly_long(
    ("flow", "options", "word"),
    [(flow, "", word) for flow, word in BAD_FLOWS.items()]
    + [("Flow('f')", options, word) for options, word in BAD_TASKS.items()],
    quick=3,
)
def test_values_of_a_wrong_kind_are_refused_in_one_sentence(tmp_path, flow, options, word):
    path = tmp_path / "flow.py"
    path.write_text(f"from redrive.engine import Flow\nflow = {flow}\n@flow.task({options})\ndef a(): ...\n")
    with pytest.raises(RedriveError, match=word) as caught:
        executor(tmp_path, str(path)).run()
    assert "\n" not in str(caught.value)
    assert not getattr(caught.value, "traceback", "")


def test_the_path_of_a_state_file_need_not_be_utf_8(tmp_path):
    """Also if it is part of a page, and of what the commands print."""
    flow, state = Flow("f"), os.fsdecode(os.fsencode(tmp_path) + b"/J\xfcrgen.db")
    flow.page("command", line=f"cat > {quoted(tmp_path / 'paged')}")

    @flow.task
    def fails():
        raise PermanentError("no")

    assert Executor(run_id="r", flow=flow, state=state).run() == "BLOCKED"
    assert "rgen.db" in json.loads((tmp_path / "paged").read_text())["body"]["attach"]
    skip = ("skip", "fails", "--reason", "x")
    for words in (("inbox",), ("report",), skip):
        ended = run_redrive(*with_file(words, state))
        assert ended.returncode == (3 if words == ("inbox",) else 0) and "Traceback" not in ended.stderr, ended.stderr
    assert Executor(run_id="r", flow=flow, state=state).run() == "PARTIAL"


def test_the_path_of_a_flow_that_is_not_utf_8_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/J\xfcrgen.py")
    Path(path).write_text("")
    with pytest.raises(FlowError, match="is not UTF-8, and could not be stored: rename it"):
        load_flow(path)


@pytest.mark.parametrize("name", ["long" * 30, "länger" * 30, "x" * 200])
def test_a_state_file_may_have_a_longer_name_than_a_socket(tmp_path, name):
    """Up to what the file system takes; commands reach its executor all the same."""
    flow, state, pings, refusals = Flow("f"), tmp_path / f"{name}.db", [], []
    go_on = tmp_path / "go-on"

    @flow.task
    def waits():
        while not go_on.exists():
            time.sleep(0.01)

    def ask():
        pings.append(executor_socket.ping(str(state)))
        refusals.append(executor_socket.read_only_reason(str(state)))
        go_on.touch()

    listen = When("task", "RUNNING", "waits", ask)
    assert "SUCCESS" == Executor(run_id="r", flow=flow, state=state, on_events=listen).run()
    assert pings[0] and pings[0]["pid"] == os.getpid() and refusals == [None]
    assert not list(tmp_path.glob("*.sock"))


def test_a_sensor_that_would_poll_without_a_pause_is_refused(tmp_path):
    flow = Flow("f")
    with pytest.raises(RedriveError, match="every is a duration above 0"):
        flow.sensor(lambda: False, name="a", every=0)


@pytest.mark.parametrize("options", [{"max_parallel": 0}, {"max_parallel": -1}])
def test_a_run_without_any_slot_is_refused(tmp_path, options):
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    with pytest.raises(RedriveError, match="max_parallel"):
        executor(tmp_path, flow, options=options).run()


def test_a_run_whose_name_is_no_text_is_refused(tmp_path):
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    with pytest.raises(RedriveError, match="text"):
        Executor(run_id="r\udcff", flow=flow, state=tmp_path / "state.db").run()
    assert not (tmp_path / "state.db").exists()


def test_a_program_that_ignores_the_end_of_its_children_can_run_a_flow(tmp_path):
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "SUCCESS" == executor(tmp_path, flow).run_result().state
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_bug_in_the_ladder_ends_the_executor_and_its_attempts_instead_of_waiting_for_ever(tmp_path, monkeypatch):
    from redrive.engine.runner.forked_process import ForkedProcess

    flow = Flow("f")
    flow.task(lambda: time.sleep(600), name="hangs", timeout=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(ForkedProcess, "terminate", lambda *_: dict[str, int]()["no such key"])
        with pytest.raises(KeyError):
            executor(tmp_path, flow).run_result()


def test_a_bug_in_a_callback_ends_the_executor_and_its_attempts_instead_of_waiting_for_ever(tmp_path, monkeypatch):
    """What is in the file stays; the next executor takes the run up."""
    from redrive.engine.executor.attempts import RunningAttempts

    flow = Flow("f", retry=RetryPolicy(base=0.01))
    flow.task(lambda: None, name="a")
    with monkeypatch.context() as patch:
        patch.setattr(RunningAttempts, "settle", lambda *_: dict[str, int]()["no such key"])
        with pytest.raises(KeyError):
            executor(tmp_path, flow).run_result()
    assert {"RUNNING"} == set(table(tmp_path, "state").values())
    assert "SUCCESS" == executor(tmp_path, flow).run_result().state
