"""Each phrase of the tables has sentences that match it and sentences that must not, and the class follows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from redrive.engine.core.failures import phrases
from redrive.engine.core.failures.facts import read_program_end
from redrive.engine.core.failures.failure import failure_of_exit
from redrive.engine.core.outcome import FailureClass
from support.marks import for_each

from . import sentences

LINES = (
    sentences.REFUSED_LOGINS,
    sentences.MISTAKES,
    sentences.OUTAGES,
    sentences.PERMANENT_SYSTEM,
    sentences.AMBIGUOUS_SYSTEM,
    sentences.MEMORY_SYSTEM,
)
#: A script whose exit code and name say nothing, so that the text alone decides.
SCRIPT = "./load.sh"


def names_of(tables: Mapping[str, object]) -> set[str]:
    return set(tables)


def test_each_phrase_has_sentences_of_both_kinds() -> None:
    for (patterns, _), texts in zip(phrases.LINE_TABLES, LINES, strict=True):
        assert names_of(texts) == names_of(patterns)
        assert [name for name, found in texts.items() if not (found.matching and found.others)] == []
    for patterns_of_codes, rows in ((phrases.STATUSES, sentences.STATUSES), (phrases.SQLSTATES, sentences.SQLSTATES)):
        assert names_of(rows) == names_of(patterns_of_codes)
        assert [name for name, (matching, others) in rows.items() if not (matching and others)] == []
    assert set(sentences.POSTGRES) == {sqlstate for _, sqlstate in phrases.POSTGRES_MESSAGES}
    assert [name for name, (matching, others) in sentences.POSTGRES.items() if not (matching and others)] == []


def matching_lines() -> Iterator[tuple[str, str]]:
    for (patterns, _), texts in zip(phrases.LINE_TABLES, LINES, strict=True):
        for name, pattern in patterns.items():
            yield from ((pattern, sentence) for sentence in texts[name].matching)


@for_each("pattern, sentence", matching_lines())
def test_a_phrase_matches_what_programs_print(pattern: str, sentence: str) -> None:
    assert re.search(pattern, sentence, re.IGNORECASE)
    assert failure_of_exit(1, stderr=sentence, command=SCRIPT).failure_class is not FailureClass.UNCLASSIFIED


def other_sentences() -> Iterator[str]:
    for texts in LINES:
        for found in texts.values():
            yield from found.others
    for rows in (sentences.STATUSES, sentences.SQLSTATES, sentences.POSTGRES):
        for _, others in rows.values():
            yield from others


@for_each("sentence", other_sentences())
def test_a_sentence_that_only_lists_or_counts_says_nothing(sentence: str) -> None:
    failure = failure_of_exit(1, stderr=sentence, command=SCRIPT)
    assert failure.failure_class is FailureClass.UNCLASSIFIED
    end = read_program_end(1, sentence, SCRIPT)
    assert (end.status, end.sqlstate) == (None, None)


@for_each(
    "name, sentence, status",
    [(name, *row) for name, (rows, _) in sentences.STATUSES.items() for row in rows],
)
def test_a_status_is_read_where_programs_print_one(name: str, sentence: str, status: int) -> None:
    found = re.search(phrases.STATUSES[name], sentence, re.IGNORECASE)
    assert found and found[found.lastindex or 0] == str(status)
    assert read_program_end(1, sentence, SCRIPT).status == status


@for_each(
    "name, sentence, sqlstate",
    [(name, *row) for name, (rows, _) in sentences.SQLSTATES.items() for row in rows],
)
def test_an_sqlstate_is_read_where_programs_print_one(name: str, sentence: str, sqlstate: str) -> None:
    assert re.search(phrases.SQLSTATES[name], sentence)
    assert read_program_end(1, sentence, SCRIPT).sqlstate == sqlstate


@for_each(
    "sqlstate, sentence",
    [(sqlstate, sentence) for sqlstate, (rows, _) in sentences.POSTGRES.items() for sentence in rows],
)
def test_a_message_of_postgres_has_its_sqlstate(sqlstate: str, sentence: str) -> None:
    assert read_program_end(1, sentence, SCRIPT).sqlstate == sqlstate


@for_each("count", [399, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504])
@for_each(
    "line",
    [
        "Error: {} rows could not be matched",
        "error: {} files differ",
        "status: {} orders",
        "Exception: {} rows",
        "status code {} rows",
        "ERROR {}: rows are missing",
        "RuntimeError: {} of 1000 rows failed",
    ],
)
def test_no_count_is_a_status(line: str, count: int) -> None:
    end = failure_of_exit(1, stderr=line.format(count), command=SCRIPT)
    assert (end.failure_class, end.facts.get("status")) == (FailureClass.UNCLASSIFIED, None)
