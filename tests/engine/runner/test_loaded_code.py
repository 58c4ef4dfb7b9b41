"""Which code an attempt runs: that which its executor has loaded, whatever the import of the flow leaves running."""

from __future__ import annotations

from pathlib import Path

from redrive.engine import Executor
from support.marks import parametrize_mostly_long

FLOW = """
import threading
from pathlib import Path
from redrive.engine import Flow, RetryPolicy, TransientError
from helper import VERSION
import package.inner

if {has_thread}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

HERE = Path(__file__).parent
flow = Flow("code")

@flow.task(retry=RetryPolicy(max_attempts=2, base=0.1, cap=0.1), isolation={isolation!r})
def first(ctx):
    if ctx.attempt == 1:
        {change}
        raise TransientError("again")
    return [VERSION, package.inner.VERSION, "old"]

@flow.task(after=first)
def second():
    return [VERSION, package.inner.VERSION, "old"]
"""

CHANGES = {
    "nothing": "pass",
    "the flow": 'Path(__file__).write_text(Path(__file__).read_text().replace("old", "new"))',
    "a module": '(HERE / "helper.py").write_text("VERSION = \'new\'")',
    "a module of a package": '(HERE / "package" / "inner.py").write_text("VERSION = \'new\'")',
    "a module that is gone": '(HERE / "helper.py").unlink()',
    "a package that is gone": '__import__("shutil").rmtree(HERE / "package")',
    "a flow that is half saved": 'Path(__file__).write_text("from redrive.engine import Fl")',
    "a flow that is gone": "Path(__file__).unlink()",
}


#: Each change meets an interpreter that is started because of a thread: it finds modules by what the executor has read.
#: A fork has all of the code already, and a host of threads is started by the same lines.
CASES = [
    *((True, "process", change) for change in CHANGES),
    *((has_thread, isolation, change) for has_thread, isolation in ((False, "process"), (True, "thread"))
      for change in ("the flow", "a package that is gone")),
]  # fmt: skip


@parametrize_mostly_long(("has_thread", "isolation", "change"), CASES, quick=1, daily=4)
def test_a_retry_runs_the_code_that_the_executor_has_loaded(
    tmp_path: Path, has_thread: bool, isolation: str, change: str
) -> None:
    (tmp_path / "helper.py").write_text("VERSION = 'old'")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "inner.py").write_text("VERSION = 'old'")
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW.format(has_thread=has_thread, isolation=isolation, change=CHANGES[change]))
    result = Executor(run_id="r", flow=str(flow), state=tmp_path / "state.db").run_result()
    assert result.state == "SUCCESS", result
    assert result["first"] == result["second"] == ["old", "old", "old"]
