"""Tasks that are shell lines: the exit code tells, and the whole pipeline ends with the attempt."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import FailureClass, OutcomeKind, reason_of_unstored
from redrive.engine.core.result_codec import load_result
from redrive.engine.core.spec import TaskSpec
from redrive.engine.runner import attempt, command, reaper
from redrive.engine.runner.command import result_variables, variables_of
from redrive.engine.runner.protocol import AttemptOrder
from redrive.engine.runner.zygote.connection import ZygoteConnection
from support.processes import wait_until_dead


def flow(*commands: str) -> str:
    """A flow of one task ``t`` with this line."""
    (line,) = commands
    return f'flow.command("t", {line!r}, timeout=60)'


async def test_exit_code_0_is_success_with_its_output(bench: Any) -> None:
    await bench.open(flow("echo out; echo err >&2"))
    outcome, recorder = await bench.run("t")
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, None)
    assert recorder.text == b"out\nerr\n"


@pytest.mark.parametrize(
    ("code", "failure_class"),
    [(1, None), (75, FailureClass.TRANSIENT), (127, None)],
)
async def test_another_exit_code_is_a_failure_with_the_last_line(
    bench: Any, code: int, failure_class: FailureClass | None
) -> None:
    await bench.open(flow(f"echo loading; echo 'table is locked' >&2; exit {code}"))
    outcome, _ = await bench.run("t")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.attempt_columns["exit_code"] == code
    assert outcome.failure.error_type == f"exit:{code}"
    assert "table is locked" in outcome.failure.message
    if failure_class is not None:
        assert outcome.failure.failure_class is failure_class


async def test_a_signal_that_is_not_ours_is_reported(bench: Any) -> None:
    await bench.open(flow("kill -ABRT $$"))
    outcome, _ = await bench.run("t")
    assert outcome.failure.error_type == "signal:6:unknown"


async def test_a_command_runs_in_the_folder_of_its_flow_and_knows_who_it_is(bench: Any) -> None:
    await bench.open(flow("pwd; echo $REDRIVE_TASK $REDRIVE_ATTEMPT $REDRIVE_RUN_ID $REDRIVE_PARAM_DAY"))
    _, recorder = await bench.run("t", attempt=2, params={"day": "it's; $(monday)"})
    folder, who = recorder.text.decode().splitlines()
    assert Path(folder).resolve() == bench.folder.resolve()
    assert who == "t 2 run-1 it's; $(monday)"


@pytest.fixture
def started_in_the_background() -> Iterator[None]:
    """As ``nohup redrive run ... &`` of a script: the shell ignores SIGQUIT, nohup SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("started_in_the_background")
async def test_the_signals_of_a_command_are_those_of_a_fresh_shell(bench: Any) -> None:
    """Python ignores SIGPIPE, and an ignored signal stays ignored across exec: ``yes`` would never end."""
    await bench.open(flow("yes | head -1; grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    _, recorder = await bench.run("t")
    first, *masks = recorder.text.splitlines()
    assert first == b"y" and len(masks) == 2
    own = 0b11 << 31  # 32 and 33 are those of the C library, which ignores them in what posix_spawn starts
    assert not [mask for mask in masks if int(mask.split()[1], 16) & ~own]


async def test_a_command_reads_nothing_and_holds_nothing_of_the_engine(bench: Any) -> None:
    await bench.open(flow("cat; ls -l /proc/self/fd"))
    _, recorder = await bench.run("t")
    text = recorder.text.decode()
    assert "/dev/null" in text
    assert "socket:" not in text
    assert text.count("pipe:") == 3  # stdout, stderr, and the one that ends with its worker


async def test_a_pipeline_that_hangs_is_ended_whole_and_says_what_it_waited_for(bench: Any, survivors: Any) -> None:
    await bench.open('flow.command("t", "echo go; sleep 600 | cat", timeout=0.5, grace_seconds=0.5)')

    def is_whole(outcome: Any, recorder: Any) -> bool:
        return "asleep, 0 % CPU for the last" in outcome.failure.message

    outcome, recorder = await bench.run_until(is_whole, "t")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    heading, *lines = outcome.attempt_columns["stack"].splitlines()
    assert heading == "Processes:"
    lines_by_command = {line.split(": ", 1)[1]: line for line in lines[:3]}
    assert list(lines_by_command) == ["/bin/sh -c echo go; sleep 600 | cat", "sleep 600", "cat"]
    pids = [int(standing.split()[1]) for standing in lines_by_command.values()]
    message = outcome.failure.message
    assert f"waits for its child `sleep` (pid {pids[1]}, S" in message
    assert recorder.payload_of("stack").where == message.removeprefix("task exceeded 0.5s: ")
    assert survivors(pids, seconds=0) == []


async def test_a_command_that_ignores_sigterm_is_killed(bench: Any) -> None:
    line = "trap '' TERM; echo ready; while :; do :; done"
    await bench.open(f"""flow.command("t", "{line}", timeout=0.4, grace_seconds=0.4)""")
    outcome, recorder = await bench.run_until(lambda _, recorder: recorder.text == b"ready\n", "t")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.kinds[:4] == ["deadline", "stack", "sigterm", "sigkill"]


async def test_a_background_job_of_a_command_does_not_outlive_it(bench: Any, survivors: Any) -> None:
    await bench.open(flow("sleep 600 & echo $!"))
    outcome, recorder = await bench.run("t")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert recorder.payload_of("swept").pids == [int(recorder.text)]
    assert survivors([int(recorder.text)], seconds=0) == []


async def test_a_folder_that_is_gone_is_a_failure_in_words(bench: Any, tmp_path: Path) -> None:
    bench.path = tmp_path / "gone" / "flow.py"
    bench.path.parent.mkdir()
    await bench.open(flow("true"))
    shutil.rmtree(bench.path.parent)
    outcome, _ = await bench.run("t")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.failure.error_type == "FileNotFoundError"


# --- Options ----------------------------------------------------------------------------------------------------------


async def test_a_list_runs_without_a_shell(bench: Any) -> None:
    await bench.open("""flow.command("t", ["printf", "%s|", "$HOME *", "; echo no"], timeout=60)""")
    outcome, recorder = await bench.run("t")
    assert (outcome.kind, recorder.text) == (OutcomeKind.SUCCESS, b"$HOME *|; echo no|")


@pytest.mark.parametrize(("shell", "kind"), [("sh", OutcomeKind.SUCCESS), ("bash", OutcomeKind.ERROR)])
async def test_bash_sees_the_failure_inside_a_pipe(bench: Any, shell: str, kind: OutcomeKind) -> None:
    await bench.open(f'flow.command("t", "false | cat", shell={shell!r}, timeout=60)')
    assert (await bench.run("t"))[0].kind is kind


async def test_env_is_merged_over_the_environment_and_none_removes(bench: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("REMOVED", "1")
    bench.runner = type(bench.runner).spawn(environment={"REDRIVE_EXECUTOR": bench.executor_id, "STAYS": "yes"})
    await bench.open("""
        flow.command("t", 'echo "$STAYS ${REMOVED-gone} $A$B."', env={"A": "x y", "B": "", "REMOVED": None}, timeout=60)
    """)
    assert (await bench.run("t"))[1].text == b"yes gone x y.\n"


async def test_the_program_is_found_in_the_path_of_its_env(bench: Any) -> None:
    program = bench.folder / "bin" / "hello"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    await bench.open(f'flow.command("t", ["hello"], env={{"PATH": {str(program.parent)!r}}}, timeout=60)')
    assert (await bench.run("t"))[1].text == b"hello\n"


async def test_a_missing_program_is_named(bench: Any) -> None:
    await bench.open("""flow.command("t", ["no-such-program", "x"], timeout=60)""")
    outcome, _ = await bench.run("t")
    assert (outcome.failure.error_type, outcome.failure.failure_class) == ("CommandStartError", FailureClass.PERMANENT)
    assert outcome.failure.message == "there is no such program: 'no-such-program'"


#: What is in the file, its mode, and what is said of it.
CANNOT_START = {
    "no mode": ("#!/bin/sh\n", 0o644, "'./x' may not be executed: chmod +x ./x"),
    "no interpreter": (
        "#!/no/such/python3\n",
        0o755,
        "'./x' names an interpreter that is not there: '/no/such/python3'",
    ),
    "no env": ("#!/usr/bin/env no-such-python\n", 0o755, "an interpreter that is not there: 'no-such-python'"),
    "crlf": (
        "#!/bin/sh\r\ntrue\r\n",
        0o755,
        "the first line of './x' ends in CRLF, and there is no interpreter '/bin/sh",
    ),
    "crlf env": ("#!/usr/bin/env bash\r\n", 0o755, "ends in CRLF, and there is no interpreter 'bash"),
}


FORMS = ('["./x{}"]', '"./x{}"', '"cd . && ./x{} a | cat; exit 127"')


async def test_a_program_that_cannot_start_has_one_answer_and_its_interpreter_a_name(bench: Any) -> None:
    for number, (text, mode, _) in enumerate(CANNOT_START.values()):
        (bench.folder / f"x{number}").write_bytes(text.encode())
        (bench.folder / f"x{number}").chmod(mode)
    sentences = [sentence.replace("./x", f"./x{n}") for n, (_, _, sentence) in enumerate(CANNOT_START.values())]
    tasks = {f"{number} {f}": form.format(number) for number in range(len(sentences)) for f, form in enumerate(FORMS)}
    await bench.open("\n".join(f"flow.command({name!r}, {form}, timeout=60)" for name, form in tasks.items()))
    failures = {name: (await bench.run(name))[0].failure for name in tasks}
    assert {failure.failure_class for failure in failures.values()} == {FailureClass.PERMANENT}
    assert [] == [f.message for name, f in failures.items() if sentences[int(name.split()[0])] not in f.message]


async def test_a_file_that_is_only_an_argument_is_not_blamed(bench: Any) -> None:
    (bench.folder / "x").write_text("rows\n")
    await bench.open("flow.command('t', 'cat ./x; no-such-program', timeout=60)")
    assert "./x" not in (await bench.run("t"))[0].failure.message


async def test_a_list_needs_a_first_line_that_names_an_interpreter(bench: Any) -> None:
    (bench.folder / "x").write_text("echo hello\n")
    (bench.folder / "x").chmod(0o755)
    await bench.open("flow.command('t', ['./x'], timeout=60)")
    failure = (await bench.run("t"))[0].failure
    assert failure.message == "'./x' names no interpreter: begin it with #!/bin/sh"


async def test_what_a_command_lacks_is_its_cause_and_not_a_place_in_the_engine(bench: Any) -> None:
    await bench.open("""
        flow.command("program", ["no-such-program"], timeout=60)
        flow.command("folder", "true", cwd="no-such-folder", timeout=60)
        flow.command("other", ["another-program"], timeout=60)
        flow.command("again", ["no-such-program", "with", "words"], timeout=60)
    """)
    program, folder, other, again = [
        (await bench.run(task))[0].failure.fingerprint for task in ("program", "folder", "other", "again")
    ]
    assert program.loose not in (folder.loose, other.loose) and program.loose == again.loose
    assert "there is no such program: 'no-such-program'" in program.explain
    assert "No such file or directory" in folder.explain and "in execute" not in program.explain + folder.explain
    assert program.loose != folder.loose


async def test_cwd_and_stdin_are_relative_to_the_folder_of_the_flow(bench: Any) -> None:
    (bench.folder / "sub").mkdir()
    (bench.folder / "in.txt").write_text("from the file\n")
    await bench.open("""
        from pathlib import Path
        flow.command("t", "cat; pwd", cwd="sub", stdin=Path("in.txt"), timeout=60)
    """)
    text, folder = (await bench.run("t"))[1].text.decode().splitlines()
    assert (text, Path(folder).resolve()) == ("from the file", (bench.folder / "sub").resolve())


async def test_an_input_without_a_writer_holds_its_own_command_alone(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "INSPECTION_SECONDS", 30.0)  # a busy machine needs longer to see where it waits
    os.mkfifo(bench.folder / "fifo")
    await bench.open("""
        from pathlib import Path
        flow.command("held", "true", stdin=Path("fifo"), timeout=600)
        flow.command("free", "true", timeout=60)
    """)
    held = await bench.start("held")
    for _ in range(3):
        assert (await bench.run("free"))[0].kind is OutcomeKind.SUCCESS
    held.attempt.cancel("test")
    assert (await held.outcome()).kind is OutcomeKind.CANCELLED
    assert "opening a file" in held.payload_of("stack").hang


async def test_what_a_program_does_to_its_worker_and_its_pipes_concerns_no_other(bench: Any) -> None:
    """As ssh and node, which set their output to non-blocking, and a SIGTERM that misses its program."""
    shown = "import fcntl, os; print(os.getppid(), fcntl.fcntl(1, fcntl.F_GETFL) & os.O_NONBLOCK)"
    does = f"{shown}; os.set_blocking(1, False); os.kill(os.getppid(), 15)"
    await bench.open(f"""
        flow.command("first", [sys.executable, "-c", {does!r}], timeout=60)
        flow.command("second", [sys.executable, "-c", {shown!r}], timeout=60)
    """)
    (first, before), (second, after) = await bench.run("first"), await bench.run("second")
    assert (first.kind, second.kind) == (OutcomeKind.SUCCESS, OutcomeKind.SUCCESS)
    assert before.text == after.text and before.text.endswith(b" 0\n")  # by one worker


async def test_a_program_is_gone_before_its_attempt_is_lost_with_the_zygote(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one without a token: another attempt may start now. Who has ended by then is not waited for."""
    killed: list[int] = []
    waited: list[int] = []
    kill, wait = ZygoteConnection.kill_forked, reaper.wait_until_ended

    def kill_forked(connection: ZygoteConnection) -> list[int]:
        killed.extend(kill(connection))
        return killed

    def wait_until_ended(pidfds: Iterable[int], seconds: float) -> None:
        waited.extend(pidfds)
        wait(pidfds, seconds)

    monkeypatch.setattr(ZygoteConnection, "kill_forked", kill_forked)
    monkeypatch.setattr(reaper, "wait_until_ended", wait_until_ended)
    await bench.open("""flow.command("t", ["env", "-i", "sh", "-c", "echo $PPID $$ go; sleep 600"], timeout=600)""")
    recorder = await bench.start("t")
    await recorder.wait_for_output(b"go")
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    assert waited == killed
    assert wait_until_dead(map(int, recorder.text.split()[:2]), seconds=0.0) == [], "its worker and itself"


@pytest.mark.long
async def test_a_worker_that_is_stopped_does_not_keep_its_command(bench: Any, survivors: Any) -> None:
    await bench.open("""flow.command("t", "echo $PPID $$ go; exec sleep 600", timeout=600, grace_seconds=0.2)""")
    recorder = await bench.start("t")
    await recorder.wait_for_output(b"go")
    worker, program = map(int, recorder.text.split()[:2])
    os.kill(worker, signal.SIGSTOP)
    recorder.attempt.cancel("test")
    assert (await recorder.outcome()).kind is OutcomeKind.CANCELLED
    assert survivors([program, worker]) == []


async def test_a_large_text_is_read_from_stdin(bench: Any) -> None:
    await bench.open("""flow.command("t", "wc -c", stdin="ä" * 500_000, timeout=60)""")
    assert (await bench.run("t"))[1].text.strip() == b"1000000"


async def test_python_tasks_and_threads_run_in_the_folder_of_the_flow(bench: Any) -> None:
    (bench.folder / "x.sql").write_text("select 1")
    await bench.open("""
        @flow.task
        def process():
            return open("x.sql").read() + os.getcwd()

        @flow.task(isolation="thread")
        def thread():
            return open("x.sql").read() + os.getcwd()
    """)
    for name in ("process", "thread"):
        (lines_by_command,) = [json.loads((await bench.run(name))[0].result)]
        assert lines_by_command == "select 1" + str(bench.folder.resolve())
    assert Path.cwd() != bench.folder  # the executor stays where it was


# --- What a command gets and returns ----------------------------------------------------------------------------------


async def test_parameters_are_json_and_texts_as_they_are(bench: Any) -> None:
    await bench.open(
        flow('echo "$REDRIVE_PARAM_A $REDRIVE_PARAM_B $REDRIVE_PARAM_C $REDRIVE_PARAM_D_E"; echo "$REDRIVE_PARAMS"')
    )
    params = {"a": True, "b": None, "c": ["x"], "d-e": "it's", "n": 1.5}
    single, together = (await bench.run("t", params=params))[1].text.decode().splitlines()
    assert single == 'true null ["x"] it\'s'
    assert json.loads(together) == params


async def test_results_of_parents_arrive_as_plain_json(bench: Any) -> None:
    await bench.open(flow('echo "$REDRIVE_RESULT_DAY_OF"; cat "$REDRIVE_INPUTS"'))
    inputs = {"day-of": {"redrive:decimal": "1.10"}, "b": [1, None], "gone": {"redrive:not-stored": "x"}}
    _, recorder = await bench.run("t", inputs=inputs, missing=(("gone", "failed"),))
    one, all_of_them = recorder.text.decode().splitlines()
    assert (one, json.loads(all_of_them)) == ('"1.10"', {"day-of": "1.10", "b": [1, None]})


async def test_large_results_of_parents_do_not_stop_the_start(bench: Any) -> None:
    """The kernel refuses a program with too large an environment (E2BIG)."""
    await bench.open(flow('echo "${REDRIVE_RESULT_P1-none}"; wc -c < "$REDRIVE_INPUTS"'))
    _, recorder = await bench.run("t", inputs={f"p{number}": "x" * 60_000 for number in range(60)})
    notice, variable, size = recorder.text.decode().splitlines()
    assert "only the file $REDRIVE_INPUTS has them" in notice
    assert (variable, int(size) > 60 * 60_000) == ("none", True)


async def test_a_parameter_that_the_kernel_cannot_take_is_refused_in_words(bench: Any) -> None:
    await bench.open(flow("true"))
    outcome, _ = await bench.run("t", params={"sql": "x" * 200_000})
    assert outcome.failure.failure_class is FailureClass.PERMANENT
    assert "REDRIVE_PARAM" in outcome.failure.message and "hand the data over in a file" in outcome.failure.message


async def test_the_result_is_the_json_in_its_file(bench: Any) -> None:
    await bench.open(flow("""echo '{"rows": 42, "redrive:decimal": 1}' > "$REDRIVE_RESULT"; echo done"""))
    outcome, recorder = await bench.run("t")
    assert load_result(outcome.result) == {"rows": 42, "redrive:decimal": 1}
    assert recorder.text == b"done\n"


async def test_a_worker_removes_the_files_of_a_command_before_the_next_one(bench: Any) -> None:
    await bench.open(flow('echo 1 > "$REDRIVE_RESULT"; mkdir "$(dirname "$REDRIVE_INPUTS")/more"'))
    await bench.run("t")
    await bench.run("t")
    assert (folder_of(bench, 1).exists(), folder_of(bench, 2).exists()) == (False, True)


async def test_the_files_of_a_command_go_with_a_worker_that_is_not_used_again(bench: Any) -> None:
    await bench.open('flow.command("t", "sleep 600", timeout=0.2)')
    await bench.run("t")
    assert not folder_of(bench, 1).exists()


def folder_of(bench: Any, number: int) -> Path:
    return Path(command.attempts_folder(bench.executor_id, bench.runner.zygote_pid)) / str(number)


async def test_the_files_of_attempts_are_gone_with_the_executor(bench: Any) -> None:
    await bench.open(flow('echo "$REDRIVE_INPUTS"; exec sleep 600'))
    recorder = await bench.start("t")
    await recorder.wait_for_output(b"inputs.json\n")
    folder = Path(recorder.text.decode().strip()).parent
    assert (folder.exists(), folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (
        True,
        0o700,
        0o700,
    )
    await bench.runner.close()
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("echo '{broken' > $REDRIVE_RESULT", "what it wrote into $REDRIVE_RESULT is not JSON: {broken"),
        ("mkfifo $REDRIVE_RESULT", "no longer a regular file"),
        ("ln -s /etc/passwd $REDRIVE_RESULT", "$REDRIVE_RESULT cannot be read"),
    ],
)
async def test_a_result_that_cannot_be_used_is_a_failure_in_words(bench: Any, line: str, sentence: str) -> None:
    await bench.open(flow(line))
    outcome, _ = await bench.run("t")
    assert (outcome.kind, outcome.failure.failure_class) == (OutcomeKind.ERROR, FailureClass.PERMANENT)
    assert sentence in outcome.failure.message


async def test_a_result_that_is_too_large_is_a_success_without_it(bench: Any) -> None:
    await bench.open(flow("yes | head -c 17000000 > $REDRIVE_RESULT"))
    outcome, _ = await bench.run("t")
    assert outcome.kind == OutcomeKind.SUCCESS
    assert "is over 16777216 bytes; return the name of a file" in str(reason_of_unstored(outcome.result))


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("echo loading; echo 42; echo late >&2", 42),
        ("""printf 'a\\n{"x": [1]}'""", {"x": [1]}),
        ("true", None),
        ("""python3 -c 'print("x"*100000); print([7]*9000)'""", [7] * 9000),
    ],
)
async def test_the_last_line_of_stdout_is_the_result_where_the_task_says_so(bench: Any, line: str, result: Any) -> None:
    await bench.open(f'flow.command("t", {line!r}, result="last-line", timeout=60)')
    outcome, recorder = await bench.run("t")
    assert (None if outcome.result is None else load_result(outcome.result)) == result
    assert json.dumps(result).encode() in recorder.text or result is None


async def test_a_last_line_that_is_no_json_is_a_failure(bench: Any) -> None:
    await bench.open("""flow.command("t", "echo '[1]'; echo done", result="last-line", timeout=60)""")
    outcome, _ = await bench.run("t")
    assert outcome.failure.message == "the last line of its output is not JSON: done"


async def test_a_program_that_cannot_start_is_reported_there_too(bench: Any) -> None:
    await bench.open("""flow.command("t", ["no-such-program"], result="last-line", timeout=60)""")
    outcome, _ = await bench.run("t")
    assert outcome.attempt_columns["exit_code"] == 126
    assert outcome.failure.error_type == "CommandStartError"


def test_every_variable_of_a_task_is_in_the_manual() -> None:
    order = AttemptOrder("r", "t", 1, 0, TaskSpec("t"), params={"day": "x"})
    manual = resources.files("redrive.console.manual").joinpath("shell.md").read_text()
    for name in {**variables_of(order), **result_variables({"rows": 1})}:
        assert f"`{name}`" in manual


def test_the_files_of_a_killed_zygote_are_removed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("dead", "other"):
        Path(command.attempts_folder(name, 7), "1").mkdir(parents=True)
    command.remove_folders("dead")
    assert [path.name for path in tmp_path.iterdir()] == ["redrive-other-7"]
