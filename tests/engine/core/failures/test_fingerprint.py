"""Which failure is which: each row of the table of measured confusions (SPEC 4.1), and document 000's own hash."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import hashlib
import json
import linecache
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from redrive.engine.core.failures.facts import ProgramEnd, message_of, normalize_message
from redrive.engine.core.failures.fingerprint import (
    CHAIN_LENGTH_MAX,
    VERSION,
    fingerprint_of_error,
    fingerprint_of_program,
    fingerprint_of_signal,
    fingerprint_of_stack,
    fingerprint_v1,
    innermost_of_stack,
)
from redrive.engine.core.outcome import FailureClass, Fingerprint
from support.marks import for_each

ROOT = str(Path(__file__).parent)


def caught(function: Callable[..., object], *arguments: object) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def of(function: Callable[..., object], *arguments: object) -> Fingerprint:
    return fingerprint_of_error(caught(function, *arguments), project_root=ROOT)


def load(folder: Path, source: str, name: str = "settle") -> ModuleType:
    """A module of its own in a real file, as a flow is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    module = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def lookup(key: int) -> object:
    return dict[int, int]()[key]


def divide(number: int) -> float:
    return number / 0


def test_v1_is_document_000s_hash_to_the_letter():
    """000.30, 000.34: sha1 of Type|file:line, 12 hex digits; the settlement example at settle.py line 87."""
    code = compile("\n" * 86 + "1 / 0", "/srv/settle.py", "exec")
    error = caught(exec, code)
    golden = hashlib.sha1(b"ZeroDivisionError|/srv/settle.py:87").hexdigest()[:12]
    assert fingerprint_v1(error) == golden == "bea4dd4bff3a"
    assert fingerprint_of_error(error).v1 == golden


def test_v1_of_an_exception_that_was_never_raised():
    """000.34: no traceback is ``Type|:0``."""
    assert fingerprint_v1(KeyError("x")) == hashlib.sha1(b"KeyError|:0").hexdigest()[:12]


def test_the_message_is_no_part_of_it():
    """000.37: KeyError 42 and KeyError 43 at one line are one bug."""
    first, second = of(lookup, 42), of(lookup, 43)
    assert (first.strict, first.loose) == (second.strict, second.loose)


def test_two_exceptions_through_one_reporting_line_differ():
    """Part 0.1: the parent's ``raise RuntimeError(repr)`` gave ZeroDivisionError and KeyError one hash."""

    def facade(function: Callable[[int], object]) -> None:
        try:
            function(1)
        except Exception as error:
            raise RuntimeError(repr(error)) from error

    first, second = caught(facade, divide), caught(facade, lookup)
    assert fingerprint_v1(first) == fingerprint_v1(second)
    assert fingerprint_of_error(first).strict != fingerprint_of_error(second).strict
    assert fingerprint_of_error(first).loose != fingerprint_of_error(second).loose


def test_an_implicit_cause_that_is_the_same_does_not_hide_what_differs():
    """4.1: the chain counts as a whole: a cache miss before both failures does not make them one."""

    def compute(function: Callable[[int], object]) -> None:
        try:
            lookup(1)
        except KeyError:
            function(2)

    def short(number: int) -> object:
        return "abc"[number + 2]

    assert of(compute, divide).strict != of(compute, short).strict
    assert of(compute, divide).strict == of(compute, divide).strict


def test_a_suppressed_context_does_not_count():
    """4.1: ``raise ... from None`` says that the context is none of it."""

    def hide(function: Callable[[int], object]) -> None:
        try:
            function(1)
        except Exception:
            raise ValueError("clean") from None

    assert of(hide, divide).strict == of(hide, lookup).strict


def test_the_root_cause_comes_first_in_words():
    def load_config() -> None:
        try:
            lookup(1)
        except KeyError as error:
            raise RuntimeError("no configuration") from error

    words = of(load_config).explain
    assert words.startswith("KeyError test_fingerprint.py:")
    assert words.endswith("in lookup, which led to RuntimeError")


def test_a_chain_that_is_a_ring_ends():
    """4.1: visited set: an old exception raised as its own cause must not hang."""
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert fingerprint_of_error(first).strict == fingerprint_of_error(first).strict


def test_a_chain_is_followed_ten_links_deep():
    """4.1: depth <= 10."""

    def chain(length: int) -> BaseException:
        error: BaseException = KeyError("root")
        for index in range(length):
            later = RuntimeError("abcdefghijklmnop"[index])
            later.__cause__ = error
            error = later
        return error

    assert len(fingerprint_of_error(chain(3)).parts) == 2 + 4
    assert len(fingerprint_of_error(chain(15)).parts) == 2 + CHAIN_LENGTH_MAX == 12


def test_an_error_raised_again_from_itself_counts_once():
    """4.1: repeats that say nothing new are collapsed."""

    def twice(times: int) -> None:
        try:
            raise ValueError("same")
        except ValueError as error:
            if times:
                raise ValueError("same").with_traceback(error.__traceback__) from error
            raise

    assert len(of(twice, 0).parts) == 3


class TestGroups:
    def test_groups_with_other_children_differ(self):
        """4.1: ExceptionGroup with ValueError and with OSError are two failures."""

        def both(child: Exception) -> None:
            raise ExceptionGroup("two", [child, KeyError("k")])

        first, second = caught(both, ValueError("x")), caught(both, OSError("x"))
        assert fingerprint_v1(first) == fingerprint_v1(second)
        assert fingerprint_of_error(first).strict != fingerprint_of_error(second).strict

    def test_the_order_and_number_of_children_are_chance(self):
        """4.1: sorted distinct child signatures."""

        def group(children: list[Exception]) -> None:
            raise ExceptionGroup("some", children)

        miss, value = KeyError("k"), ValueError("v")
        assert of(group, [miss, value]).strict == of(group, [value, miss, KeyError("k")]).strict

    def test_a_group_may_be_wide_and_deep(self):
        """4.1: width <= 8, depth <= 3: a group of ten thousand is told in little time and space."""

        def group(children: list[Exception]) -> None:
            for _ in range(20):
                children = [ExceptionGroup("deeper", children)]
            raise ExceptionGroup("wide", [*children, *(ValueError(str(index)) for index in range(10_000))])

        parts = of(group, [KeyError("x")]).parts
        assert sum(map(len, parts)) < 4000

    def test_causes_inside_a_group_count(self):
        def group(cause: Exception) -> None:
            child = ValueError("same")
            child.__cause__ = cause
            raise ExceptionGroup("one", [child])

        assert of(group, KeyError("k")).strict != of(group, OSError("o")).strict

    def test_the_words_of_a_group_are_those_of_what_is_inside(self):
        """ "unhandled errors in a TaskGroup" at the line of the ``async with`` tells nobody where to look."""

        async def grouped() -> None:
            async with asyncio.TaskGroup() as outer:
                async with asyncio.TaskGroup() as inner:
                    inner.create_task(asyncio.to_thread(divide, 1))
                outer.create_task(asyncio.sleep(0))

        words = of(lambda: asyncio.run(grouped())).explain
        assert re.fullmatch(r"ZeroDivisionError test_fingerprint.py:\d+ in divide \(in a group\)", words)

    def test_several_failures_in_a_group_are_all_named(self):
        async def failing(function: Callable[[int], object]) -> None:
            function(1)

        async def grouped() -> None:
            async with asyncio.TaskGroup() as group:
                for function in (divide, lookup):
                    group.create_task(failing(function))

        words = of(lambda: asyncio.run(grouped())).explain
        assert re.fullmatch(r"KeyError .* in lookup, ZeroDivisionError .* in divide \(in a group\)", words)


class TestWaits:
    def test_a_wait_that_took_too_long_is_a_timeout_at_the_line_that_waited(self):
        """Its root cause is a cancellation inside the event loop, which says nothing to anybody."""

        async def impatient() -> None:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)

        async def in_a_block() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        for function in (impatient, in_a_block):
            words = of(lambda function=function: asyncio.run(function())).explain
            assert words.startswith("TimeoutError test_fingerprint.py:")
            assert words.endswith(f".<locals>.{function.__name__}")

    def test_what_a_library_made_of_its_own_failure_is_reported_at_the_line_that_called_it(self):
        """The root cause was raised and caught inside the library: no frame of it is the user's."""

        def call() -> None:
            try:
                json.loads("{")
            except ValueError as error:
                lost = error.with_traceback(error.__traceback__.tb_next)
            raise RuntimeError("no answer") from lost

        words = of(call).explain
        assert words.startswith("JSONDecodeError test_fingerprint.py:")
        assert words.endswith("<locals>.call, which led to RuntimeError")


class TestTypes:
    def test_two_classes_of_one_name_differ(self, tmp_path):
        """4.1: the type is module.qualname: ``parser.Error`` is not ``loader.Error``."""
        first = load(tmp_path, "class Error(Exception): ...", "parser").Error
        second = load(tmp_path, "class Error(Exception): ...", "loader").Error
        first.__module__, second.__module__ = "parser", "loader"

        def fail(kind: type[Exception]) -> None:
            raise kind("x")

        assert fingerprint_v1(caught(fail, first)) == fingerprint_v1(caught(fail, second))
        assert of(fail, first).strict != of(fail, second).strict
        assert of(fail, first).loose != of(fail, second).loose


class TestFrames:
    def test_an_assertion_in_a_shared_helper_is_reported_by_its_caller(self):
        """4.1: two in-app frames for AssertionError."""

        def check(condition: bool) -> None:
            assert condition

        def orders() -> None:
            check(False)

        def payments() -> None:
            check(False)

        assert fingerprint_v1(caught(orders)) == fingerprint_v1(caught(payments))
        assert of(orders).strict != of(payments).strict
        assert of(orders).loose != of(payments).loose

    def test_other_errors_in_a_shared_helper_are_one_cause(self):
        """000.29: a fan-out of siblings that fails in one helper is one cluster."""

        def orders() -> None:
            divide(1)

        def payments() -> None:
            divide(2)

        assert of(orders).loose == of(payments).loose

    def test_two_kinds_of_bad_json_at_one_call_are_one_failure(self):
        """4.1: the innermost frame is the library's (decoder.py 353 and 355), the failure is the caller's."""

        def parse(text: str) -> None:
            json.loads(text)

        first, second = caught(parse, "{"), caught(parse, "")
        assert fingerprint_v1(first) != fingerprint_v1(second)
        assert fingerprint_of_error(first).strict == fingerprint_of_error(second).strict
        assert "in TestFrames.test_two_kinds_of_bad_json" in fingerprint_of_error(first).explain

    def test_two_slow_calls_are_two_failures(self):
        """4.1: every asyncio timeout has one innermost frame, in the standard library."""

        async def slow_orders() -> None:
            await asyncio.sleep(60)

        async def slow_payments() -> None:
            await asyncio.sleep(60)

        async def bounded(call: Callable[[], object]) -> None:
            await asyncio.wait_for(call(), 0.001)  # type: ignore[arg-type]

        def run(call: Callable[[], object]) -> None:
            asyncio.run(bounded(call))

        first, second = caught(run, slow_orders), caught(run, slow_payments)
        assert fingerprint_v1(first) == fingerprint_v1(second)
        assert fingerprint_of_error(first).strict != fingerprint_of_error(second).strict
        assert fingerprint_of_error(first).strict == fingerprint_of_error(caught(run, slow_orders)).strict
        assert (
            "in TestFrames.test_two_slow_calls_are_two_failures.<locals>.slow_orders"
            in fingerprint_of_error(first).explain
        )

    def test_code_without_a_file_is_known_by_what_it_does(self):
        """4.1: two snippets of ``<string>:1`` are two failures; the same snippet again is the same."""

        def evaluate(text: str) -> None:
            exec(text)

        first, second = caught(evaluate, "x = {}['a']"), caught(evaluate, "y = {}['b']")
        assert fingerprint_v1(first) == fingerprint_v1(second)
        assert of(evaluate, "x = {}['a']").strict != of(evaluate, "y = {}['b']").strict
        assert of(evaluate, "x = {}['a']").strict == of(evaluate, "x = {}['a']").strict

    def test_code_without_a_file_has_no_lines_of_the_program_that_runs_it(self, monkeypatch):
        """Since Python 3.13 ``python -c`` enters its own text as ``<string>``."""

        def evaluate(text: str) -> None:
            exec(text)

        monkeypatch.setitem(linecache.cache, "<string>", (19, None, ["import the_program\n"], "<string>"))
        assert of(evaluate, "x = {}['a']").strict != of(evaluate, "y = {}['b']").strict

    def test_code_without_a_file_is_reported_by_who_ran_it(self):
        def orders(text: str) -> None:
            exec(text)

        def payments(text: str) -> None:
            exec(text)

        assert of(orders, "1/0").loose != of(payments, "1/0").loose

    def test_a_recursion_is_the_set_of_its_functions(self):
        """4.1: with the stack one frame deeper another function of the cycle is the innermost one."""

        def even(number: int) -> bool:
            return odd(number - 1)

        def odd(number: int) -> bool:
            return even(number - 1)

        def deeper(number: int) -> bool:
            return even(number)

        assert of(even, 1).strict == of(deeper, 1).strict
        assert of(even, 1).loose == of(deeper, 1).loose

        def other(number: int) -> bool:
            return other(number - 1)

        assert of(other, 1).strict != of(even, 1).strict


class TestPlaces:
    SOURCE = """
        def settle(row):
            return row["amount"] / row["count"]
    """

    def failure(self, folder: Path, source: str = SOURCE, code_hash: str | None = None) -> Fingerprint:
        module = load(folder, source)
        error = caught(module.settle, {"amount": 1, "count": 0})
        return fingerprint_of_error(error, project_root=str(folder), code_hash=code_hash)

    def test_another_checkout_is_the_same_failure(self, tmp_path):
        """4.1: the path is relative to the project, never absolute."""
        assert self.failure(tmp_path / "a").strict == self.failure(tmp_path / "b").strict
        assert str(tmp_path) not in "".join(self.failure(tmp_path / "a").parts)

    def test_outside_of_the_project_the_module_is_named(self, tmp_path):
        module = load(tmp_path / "shared", self.SOURCE, "shared_helpers")
        error = caught(module.settle, {"amount": 1, "count": 0})
        parts = "".join(fingerprint_of_error(error, project_root=str(tmp_path / "project")).parts)
        assert "shared_helpers" in parts
        assert str(tmp_path) not in parts

    def test_a_moved_line_is_another_strict_and_the_same_loose(self, tmp_path):
        """4.1: strict has line and text, loose neither: history survives a deploy."""
        moved = self.failure(tmp_path / "b", "\n\n\n" + textwrap.dedent(self.SOURCE))
        here = self.failure(tmp_path / "a")
        assert moved.strict != here.strict
        assert moved.loose == here.loose

    def test_an_edited_line_is_another_strict_and_the_same_loose(self, tmp_path):
        edited = self.failure(tmp_path / "b", self.SOURCE.replace('row["count"]', 'int(row["count"])'))
        here = self.failure(tmp_path / "a")
        assert edited.strict != here.strict
        assert edited.loose == here.loose

    def test_after_a_fix_the_count_starts_afresh(self, tmp_path):
        """4.1: strict carries the code hash of the task: a fix elsewhere in the module counts too."""
        before = self.failure(tmp_path / "a", code_hash="1111")
        after = self.failure(tmp_path / "a", code_hash="2222")
        assert before.strict != after.strict
        assert before.loose == after.loose

    def test_a_file_that_is_gone_is_known_by_its_code(self, tmp_path):
        module = load(tmp_path, self.SOURCE)
        Path(module.__file__ or "").unlink()
        first = fingerprint_of_error(caught(module.settle, {"amount": 1, "count": 0}), project_root=str(tmp_path))
        again = fingerprint_of_error(caught(module.settle, {"amount": 2, "count": 0}), project_root=str(tmp_path))
        assert first.strict == again.strict

    def test_the_hash_is_the_same_in_another_process(self, tmp_path):
        """Two attempts are two processes: byte code with sets in it must hash the same under another hash seed."""
        program = textwrap.dedent("""
            from redrive.engine.core.failures.fingerprint import fingerprint_of_error
            try:
                exec('''if "x" in {"a", "b", "c", "d"} or 1 / 0: pass''')
            except ZeroDivisionError as error:
                print(fingerprint_of_error(error).strict)
        """)
        answers = {
            subprocess.run(
                [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
            ).stdout
            for seed in ("1", "2", "3")
        }
        assert len(answers) == 1

    def test_both_answers_are_twelve_hex_digits(self, tmp_path):
        for answer in (self.failure(tmp_path).strict, self.failure(tmp_path).loose):
            assert len(answer) == 12
            assert set(answer) <= set("0123456789abcdef")


class TestMessages:
    @for_each(
        "one, other",
        [
            ("row 42 has no amount", "row 43 has no amount"),
            ("no table 'orders_2024'", "no table 'orders_2025'"),
            ("cannot open /tmp/a/1.csv", "cannot open /var/data/other.csv"),
            ("object at 0x7f3a12", "object at 0x55e001"),
            ("job 123e4567-e89b-12d3-a456-426614174000", "job 00000000-e89b-12d3-a456-426614174999"),
            ("blob 9f86d081884c7d65 refused", "blob 2c26b46b68ffc68f refused"),
        ],
    )
    def test_without_a_traceback_the_message_speaks_without_what_varies(self, one, other):
        """4.1: numbers, hex, quoted strings, paths and uuids are replaced."""
        assert fingerprint_of_error(ValueError(one)).strict == fingerprint_of_error(ValueError(other)).strict

    def test_other_messages_stay_apart(self):
        """4.1: v1 gives every exception without traceback ``Type|:0``."""
        assert fingerprint_v1(ValueError("disk full")) == fingerprint_v1(ValueError("bad row"))
        assert (
            fingerprint_of_error(ValueError("disk full")).strict != fingerprint_of_error(ValueError("bad row")).strict
        )

    def test_normalise_reads_like_the_message(self):
        assert (
            normalize_message("can't open '/tmp/x' at byte 0x1f,\n line 12")
            == "can't open <text> at byte <hex>, line <n>"
        )
        assert normalize_message("GET https://api.example/v2/orders/77") == "GET https:<path>"

    def test_a_huge_message_is_cut_before_it_is_searched(self):
        assert len(normalize_message("'" * 10_000_000)) <= 200

    def test_an_exception_without_a_printable_message(self):
        """Text of a task is data: its ``__str__`` may raise, and the failure is still told."""

        class Broken(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        assert message_of(Broken()) == "<Broken without a message: its __str__ raised RuntimeError>"
        assert fingerprint_of_error(Broken()).strict

    def test_a_lone_surrogate_can_be_hashed(self):
        assert fingerprint_of_error(ValueError("\ud800")).strict


def foreign(module: str, name: str, *bases: type, **attributes: object) -> type[BaseException]:
    """A class of a library that is not installed, as its exceptions look from outside."""
    return type(name, bases or (Exception,), {"__module__": module, **attributes})


def answered(status: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={})


def helper(error: BaseException) -> None:
    raise error


HTTPX = [foreign("httpx", "HTTPStatusError", response=answered(status))("x") for status in (404, 403)]
REQUESTS = [foreign("requests", "HTTPError", OSError, response=answered(status))("x") for status in (404, 403)]
AIOHTTP = [foreign("aiohttp", "ClientResponseError", status=status, headers={})("x") for status in (404, 403)]
PSYCOPG = [foreign("psycopg.errors", "Error", sqlstate=sqlstate)("x") for sqlstate in ("42P01", "42703")]
PSYCOPG2 = [foreign("psycopg2", "ProgrammingError", pgcode=sqlstate)("x") for sqlstate in ("42P01", "42703")]
SQLALCHEMY = [foreign("sqlalchemy.exc", "DBAPIError", orig=error)("x") for error in PSYCOPG]
OS = [OSError(number, "x") for number in (errno.ENOSPC, errno.EIO)]
PROGRAMS = [subprocess.CalledProcessError(1, command) for command in (["load", "a"], ["copy", "a"])]
OUTPUTS = [subprocess.CalledProcessError(1, "x", stderr=f"ERROR: {what}") for what in ("no table", "no column")]
PAIRS = (HTTPX, REQUESTS, AIOHTTP, PSYCOPG, PSYCOPG2, SQLALCHEMY, OS, PROGRAMS, OUTPUTS)


class TestFacts:
    """One helper raises errors that differ in what the other side answered."""

    @for_each("first, second", PAIRS)
    def test_the_answer_distinguishes_two_causes(self, first: BaseException, second: BaseException) -> None:
        marks = [of(helper, error) for error in (first, second)]
        assert marks[0].loose != marks[1].loose
        assert marks[0].strict != marks[1].strict
        assert len({*marks[0].fields} ^ {*marks[1].fields}) == 2  # one field differs, and it is listed

    def test_the_title_says_what_the_type_does_not(self) -> None:
        assert of(helper, HTTPX[0]).explain.startswith("HTTPStatusError 404 test_fingerprint.py:")
        assert of(helper, PSYCOPG[0]).explain.startswith("Error 42P01 test_fingerprint.py:")

    def test_the_class_is_part_of_the_cause_where_nothing_else_differs(self) -> None:
        """A driver has one type for a lost connection and for a refused login."""
        error = caught(helper, ValueError("x"))
        lost = fingerprint_of_error(error, failure_class=FailureClass.TRANSIENT)
        refused = fingerprint_of_error(error, failure_class=FailureClass.AUTH)
        assert lost.loose != refused.loose
        assert ("class", "auth") in refused.fields

    def test_in_a_group_it_counts_too(self) -> None:
        groups = [ExceptionGroup("x", [error]) for error in HTTPX if isinstance(error, Exception)]
        assert of(helper, groups[0]).loose != of(helper, groups[1]).loose

    def test_every_hash_is_of_this_version(self) -> None:
        marks = [
            of(lookup, 1),
            fingerprint_of_program(ProgramEnd(1)),
            fingerprint_of_signal(11, "unknown"),
            fingerprint_of_stack(TestStacks.DUMP),
        ]
        assert {mark.parts[0] for mark in marks} == {VERSION}

    def test_a_library_that_raises_an_error_again_under_its_name_says_it_once(self) -> None:
        inner, outer = foreign("h11", "LocalProtocolError")("x"), foreign("httpx", "LocalProtocolError")("x")

        def fetch() -> None:
            raise outer from inner

        assert of(fetch).explain.endswith("<locals>.fetch")

    def test_an_error_without_a_place_shows_its_own_message(self) -> None:
        assert fingerprint_of_error(ValueError("order 17 of 'x'")).explain == "ValueError order 17 of 'x'"


class TestProcesses:
    def test_an_exit_code_is_a_fingerprint(self):
        """4.1: no exception: ``exit:<code>``."""
        assert fingerprint_of_program(ProgramEnd(3)).fields == (("exit code", "3"),)
        assert fingerprint_of_program(ProgramEnd(3)).strict != fingerprint_of_program(ProgramEnd(4)).strict

    def test_the_last_line_distinguishes_two_failures_of_one_exit_code(self):
        first = fingerprint_of_program(ProgramEnd(1, "psql: error: connection to 10.0.0.5 refused"))
        again = fingerprint_of_program(ProgramEnd(1, "psql: error: connection to 10.0.0.6 refused"))
        other = fingerprint_of_program(ProgramEnd(1, "psql: error: relation 'orders' does not exist"))
        assert first.strict == again.strict != other.strict

    def test_a_signal_is_reported_with_its_sender(self):
        """4.1: ``signal:<n>:<sender>``."""
        assert fingerprint_of_signal(9, "oom").fields == (("signal", "9 from oom"),)
        assert fingerprint_of_signal(9, "oom").strict != fingerprint_of_signal(9, "unknown").strict

    def test_a_crash_is_reported_by_the_innermost_frame_of_python(self):
        """4.1: a segfault adds the faulthandler stack's innermost frame; the dump is a real one."""
        program = "import faulthandler\ndef crash():\n    faulthandler._sigsegv()\nfaulthandler.enable()\ncrash()\n"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert ended.returncode == -11
        computed = fingerprint_of_signal(11, "unknown", ended.stderr)
        assert computed.explain == "ended by SIGSEGV at <string>:3 in crash"
        assert computed.strict != fingerprint_of_signal(11, "unknown").strict


class TestStacks:
    DUMP = textwrap.dedent(f"""\
        Thread 0x00007f0a (most recent call first):
          File "{threading.__file__}", line 324 in wait
          File "/srv/flow/flow.py", line 9 in watch

        Current thread 0x00007f0b (most recent call first):
          File "/usr/lib/site-packages/psycopg/connection.py", line 702 in recv
          File "/srv/flow/lib/fetch.py", line 87 in fetch
          File "/srv/flow/flow.py", line 12 in extract
        """)

    def test_a_hang_is_where_the_users_code_stands(self):
        """4.1: ``timeout:`` and the innermost in-app frame of the captured stack, in the signalled thread."""
        computed = fingerprint_of_stack(self.DUMP, "/srv/flow")
        assert computed.fields == (("timeout", ""), ("place", "lib/fetch.py:fetch"))
        assert computed.explain == "timed out at fetch.py:87 in fetch"

    def test_two_hangs_at_one_place_are_recognised_and_two_slow_runs_are_not(self):
        elsewhere = self.DUMP.replace("line 87", "line 91")
        assert fingerprint_of_stack(self.DUMP, "/srv/flow") == fingerprint_of_stack(self.DUMP, "/srv/flow")
        assert (
            fingerprint_of_stack(self.DUMP, "/srv/flow").strict != fingerprint_of_stack(elsewhere, "/srv/flow").strict
        )
        assert fingerprint_of_stack(self.DUMP, "/srv/flow").loose == fingerprint_of_stack(elsewhere, "/srv/flow").loose

    def test_another_checkout_hangs_at_the_same_place(self):
        moved = self.DUMP.replace("/srv/flow", "/opt/flow")
        assert fingerprint_of_stack(self.DUMP, "/srv/flow").strict == fingerprint_of_stack(moved, "/opt/flow").strict

    def test_when_the_signalled_thread_is_all_library_another_thread_speaks(self):
        dump = self.DUMP.replace("/srv/flow/lib/", "/usr/lib/site-packages/x/").replace(
            'File "/srv/flow/flow.py", line 12', 'File "/usr/lib/site-packages/y.py", line 12'
        )
        assert str(innermost_of_stack(dump)) == "flow.py:9 in watch"

    def test_a_coroutine_speaks_before_a_thread_beside_the_loop(self):
        loop = (
            'Current thread 0x01 (most recent call first):\n  File "/usr/lib/site-packages/loop.py", line 3 in poll\n'
        )
        beside = 'Thread 0x02 (most recent call first):\n  File "/srv/flow/flow.py", line 9 in watch\n'
        waits = "Coroutine 'Task-1' (most recent call first):\n  File \"/srv/flow/flow.py\", line 12 in fetch\n"
        assert str(innermost_of_stack(beside + loop + waits)) == "flow.py:12 in fetch"

    def test_a_dump_of_libraries_only_still_has_a_place(self):
        dump = 'Stack (most recent call first):\n  File "/usr/lib/site-packages/a.py", line 3 in spin\n'
        assert str(innermost_of_stack(dump)) == "a.py:3 in spin"

    @pytest.mark.parametrize("dump", ["", "Thread 0x01 (most recent call first):\n  <no Python frame>\n", "\x00 noise"])
    def test_without_a_frame_two_timeouts_are_not_known_to_be_the_same(self, dump):
        """4.1: a program without Python frames has no place: its strict fingerprint is empty, never a match."""
        computed = fingerprint_of_stack(dump)
        assert (computed.strict, computed.fields) == ("", (("timeout", ""), ("hang", "")))
        assert computed.loose

    def test_a_real_dump_is_read(self, tmp_path):
        """The format of this interpreter, not of a page about it."""

        def stuck() -> None:
            with (tmp_path / "stack").open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)

        stuck()
        frame = innermost_of_stack((tmp_path / "stack").read_text())
        assert frame is not None
        assert (Path(frame.path).name, frame.function) == ("test_fingerprint.py", "stuck")
