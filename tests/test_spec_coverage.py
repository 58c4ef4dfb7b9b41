"""Every numbered statement of the five documents is kept by a test that can be named, or has a reason why not.

So are the sections on semantics and the ideas that are ours (SPEC parts 2 and 4).

Most tests say in their docstring which numbers they keep. Those that keep one without saying so are listed here, and so
is what is advice to people or decided otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
DOCUMENTS = {"000": 55, "001": 21, "002": 26, "003": 46, "004": 44}

EXECUTOR = "engine/executor/test_executor.py::"
DECIDE = "engine/core/test_decide.py::"
LADDER = "engine/runner/test_ladder.py::"
THREADS = "engine/runner/test_threads.py::"
LAB = "console/cli/test_policy_lab.py::"

KEPT_BY = {
    "000.05": DECIDE + "test_the_poison_check_comes_before_the_attempts_check",
    "000.15": EXECUTOR + "test_only_retries_pending_is_no_reason_to_sleep_for_ever",
    "000.18": THREADS + "test_a_leaked_thread_holds_its_slot_while_a_neighbour_runs_and_newcomers_go_elsewhere",
    "000.19": LADDER + "test_nothing_that_an_attempt_left_behind_outlives_it",
    "000.20": THREADS + "test_a_task_that_checks_its_token_ends_in_time",
    "000.21": "engine/toolkit/test_run_with_timeout.py::test_a_task_that_hangs_is_a_timeout",
    "000.32": EXECUTOR + "test_the_same_failure_twice_is_dead_lettered_and_holds_its_children",
    "000.39": "engine/statefile/test_skip_and_cancel.py::test_a_skip_permits_the_failure_and_children_start",
    "000.46": EXECUTOR + "test_pools_and_max_parallel_bound_what_runs_at_a_time",
    "000.50": "crash/test_effects.py::test_a_killed_executor_leaves_a_dead_letter_that_says_what_is_known",
    "002.26": "engine/test_operating.py::test_a_command_that_arrives_twice_is_done_once",
    "003.01": EXECUTOR + "test_folding_the_events_gives_the_task_table_again",
    "003.02": EXECUTOR + "test_a_transient_failure_heals_and_every_delay_is_stored_beside_its_ceiling",
    "003.03": "engine/store/test_writer.py::test_a_future_resolves_when_its_item_is_in_the_file_for_others_to_see",
    "003.04": "engine/store/test_database.py::test_the_writer_uses_the_log_and_the_durability_asked_for",
    "003.16": EXECUTOR + "test_the_documents_own_form_works_with_closures",
    "003.17": "engine/store/test_recovery.py::test_what_ran_is_lost_and_runs_again_after_a_wait",
    "003.18": "engine/store/test_runs.py::test_a_claim_of_another_generation_is_refused",
    "003.19": "engine/store/test_runs.py::test_two_executors_that_claim_one_task_start_it_once",
    "003.20": "engine/store/test_runs.py::test_a_join_waits_for_all_of_its_parents",
    "003.21": "engine/core/test_ready_queue.py::test_a_retry_is_startable_only_when_it_is_due",
    "003.22": "engine/statefile/test_propagation.py::test_everything_below_a_failure_is_stopped_and_knows_by_whom",
    "003.23": "engine/store/test_runs.py::test_attempts_are_counted_by_the_claim_and_only_there",
    "003.24": EXECUTOR + "test_a_transient_failure_heals_and_every_delay_is_stored_beside_its_ceiling",
    "003.25": EXECUTOR + "test_pools_and_max_parallel_bound_what_runs_at_a_time",
    "003.27": EXECUTOR + "test_a_diamond_fails_only_below_the_failure",
    "003.30": "crash/test_kill_executor.py::test_a_killed_run_is_taken_up_and_ends",
    "003.31": "engine/store/test_recovery.py::test_a_kill_in_any_transaction_leaves_a_file_that_recovers",
    "003.46": "engine/store/test_runs.py::test_two_executors_that_claim_one_task_start_it_once",
    "004.05": DECIDE + "test_what_will_not_work_is_dead_lettered_at_once",
    "004.16": DECIDE + "test_the_first_ceiling_is_the_base",
    "004.20": LAB + "test_the_outage_model_is_reproduced",
    "004.44": LAB + "test_the_table_of_document_004_and_its_183_seconds",
}

NOT_BY_A_TEST = {
    "000.27": "which other systems isolate by processes: background",
    "000.38": "what other trackers are said to do; SPEC part 5 corrects it",
    "000.40": "the next chapter is the console, all of it",
    "001.02": "a diagram of what 001.05 to 001.07 say in numbers",
    "001.12": "reasons for and against; what an attempt costs is in the report (000.04)",
    "001.14": "other libraries, named; their policies are written as a RetryPolicy",
    "003.38": "a remark on the design: the dispatch is still one guarded UPDATE",
    "003.39": "another database: the state file is SQLite, so that it can be copied whole",
    "003.42": "defaults of other systems, quoted wrongly; SPEC part 5 corrects them",
    "003.45": "what synchronous costs is measured in bench/bench_store.py",
    "004.22": "queueing theory behind 004.19; the simulations are the model",
    "004.42": "five takeaways: the rest of the document in short",
}

_NUMBER = re.compile(r"\b(00[0-4])\.(\d\d)(?:\s*(?:-|to)\s*(?:00[0-4]\.)?(\d\d))?\b")
_MORE = re.compile(r"\b(00[0-4])\.\d\d((?:,? (?:and )?\.\d\d\b)+)")


def numbers_in(text: str) -> Iterator[str]:
    """``000.35``, ``003.14-28``, ``003.40 to 003.42``, ``003.06, .08``."""
    for document, first, last in _NUMBER.findall(text):
        yield from (f"{document}.{number:02}" for number in range(int(first), int(last or first) + 1))
    for document, rest in _MORE.findall(text):
        yield from (f"{document}.{number}" for number in re.findall(r"\.(\d\d)", rest))


@cache
def named() -> dict[str, list[str]]:
    """Number -> the tests that name it, in their own text or for all of their module."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__):
            continue
        source, place = path.read_text(), str(path.relative_to(TESTS))
        if not _NUMBER.search(source):
            continue
        lines = source.splitlines()
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                for number in numbers_in("\n".join(lines[start - 1 : node.end_lineno])):
                    found.setdefault(number, []).append(f"{place}::{node.name}")
        heads = [line for line in lines if line.lstrip().startswith("#")] + [ast.get_docstring(tree) or ""]
        for number in numbers_in("\n".join(heads)):
            found.setdefault(number, []).append(place)
    return found


def every_number() -> list[str]:
    return [f"{document}.{number:02}" for document, last in DOCUMENTS.items() for number in range(1, last + 1)]


def test_every_number_is_kept_by_a_test_or_has_a_reason() -> None:
    known = named().keys() | KEPT_BY.keys() | NOT_BY_A_TEST.keys()
    assert [number for number in every_number() if number not in known] == []


def test_what_is_listed_here_needs_it() -> None:
    assert KEPT_BY.keys() & NOT_BY_A_TEST.keys() == set()
    assert [number for number in NOT_BY_A_TEST if number in named()] == []
    assert set(KEPT_BY) | set(NOT_BY_A_TEST) <= set(every_number())


def test_every_section_on_semantics_and_every_idea_of_ours_is_named_by_a_test() -> None:
    sections = [f"SPEC 4.{number}" for number in range(1, 17)] + [f"SPEC part 4, {number}" for number in range(1, 11)]
    texts = "".join(path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    assert [section for section in sections if not re.search(rf"{section}\b", texts)] == []


def test_the_tests_that_are_named_here_exist() -> None:
    for test in KEPT_BY.values():
        place, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (TESTS / place).read_text(), re.MULTILINE), test


def test_numbers_are_read_as_people_write_them() -> None:
    assert ["000.35"] == list(numbers_in("000.35: the order"))
    assert ["003.14", "003.15", "003.16"] == list(numbers_in("003.14-16"))
    assert ["004.31", "004.32"] == list(numbers_in("004.31 to 004.32"))
    assert {"003.06", "003.08"} == set(numbers_in("003.06, .08"))


if __name__ == "__main__":
    for statement in every_number():
        listed = [KEPT_BY[statement]] if statement in KEPT_BY else []
        tests = [*listed, *named().get(statement, ())] or [f"- ({NOT_BY_A_TEST.get(statement)})"]
        print(f"| {statement} | {tests[0]}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''} |")
