"""What programs print when they fail, as they print it: the line that names the error, and the class."""

from __future__ import annotations

import subprocess

from redrive.engine.core.failures.attempt_end import AttemptEnd, signal_failure, timeout_failure
from redrive.engine.core.failures.facts import error_line, programs_of, read_program_end
from redrive.engine.core.failures.failure import failure_of_error, failure_of_exit
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint
from support.marks import for_each

TRANSIENT, PERMANENT, AUTH = FailureClass.TRANSIENT, FailureClass.PERMANENT, FailureClass.AUTH
AMBIGUOUS, VALIDATION = FailureClass.AMBIGUOUS, FailureClass.VALIDATION
UNCLASSIFIED = FailureClass.UNCLASSIFIED

PSQL_REFUSED = """\
psql: error: connection to server at "127.0.0.1", port 1 failed: Connection refused
\tIs the server running on that host and accepting TCP/IP connections?
"""
PSQL_SYNTAX = """\
psql:load.sql:1: ERROR:  syntax error at or near "selec"
LINE 1: selec 1;
        ^
"""
PSQL_NO_TABLE = """\
BEGIN
psql:load.sql:2: ERROR:  42P01: relation "nope" does not exist
LINE 1: select * from nope;
                      ^
LOCATION:  parserOpenTable, parse_relation.c:1392
"""
PSQL_DUPLICATE = """\
ERROR:  duplicate key value violates unique constraint "orders_pkey"
DETAIL:  Key (id)=(7) already exists.
"""
PSQL_KILLED = """\
FATAL:  terminating connection due to administrator command
server closed the connection unexpectedly
\tThis probably means the server terminated abnormally
\tbefore or while processing the request.
connection to server was lost
"""
SSH_BELOW_GIT = """\
Cloning into 'x'...
ssh: connect to host 127.0.0.1 port 1: Connection refused
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""
GIT_DENIED = SSH_BELOW_GIT.replace(
    "ssh: connect to host 127.0.0.1 port 1: Connection refused", "git@example.org: Permission denied (publickey)."
)
GIT_CUT = """\
error: RPC failed; curl 56 GnuTLS recv error (-54): Error in the pull function.
fatal: the remote end hung up unexpectedly
fatal: early EOF
fatal: index-pack failed
"""
SSH_BELOW_RSYNC = """\
ssh: Could not resolve hostname nosuch.invalid: Name or service not known
rsync: connection unexpectedly closed (0 bytes received so far) [sender]
rsync error: unexplained error (code 255) at io.c(232) [sender=3.2.7]
"""
CURL_METER = (
    "  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current\n"
    "  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0\r"
    "curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server\n"
)
WGET_503 = """\
--2026-11-22 15:31:28--  http://127.0.0.1:18999/503
Connecting to 127.0.0.1:18999... connected.
HTTP request sent, awaiting response... 503 Service Unavailable
2026-11-22 15:31:28 ERROR 503: Service Unavailable.

"""
TRACEBACK = """\
connection refused once, tried again
Traceback (most recent call last):
  File "load.py", line 3, in <module>
    load(rows["x"])
         ~~~~^^^^^
KeyError: 'x'
"""
SQLALCHEMY = """\
Traceback (most recent call last):
  File "load.py", line 3, in <module>
    connection.execute(query)
sqlalchemy.exc.ProgrammingError: (psycopg.errors.UndefinedTable) relation "nope" does not exist
LINE 1: SELECT * FROM nope
                      ^
[SQL: SELECT * FROM nope]
(Background on this error at: https://sqlalche.me/e/20/f405)
"""
SQLITE_NO_COLUMN = """\
Error: in prepare, no such column: amuont
  select sum(amuont) from raw
      error here ---^
"""
SQLITE_SYNTAX = """\
Parse error: near "selct": syntax error
  selct 1
  ^--- error here
"""

#: command, exit code, output, class.
ROWS = [
    ("curl -fsS $URL", 5, "", TRANSIENT),
    ("curl -fsS $URL", 6, "curl: (6) Could not resolve host: nosuch.invalid", TRANSIENT),
    ("curl -fs $URL", 7, "", TRANSIENT),
    ("curl -f $URL", 7, CURL_METER, TRANSIENT),
    ("curl -fs $URL", 18, "", TRANSIENT),
    ("curl -fs $URL", 28, "", TRANSIENT),
    ("curl -fs $URL", 35, "", TRANSIENT),
    ("curl -fsS $URL", 52, "curl: (52) Empty reply from server", TRANSIENT),
    ("curl -fs $URL", 55, "", TRANSIENT),
    ("curl -fs $URL", 56, "", TRANSIENT),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 503", TRANSIENT),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 500", AMBIGUOUS),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 429", TRANSIENT),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 404", PERMANENT),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 401", AUTH),
    ("curl -fsS $URL", 22, "curl: (22) The requested URL returned error: 403", AUTH),
    ("curl -fs $URL", 22, "", UNCLASSIFIED),
    ("curl -fsS $URL", 67, "curl: (67) Access denied: 530", AUTH),
    ("wget -q $URL", 4, "", TRANSIENT),
    ("wget $URL", 8, WGET_503, TRANSIENT),
    ("wget $URL", 8, "2026-11-22 15:31:28 ERROR 429: Too Many Requests.", TRANSIENT),
    ("wget $URL", 8, "2026-11-22 15:31:28 ERROR 404: Not Found.", PERMANENT),
    ("wget -q $URL", 8, "", UNCLASSIFIED),
    ("ssh host true", 255, "", TRANSIENT),
    ("ssh host true", 255, "ssh: connect to host 127.0.0.1 port 1: Connection refused", TRANSIENT),
    ("ssh host true", 255, "deploy@host: Permission denied (publickey,password).", AUTH),
    ("ssh host true", 255, "Host key verification failed.", PERMANENT),
    *(("rsync -a a b:c", code, "", TRANSIENT) for code in (10, 12, 24, 30, 35)),
    ("rsync -a a b:c", 23, "", AMBIGUOUS),
    ("rsync -a a b:c", 255, SSH_BELOW_RSYNC, TRANSIENT),
    ("rsync -a a rsync://b/c", 5, "@ERROR: auth failed on module c", AUTH),
    ("rsync -a a rsync://b/c", 5, "@ERROR: max connections (4) reached -- try again later", TRANSIENT),
    ("psql -f x.sql", 2, PSQL_REFUSED, TRANSIENT),
    ("psql -q -f x.sql", 2, "", TRANSIENT),
    ("psql -f x.sql", 2, 'psql: error: FATAL:  password authentication failed for user "etl"', AUTH),
    ("psql -v ON_ERROR_STOP=1 -f load.sql", 3, PSQL_SYNTAX, PERMANENT),
    ("psql -v ON_ERROR_STOP=1 -f load.sql", 3, PSQL_NO_TABLE, PERMANENT),
    ("psql -c 'insert; select'", 1, PSQL_DUPLICATE, PERMANENT),
    ("psql -c x", 1, "ERROR:  permission denied for table orders", AUTH),
    ("psql -c x", 1, 'ERROR:  invalid input syntax for type integer: "x"', VALIDATION),
    ("psql -c x", 1, "ERROR:  deadlock detected\nDETAIL:  Process 7 waits", TRANSIENT),
    ("psql -c x", 1, "ERROR:  canceling statement due to statement timeout", TRANSIENT),
    ("psql -c x", 1, "ERROR:  canceling statement due to user request", AMBIGUOUS),
    ("psql -f x.sql", 2, PSQL_KILLED, TRANSIENT),
    ("mysql -e x", 1, "ERROR 1213 (40001) at line 1: Deadlock found when trying to get lock", TRANSIENT),
    ("mysql -e x", 1, "ERROR 1045 (28000): Access denied for user 'etl'@'localhost'", AUTH),
    ("mysql -e x", 1, "ERROR 1146 (42S02) at line 1: Table 'a.b' doesn't exist", PERMANENT),
    ("git clone x", 128, "fatal: unable to access 'https://x/': Could not resolve host: x", TRANSIENT),
    ("git clone x", 128, SSH_BELOW_GIT, TRANSIENT),
    ("git clone x", 128, GIT_DENIED, AUTH),
    ("git clone x", 128, GIT_CUT, TRANSIENT),
    ("git pull", 128, "fatal: could not read Username for 'https://x': terminal prompts disabled", AUTH),
    ("git pull", 128, "fatal: refusing to merge unrelated histories", UNCLASSIFIED),
    ("aws s3 cp a s3://b", 1, "upload failed: An error occurred (SlowDown) when calling the PutObject", TRANSIENT),
    ("aws s3 ls", 254, "An error occurred (503) when calling the ListBuckets operation", TRANSIENT),
    ("aws s3 ls", 254, "An error occurred (ThrottlingException) when calling the X operation", TRANSIENT),
    ("aws s3 ls", 254, "An error occurred (AccessDenied) when calling the ListBuckets operation", AUTH),
    ("gsutil cp a gs://b", 1, "ServiceException: 503 Backend Error", TRANSIENT),
    ("gsutil cp a gs://b", 1, "AccessDeniedException: 403 etl does not have access", AUTH),
    # the exit code of a wrapper is not that of the program: its text decides
    ("set -e; curl -fsS $URL | jq .", 1, "curl: (6) Could not resolve host: x", TRANSIENT),
    ("./nightly.sh", 1, "psql: error: could not connect to server: Connection timed out", TRANSIENT),
    ("./nightly.sh", 7, "", UNCLASSIFIED),
    ("curl -fsS $URL && ./load.sh", 7, "", UNCLASSIFIED),
    ("timeout 30 curl -fs $URL", 7, "", TRANSIENT),
    ("python3 load.py", 1, TRACEBACK, UNCLASSIFIED),
    ("python3 load.py", 1, SQLALCHEMY, PERMANENT),
    ("python3 x.py", 1, "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>", TRANSIENT),
    ("python3 x.py", 1, "urllib.error.HTTPError: HTTP Error 404: Not Found", PERMANENT),
    # what no text overrules
    ("./wrapper.sh", 75, "HTTP 403: the quota is used up", TRANSIENT),
    ("nosuch", 127, "sh: 1: nosuch: not found; connection refused", PERMANENT),
    ("./load.sh", 126, "sh: 1: ./load.sh: Permission denied", PERMANENT),
    # nothing is known
    ("exit 1", 1, "", UNCLASSIFIED),
    ("./load.sh", 1, "done: 503 rows, 0 errors", UNCLASSIFIED),
    ("./load.sh", 1, "exported 429 files", UNCLASSIFIED),
]


@for_each("command, code, output, expected", ROWS)
def test_every_known_end_of_a_program(command: str, code: int, output: str, expected: FailureClass) -> None:
    assert failure_of_exit(code, stderr=output, command=command).failure_class is expected


@for_each(
    "output, line",
    [
        (PSQL_SYNTAX, 'psql:load.sql:1: ERROR:  syntax error at or near "selec"'),
        (PSQL_DUPLICATE, 'ERROR:  duplicate key value violates unique constraint "orders_pkey"'),
        (SSH_BELOW_GIT, "ssh: connect to host 127.0.0.1 port 1: Connection refused"),
        (SSH_BELOW_RSYNC, "ssh: Could not resolve hostname nosuch.invalid: Name or service not known"),
        (CURL_METER, "curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server"),
        (TRACEBACK, "KeyError: 'x'"),
        (SQLALCHEMY, SQLALCHEMY.splitlines()[3]),
        (SQLITE_NO_COLUMN, "Error: in prepare, no such column: amuont"),
        (SQLITE_SYNTAX, 'Parse error: near "selct": syntax error'),
        ("\x1b[31mERROR: no\x1b[0m\nfinished at 10:00\n", "ERROR: no"),
        ("Loading\nstep 3 of 7\n", "step 3 of 7"),
        ("        ^\n", ""),
        ("HINT:  only this\n", "HINT:  only this"),
        ("", ""),
    ],
)
def test_the_significant_line_names_the_error(output: str, line: str) -> None:
    assert error_line(output) == line


def test_of_a_huge_output_only_the_end_is_read() -> None:
    assert read_program_end(1, "ERROR: old\n" + "x" * 10_000_000 + "\nERROR: new\n").line == "ERROR: new"


def test_a_program_below_a_traceback_speaks_before_the_exit_status_in_it() -> None:
    traceback = "Traceback (most recent call last):\n  File x\nsubprocess.CalledProcessError: Command 'x' "
    output = f"curl: (7) Failed to connect\n{traceback}returned non-zero exit status 7.\n"
    assert error_line(output) == "curl: (7) Failed to connect"


@for_each(
    "command, programs",
    [
        ("curl -fsS x | jq . > out", ["curl", "jq"]),
        ("PGHOST=db /usr/bin/psql -c 'delete from a; vacuum'", ["psql"]),
        ("set -e; sudo timeout -k 5 30s rsync -a x y", ["rsync"]),
        ('if test -f x; then ssh h "cat; ls"; fi', ["test", "ssh"]),
    ],
)
def test_the_programs_of_a_shell_line(command: str, programs: list[str]) -> None:
    assert programs_of(command) == programs


# --- Which failures are one cause ------------------------------------------------------------------------------------


def ended(code: int, output: str, command: str) -> Fingerprint:
    return failure_of_exit(code, stderr=output, command=command).fingerprint


def test_three_mistakes_in_sql_are_three_causes() -> None:
    outputs = (PSQL_SYNTAX, PSQL_NO_TABLE, 'psql:load.sql:2: ERROR:  column "x" does not exist\nLINE 1: x\n  ^')
    marks = [ended(3, output, "psql -v ON_ERROR_STOP=1 -f load.sql") for output in outputs]
    assert len({mark.loose for mark in marks}) == 3
    assert [dict(mark.fields)["sqlstate"] for mark in marks] == ["42601", "42P01", "42703"]
    assert marks[0].explain == 'exit status 3: psql:load.sql:1: ERROR:  syntax error at or near "selec"'


def test_the_script_of_psql_is_part_of_the_cause_and_its_folder_is_not() -> None:
    lines = ("psql:/srv/a/load.sql:3", "psql:/opt/a/load.sql:9", "psql:/srv/a/clean.sql:3")
    first, moved, other = (ended(3, f'{line}: ERROR:  relation "x" does not exist', "psql").loose for line in lines)
    assert first == moved != other


def test_one_outage_that_many_commands_meet_is_one_cause() -> None:
    first = ended(7, "curl: (7) Failed to connect to 10.0.0.5 port 81 after 12 ms: Couldn't connect", "curl a")
    again = ended(7, "curl: (7) Failed to connect to 10.0.0.5 port 81 after 3 ms: Couldn't connect", "curl b")
    assert first.loose == again.loose
    assert "after 12 ms" in first.explain  # the message of the failure itself


def test_commands_that_say_nothing_are_distinguished_by_what_they_do() -> None:
    first, again = ended(1, "", "test -f /in/day-17.csv"), ended(1, "", "test -f /in/day-18.csv")
    other = ended(1, "", "./load.sh 'orders'")
    assert first.loose == again.loose != other.loose
    assert other.loose != ended(1, "", "./load.sh 'refunds'").loose
    assert first.explain == "exit status 1 from: test -f /in/day-17.csv"


def hung(command: str | None, hang: str = "") -> Failure:
    return timeout_failure(AttemptEnd(timeout=60, hang=hang, command=command))


def test_two_commands_that_hang_are_two_causes() -> None:
    rsync, psql = hung("rsync -a /data b:/x", "asleep"), hung("psql -f x.sql", "asleep")
    assert rsync.fingerprint.loose != psql.fingerprint.loose
    assert rsync.fingerprint.explain == "timed out: rsync -a /data b:/x"
    assert hung(None, "blocked in recv from 10.0.0.5:5432").fingerprint.loose != hung(None, "asleep").fingerprint.loose


def test_a_program_killed_for_memory_says_so() -> None:
    failure = signal_failure(AttemptEnd(out_of_memory=True, command="./import.sh"), 9)
    assert (failure.failure_class, failure.message) == (
        FailureClass.OUT_OF_MEMORY,
        "out of memory: killed by the kernel",
    )
    other = signal_failure(AttemptEnd(out_of_memory=True, command="./export.sh"), 9)
    assert failure.fingerprint.loose != other.fingerprint.loose


@for_each(
    "code, output, by_text",
    [
        (22, "curl: (22) The requested URL returned error: 401", True),
        (255, "deploy@host: Permission denied (publickey).", True),
        (67, "", False),  # the exit code of curl: a refused login
        (1, "rows differ", False),
    ],
)
def test_a_class_that_only_a_text_gave_says_so(code: int, output: str, by_text: bool) -> None:
    assert failure_of_exit(code, stderr=output, command="curl -fsS x").is_by_text is by_text
    error = subprocess.CalledProcessError(code, ["curl", "-fsS", "x"], stderr=output)
    assert failure_of_error(error).is_by_text is by_text


def test_a_rule_of_the_flow_is_no_text() -> None:
    rules = [{"status": 401, "class": "auth"}]
    output = "curl: (22) The requested URL returned error: 401"
    assert not failure_of_exit(22, stderr=output, command="curl x", rules=rules).is_by_text


JOBS_OF_BASH = (
    "bash: line 1: 13478 Killed                  sh -c 'kill -9 $$'\n     13479 Done                    | cat\n"
)


@for_each(
    "command, code, output, message",
    [
        ("yes | head -1", 141, "y\n", "exit status 141: yes was ended by SIGPIPE, because head had read enough"),
        (
            "cat a | sort | head",
            141,
            "a\n",
            "exit status 141: a program was ended by SIGPIPE, because the one after it in the pipe had read enough",
        ),
        ("./load.sh", 143, "loading\n", "exit status 143: ended by SIGTERM"),
        ("sh -c 'kill -9 $$' | cat", 137, JOBS_OF_BASH, "exit status 137: ended by SIGKILL"),
        ("./load.sh", 137, "ERROR: lost\n", "exit status 137: ERROR: lost"),
        ("./load.sh", 255, "gone\n", "exit status 255: gone"),
        ("./load.sh", 200, "gone\n", "exit status 200: gone"),
    ],
)
def test_what_a_signal_did_to_a_program_of_a_line(command: str, code: int, output: str, message: str) -> None:
    assert failure_of_exit(code, stderr=output, command=command).message == message
