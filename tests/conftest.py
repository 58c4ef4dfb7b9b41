"""What every test may ask for: a place of its own, a state file that somebody writes, and a host behind ssh."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from compileall import compile_file
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redrive.console
import redrive.engine
import support.checkout  # noqa: F401 (stops here if the installed copy is old)
from hypothesis import HealthCheck, settings
from redrive.engine.runner import process
from support.fake_executor import FakeExecutor
from support.forks import fork_executors, fork_nothing
from support.processes import find_processes_in
from support.ssh_host import HAS_SSHD, LocalSshHost, SshHost
from support.state_file import StateFileBuilder
from support.waiting import wait_until

for _name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # what a developer's shell sets; a pipe has no colours here
    os.environ.pop(_name, None)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of the test modules before all of them are collected, and compile a share of the product.

    In a fresh checkout pytest rewrites the assertions of each module and compiles it: each worker does a share of that,
    and finds the shares of the others done. So the bytecode is written, whatever PYTHONDONTWRITEBYTECODE says; with
    that variable each process that a test starts would compile the modules that no test module imports.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    sys.dont_write_bytecode = False
    gc.disable()  # to the end of the collection
    share = slice(int(worker["workerid"].removeprefix("gw")), None, worker["workercount"])
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[share]:
        with suppress(Exception):  # its collection reports it
            import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))
    folders = [folder for package in (redrive.console, redrive.engine) for folder in package.__path__]
    for source in sorted(path for folder in folders for path in Path(folder).rglob("*.py"))[share]:
        compile_file(source, quiet=2)


LONG_TEST_SECONDS = 900  # the limit of a test that takes minutes, also on a machine with much else to do


SSH_TESTS = Path(__file__).parent / "ssh"  # they need a real sshd; others that ask for ``far`` do with its stand-in


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark what needs an sshd, or is to be tried with one as well. Give a long test a limit of its own. Deal files."""
    for item in items:
        if "far" in getattr(item, "fixturenames", ()):
            item.add_marker("long" if SSH_TESTS in item.path.parents else "over_ssh")
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(LONG_TEST_SECONDS))
    yield  # the rest of them is left out
    items[:] = _dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in an order of which each worker's part has files of every folder: some compute, others wait.

    pytest-xdist cuts it into parts of one length. Each begins with its share of those that end long after they begin.
    """
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    dealt = [test for worker in range(workers) for file in files[worker::workers] for test in file]
    first = [test for test in dealt if test.get_closest_marker("first")]
    others = iter([test for test in dealt if not test.get_closest_marker("first")])
    parts: list[pytest.Item] = []
    for worker in range(workers):
        own = first[worker::workers]
        length = (len(items) - len(parts)) // (workers - worker)
        parts += [*own, *itertools.islice(others, max(0, length - len(own)))]
    return [*parts, *others]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: there is little, and the search takes half of the time of a first collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the collected tests out of every garbage collection: they stay to the end. Collect the rest less often."""
    gc.freeze()
    gc.set_threshold(30_000)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def pytest_runtest_logfinish() -> None:
    """Collect now if many descriptors are new: a connection of sqlite3 is in a circle, and closed by a collection."""
    global _descriptors_kept
    if len(os.listdir("/proc/self/fd")) > _descriptors_kept + _NEW_DESCRIPTORS_MAX:
        gc.collect()
        _descriptors_kept = len(os.listdir("/proc/self/fd"))


_NEW_DESCRIPTORS_MAX = 300
_descriptors_kept = 0  # by the last collection: another one for them would cost each of the tests that follow


def pytest_sessionfinish() -> None:
    """Leave everything out of the five garbage collections with which pytest ends."""
    gc.freeze()


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# A script's ``&`` ignores SIGINT and SIGQUIT, nohup SIGHUP, and whoever is started by a test would ignore them as well.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

# The same examples for everybody who runs the tests; how long one of them took says nothing on a busy machine.
# ``-m hypothesis --hypothesis-profile=thorough`` tries twenty times as many, ``--hypothesis-profile=default`` new ones.
settings.register_profile(
    "suite", max_examples=15, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("suite"), max_examples=300)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def session_state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set a folder for the state files of fixtures that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "shared-state-home"))
        patch.delenv("REDRIVE_STATE", raising=False)
        yield


_homes = itertools.count(1)


@pytest.fixture(autouse=True)
def own_state_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """No test reads or writes the state files of the person who runs it. Nothing is made until a test writes there."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    home = tmp_path_factory.getbasetemp() / f"{name}_home{next(_homes)}" / "state-home"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return home


# --- No test is skipped, and none leaves a process behind ----------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped keeps no promise: it has failed."""
    report = yield
    return _failed_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of which nothing is collected has failed, too."""
    report = yield
    return _failed_if_skipped(report)


def _failed_if_skipped(report: Report) -> Report:
    if report.skipped and not hasattr(report, "wasxfail"):  # a fault that is named, and whose mend removes the mark
        report.outcome, report.longrepr = "failed", f"not to be skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def heap_that_stays_in_small_pages() -> Iterator[None]:
    """Executors of tests fork this process, whose heap of 160 MB is large: to collapse it costs more than all forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "LARGE_HEAP_BYTES", sys.maxsize)
        yield


@pytest.fixture(autouse=True)
def forked_executors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of ours that a test starts is an interpreter, but in a test that is marked ``spawns``."""
    (fork_nothing if request.node.get_closest_marker("spawns") else fork_executors)(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def nobody_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test starts ends with it, or soon after. What does not is killed, and named."""
    yield
    folder = tmp_path_factory.getbasetemp()
    left: dict[int, tuple[str, str]] = {}

    def all_have_ended() -> bool:
        nonlocal left
        left = find_processes_in(folder)
        return not left

    try:
        wait_until(all_have_ended, 60, interval_seconds=0.1)
    except AssertionError:
        pass
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


# --- A state file that somebody writes -----------------------------------------------------------------------------


@pytest.fixture
def make_run_file(tmp_path: Path) -> Iterator[Callable[..., StateFileBuilder]]:
    """State files, closed at the end."""
    made: list[StateFileBuilder] = []

    def make(name: str = "night.db", **options: Any) -> StateFileBuilder:
        run_file = StateFileBuilder(tmp_path / name, **options)
        made.append(run_file)
        return run_file

    yield make
    for run_file in made:
        run_file.close()


@pytest.fixture
def run_file(make_run_file: Callable[..., StateFileBuilder]) -> StateFileBuilder:
    """A state file with a run of six tasks: one done, one running, one dead letter, three pending."""
    run_file = make_run_file()
    run_file.finish("task_00000")
    run_file.start("task_00001")
    run_file.finish("task_00002", "DEAD_LETTER", error="boom", dead_letter_kind="poison", failures=1)
    return run_file


@pytest.fixture
def executor(run_file: StateFileBuilder) -> Iterator[FakeExecutor]:
    """Somebody who owns ``run_file`` and listens."""
    executor = FakeExecutor(run_file)
    yield executor
    executor.die()


# --- A host behind ssh ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def far_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """An sshd for this process of the test run."""
    far = SshHost(tmp_path_factory.mktemp("far"))
    yield far
    far.stop()


@pytest.fixture
def far(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshHost | LocalSshHost:
    """The host ``far`` of ``ssh://far/...``: behind a real sshd wherever there is one."""
    if HAS_SSHD or os.environ.get("CI"):
        host: SshHost | LocalSshHost = request.getfixturevalue("far_host")
    else:
        host = LocalSshHost(tmp_path)
    monkeypatch.setenv("REDRIVE_SSH", host.program)
    return host
