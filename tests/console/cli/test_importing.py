"""``redrive import``: flows from a crontab start when its lines did, and do what they did."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from redrive.console.cli.crontab import cron_reads_zones, parse_crontab
from redrive.console.cli.importing import OriginalSchedule, compare_starts, cron_starts
from redrive.console.cli.shell_line import ShellLine, name_of_line, parse_shell_line
from redrive.engine import Flow
from redrive.engine.core.schedule import to_microseconds
from support.commands import run_redrive, start_redrive
from support.marks import for_each, parametrize_mostly_long
from support.waiting import wait_until

#: Lines as operators have them, with what is special about each.
CRONTAB = r"""
# the nights of the warehouse
MAILTO="ops@example.com"
PATH=/usr/local/bin:/usr/bin:/bin
SHELL=/bin/sh
HOME={home}
30 1 * * * {home}/backup.sh >> {home}/backup.log 2>&1
*/5 * * * * flock -n {home}/poll.lock timeout 2m {home}/poll.sh --all
@daily cd {home} && nice -n 10 timeout -k 10s 1h ./report.sh > /dev/null 2>&1
15 3 1,15 * mon-fri find {home}/old -mtime +7 -delete
0 */6 * * * cat > {home}/mail.txt && date +\%Y >> {home}/mail.txt%first line%second line
7 4 * * sun flock -n {home}/db.lock {home}/vacuum.sh
9 4 * * sun flock -n {home}/db.lock -c 'echo a | tr a b > {home}/dump'
@monthly /usr/bin/env python3 -c 'print("month")'
0 0 1 jan * [ -x /bin/true ] && /bin/true
MAILTO=""
*/7 1-4 */2 * 1 WEEK=odd {home}/odd.sh "$WEEK"
CRON_TZ=Asia/Kolkata
0 2 * * 1-5 {home}/india.sh
45 23 L * * {home}/last_day.sh
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.setenv("HOME", str(tmp_path))  # cron starts its lines there
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    for name in ("backup", "poll", "report", "vacuum", "odd", "india", "last_day"):
        (tmp_path / f"{name}.sh").write_text('#!/bin/sh\npwd\necho "$0 $*"\n')
        (tmp_path / f"{name}.sh").chmod(0o755)
    (tmp_path / "crontab").write_text(CRONTAB.format(home=tmp_path))
    return tmp_path


def imported(*words: object) -> subprocess.CompletedProcess[str]:
    return run_redrive("import", "crontab", *words)


def run_flow(name: str) -> str:
    """What a flow printed."""
    done = run_redrive("run", f"flows/{name}.py", "--plain", "--output")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_twelve_lines_start_when_they_did(home: Path) -> None:
    done = imported("crontab", "--into", "flows", "--timezone", "Europe/Berlin")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.split("lines that are changed:")[0].splitlines()[2:]]
    assert len(rows) == 12 and all(row[-2:] == ["the", "same"] and row[2] == row[3] for row in rows)
    assert {row[1]: int(row[2].replace(",", "")) for row in rows if row[1] in ("backup", "poll")}["backup"] in (29, 30)
    assert done.stdout.splitlines()[-1] == "next: take the lines out of the crontab, then: redrive serve flows"
    for path in Path("flows").iterdir():
        check = run_redrive("check", path)
        assert check.returncode == 0, check.stdout
    assert ("timezone='Asia/Kolkata'" in Path("flows/india.py").read_text()) == cron_reads_zones()


def test_a_flow_does_what_its_line_did(home: Path) -> None:
    assert imported("crontab", "--into", "flows").returncode == 0
    run_flow("backup")
    assert (home / "backup.log").read_text() == f"{home}\n{home}/backup.sh \n"
    assert f"| {home}/poll.sh --all" in run_flow("poll")
    assert "| ./report.sh" in run_flow("report")
    run_flow("cat")
    first, second, year = (home / "mail.txt").read_text().splitlines()
    assert (first, second, len(year)) == ("first line", "second line", 4)
    run_flow("echo")
    assert (home / "dump").read_text() == "b\n"


def test_a_flow_has_its_old_line_and_what_an_operator_has_to_know(home: Path) -> None:
    assert imported("crontab", "--into", "flows").returncode == 0
    poll, vacuum, odd = (Path(f"flows/{name}.py").read_text() for name in ("poll", "vacuum", "odd"))
    assert f"#     */5 * * * * flock -n {home}/poll.lock timeout 2m {home}/poll.sh --all\n" in poll
    assert "flock" in poll.splitlines()[2] and "timeout='2m'" in poll and "pool" not in poll.split("from redrive")[1]
    assert f"machine_pools={{'{home}/db.lock': 1}}" in vacuum and f"pool='{home}/db.lock'" in vacuum
    assert "mail -s 'redrive: poll' ops@example.com" in poll and "flow.page" not in odd
    assert "misfire='skip'" in odd


@pytest.mark.long
def test_imported_flows_are_served_and_one_that_broke_is_mended(home: Path) -> None:
    assert imported("crontab", "--into", "flows").returncode == 0
    with start_redrive("serve", "flows") as service:
        try:
            wait_until(lambda: len(run_redrive("schedule", "--json").stdout.splitlines()) == 12)
            (home / "backup.sh").write_text("#!/bin/sh\necho no space left >&2\nexit 4\n")
            assert run_redrive("schedule", "start", "backup").returncode == 0
            assert run_redrive("schedule", "start", "india").returncode == 0
            wait_until(lambda: run_redrive("inbox", "--quiet").returncode)  # failed, and no mail takes its page
            wait_until(lambda: "SUCCESS" in run_redrive("fleet").stdout)
            assert "exit status 4" in run_redrive("inbox", "backup").stdout
            (home / "backup.sh").write_text("#!/bin/sh\nexit 0\n")
            assert run_redrive("requeue", "--state", "backup", "backup", "--reason", "disk is free").returncode == 0
            wait_until(lambda: run_redrive("inbox", "--quiet").returncode == 0)
            wait_until(lambda: "SUCCESS" in run_redrive("runs", "backup").stdout)
        finally:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=60)


@pytest.mark.long
def test_a_file_that_is_there_stays_and_is_compared(home: Path) -> None:
    assert imported("crontab", "--into", "flows").returncode == 0
    path = Path("flows/backup.py")
    mended = path.read_text().replace("30 1 * * *", "31 1 * * *")
    path.write_text(mended)
    Path("flows/poll.py").write_text("from redrive.engine import Flow\nflow = (\n")
    done = imported("crontab", "--into", "flows")
    assert done.returncode == 3 and path.read_text() == mended
    assert "flows/backup.py is there already and stays as it is" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if " backup " in line]
    assert "DIFFERS" in row and "01:30 is a start of the old times alone" in row
    (row,) = [line for line in done.stdout.splitlines() if " poll " in line]
    assert "SyntaxError" in row or "was never closed" in row


def test_what_no_flow_can_stand_for_is_said(home: Path) -> None:
    done = run_redrive("import", "crontab", "-", "--into", "flows", input="@reboot /usr/bin/agent\n0 0 * *\n@often x\n")
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        "line 2: it is no line of a crontab: 0 0 * *",
        "line 3: there is no schedule @often",
        "line 1: @reboot is no time: agent.service is a unit of systemd for it",
    ]
    Path("odd").write_bytes(b"0 1 * * * /bin/echo caf\xe9\n0 2 * * * /bin/true\nX=\xe9\n0 3 * * * /bin/true x\n")
    done = run_redrive("import", "crontab", "odd", "--into", "flows")
    lines = [line.partition(":") for line in done.stdout.splitlines() if "no UTF-8 text" in line]
    assert done.returncode == 3 and [line for line, *_ in lines] == ["line 1", "line 4"]
    assert "no line in it that starts a command" in run_redrive("import", "crontab", "/dev/null").stderr
    assert "cannot be read: No such file" in run_redrive("import", "crontab", "gone").stderr


def test_crontab_l_is_read_without_a_file(home: Path) -> None:
    program = home / "bin/crontab"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = -l ] && echo "5 5 * * * /bin/true"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    assert run_redrive("import", "crontab", "--into", "flows", env={**os.environ, "PATH": path}).returncode == 0
    assert "from crontab -l, line 1:" in Path("flows/true.py").read_text()


def test_a_system_crontab_names_users(home: Path) -> None:
    Path("etl").write_text("0 1 * * * nobody cd work && ./load.sh\n")
    assert imported("etl", "--system", "--into", "flows").returncode == 0
    text = Path("flows/load.py").read_text()
    assert "cron ran it as nobody: serve it as that user" in text and "/work'" in text


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_the_two_readers_agree_where_cron_is_odd(zone: str) -> None:
    """Day fields that both restrict, or begin with a star; the last day; 7 as Sunday; weeks in which clocks change."""
    lines = [
        "0 2 13 * fri",
        "30 2 * * *",
        "5 */3 */2 * mon",
        "0 0 L * *",
        "1-59/7 22-23 * jan-dec 7",
        "*/20 1-3 1,15 3,10 0",
    ]
    jobs = parse_crontab("".join(f"{line} true\n" for line in lines), zone, has_user=False).jobs
    for job in jobs:
        flow = Flow("x", schedule=job.fields, timezone=zone)
        flow.command("a", "true")
        for day in (datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 10, 10, tzinfo=UTC)):
            old = OriginalSchedule("1", partial(cron_starts, job.fields))
            comparison = compare_starts(old, flow.spec(), to_microseconds(day))
            assert comparison.agrees and comparison.old is not None and len(comparison.new) > 0, job


@for_each(
    "line, parsed",
    [
        ("a.sh", ShellLine("a.sh")),
        ("cd /x && a.sh; b.sh", ShellLine("a.sh; b.sh", cwd="/x")),
        ("timeout 1h a.sh && b.sh", ShellLine("timeout 1h a.sh && b.sh")),
        ("timeout 90 a 'b;c'", ShellLine("a 'b;c'", timeout="90")),
        ("timeout -s KILL 90 a", ShellLine("timeout -s KILL 90 a")),
        ("/usr/bin/flock -xn /l a > /dev/null", ShellLine("a", lock="/l", is_silent=True)),
        ("flock -s /l a", ShellLine("flock -s /l a")),
        ("flock -n /l -c 'a | b'", ShellLine("a | b", lock="/l")),
        (
            "ionice -c 3 nice -19 flock -n '/l k' a",
            ShellLine("ionice -c 3 nice -19 a", "ionice -c 3 nice -19 ", lock="/l k"),
        ),
        ("a >>/var/log/a.log 2>&1", ShellLine("a >>/var/log/a.log 2>&1", log="/var/log/a.log")),
        ("a > b.log", ShellLine("a > b.log", log="b.log")),
        ("pg_dump a > a.sql", ShellLine("pg_dump a > a.sql")),
        ("echo 'it", ShellLine("echo 'it")),
        ("a b & ", ShellLine("a b", is_background=True)),
        ("(sleep 2; b) >/dev/null 2>&1 &", ShellLine("(sleep 2; b)", is_background=True, is_silent=True)),
        ("a & b", ShellLine("a & b")),
        (
            "[ -x /a ] && /a b > /dev/null 2>&1",
            ShellLine("if [ -x /a ]; then /a b; fi", is_guarded=True, is_silent=True),
        ),
        ("test -d x && [ ! -e y ] && a | b", ShellLine("if test -d x && [ ! -e y ]; then a | b; fi", is_guarded=True)),
        ("cd /x && command -v a >&2 && a", ShellLine("if command -v a >&2; then a; fi", cwd="/x", is_guarded=True)),
        ("! [ -e stop ] && (a; b)", ShellLine("if ! [ -e stop ]; then (a; b); fi", is_guarded=True)),
        ("[ -x /a ] && a || b", ShellLine("[ -x /a ] && a || b")),
        ("[ -x /a ] && a; b", ShellLine("[ -x /a ] && a; b")),
        ("test -x /a || (cd / && b)", ShellLine("test -x /a || (cd / && b)")),
        ("a && b", ShellLine("a && b")),
        ('[ "$(date +%u)" = 1 ] && a', ShellLine('[ "$(date +%u)" = 1 ] && a')),
    ],
)
def test_what_a_flow_does_itself_is_taken_out_of_a_line(line: str, parsed: ShellLine) -> None:
    assert parse_shell_line(line) == parsed


def test_variables_hold_for_the_lines_below_them() -> None:
    jobs = parse_crontab("A = ' x '\n* * * * * a\nA=y\nB=1 2\n@hourly b\n", "UTC", has_user=False).jobs
    assert [(job.line, job.fields, dict(job.environment)) for job in jobs] == [
        ("a", "* * * * *", {"A": " x "}),
        ("b", "0 * * * *", {"A": "y", "B": "1 2"}),
    ]


# --- dagu ------------------------------------------------------------------------------------------------------------

DAG = """
name: nightly etl
schedule: "0 2 * * *"
params: "DAY=today REGION=eu"
env:
  - DATA: /tmp
  - SITE: north
timeoutSec: 7200
maxActiveSteps: 3
preconditions: test -d .
steps:
  - name: extract
    command: echo extract $DAY $DATA $SITE
    env: {SITE: south}
    retryPolicy: {limit: 1, intervalSec: 0}
  - name: fragile
    command: exit 3
    depends: extract
    continueOn: {failure: true}
  - id: load
    run: |
      pwd
      echo loaded
    shell: bash
    depends: [fragile]
    timeout_sec: 60
  - name: never
    command: echo never
    depends: fragile
    preconditions:
      - condition: "`date +%u`"
        expected: "8"
  - name: below
    command: echo below
    depends: never
  - name: script
    command: python3
    script: |
      print("a" * 3)
    depends: load
"""


@pytest.mark.long
def test_a_dag_of_dagu_runs_as_a_flow(home: Path) -> None:
    Path("etl.yaml").write_text(DAG)
    done = run_redrive("import", "dagu", "etl.yaml", "--into", "flows")
    assert (done.returncode, done.stdout) == (0, "next: redrive check flows/nightly_etl.py\n"), done.stderr
    text = Path("flows/nightly_etl.py").read_text()
    assert "deadline='7200s'" in text and "max_parallel=3" in text and "schedule='0 2 * * *'" in text
    assert run_redrive("check", "flows/nightly_etl.py").returncode == 0
    run = run_redrive("run", "flows/nightly_etl.py", "--plain", "--output", "--param", "DAY=monday")
    assert run.returncode == 3, run.stdout  # PARTIAL: an optional task has failed
    for line in ("| extract monday /tmp south", f"| {home}", "| loaded", "| aaa"):
        assert line in run.stdout
    tasks = [json.loads(line) for line in run_redrive("tasks", "nightly_etl", "--json").stdout.splitlines()]
    states = {task["name"]: task["state"] for task in tasks}
    assert states == {
        **dict.fromkeys(("when", "extract", "load", "script"), "SUCCESS"),
        **dict.fromkeys(("never when", "never", "below"), "SKIPPED"),
        "fragile": "FAILED",
    }
    assert {task["name"]: task["max_attempts"] for task in tasks}["extract"] == 2


@pytest.mark.long
def test_what_a_step_runs_is_what_dagu_runs(home: Path) -> None:
    """A script stops at its first error, and is that of its interpreter; a shell has its options; `true` is a word."""
    Path("etl.yaml").write_text(
        """
params: 'DAY=`date +%F` NAME="two words"'
steps:
  - {name: stops, script: "false\\ntouch after\\n", continueOn: failure}
  - {name: too, run: ["false", "touch after"], continueOn: failure}
  - {name: line, command: "false; touch after", continueOn: failure}
  - {name: python, script: "#!/usr/bin/env python3\\nimport sys; print(len(sys.argv), 'snake')"}
  - {name: perl, command: python3 -u, script: "print('given')"}
  - {name: strict, shell: bash -eu, command: 'echo "$NAME"'}
  - {name: listed, shell: [bash, -e], command: '[[ -n $NAME ]] && echo bash'}
  - {name: several, command: [echo one, echo two]}
  - {name: words, command: [echo, three]}
  - {name: really, command: true, env: {FLAG: true}}
  - {name: flag, command: 'echo "flag $FLAG"', env: {FLAG: true}}
---
steps: [echo other]
"""
    )
    done = run_redrive("import", "dagu", "etl.yaml")
    assert done.returncode == 3, done.stderr
    assert [line.removeprefix("./etl.py: ") for line in done.stdout.splitlines()[:-1]] == [
        "1 further document of the file: a DAG is a file of its own",
        "params: DAY is '`date +%F`' as it stands; nothing is put in",
    ]
    run = run_redrive("run", "etl.py", "--plain", "--output")
    assert run.returncode == 3 and not Path("after").exists(), run.stdout
    for text in ("1 snake", "given", "two words", "| bash", "| one", "| two", "| three", "flag true"):
        assert text in run.stdout, text
    tasks = [json.loads(line) for line in run_redrive("tasks", "etl", "--json").stdout.splitlines()]
    assert [task["name"] for task in tasks if task["state"] != "SUCCESS"] == ["stops", "too", "line"]


def test_what_dagu_puts_into_a_text_is_said(home: Path) -> None:
    """Typed parameters; each line of a list has a shell of its own; a reference is no variable of the shell."""
    Path("etl.yaml").write_text(
        """
params:
  - {name: day, type: string, default: monday}
  - {name: count, type: integer, required: true}
steps:
  - {name: listed, run: ["cd / && X=1", 'echo "$day ${X-none} in $PWD"']}
  - {name: stops, run: [cd /, "false", touch after], continueOn: failure}
  - {name: text, run: "echo '${params.day} ${day} flow.task('"}
  - {name: map, run: {command: echo}, continueOn: failure}
workingDir: .
"""
    )
    done = run_redrive("import", "dagu", "etl.yaml")
    assert done.returncode == 3 and [line.removeprefix("./etl.py: ") for line in done.stdout.splitlines()[:-1]] == [
        "params: count has no default",
        "step 'text': ${params.day} as it stands; nothing is put in",
        "step 'map': run {'command': 'echo'}",
        "step 'map' has no command: it fails until it has one",
    ]
    text = Path("etl.py").read_text()
    assert text.count(f"cwd={str(home)!r}") == 4 and "subprocess" not in text
    run = run_redrive("run", "etl.py", "--plain", "--output")
    assert f"| monday none in {home}" in run.stdout and not (home / "after").exists()


def test_steps_without_depends_come_one_after_another(home: Path) -> None:
    done = run_redrive("import", "dagu", "-", input="steps: [echo a, {command: echo b}, echo c]")
    assert done.returncode == 0, done.stdout
    (file,) = Path().glob("*.py")
    assert "one after another" in file.read_text()
    assert run_redrive("run", file, "--plain").returncode == 0
    assert "after=['step2']" in file.read_text()


def test_what_has_no_counterpart_is_said_and_stands_in_the_file(home: Path) -> None:
    Path("odd.yaml").write_text(
        "schedule: {start: ['0 1 * * *', '0 2 * * *'], stop: '0 3 * * *'}\nenv: {A: '${HOME}/x'}\nhandlerOn: {}\n"
        "steps:\n  - {name: a, call: other}\n  - {name: b, command: echo, output: X, depends: a,"
        " continueOn: {exitCode: [3]}, retryPolicy: {limit: '${N}'}}\n"
        "  - {name: far, type: ssh, command: touch after}\n"
    )
    done = run_redrive("import", "dagu", "odd.yaml")
    assert done.returncode == 3
    said = [line.removeprefix("./odd.py: ") for line in done.stdout.splitlines()[:-1]]
    assert said == [
        "step 'b': continueOn exitcode",
        "the DAG: handleron {}",
        "schedule: stop",
        "schedule '0 2 * * *': a flow has one",
        "the DAG: the variable A is '${HOME}/x' as it stands; nothing is put in",
        "step 'a': call other",
        "step 'a' has no command: it fails until it has one",
        "step 'b': output X",
        "step 'b': retryPolicy {'limit': '${N}'}",
        "step 'far': type ssh",
        "step 'far' does not run on this machine: it fails until its command does so",
    ]
    assert "exit 1  # touch after" in Path("odd.py").read_text()
    assert [line for line in Path("odd.py").read_text().splitlines() if "# Not" in line] == [
        f"# Not imported: {sentence}" for sentence in said
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "is no YAML"), ("", "it has no steps"), ("- a", "it has no steps"), ("steps: 3", "it has no steps")],
)
def test_a_file_that_is_no_dag_is_refused(home: Path, text: str, sentence: str) -> None:
    done = run_redrive("import", "dagu", "-", input=text)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


@for_each(
    "line, name",
    [
        ("timeout -k 10s 2h nice -n 10 /opt/vacuum.sh | tee log", "vacuum"),
        ("/usr/bin/env python3 /opt/report.py --month 2", "report"),
        ("flock -w 1.5 lock 7z a x", "7z"),
        ("7z a x", "7z"),
        ("sudo -n -u postgres pg_dump orders", "pg_dump"),
        ("timeout -s KILL 1h /opt/load.sh", "load"),
        ("bash -u /opt/load.sh", "load"),
        ("bash -c 'cd /srv && ./run.sh'", "run"),
        ("cd '/srv/my data' || exit 1; ./run.sh", "run"),
        ("cd /srv", "cd"),
        ("python3", ""),
        ("A=1; export A; /opt/load.sh", "load"),
        ("source /srv/env && python cleanup.py", "cleanup"),
        (". /opt/backup.sh", "backup"),
        ("sleep 60 && /opt/late", "late"),
        ('[ "$(date +%d)" -le 7 ] && /opt/first', "first"),
        ("umask 027 && /opt/load.sh", "load"),
        ("A=1 B=\"x y\" C='z w' ./run.sh", "run"),
        ("flock -n /tmp/l.lock -c 'backup.sh a' || echo busy", "backup"),
        ("cd /srv; /usr/bin/flock -w 5 '/tmp/my lock' ./sync.sh", "sync"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run_parts"),
    ],
)
def test_a_job_is_named_after_its_program(line: str, name: str) -> None:
    assert name_of_line(line) == name


@pytest.mark.long
def test_without_the_other_reader_one_line_says_how_to_compare(home: Path) -> None:
    Path("two").write_text("0 2 * * * /opt/a.sh\n0 3 * * * /opt/b.sh\n")
    program = "import sys; sys.modules['croniter'] = None; from redrive.console.cli.main import main; main()"
    words = [sys.executable, "-P", "-c", program, "import", "crontab", "two"]
    for _ in range(2):  # the second one finds the files of the first
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [line.rstrip().endswith("not compared") for line in done.stdout.splitlines()].count(True) == 2
        assert done.stdout.count("pip install 'redrive[import]', then the same command again\n") == 1


@for_each(
    "line",
    [
        "/opt/args one 2>/dev/null",
        "/opt/args one 2> /dev/null",
        "kill $PID 2>/dev/null",
        "/opt/args one 2>>/dev/null",
        "/opt/args one &2>/dev/null",
        "/opt/args one &>/dev/null",  # of sh: it goes to the background
        "/opt/args one >&2",
        "/opt/args one 2>/dev/null 1>&2",
        "/opt/args one >a >/dev/null",
        "/opt/args one 2>a >/dev/null 2>&1",
        "/opt/args '> /dev/null",
        "/opt/args `date +%F` > /dev/null",
        "/opt/args $(date) > /dev/null",
        "/opt/args # > /dev/null",
        "/opt/args a\\ >/dev/null",
        "/opt/args one 2>&1 | cat 2>/dev/null",
    ],
)
def test_a_line_without_a_whole_redirection_at_its_end_stays_as_it_is(line: str) -> None:
    assert parse_shell_line(line).text == line


@for_each(
    "end",
    [
        "> /dev/null",
        ">/dev/null",
        "1>/dev/null",
        ">>/dev/null",
        ">/dev/null 2>&1",
        "> /dev/null 2>&1",
        "1>/dev/null 2>&1",
        ">>/dev/null 2>&1",
        ">/dev/null 2>/dev/null",
    ],
)
@for_each("line", ["/opt/args one", "/opt/args 7", "/opt/args 2", "a; (b)"])
def test_a_whole_redirection_to_nowhere_goes(line: str, end: str) -> None:
    assert parse_shell_line(f"{line} {end}").text == line


def test_a_redirection_of_bash_goes_in_bash_alone() -> None:
    assert parse_shell_line("/opt/args &>/dev/null", "bash").text == "/opt/args"
    assert parse_shell_line("/opt/args &>/dev/null").text == "/opt/args &>/dev/null"


def crontab_of(path: str, line: str) -> str:
    Path(path).write_text(f"{line}\n")
    return path


@pytest.mark.long
def test_a_job_of_another_crontab_with_the_same_program_gets_a_name_of_its_own(home: Path) -> None:
    a = crontab_of("a", "0 3 * * * /opt/a/backup.sh")
    b = crontab_of("b", "0 3 * * * /opt/b/backup.sh --full")
    for _ in range(2):  # the second time nothing is new
        assert run_redrive("import", "crontab", a, "--into", "flows").returncode == 0
        done = run_redrive("import", "crontab", b, "--into", "flows")
        assert done.returncode == 0 and "backup_2" in done.stdout
    assert sorted(path.name for path in Path("flows").iterdir()) == ["backup.py", "backup_2.py"]
    assert "/opt/a/backup.sh" in Path("flows/backup.py").read_text()
    assert "/opt/b/backup.sh --full" in Path("flows/backup_2.py").read_text()


@pytest.mark.long
def test_the_same_line_of_a_moved_crontab_is_the_same_job(home: Path) -> None:
    for source in ("a", "b"):
        crontab_of(source, "0 3 * * * /opt/a/backup.sh")
        assert run_redrive("import", "crontab", source, "--into", "flows").returncode == 0
    assert [path.name for path in Path("flows").iterdir()] == ["backup.py"]


def test_a_line_with_a_huge_first_word_is_imported_as_well_and_those_after_it(home: Path) -> None:
    Path("c").write_text(f"0 1 * * * /opt/first\n0 2 * * * /opt/{'x' * 300}\n0 3 * * * /opt/last\n")
    done = run_redrive("import", "crontab", "c", "--into", "flows")
    assert done.returncode == 0 and "starts in the next" in done.stdout
    assert sorted(path.name for path in Path("flows").iterdir()) == ["first.py", "last.py", f"{'x' * 60}.py"]


def test_imported_files_are_private(home: Path) -> None:
    Path("c").write_text("TOKEN=secret\n0 1 * * * /opt/first\n")
    run_redrive("import", "crontab", "c", "--into", "flows")
    assert Path("flows/first.py").stat().st_mode & 0o777 == 0o600


def test_the_home_of_another_user_is_a_folder_only_if_it_is_known() -> None:
    assert parse_shell_line("cd ~nosuchuser && ./x") == ShellLine("cd ~nosuchuser && ./x")
    assert parse_shell_line("cd ~root && ./x") == ShellLine("./x", cwd="~root")


def test_a_file_of_something_else_keeps_its_name_and_the_line_is_not_imported(home: Path) -> None:
    source = crontab_of("a", "0 3 * * * /opt/a/backup.sh")
    Path("flows").mkdir()
    text = "from redrive.engine import Flow\nflow = Flow('backup', schedule='0 3 * * *', timezone='UTC')\n"
    Path("flows/backup.py").write_text(f"{text}flow.command('x', 'true')\n")
    done = run_redrive("import", "crontab", source, "--into", "flows", "--timezone", "UTC")
    assert done.returncode == 3 and "NOT IMPORTED: the file holds something else" in done.stdout
    assert [path.name for path in Path("flows").iterdir()] == ["backup.py"]


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
)


@parametrize_mostly_long(
    ("text", "sentence"),
    [
        (f"{BOMB}\nsteps: *a8\n", "is too large for a DAG: over 100,000 values, with its aliases"),
        (f"steps: {'[' * 3000}{']' * 3000}\n", "it is nested more than 50 levels deep"),
        ("steps: &a [*a]\n", "it is nested more than 50 levels deep"),
        ("steps: *a\n", "is no YAML: found undefined alias 'a'"),
        (f"steps: [{'x' * 1_000_001}]\n", "is too large: over 1,000,000 characters"),
        ("steps: [2026-99-99]\n", "is no YAML: month must be in 1..12"),
    ],
    quick=1,
)
def test_a_file_that_is_an_attack_is_refused_at_once(home: Path, text: str, sentence: str) -> None:
    Path("bomb.yaml").write_text(text)
    done = run_redrive("import", "dagu", "bomb.yaml")
    assert (done.returncode, done.stdout) == (2, "") and sentence in done.stderr and "Traceback" not in done.stderr
    assert not Path("bomb.py").exists()


def test_aliases_of_a_usual_size_are_read(home: Path) -> None:
    text = "x: &env {A: 1}\nsteps:\n- {name: a, command: 'true', env: *env}\n- {name: b, command: 'true', env: *env}\n"
    Path("dag.yaml").write_text(text)
    run_redrive("import", "dagu", "dag.yaml")
    assert Path("dag.py").read_text().count("flow.command(") == 2


def test_text_between_the_lines_becomes_no_flow(home: Path) -> None:
    Path("c").write_text(
        "Run this every day at noon\n0 0 * * Monday /opt/x\n0 1 * * * /opt/first\n31 2 31 2 * /opt/never\n"
    )
    done = run_redrive("import", "crontab", "c", "--into", "flows")
    assert done.returncode == 3 and [path.name for path in Path("flows").iterdir()] == ["first.py"]
    assert "line 1: no flow is written: 'Run this every day at' is not a schedule" in done.stdout
    assert all(f"line {number}: no flow is written" in done.stdout for number in (2, 4))


def stdout_of(crontab: str, *words: object, code: int = 0) -> list[str]:
    """What the import of a crontab prints."""
    Path("c").write_text(crontab)
    done = imported("c", "--into", "flows", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_what_a_flow_does_in_another_way_stands_on_the_screen(home: Path) -> None:
    lines = stdout_of(
        "MAILTO=ops@example.com\n0 1 * * * cd /tmp && timeout 1h /bin/true a > /dev/null 2>&1\n"
        "0 2 * * * [ -x /opt/none ] && /opt/none\n0 3 * * * (/bin/true) &\n0 4 5/15 * * /opt/gone >> /tmp/x\n"
        "0 5 * * * /bin/true & /bin/true\n"
    )
    changed, remarks = lines[lines.index("lines that are changed:") + 1 : -1][:6], lines[-8:-1]
    assert changed == [
        "    2 - cd /tmp && timeout 1h /bin/true a > /dev/null 2>&1",
        "      + /bin/true a (cwd=/tmp, timeout=1h)",
        "    3 - [ -x /opt/none ] && /opt/none",
        "      + if [ -x /opt/none ]; then /opt/none; fi",
        "    4 - (/bin/true) &",
        "      + (/bin/true)",
    ]
    starts = [one.split(":")[0] for one in remarks]
    assert starts == ["lines 3, 4, 6", "line 3", "line 4", "line 5", "line 5", "line 5", "line 6"]
    for line, part in zip(remarks, ("mails", "`if`", "`&`", "/tmp/x", "Debian", "/opt/gone", "`wait`"), strict=True):
        assert part in line


@parametrize_mostly_long(
    ("line", "why"),
    [
        ("0 5 * * * root /opt/x", "it names a user, root: --system"),
        ("0 30 5 * * * /opt/x", "it has six fields in front of its command, and cron reads five"),
        ("*/5 * * * * ? /opt/x", "it has six fields in front of its command, and cron reads five"),
        ("0 5 * * * nobody_here /bin/sh /opt/x", "it names a user, nobody_here: --system"),
        ("0 5 * * * nobody_here ( cd /; ls )", "it names a user, nobody_here: --system"),
        ("@reboot root /opt/x", "it names a user, root: --system"),
    ],
    quick=2,
)
def test_a_line_of_another_kind_of_crontab_is_left_out(home: Path, line: str, why: str) -> None:
    assert stdout_of(f"{line}\n", code=3)[-1] == f"line 1: {why}"


def test_in_a_file_with_users_each_first_word_that_is_no_program_is_one(home: Path) -> None:
    lines = stdout_of("0 5 * * * gone_here ruby /opt/x\n@reboot root /opt/x\n0 6 * * * true\n", code=3)
    assert lines[-3:-1] == [f"line {n}: it names a user, {who}: --system" for n, who in ((1, "gone_here"), (2, "root"))]
    assert [path.name for path in Path("flows").iterdir()] == ["true.py"]


def test_a_first_word_that_may_be_a_user_of_another_machine_needs_a_look(home: Path) -> None:
    remark = stdout_of("0 5 * * * gone_user /opt/gone\n", code=3)[-2]
    missing = "gone_user is no program that is found on this machine by the PATH of the line"
    assert remark == f"line 1: {missing}. If it is a user: --system."


def test_a_word_in_front_of_a_program_is_no_user(home: Path) -> None:
    lines = stdout_of("PATH=$HOME/none\n0 5 * * * env -i /bin/true\n0 6 * * * nice /bin/true\n")
    assert not any("--system" in line for line in lines)


def test_a_program_that_has_the_name_of_a_user_is_a_program(home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin/mail").symlink_to("/bin/true")
    stdout_of(f"PATH={home}/bin:/usr/bin\n0 5 * * * mail ops\n")
    assert [path.name for path in Path("flows").iterdir()] == ["mail.py"]


def test_a_program_of_this_machine_that_is_missing_is_named(home: Path) -> None:
    program = home / "bin/crontab"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '5 5 * * * nice /opt/gone/backup --full'\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = run_redrive("import", "crontab", "--into", "flows", env={**os.environ, "PATH": path})
    assert done.returncode == 3 and "line 1: /opt/gone/backup is no program that is found" in done.stdout


def test_a_shell_that_is_no_program_is_named(home: Path) -> None:
    lines = stdout_of("SHELL=/bin/bash -l\n0 5 * * * true\n")
    assert "line 2: /bin/bash -l is no program that is found on this machine by the PATH of the line." in lines


@parametrize_mostly_long(
    ("line", "remark"),
    [
        ("cd {home} && sh plain.sh", ""),
        ("cd {home} && python3 ./plain.sh --all", ""),
        ("cd {home}; sh plain.sh", ""),  # it is not known which folder that is
        ("A=1; export A; {home}/backup.sh", ""),
        ("python3 -m gone_module", ""),
        ("sh -c 'cd {home} && ./backup.sh'", ""),
        ("test -x /usr/sbin/gone || ( cd / && ls )", ""),
        ("cd {home} && sh gone.sh", "gone.sh is no program"),
        ("php99 /opt/gone", "/opt/gone is no program that is found on this machine by the PATH of the line."),
        ("/bin/true &2>/dev/null", "in the background"),
        ("/bin/true &> out", "in the background"),
        ("/bin/true 2>&1 >&2", ""),
        ('[ "$(date +\\%u)" = 1 ] && /bin/true', "write `if CONDITION; then COMMAND; fi`"),
        ('if [ "$(date +\\%u)" = 1 ]; then /bin/true; fi', ""),
        ("/bin/true %input", "`\\%` is a percent sign"),
    ],
    quick=2,
)
def test_only_what_is_true_of_a_line_is_remarked(home: Path, line: str, remark: str) -> None:
    (home / "plain.sh").write_text("true\n")
    lines = stdout_of(f"0 5 * * * {line.format(home=home)}\n")
    remarks = [one for one in lines if one.startswith("line 1: ")]
    assert len(remarks) == bool(remark) and all(remark in one for one in remarks)


@pytest.mark.long
def test_each_line_at_boot_has_a_unit_of_its_own(home: Path) -> None:
    crontab = "@reboot /bin/sleep 1\n@reboot /bin/sleep 2\n"
    for _ in range(2):  # the second one finds the units of the first
        assert "line 2: @reboot is no time: sleep_2.service is a unit" in "\n".join(stdout_of(crontab, code=3))
        texts = {path.name: path.read_text() for path in Path("flows").iterdir()}
        assert sorted(texts) == ["sleep.service", "sleep_2.service"]
        assert "sleep 1" in texts["sleep.service"] and "sleep 2" in texts["sleep_2.service"]
    stdout_of("@reboot /bin/sleep 3\n", code=3)
    assert "sleep 3" in Path("flows/sleep_3.service").read_text()


def test_variables_that_may_be_secret_have_a_file_of_their_own(home: Path) -> None:
    line = '0 1 * * * printf \'%s %s\' "$PGPASSWORD" "$PGHOST" > {out}\n'.replace("%", r"\%")
    text = "PGHOST=db\nPGPASSWORD=it's \\a $X\n" + line.format(out="one") + line.format(out="two")
    stdout_of(f"{text}PGHOST=other\n{line.format(out='three')}HOME=/\nMAILTO=x\n")
    files = {path.name: path for path in Path("flows").iterdir()}
    assert sorted(files) == ["crontab.env", "crontab_2.env", "printf.py", "printf_2.py", "printf_3.py"]
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    assert not any("it's" in files[name].read_text() for name in ("printf.py", "printf_2.py", "printf_3.py"))
    assert "secrets=['PGPASSWORD']" in files["printf.py"].read_text()
    text = files["printf_3.py"].read_text()
    files["printf_3.py"].write_text(text.replace(os.path.expanduser("~"), str(home)))
    run_flow("printf_3")
    assert (home / "three").read_text() == "it's \\a $X other"
    assert "stays as it is" in "\n".join(stdout_of(Path("c").read_text())) and len(list(Path("flows").iterdir())) == 5


def test_what_steers_cron_is_no_variable_of_the_command(home: Path) -> None:
    stdout_of("MAILFROM=a@example.com\nRANDOM_DELAY=30\nSHELL=/bin/bash\n0 1 * * * yes | head -1\n")
    text = Path("flows/yes.py").read_text()
    assert "splay='30m'" in text and "MAILFROM" not in text
    assert "| y" in run_flow("yes")  # bash without pipefail, as under cron


#: What a line starts, and what the probe has to say of it both times.
PROBES = [
    "{probe} a 'b c' \"d\" 2>/dev/null",
    "{probe} one > /dev/null 2>&1",
    "cd {home}/old && {probe} 7 >> {home}/log 2>&1",
    "[ -x {probe} ] && {probe} guarded",
    "[ -x {probe}.none ] && {probe} guarded",
    "{probe} in%first%second \\% third",
    "nice -n 5 {probe} $HOME/x ~/y '*' \"$A\"",
    "umask 027; {probe} &",
    'timeout 9 {probe} "$SHELL"; exit 3',
    "true | {probe} | cat; false",
    "{probe} \\> \\& a\\ b #c > d",
    'B=1 {probe} "$LOGNAME"',
]
BACKGROUND = next(number for number, text in enumerate(PROBES) if text.endswith("&"))
ISOLATED = """
mount --bind {spool} /var/spool/cron/crontabs && mount -t tmpfs none /etc/cron.d && mount -t tmpfs none /run &&
mount --bind /dev/null /etc/crontab && exec /usr/sbin/cron -f
"""
AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")


@pytest.mark.first
@parametrize_mostly_long("shell", ["bash", "sh"], quick=0, daily=1)
def test_a_probe_sees_the_same_under_the_flow_as_under_cron(home: Path, shell: str) -> None:
    """The cron of this machine, with a spool of its own: arguments, stdin, folder, umask, variables, exit code."""
    lines = [text.format(probe=probe_of(home, number), home=home / str(number)) for number, text in enumerate(PROBES)]
    settings = f'SHELL={shell_of(home, shell)}\nA="two  words"\n'
    crontab = [f'{settings}HOME="{home}/{number}"\n* * * * * {line}\n' for number, line in enumerate(lines)]
    under_cron(home, "".join(crontab), len(lines))
    expected = [seen_by_probe(home / str(number)) for number in range(len(lines))]
    codes = [(home / str(number) / "code").read_text().strip() for number in range(len(lines))]
    Path("c").write_text("".join(crontab).replace("* * * * *", "0 2 * * *"))  # each start of a month is compared
    assert imported("c", "--into", "flows").returncode == 0
    flows = {file.read_text().partition("line ")[2].partition(":")[0]: file for file in Path("flows").iterdir()}
    for number, line in enumerate(lines):
        flow = flows[str(4 * number + 4)]
        environment = {**os.environ, "SHELL": "/bin/other", "LEAK": "1", "LC_TIME": "C"}
        done = run_redrive("run", flow, "--plain", "--state", home / f"{number}.db", env=environment)
        assert seen_by_probe(home / str(number)) == expected[number], (line, done.stdout)
        assert (done.returncode == 0) == (codes[number] == "0" or ".none" in line), (line, done.stdout)


def under_cron(home: Path, crontab: str, count: int) -> None:
    """Let the cron of this machine start each line once."""
    (home / "spool").mkdir()
    (home / "spool" / getpass.getuser()).write_text(crontab)
    (home / "spool" / getpass.getuser()).chmod(0o600)
    script = ISOLATED.format(spool=home / "spool")
    words = [*AS_ROOT, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    with subprocess.Popen(words) as cron:
        try:
            wait_until(lambda: len([*home.glob("*/code")]) == count, 90, interval_seconds=0.2)
            wait_until(lambda: (home / str(BACKGROUND) / "seen").read_text())
        finally:
            cron.kill()  # and with it all processes of its namespace


def shell_of(home: Path, shell: str) -> Path:
    """The shell, which writes down how a line has ended."""
    path = home / "shells" / shell
    path.parent.mkdir(exist_ok=True)
    end = 'code=$?; echo $code > "$HOME/ended"; mv "$HOME/ended" "$HOME/code"; exit $code'
    path.write_text(f'#!/bin/sh\n/bin/{shell} "$@"\n{end}\n')
    path.chmod(0o755)
    return path


def probe_of(home: Path, number: int) -> Path:
    """A program that writes down what it is given."""
    folder = home / str(number)
    (folder / "old").mkdir(parents=True)
    path = folder / "probe"
    own = "'SHLVL', 'OLDPWD', 'PWD', '_'"  # of the shell
    names = f"{{name: text for name, text in os.environ.items() if name not in ({own}) and name[:8] != 'REDRIVE_'}}"
    seen = f"[sys.argv[1:], sys.stdin.read(), os.getcwd(), mask, os.nice(0), {names}]"
    write = f"open('{folder}/seen', 'a').write(json.dumps({seen}, sort_keys=True))"
    path.write_text("\n".join([f"#!{sys.executable}", "import json, os, sys", "mask = os.umask(0)", write, ""]))
    path.chmod(0o755)
    return path


def seen_by_probe(folder: Path) -> str:
    text = (folder / "seen").read_text() if (folder / "seen").exists() else ""
    (folder / "seen").unlink(missing_ok=True)
    return text
