"""``redrive check``: exit codes, one line a finding, the checklist."""

import json
import os
import re
from pathlib import Path

import pytest
from redrive.engine import Executor
from redrive.engine.flow.loading import load_flow
from redrive.engine.statefile.paths import default_folder
from redrive.engine.store.machine import MachineBreakers
from support.commands import invoke_redrive, run_redrive
from support.marks import parametrize_mostly_long

GOOD = """
from redrive.engine import Flow
flow = Flow("f", deadline="1h")
flow.page("bell")
@flow.task(timeout=30)
def a(): return 1
@flow.task(timeout=30, after=a)
def b(a): return a
"""
WRONG = GOOD + "@flow.task(after=a, timeout=1)\ndef c(d): ...\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "flow.py").write_text(text)
        return tmp_path / "flow.py"

    return write


@pytest.mark.long
def test_a_flow_with_warnings_can_run_and_one_with_errors_cannot(write):
    assert 0 == invoke_redrive("check", write(GOOD)).return_value
    assert 0 == invoke_redrive("check", write(GOOD.replace("timeout=30", "timeout=9999"))).return_value
    assert 0 == invoke_redrive("check", write(GOOD), "--strict").return_value
    assert 1 == invoke_redrive("check", write(GOOD.replace("timeout=30", "timeout=9999")), "--strict").return_value
    done = invoke_redrive("check", write(WRONG))
    assert 2 == invoke_redrive("check", write(WRONG), "--strict").return_value
    assert 2 == done.return_value
    assert "error: c: asks for an argument 'd'" in done.output


def test_what_many_tasks_have_in_common_is_said_once(write):
    flow = GOOD + "for n in range(50):\n    flow.task(lambda: 1, name=f'part_{n}', after='b')\n"
    lines = [line for line in invoke_redrive("check", write(flow)).output.splitlines() if "no timeout" in line]
    assert 1 == len(lines)
    assert "part_0, part_1, part_2, part_3, part_4 and 45 more: no timeout" in lines[0]


def test_the_summary_counts_what_was_printed(write):
    *lines, summary = invoke_redrive("check", write(WRONG.replace("timeout=1)", ")"))).output.splitlines()
    assert summary == f"f: 3 tasks, 2 edges, {len(lines)} findings"
    assert "f: 2 tasks, 1 edge, " in invoke_redrive("check", write(GOOD)).output


def test_findings_are_json_with_everything(write):
    (deadline, wrong) = map(json.loads, invoke_redrive("check", write(WRONG), "--json").output.splitlines())
    assert ("note", "deadline", None) == (deadline["level"], deadline["rule"], deadline["task"])
    assert ("error", "parameters", "c") == (wrong["level"], wrong["rule"], wrong["task"])


LEAVES = """
import os, threading, time
stop = os.path.join(os.path.dirname(__file__), "stop")

def beat():
    while not os.path.exists(stop):
        time.sleep(0.01)

threading.Thread(target=beat, name="heartbeat", daemon=True).start()
log = open("/dev/zero")
print("loading")
"""


def test_what_the_import_leaves_behind_is_a_finding_and_what_it_prints_is_none(write, tmp_path):
    done = run_redrive("check", write(LEAVES + GOOD), "--json", check=True)
    (tmp_path / "stop").touch()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    thread, descriptor = (finding["message"] for finding in found if finding["rule"] == "import")
    assert thread.startswith("importing the flow left 1 thread (heartbeat) running")
    assert "/dev/zero" in descriptor
    assert "loading" in done.stderr


PRINTS = r"""
import os, sys
print("\x1b[2Jstdout", flush=True)
print("\x1b]0;title\x07stderr", file=sys.stderr)
os.system(r"printf '\033[5mprogram'")
"""


@parametrize_mostly_long("words", [("check",), ("check", "--json"), ("rehearse",), ("rehearse", "--json")], quick=2)
def test_what_an_import_prints_goes_to_stderr_as_lines_that_do_not_act_on_a_terminal(write, words):
    path = write(PRINTS + GOOD)
    for target in (path, Path(path).parent)[: 2 if words[0] == "check" else 1]:
        done = run_redrive(*words, target)
        assert done.returncode == 0
        assert {f"the import printed: {line}" for line in (" [2Jstdout", " ]0;title stderr", " [5mprogram")} == set(
            done.stderr.splitlines()
        )
        assert not re.search("stdout|stderr|program|\x1b", done.stdout)
        if "--json" in words:
            assert all(json.loads(line)["schema"].startswith("redrive.") for line in done.stdout.splitlines())


def test_the_checklist_and_the_worst_case_of_every_task_on_request(write):
    """001.21."""
    output = invoke_redrive("check", write(GOOD), "--verbose").output
    assert "a: at the worst 3 x (30 + 5) + 6 = 111 s" in output
    assert 2 == output.count("  [x] bounded: 3 starts")
    assert 2 == output.count("  [?] tests for success after a retry")


def test_inherited_options_say_where_they_come_from(write):
    text = """
from redrive.engine import Flow
flow = Flow("night", timeout=30)
with flow.group("extract", downstream="erp"):
    flow.command("orders", "true")
    flow.command("own", "true", timeout=5, downstream=None)
"""
    output = invoke_redrive("check", write(text), "--verbose").output
    inherited = [line.strip() for line in output.splitlines() if " comes from " in line]
    assert inherited == ["timeout comes from the flow", "downstream comes from group 'extract'"]
    tasks = [
        json.loads(line) for line in invoke_redrive("check", write(text), "--verbose", "--json").output.splitlines()
    ]
    found = {task["task"]: (task["group"], task["inherited"]) for task in tasks if "checklist" in task}
    assert found == {
        "extract.orders": ("extract", {"timeout": "the flow", "downstream": "group 'extract'"}),
        "extract.own": ("extract", {}),
    }


def test_earlier_runs_are_held_against_the_flow(write, tmp_path):
    slow = GOOD.replace("def a(): return 1", "def a():\n    import time; time.sleep(0.3)")
    Executor(run_id="r", flow=load_flow(str(write(slow))), state=tmp_path / "state.db").run()
    tight = write(GOOD.replace("@flow.task(timeout=30)\ndef a", "@flow.task(timeout=0.1)\ndef a"))
    output = invoke_redrive("check", tight, "--state", tmp_path / "state.db").output
    assert re.search(r"warning: a: its timeout of 0.1 s is under what it takes: p50 (0\.[3-9]|[1-9])", output)


@parametrize_mostly_long(
    "line",
    [
        "flow.task(grace_seconds=float('inf'))(print)",
        "flow.task(downstream=5)(print)",
        "flow.task(max_attempts=0)(print)",
        "flow.downstream('d', on_open='zz')",
        "flow.params['x'] = float('nan')",
        "flow.command('a', 'true', after='nowhere')",
        "flow.command('z', 'true', after='y'); flow.command('y', 'true', after='z')",
        "raise ValueError('no')",
        "import os; os._exit(3)",
        "flow = None",
        "def",
    ],
    quick=2,
)
def test_check_refuses_what_run_refuses_in_the_same_words(write, tmp_path, line):
    write(GOOD + line + "\n")
    messages = []
    for words in (["check", "flow.py"], ["run", "flow.py", "--plain", "--state", "s.db"]):
        done = run_redrive(*words, cwd=tmp_path)
        messages.append((done.returncode, done.stdout, done.stderr.splitlines()[-1]))
    assert messages[0] == messages[1]
    assert messages[0][0] == 2
    assert [path.name for path in tmp_path.glob("s.db*")] == []


# --- Several flows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a flow that is good, a file of two flows, and a module that is none."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "flows"
    (folder / "more").mkdir(parents=True)
    (folder / "good.py").write_text(GOOD)
    (folder / "more/two.py").write_text(
        "from redrive.engine import Flow\nx, y = Flow('x'), Flow('y')\n"
        "x.command('a', 'true', timeout=1)\ny.command('a', 'true', timeout='99h')\n"
    )
    (folder / "common.py").write_text("# for redrive: shared by each Flow('f')\n")
    return folder


def test_a_folder_is_every_flow_below_it(flows: Path) -> None:
    done = run_redrive("check", "flows")
    lines = done.stdout.splitlines()
    heads = ["flows/good.py:", "flows/more/two.py:x:", "flows/more/two.py:y:"]
    assert done.returncode == 0 and [line for line in lines if line.startswith("flows/")] == heads
    assert [line.partition(":")[0] for line in lines if " task" in line and "finding" in line] == ["f", "x", "y"]


@pytest.mark.long
def test_the_worst_of_several_flows_is_the_exit_code(flows: Path) -> None:
    (flows / "wrong.py").write_text("import nothing_like_this\nfrom redrive.engine import Flow\nflow = Flow('f')\n")
    done = run_redrive("check", "flows/more/two.py:x", "flows/wrong.py", "flows/good.py")
    assert done.returncode == 2 and "wrong.py' failed: ModuleNotFoundError" in done.stderr
    assert "f: 2 tasks" in done.stdout
    assert run_redrive("check", "flows").returncode == 2
    (flows / "wrong.py").unlink()
    (flows / "good.py").write_text(GOOD.replace("timeout=30", "timeout=9999"))
    assert (run_redrive("check", "flows").returncode, run_redrive("check", "flows", "--strict").returncode) == (0, 1)


def test_each_finding_as_json_names_its_file_also_of_a_flow_that_cannot_be_imported(flows: Path) -> None:
    (flows / "wrong.py").write_text("import nothing_like_this\nfrom redrive.engine import Flow\nflow = Flow('f')\n")
    done = run_redrive("check", "flows", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {finding["target"] for finding in found} == {
        "flows/good.py",
        "flows/more/two.py:x",
        "flows/more/two.py:y",
        "flows/wrong.py",
    }
    (wrong,) = (finding for finding in found if finding["target"] == "flows/wrong.py")
    assert (wrong["level"], wrong["flow"], done.returncode) == ("error", None, 2)
    assert "ModuleNotFoundError" in wrong["message"] and "wrong.py' failed" in done.stderr
    done = run_redrive("check", "flows/wrong.py", "--json")
    assert (json.loads(done.stdout), done.returncode) == (wrong, 2) and "wrong.py' failed" in done.stderr


def test_a_folder_without_flows_is_one_sentence(flows: Path) -> None:
    done = run_redrive("check", "flows/more", "--json")
    assert done.returncode == 0 and {json.loads(line)["flow"] for line in done.stdout.splitlines()} == {"x", "y"}
    (flows / "more/two.py").unlink()
    done = run_redrive("check", "flows/more")
    assert (done.returncode, done.stderr) == (2, "redrive: there is no flow in the files below 'flows/more'\n")


# --- Parameters that a run has to name --------------------------------------------------------------------------------


def test_a_parameter_without_a_value_is_no_reason_to_refuse_the_check(write) -> None:
    text = GOOD.replace("import Flow", "import Flow, Param").replace('deadline="1h"', 'params={"day": Param(str)}')
    done = invoke_redrive("check", write(text))
    assert done.return_value == 0 and "note: a run names the parameter 'day': --param day=...\n" in done.output
    assert "day" not in invoke_redrive("check", write(text), "--param", "day=x").output
    done = invoke_redrive("check", write(text.replace("params=", 'schedule="@daily", params=')))
    assert done.return_value == 2
    assert "error: a scheduled run names no parameter 'day': give it a default\n" in done.output


def test_a_map_task_is_what_its_children_do(write) -> None:
    text = GOOD + "@flow.map(over=a, timeout='1h')\ndef c(one): ...\n"
    assert "c: at the worst 3 x (3600 + 5) + 6 = 10821 s" in invoke_redrive("check", write(text), "--verbose").output


def test_flows_that_share_a_downstream_by_its_name_are_named(write, tmp_path, monkeypatch):
    """A test copy whose sandbox is down shares what is known of it with production."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = os.path.join(default_folder(), "breakers")
    MachineBreakers(folder, ["bank"], "test-copy", "an executor").register(["bank"])
    path = write(GOOD.replace("timeout=30", "timeout=30, downstream='bank'"))
    shared = "downstream bank is shared with flow test-copy: shared=False, if it is another system"
    assert shared in invoke_redrive("check", path).output
    apart = GOOD.replace("timeout=30", "timeout=30, downstream='bank'") + "flow.downstream('bank', shared=False)\n"
    assert "is shared with" not in invoke_redrive("check", write(apart)).output
