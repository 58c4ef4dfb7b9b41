"""What the code leans on of the insides of others, and what happens where one of them is not so.

A use that is not in ``ANSWERS`` fails a test. Answers that say "shown" and the like are tried below, or by the test
that they name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from redrive.console.terminal import textual_internals
from support.commands import REDRIVE
from support.insides import leans, leans_of
from support.marks import parametrize_mostly_long

ROOT = Path(__file__).resolve().parent.parent

INTERNALS = "console/terminal/textual_internals.py"
AUTOPSY, PROCESS, USAGE = (f"engine/runner/{name}.py" for name in ("autopsy", "process", "usage"))
OWN_STACK = "engine/runner/own_stack.py"
PROCESSES, OPENING = "engine/statefile/processes.py", "engine/statefile/opening.py"

#: What happens if it does not hold -> what is leant on, and the modules that do.
ANSWERS: dict[str, dict[str, str | tuple[str, ...]]] = {
    # --- Textual ------------------------------------------------------------------------------------------------------
    "the console is refused with one sentence; commands without a screen, and runs, go on": {
        "App._display": INTERNALS,
        "App._load_screen_css": INTERNALS,
        "App._fatal_error": INTERNALS,
        "App._set_pointer_shape": INTERNALS,
        "textual._compositor.ChopsUpdate": INTERNALS,
        "textual._compositor.LayoutUpdate": INTERNALS,
        "textual._xterm_parser.XTermParser": INTERNALS,
    },
    "the console ends with a sentence at its first timer; runs go on": {
        "timer._skip": INTERNALS,
        "the name _skip": INTERNALS,
    },
    "the console ends with an AttributeError at its first frame, its first new view or its crash; runs go on": {
        "App._batch_count": INTERNALS,
        "App._css_update_count": INTERNALS,
        "screen._css_update_count": INTERNALS,
    },
    "a late timer does what it does in Textual": {
        "textual.message_pump.MessagePump.set_timer is set": INTERNALS,
    },
    # --- CPython ------------------------------------------------------------------------------------------------------
    "the output of the attempt says that it is left out; the outcome stays": {
        "the name _clear": "engine/runner/child.py",
        "the name _exit_function": "engine/runner/child.py",
        "the name _python_exit": "engine/runner/child.py",
        "the name _run_exitfuncs": "engine/runner/child.py",
        "the name _shutdown": "engine/runner/child.py",
    },
    "redrive does not start: ImportError": {
        "_thread": ("engine/runner/child.py", OWN_STACK),
        "_thread.get_native_id": "engine/runner/zygote/launch.py",
        "ctypes.CDLL": PROCESS,  # and AttributeError
        "libc.prctl": PROCESS,
    },
    "the body of a response that urllib has not read is not shown": {
        "the name _sock": "engine/core/failures/facts.py",
    },
    "a command of redrive exec with an input fails, and says that it cannot be started": {
        "/proc/{}/fd/{}": "console/cli/passthrough.py",
    },
    "a task that calls ctx.rows fails with an AttributeError, as by any error of its code": {
        "sys._getframe": "engine/runner/context.py",
        "frame.f_back": "engine/runner/context.py",
        "frame.f_code": "engine/runner/context.py",
        "frame.f_lasti": "engine/runner/context.py",
    },
    "the flow is refused with the traceback of its import": {
        "sys._getframe": "engine/flow/source.py",
        "frame.f_back": "engine/flow/source.py",
        "faulthandler.enable": "engine/runner/zygote/zygote.py",
        "faulthandler.register": OWN_STACK,
    },
    "documented in Python's data model; a flow is refused with a traceback, an error is described without its line": {
        "frame.f_code": (
            "engine/core/failures/fingerprint.py",
            "engine/flow/loading.py",
            "engine/flow/source.py",
            "engine/runner/call.py",
            OWN_STACK,
        ),
        "frame.f_back": OWN_STACK,
        "frame.f_globals": ("engine/core/failures/facts.py", "engine/core/failures/fingerprint.py"),
        "frame.f_lineno": ("engine/flow/source.py", OWN_STACK),
    },
    "the stack of a hang shows fewer coroutines or threads": {
        "libc.tgkill": PROCESS,
        "sys._current_frames": OWN_STACK,
        "the name _fut_waiter": OWN_STACK,
    },
    "forks and frames cost more time or memory; nothing depends on when a collection happens": {
        "gc.collect": "engine/runner/zygote/zygote.py",
        "gc.disable": ("engine/core/spec.py", "engine/runner/reaper.py", "engine/runner/zygote/flow_import.py"),
        "gc.enable": ("engine/core/spec.py", "engine/runner/zygote/zygote.py"),
        "gc.freeze": (
            "console/app/base_app.py",
            "console/cli/main.py",
            "engine/executor/host.py",
            "engine/runner/zygote/launch.py",  # and a collection would close files that the program has left open
            "engine/runner/zygote/zygote.py",
            "engine/schedule/flow_files.py",
        ),
        "gc.set_threshold": ("console/cli/main.py", "engine/core/spec.py"),
    },
    "documented; a process that cannot be forked is a refusal in words, and a fork beside threads is not made": {
        "os.fork": (
            "engine/check/isolated.py",
            "engine/executor/host.py",
            "engine/runner/reaper.py",
            "engine/runner/zygote/launch.py",
            "engine/runner/zygote/zygote.py",
            "engine/schedule/flow_files.py",
        ),
    },
    "the output of a process that a thread has forked is that of the host": {
        "os.register_at_fork": "engine/runner/thread_host.py",
    },
    "a thread that ends the host by os._exit is one that was lost with it; output is that of the host": {
        "os._exit is set": "engine/runner/thread_host.py",
    },
    "the console needs 5 MB more": {
        "the name _hashlib": "console/cli/attach.py",
        "the name _ssl": "console/cli/attach.py",
    },
    "a played night takes as long as a real one": {
        "time.monotonic is set": "engine/testing/bodies.py",
        "time.sleep is set": "engine/testing/bodies.py",
        "time.time is set": "engine/testing/bodies.py",
    },
    # --- The C library and the kernel ---------------------------------------------------------------------------------
    "readers look once a second instead of at each write": {
        "ctypes.CDLL": "engine/statefile/reader.py",
        "libc.inotify_add_watch": "engine/statefile/reader.py",
        "libc.inotify_init1": "engine/statefile/reader.py",
    },
    "a refusal changes nothing: forks of a large flow take longer": {
        "libc.madvise": PROCESS,
        "/proc/self/maps": PROCESS,
    },
    "the worker ends with its attempt, as after any finding": {
        "/proc/self/fd": "engine/runner/worker_loop.py",
        "/proc/self/status": "engine/runner/worker_loop.py",
    },
    "attempts are lost, with the traceback in the log; the third time the task waits for a human": {
        "libc.fflush": PROCESS,
        "libc.signalfd": PROCESS,
    },
    "flows are refused with one sentence, and redrive doctor says so; what only reads a file works": {
        "/proc": PROCESSES,
        "/proc/self/fd": PROCESSES,
        "/proc/self/fd/": PROCESSES,
        "/proc/self/task": ("console/cli/maintenance.py", "engine/runner/zygote/flow_import.py"),
        "/proc/{}/stat": PROCESSES,
    },
    "the evidence of a hang says less; a format that is not known is none, and no kill waits for it": {
        "/proc/locks": AUTOPSY,
        "/proc/{}": (AUTOPSY, USAGE),
        "/proc/{}/cmdline": PROCESS,
        "/proc/{}/comm": AUTOPSY,
        "/proc/{}/fd": AUTOPSY,
        "/proc/{}/fd/{}": AUTOPSY,
        "/proc/{}/fdinfo/{}": AUTOPSY,
        "/proc/{}/net/{}": "engine/runner/sockets.py",
        "/proc/{}/ns/net": "engine/runner/sockets.py",
        "/proc/{}/status": PROCESS,
        "/proc/{}/task": AUTOPSY,
        "/proc/{}/task/{}": (AUTOPSY, USAGE),
        "/proc/{}/task/{}/stat": PROCESS,
        "/proc/{}/wchan": PROCESS,
        "struct.unpack_from": "engine/runner/sockets.py",
    },
    "the memory of an attempt is what it holds with all that it shares": {
        "/proc/{}/smaps_rollup": USAGE,
    },
    "an empty cgroup of an executor that was killed stays": {
        "/proc/{}": "engine/runner/cgroups.py",
    },
    "a played body that waits for a processor is taken for one that waits by itself": {
        "/proc/thread-self/schedstat": "engine/testing/bodies.py",
    },
    "descendants are found by the parent of every process": {
        "/proc/self/task/{}/children": ("console/cli/maintenance.py", PROCESS),
        "/proc/{}/task": PROCESS,
        "/proc/{}/task/{}/children": PROCESS,
    },
    "a thread has no name in a warning": {
        "/proc/self/task/{}/comm": "engine/runner/zygote/flow_import.py",
    },
    "what a dead executor left is found by its lock or by its environment, whichever can be read": {
        "/proc/{}/environ": "engine/statefile/ownership.py",
        "/proc/{}/exe": "engine/statefile/ownership.py",
        "/proc/{}/fd": "engine/store/lock.py",
        "/proc/{}/fd/{}": "engine/store/lock.py",
        "/proc/{}/fdinfo/{}": "engine/store/lock.py",
    },
    "the refusal of a second executor does not name the pid of the first": {
        "/proc/locks": "engine/statefile/ownership.py",
    },
    "an executor is not called dead by its pid: its lock decides": {
        "/proc/sys/kernel/random/boot_id": PROCESSES,
    },
    "an attempt of a lost Dask worker waits for the end of its lease": {
        "/proc/self/ns/pid": "engine/runner/dask_worker.py",
    },
    "the peak of memory is that of the worker so far": {
        "/proc/self/clear_refs": "engine/runner/worker_loop.py",
    },
    "a state file on a network is not refused": {
        "/proc/self/mounts": "engine/statefile/paths.py",
    },
    "a terminal in the C locale is taken for one with UTF-8": {
        "/proc/self/environ": "console/terminal/capabilities.py",
    },
    "no executor can start, or be reached below a long path: one sentence says so": {
        "/proc/self/fd/{}/{}": ("engine/agent/executor_socket.py", "engine/executor/server.py"),
    },
    # --- SQLite -------------------------------------------------------------------------------------------------------
    "the formats are fixed (sqlite.org/fileformat2.html, walformat.html); a file of another one is refused in words": {
        "SQLite's header": ("console/sessions/target.py", OPENING),
        "struct.unpack_from": OPENING,
        "SQLite's -journal": (OPENING, "engine/store/database.py", "engine/store/making.py"),
        "SQLite's -shm": (
            "engine/executor/state_file_watch.py",
            "engine/store/supervisor_writer.py",
            OPENING,
            "engine/statefile/reader.py",
            "engine/store/database.py",
            "engine/store/making.py",
            "engine/store/write_ahead_log.py",  # cut short: zeros, from which SQLite builds it again
        ),
        "SQLite's -wal": (
            "console/cli/maintenance.py",
            "console/cli/metrics.py",
            "engine/executor/state_file_watch.py",
            "engine/schedule/flow_service.py",
            "engine/store/supervisor_writer.py",
            OPENING,
            "engine/statefile/health_file.py",
            "engine/statefile/ownership.py",
            "engine/statefile/reader.py",
            "engine/store/database.py",
            "engine/store/making.py",
            "engine/store/write_ahead_log.py",
        ),
    },
}


def _listed() -> list[tuple[str, str]]:
    return [
        (lean, module)
        for uses in ANSWERS.values()
        for lean, modules in uses.items()
        for module in ((modules,) if isinstance(modules, str) else modules)
    ]


@pytest.mark.long  # it reads each module
def test_every_use_of_the_insides_of_others_has_an_answer_to_what_if_it_does_not_hold() -> None:
    found = {(lean, module) for lean, modules in leans(ROOT, ("console", "engine")).items() for module in modules}
    listed = _listed()
    advice = "do without it, or say in ANSWERS what happens where it does not hold, which is neither a hang nor a lie"
    assert sorted(found - set(listed)) == [], advice
    assert sorted(set(listed) - found) == [], "these are not used any more: take them out of ANSWERS"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import atexit\natexit._clear()", {"atexit._clear"}),
        ("from os import path as files\nfiles._joinrealpath()", {"os.path._joinrealpath"}),
        ("from textual._compositor import Compositor", {"textual._compositor.Compositor"}),
        ("timer._skip = False", {"timer._skip"}),
        ("getattr(task, '_fut_waiter', None)", {"the name _fut_waiter"}),
        ("import os\nos._exit = print", {"os._exit is set"}),
        ("import time\npatch.multiple(time, sleep=print)", {"time.sleep is set"}),
        ("import sys, gc\nsys.setswitchinterval(1)\ngc.freeze()", {"sys.setswitchinterval", "gc.freeze"}),
        ("sys = 1\nframe.f_back.f_locals", {"frame.f_back", "frame.f_locals"}),
        ("open(f'/proc/{pid}/stat')", {"/proc/{}/stat"}),
        ("path + '-shm', f'{path}-wal'", {"SQLite's -shm", "SQLite's -wal"}),
        ("_libc.prctl(1)", {"libc.prctl"}),
        ("class Own:\n  def _name(self): self._other = self._name()", set()),
        ("row._replace(a=1), os._exit(0)", set()),
    ],
)  # fmt: skip
def test_uses_are_recognized(source: str, found: set[str]) -> None:
    assert leans_of(source) == found


# --- What happens if it does not hold ---------------------------------------------------------------------------------

FLOW = """
import concurrent.futures, multiprocessing.util, threading, time
from redrive.engine import Flow

flow = Flow("f", timeout=60)
if {leaves_thread}:
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()

@flow.task
def pooled():
    global pool
    pool = concurrent.futures.ThreadPoolExecutor()
    return pool.submit(int).result()
"""

WITHOUT = """
import atexit, importlib, os

atexit.register(int)
module, _, name = os.environ["WITHOUT"].rpartition(".")
delattr(importlib.import_module(module), name)
"""


def _run_without(folder: Path, name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run redrive where no process has what a module calls ``name``."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    environment = {**os.environ, "PYTHONPATH": str(folder), "WITHOUT": name}
    return subprocess.run([*REDRIVE, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=90)


@parametrize_mostly_long(
    ("name", "leaves_thread"),
    [
        ("concurrent.futures.thread._python_exit", True),
        ("threading._shutdown", False),
        ("atexit._run_exitfuncs", False),
        ("atexit._clear", False),
        ("multiprocessing.util._exit_function", False),
        ("sys._getframe", False),
        ("os.register_at_fork", False),
    ],
)
def test_a_run_ends_without_a_function_of_the_interpreter(tmp_path: Path, name: str, leaves_thread: bool) -> None:
    (tmp_path / "flow.py").write_text(FLOW.format(leaves_thread=leaves_thread))
    ran = _run_without(tmp_path, name, "run", "flow.py", "--plain", "--state", "s.db")
    if name in ("sys._getframe", "os.register_at_fork"):
        assert ran.returncode != 0 and name.partition(".")[2] in ran.stderr, ran.stdout + ran.stderr
        return
    logged = subprocess.run([*REDRIVE, "logs", "s.db", "pooled"], cwd=tmp_path, capture_output=True, text=True)
    output = ran.stdout + ran.stderr + logged.stdout
    assert ran.returncode == 0 and f"this Python has no {name}, so what that does at an exit is left out" in output


#: Hides /proc from the program that its words name: root in a mount namespace, others in a user namespace as well.
#: Nothing leaves it, also in a chroot, whose root is no mount: /proc itself is made private.
WITHOUT_PROC = """
import ctypes, os, sys

CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 0x4000, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        print(name, os.strerror(ctypes.get_errno()), file=sys.stderr)
        os._exit(77)

call("unshare", CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWNS | CLONE_NEWUSER)
call("mount", None, b"/proc", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
call("mount", b"none", b"/proc", b"tmpfs", ctypes.c_ulong(0), None)
os.execvp(sys.argv[1], sys.argv[1:])
"""
CANNOT_HIDE = 77


@parametrize_mostly_long(
    ("words", "sentence"),
    [
        (("exec", "--", "true"), "redrive: /proc is not mounted, by which"),
        (("run", "flow.py", "--plain", "--state", "s.db"), "redrive: /proc is not mounted, by which"),
        (("check", "flow.py"), "redrive: /proc is not mounted, by which"),
        (("doctor",), "/proc is not mounted: attempts cannot be run"),
    ],
)
def test_without_proc_a_flow_is_refused_and_the_doctor_says_so(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    hidden = [sys.executable, "-c", WITHOUT_PROC]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode == CANNOT_HIDE:
        pytest.xfail("this user may not mount anything")
    (tmp_path / "flow.py").write_text(FLOW.format(leaves_thread=False))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run([*hidden, *REDRIVE, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert sentence in ran.stdout + ran.stderr and "Traceback" not in ran.stderr
    assert words == ("doctor",) or ran.stderr.count("\n") == 1


def test_a_textual_without_a_name_is_refused_in_one_sentence() -> None:
    program = """
import importlib, sys, textual.app
from redrive.engine.errors import RedriveError

del textual.app.App._display
try:
    import redrive.console.app.app
except RedriveError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("the console cannot use Textual ") and "which has no App._display: pip install" in shown


def test_the_reasons_for_names_of_textual_stand_in_one_module() -> None:
    others = [lean for lean, module in _listed() if module.startswith("console/") and module != INTERNALS]
    assert textual_internals.__doc__ is not None
    assert [lean for lean in others if lean.startswith(("App.", "Widget.", "Screen.", "textual."))] == []
