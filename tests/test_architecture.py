"""The shape of the tree is a promise: packaging, import directions, and that the tests run this checkout's code."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redrive
import redrive.console
import redrive.engine
import redrive.themes
from redrive.console.cli.group import SECTIONS
from redrive.console.sessions.bundle import AGENT, LISTING, SENDING, module_of, with_imports
from redrive.engine.core.spec import collector_paused
from redrive.engine.statefile.reader import READS
from support.checkout import stop_unless_current
from support.state_file import StateFileBuilder

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {".package": redrive, "console": redrive.console, "engine": redrive.engine, "themes": redrive.themes}
PACKAGE_OF = {folder: package for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()}

#: What ssh carries to hosts with an old Python: nothing newer may slip into these.
READING = (module_of((question, {})) for question in READS)
CARRIED = tuple(f"engine/{module}.py" for module in with_imports(AGENT, SENDING, LISTING, *READING, "agent/bootstrap"))
STANDARD_LIBRARY_SINCE_3_7 = {"dataclasses", "contextvars", "graphlib", "tomllib", "zoneinfo"}
ALLOWED_AT_THE_TOP = {"pyproject.toml", "README.md", "LICENSE", "uv.lock", "console", "engine", "themes", "tests"}
SQL = re.compile(
    r"\s*((SELECT|INSERT|UPDATE|DELETE|REPLACE|PRAGMA|CREATE|DROP|ALTER|ATTACH|DETACH|WITH|SAVEPOINT|RELEASE)\s"
    r"|(BEGIN|COMMIT|ROLLBACK|VACUUM|ANALYZE|REINDEX)\b)"
)
#: The packages where SQL is written: what an executor does, and what any process may do to a state file.
SQL_PACKAGES = ("engine/store/", "engine/statefile/")
#: Modules beside the folders of a package: its public ones, and what every folder below may import.
LOOSE_MODULES = {
    "console": {"__init__.py", "__main__.py"},
    "engine": {"__init__.py", "asyncio_log.py", "clock.py", "errors.py"},
}
#: Modules without an importer, and what leads to them instead.
FOUND_OTHERWISE = {
    "redrive.console.__main__": "python -m redrive.console",
    "redrive.console.cli.night_view": "an entry point, by which engine/testing/night.py finds it",
    "redrive.console.screens.graph": "named in console/app/views.py, by its view",
    "redrive.console.screens.inbox": "named in console/app/views.py, by its view",
    "redrive.console.screens.journal": "named in console/app/views.py, by its view",
    "redrive.console.screens.log": "named in console/app/views.py, by its view",
    "redrive.console.screens.runs": "named in console/app/views.py, by its view",
    "redrive.console.screens.systems": "named in console/app/views.py, by its view",
    "redrive.console.screens.timeline": "named in console/app/views.py, by its view",
    "redrive.engine.testing.plugin": "an entry point, by which pytest finds it",
    "redrive.engine.statefile.dry_run": "named in engine/statefile/reader.py, by its read",
    "redrive.engine.agent.agent": "sent over ssh, and named in what is sent",
    "redrive.engine.agent.bootstrap": "sent over ssh, as the program of the interpreter over there",
}
LOOPS_OF_USERS = {  # in whose processes asyncio logs as they have arranged it
    "engine/executor/loop.py",  # also of their program; ``Executor`` knows whether the process is ours
    "engine/executor/resume_plan.py",
    "engine/runner/child.py",
    "engine/runner/dask_worker.py",
    "engine/testing/bodies.py",
    "engine/toolkit/run_with_timeout.py",
}
CORE_MUST_NOT_IMPORT = {"asyncio", "sqlite3", "os", "subprocess", "threading", "time", "random"}


def _files(folder: str) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md":
            yield path


def _sources(*folders: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in folders for path in _files(folder) if path.suffix == ".py"]


def _package(folder: Path) -> str:
    top, *below = folder.relative_to(ROOT).parts
    return ".".join((PACKAGE_OF[top], *below))


class _Module(NamedTuple):
    """What the tests below look for in one module."""

    imports: tuple[tuple[int, str], ...]  # level and module of every import statement, also of those inside functions
    files: frozenset[str]  # that its relative imports reach
    has_loop: bool
    database_lines: tuple[int, ...]
    payload_lines: tuple[int, ...]  # which read a payload by a key
    named_records: frozenset[str]  # that have a run and a name
    types: frozenset[str]  # public classes and names of types; a type variable stands for many
    compared: frozenset[tuple[str, str]]  # a column, and an enum of which a member is compared with it


@cache
@collector_paused()
def _module(source: str) -> _Module:
    nodes: list[Any] = list(ast.walk(ast.parse((ROOT / source).read_text())))
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return _Module(
        imports=(
            *((0, alias.name) for node in nodes if isinstance(node, ast.Import) for alias in node.names),
            *((node.level, node.module or "") for node in imported),
        ),
        files=frozenset(file for node in imported if node.level for file in _meant_by(source, node)),
        has_loop=any(_runs_a_loop(node) for node in nodes),
        database_lines=tuple(node.lineno for node in nodes if _is_of_a_database(node)),
        payload_lines=tuple(node.lineno for node in nodes if _reads_payload_by_key(node)),
        named_records=frozenset(
            node.name for node in nodes if isinstance(node, ast.ClassDef) and {"run_id", "name"} <= _fields(node)
        ),
        types=frozenset(name for node in nodes[0].body for name in _type_of(node) if not name.startswith("_")),
        compared=frozenset(pair for node in nodes for pair in _compared(node)),
    )


def test_every_folder_with_modules_is_listed_as_a_package() -> None:
    folders = {_package(path.parent) for folder in FOLDERS for path in _files(folder) if path.name == "__init__.py"}
    with_modules = {_package(path.parent) for folder in FOLDERS for path in _files(folder) if path.suffix == ".py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders == with_modules


def test_every_file_that_is_not_a_module_is_listed_as_package_data() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    forgotten = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in _files(folder)
        if path.suffix != ".py" and not any(fnmatch(path.name, glob) for glob in data.get(_package(path.parent), ()))
    ]
    assert forgotten == []


@pytest.mark.parametrize("folder", LOOSE_MODULES)
def test_modules_lie_in_the_folders_of_a_package(folder: str) -> None:
    assert {path.name for path in (ROOT / folder).glob("*.py")} == LOOSE_MODULES[folder]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What ``pip install .`` makes of this checkout."""
    folder = tmp_path / "site-packages" / "redrive"
    shutil.copytree(ROOT / ".package", folder)
    for name in ("console", "engine", "themes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    return folder


def test_a_copy_of_this_checkout_is_tested(copy: Path) -> None:
    stop_unless_current(ROOT, copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("engine/core/decide.py", b"edited"),
        ("__init__.py", b"edited"),
        ("themes/dark.toml", None),
        ("console/new.py", b"new"),
    ],
)
def test_an_old_copy_of_this_checkout_is_not_tested(copy: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    with pytest.raises(SystemExit, match=rf"differs from this checkout \(\S*{name}\): pip install -e"):
        stop_unless_current(ROOT, copy)


def test_the_contracts_between_packages_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}  # all packages below one folder, however installed
    result = subprocess.run([lint, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_core_imports_nothing_that_acts() -> None:
    for source in _sources("engine/core"):
        imported = {_top(name) for level, name in _module(source).imports if not level}
        assert imported & CORE_MUST_NOT_IMPORT == set(), source


def _top(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.long
def test_our_processes_run_their_event_loops_where_the_log_of_asyncio_is_arranged() -> None:
    found = {source for source in _sources(*FOLDERS) if _module(source).has_loop}
    assert found == {"engine/asyncio_log.py", *LOOPS_OF_USERS}


#: What lies on this machine, or on several hosts at once: no session has its clock.
READERS_OF_THIS_MACHINES_CLOCK = {
    "console/cli/hosts.py",
    "console/cli/listings.py",  # redrive fleet
    "console/cli/maintenance.py",  # redrive doctor
    "console/cli/needs.py",  # redrive inbox of all files
    "console/cli/schedule.py",
    "console/cli/systems.py",  # the pools of this machine
    "console/cli/metrics.py",
    "console/sessions/target.py",  # the state files of this machine
}


def test_the_console_counts_time_by_the_clock_of_the_session() -> None:
    """Ages and countdowns of a run are counted by the clock of its host, which may be another machine."""
    texts = {name: (ROOT / name).read_text() for name in _sources("console")}
    by_process = {name for name, text in texts.items() if re.search(r"\bwall_time_us\b|\btime\.time\(", text)}
    assert {name for name in by_process if not name.startswith("console/sessions/")} == set()
    by_machine = {name for name, text in texts.items() if "machine_now_us" in text}
    assert by_machine - {"console/sessions/session.py"} == READERS_OF_THIS_MACHINES_CLOCK


def _runs_a_loop(node: ast.AST) -> bool:
    running = ("asyncio.run", "asyncio.Runner", "asyncio.new_event_loop")
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and ast.unparse(node) in running


def test_a_record_that_belongs_to_a_task_calls_it_its_task() -> None:
    """A task itself has a ``name``, and so has a row of a table with this column."""
    found = frozenset.union(*(_module(source).named_records for source in _sources("engine", "console")))
    assert found == {"QuarantineRow"}


def _type_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "TypeVar(" not in ast.unparse(node):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (one.id for one in targets if isinstance(one, ast.Name) and re.fullmatch("[A-Z][a-z]+.*", one.id))


def test_a_name_of_a_type_has_one_meaning() -> None:
    named = Counter(name for source in _sources("engine", "console") for name in _module(source).types)
    assert [name for name, count in named.items() if count > 1] == []


#: The enum of each column whose values have a name in an enum.
ENUM_OF_COLUMN = {
    "dead_letter_kind": "DeadLetterKind",
    "failure_class": "FailureClass",
    "failure_mode": "FailureMode",
    "lost_with": "LostWith",
    "outcome": "OutcomeKind",
    "skip_cause": "SkipCause",
}


def _column_of(node: ast.expr) -> str:
    """The column that an expression reads: ``row.skip_cause``, ``skip_cause``, ``columns["skip_cause"]``."""
    name = re.search(r"(\w+)(?:'\)|'\])?$", ast.unparse(node))
    return name[1] if name is not None else ""


def _compared(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.Match):
        operands = [
            node.subject,
            *(case.pattern.value for case in node.cases if isinstance(case.pattern, ast.MatchValue)),
        ]
    else:
        return
    members = [found for one in operands for found in re.findall(r"\b([A-Z]\w+)\.[A-Z_]+\b", ast.unparse(one))]
    columns = ENUM_OF_COLUMN.keys() & set(map(_column_of, operands))
    yield from ((column, enum) for column in columns for enum in members)


def test_a_column_is_compared_with_the_members_of_its_own_enum() -> None:
    """Two enums have a member for one word (``deadline``). mypy refuses to compare two of them, but a text with any."""
    found = set().union(*(_module(source).compared for source in _sources("engine", "console")))
    assert {pair for pair in found if ENUM_OF_COLUMN[pair[0]] != pair[1]} == set()
    assert {column for column, _ in found} == ENUM_OF_COLUMN.keys()
    wrong = "row.failure_mode in (DeadLetterKind.DEADLINE,)"
    assert list(_compared(ast.parse(wrong, mode="eval").body)) == [("failure_mode", "DeadLetterKind")]


def _fields(record: ast.ClassDef) -> set[str]:
    targets = (line.target for line in record.body if isinstance(line, ast.AnnAssign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_sql_is_written_and_databases_are_opened_in_store_and_statefile_alone() -> None:
    sources = [name for name in _sources(*FOLDERS) if not name.startswith(SQL_PACKAGES)]
    assert [f"{source}:{line}" for source in sources for line in _module(source).database_lines] == []


def _is_of_a_database(node: ast.AST) -> bool:
    """SQL, ``sqlite3.connect``, or a name that is imported from ``sqlite3``."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(SQL.match(node.value))
    if isinstance(node, ast.Attribute):
        return node.attr == "connect" and ast.unparse(node.value) in ("sqlite3", "aiosqlite")
    return isinstance(node, ast.ImportFrom) and node.module in ("sqlite3", "aiosqlite")


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("SELECT 1 FROM run", True),
        ("  UPDATE executor SET", True),
        ("INSERT INTO executor (", True),
        ("PRAGMA user_version", True),
        ("BEGIN IMMEDIATE", True),
        ("COMMIT", True),
        ("Select a task", False),
        ("DELETE", False),  # a key
        ("UPDATED", False),
    ],
)
def test_sql_is_distinguished_from_other_texts(text: str, is_sql: bool) -> None:
    assert bool(SQL.match(text)) is is_sql


def test_every_module_is_imported_by_another_one() -> None:
    """A feature whose calling line was lost in a move stays in the tree, and its own tests stay green."""
    sources = [name for name in _sources("console", "engine") if not name.startswith("engine/examples/")]
    imported = {file for source in sources for file in _module(source).files if file != source}
    found = {_dotted(source) for source in sources if source not in imported and not source.endswith("/__init__.py")}
    commands = {f"redrive.console.cli.{one.module}" for section in SECTIONS.values() for one in section}
    assert found - commands == set(FOUND_OTHERWISE)


def _dotted(source: str) -> str:
    return ".".join(("redrive", *Path(source).with_suffix("").parts))


def test_packages_name_each_other_relatively() -> None:
    """An absolute name would find whatever `engine` lies in the operator's folder."""
    own = {"redrive", *FOLDERS}
    absolute = [
        (source, name)
        for source in _sources(*FOLDERS)
        if not source.startswith("engine/examples/")  # written as a user writes a flow
        for level, name in _module(source).imports
        if not level and name.split(".")[0] in own
    ]
    assert absolute == []


def test_no_second_copy_of_the_code_is_imported() -> None:
    assert [name for name in FOLDERS if name in sys.modules] == []


def test_the_engine_without_a_console_loads_no_drawing_library() -> None:
    program = (
        "import sys, redrive.engine; print(sorted({name.split('.')[0] for name in sys.modules} & {'textual', 'rich'}))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def _python(*words: str) -> str:
    """What a new interpreter prints, started somewhere else than in this checkout."""
    command = [sys.executable, "-P", *words]
    return subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("words", ["runs", "tasks", "inbox", "logs task_00000"], ids=str)
def test_a_list_of_a_local_file_imports_neither_an_event_loop_nor_what_writes(tmp_path: Path, words: str) -> None:
    StateFileBuilder(tmp_path / "s.db").close()
    program = (
        "import atexit, sys; from redrive.console.cli.main import main;"
        "atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr)); main()"
    )
    command, *tasks = words.split()
    call = [sys.executable, "-P", "-c", program, command, *tasks, "--state", str(tmp_path / "s.db")]
    loaded = ast.literal_eval(subprocess.run(call, capture_output=True, text=True).stderr.splitlines()[-1])
    costly = r"asyncio|ssl|tempfile|textual|.*\.(live_run|replay|eta|graph|fleet|clean_ups|map_tasks|pages|writer)"
    assert [name for name in loaded if re.fullmatch(costly, name)] == []
    assert "redrive.console.sessions.file_session" in loaded


def test_the_top_package_knows_the_version_and_imports_nothing_of_its_own() -> None:
    program = "import sys, redrive; print(redrive.__version__, [name for name in sys.modules if 'redrive.' in name])"
    assert _python("-c", program) == f"{redrive.__version__} []\n"


@pytest.mark.parametrize("module", ["redrive", "redrive.console"])
def test_the_command_can_be_run_as_a_module(module: str) -> None:
    assert _python("-m", module, "--help").startswith(f"Usage: python -m {module} [OPTIONS] [COMMAND]")
    assert _python("-m", module, "--version") == f"redrive, version {redrive.__version__}\n"


def test_every_version_is_the_one_of_the_package() -> None:
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "redrive.__version__"}


def test_the_checkers_see_every_package() -> None:
    """Type checkers and import-linter read the tree through links, because they cannot follow an import hook."""
    linked = {path.name: path.resolve() for path in (ROOT / ".types/redrive").iterdir() if path.is_symlink()}
    top = {path.name: path for path in _files(".package")}
    assert linked == {**top, **{folder: ROOT / folder for folder in FOLDERS if folder != ".package"}}


def test_carried_modules_have_the_grammar_of_python_3_6() -> None:
    for source in CARRIED:
        tree = ast.parse((ROOT / source).read_text(), source, feature_version=(3, 6))
        assert "__future__" not in [name for _, name in _module(source).imports], source
        for node in ast.walk(tree):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                assert _readable_by_3_6(node.annotation), f"{source}:{node.lineno}"
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                assert _readable_by_3_6(node.returns), f"{source}:{node.lineno}"


def _readable_by_3_6(annotation: ast.expr) -> bool:
    """No ``X | None`` and no ``list[str]``: old interpreters evaluate annotations."""
    builtin = {"list", "dict", "tuple", "set", "frozenset", "type"}
    return not any(
        isinstance(node, ast.BinOp)
        or (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in builtin)
        for node in ast.walk(annotation)
    )


#: Words that SQLite 3.24, which common servers have, does not know.
NEWER_SQL = re.compile(
    r"\b(?:STRICT|GENERATED ALWAYS|RETURNING|MATERIALIZED|DROP COLUMN|NULLS (?:FIRST|LAST))\b|->>"
    r"|\b(?:OVER|FILTER) \(|\b(?:iif|unixepoch)\("
)


def test_state_files_are_read_by_the_sqlite_of_common_servers() -> None:
    """One newer word in the schema makes the whole file unreadable there, one in a query what asks for it."""
    schemas = [re.sub("--.*", "", path.read_text()) for path in (ROOT / "engine/store").glob("*.sql")]
    texts = [*schemas, *((ROOT / source).read_text() for source in CARRIED)]
    assert [found[0] for text in texts for found in NEWER_SQL.finditer(text)] == []
    assert len(schemas) == 2 and all(map(NEWER_SQL.search, ["a INT) STRICT", "a RETURNING b", "a ->> 'b'"]))


def test_carried_modules_import_only_what_travels_with_them() -> None:
    known = sys.stdlib_module_names - STANDARD_LIBRARY_SINCE_3_7
    for source in CARRIED:
        assert {_top(name) for level, name in _module(source).imports if not level} <= known, source
        assert _module(source).files <= set(CARRIED), source


def _meant_by(source: str, node: ast.ImportFrom) -> set[str]:
    """The files that a relative import reaches."""
    folder = Path(source).parents[node.level - 1].joinpath(*(node.module or "").split("."))
    names = [alias.name for alias in node.names]
    return {f"{folder / name}.py" for name in names} if (ROOT / folder).is_dir() else {f"{folder}.py"}


def test_what_an_event_says_is_read_by_attributes() -> None:
    """A string as a key would escape mypy: only the codec, and the steps of a kill, know keys of the JSON."""
    sources = sorted(set(_sources("engine", "console")) - {"engine/domain/event_codec.py", "engine/domain/events.py"})
    assert [(source, line) for source in sources for line in _module(source).payload_lines] == []


def _reads_payload_by_key(node: ast.AST) -> bool:
    """``event.data["what"]``, ``payload.get("what")``, ``json.loads(data)["what"]``, ``row["data"]["what"]``."""
    if isinstance(node, ast.Subscript):
        holder, keys = node.value, [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        holder, keys = node.func.value, node.args[:1]
    else:
        return False
    by_string = any(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys)
    return by_string and ast.unparse(holder) in _PAYLOADS_AS_DICTS


_PAYLOADS_AS_DICTS = {
    text.format(name)
    for name in ("event", "act", "row", "told")
    for text in ("{0}.data", "{0}.payload", "{0}['data']", "{0}['payload']")
} | {"data", "payload", "json.loads(data)", "json.loads(row[-1])", "decode(data)", "encode(payload)"}


@pytest.mark.parametrize("command", ["test_command", "demo_command"])
def test_the_checks_run_the_commands_that_the_readme_promises(command: str) -> None:
    written = next(line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith(f"{command}="))
    assert written.partition("=")[2].strip('"') in (ROOT / "README.md").read_text()


def test_the_top_level_holds_what_the_design_allows() -> None:
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    names = {path.name for path in ROOT.iterdir() if not any(fnmatch(path.name, pattern) for pattern in ignored)}
    assert {name for name in names if not name.startswith(".")} - ALLOWED_AT_THE_TOP == set()
