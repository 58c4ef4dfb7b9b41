"""``redrive import systemd``: flows start when their timers did, and run the commands of the services."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from redrive.console.cli.importing import OriginalSchedule, compare_starts
from redrive.console.cli.systemd_units import calendar_starts, cron_of_calendar
from redrive.engine import Flow
from redrive.engine.core.schedule import to_microseconds
from support.commands import run_redrive

#: Expressions of OnCalendar=, as people have published them, and the five fields that start at the same times.
CALENDAR = {
    "daily": "0 0 * * *",
    "weekly": "0 0 * * Mon",
    "quarterly": "0 0 1 1,4,7,10 *",
    "hourly Europe/Berlin": "0 * * * *",
    "*-*-* 02:30:00": "30 2 * * *",
    "02:30": "30 2 * * *",
    "*-*-* 0/6:05": "5 0-23/6 * * *",
    "*:0/15": "0-59/15 * * * *",
    "*-*-* *:00/20:00": "0-59/20 * * * *",
    "Mon..Fri 22:00": "0 22 * * Mon-Fri",
    "Mon,Thu *-*-* 04:10": "10 4 * * Mon,Thu",
    "Saturday": "0 0 * * Sat",
    "*-*-01 05:00": "0 5 1 * *",
    "*-*-1,15 05:00:00": "0 5 1,15 * *",
    "*-1..6/2-3 01:00": "0 1 3 1-6/2 *",
    "*-*-* 08..18:00,30": "0,30 8-18 * * *",
    "*-*-* 05:00:00 America/New_York": "0 5 * * *",
}
REFUSED = ["", "*:0/5:30", "2027-01-01 00:00", "Mon *-*-1..7 05:00", "*-*~1", "every day", "*-*-* 02:30:15"]


def test_five_fields_stand_for_a_calendar_expression() -> None:
    assert {text: cron_of_calendar(text)[0] for text in CALENDAR} == CALENDAR
    assert cron_of_calendar("*-*-* 05:00:00 America/New_York")[1] == "America/New_York"
    for text in REFUSED:
        with pytest.raises(ValueError, match="five fields"):
            cron_of_calendar(text)


@pytest.mark.long  # it needs systemd-analyze
@pytest.mark.parametrize("month", [3, 10])
def test_systemd_says_the_same_times(month: int) -> None:
    for text in CALENDAR:
        fields, zone = cron_of_calendar(text)
        flow = Flow("x", schedule=fields, timezone=zone or "Europe/Berlin")
        flow.command("a", "true")
        now = to_microseconds(datetime(2026, month, 5, tzinfo=UTC))
        comparison = compare_starts(OriginalSchedule("x", partial(calendar_starts, [text])), flow.spec(), now)
        assert comparison.agrees and comparison.old is not None, (text, comparison.cells())


BACKUP_TIMER = """[Timer]
OnCalendar=*-*-* 02:30
OnCalendar=*-*-* 14:30
Persistent=true
RandomizedDelaySec=5min
"""
BACKUP_SERVICE = r"""# nightly
[Unit]
OnFailure=mail@%n
[Service]
Type=oneshot
User=postgres
Environment="GREETING=good night" PGPASSWORD=hunter22
ExecStartPre=-false
ExecStart=/bin/sh -c "echo \"$$0 $$#\" ${GREETING}" %p \
    100%% $WORDS
WorkingDirectory={folder}
TimeoutStartSec=1h 30min
MemoryMax=1G
"""


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backup.timer").write_text(BACKUP_TIMER)
    (tmp_path / "backup.service").write_text(BACKUP_SERVICE.replace("{folder}", str(tmp_path)))
    (tmp_path / "poll@a.timer").write_text("[Timer]\nOnBootSec=2min\nOnUnitActiveSec=900\n")
    (tmp_path / "poll@.service").write_text("[Service]\nExecStart=/opt/poll %i\n")
    override = tmp_path / "poll@.service.d/own.conf"
    override.parent.mkdir()
    override.write_text(
        "[Service]\nExecStart=\nExecStart=@/opt/poll2 poller %i\n"
        "Environment=POLL_TOKEN=hunter23\nEnvironmentFile=-/gone.env\nEnvironmentFile=/dev/null\n"
    )
    return tmp_path


def test_a_timer_and_its_service_become_a_flow(units: Path) -> None:
    Path("lost.timer").write_text("[Timer]\nOnCalendar=daily\n")
    done = run_redrive("import", "systemd", ".", "--into", "flows")
    assert done.returncode == 3  # what has no counterpart
    assert "lost.timer: no flow is written" in done.stdout and "lost.service cannot be read" in done.stdout
    gone = "EnvironmentFile=-/gone.env: it is not there"
    for sentence in ("systemd ran it as postgres", "backup.service: MemoryMax=1G", "by the clock, each 900", gone):
        assert sentence in done.stdout
    text = Path("flows/backup.py").read_text()
    flow: dict[str, Flow] = {}
    exec(compile(text, str(units / "flows/backup.py"), "exec"), flow)
    spec = flow["flow"].spec()
    assert spec.schedule is not None
    assert (spec.schedule.expression, spec.schedule.misfire) == ("30 2,14 * * *", "one")
    assert "splay='5m'" in text and "timeout='90m'" in text and "secrets=['PGPASSWORD']" in text
    assert "hunter22" not in text and Path("flows/backup.env").stat().st_mode & 0o777 == 0o600
    assert "argv=['systemctl', 'start', 'mail@backup.service']" in text and "# Not imported: backup" in text
    poll = Path("flows/poll_a.py").read_text()
    assert "['/opt/poll2', 'a']" in poll and "the @ in front of /opt/poll2 poller" in poll
    assert "secrets=['POLL_TOKEN']" in poll and run_redrive("check", "flows/poll_a.py").returncode in (0, 3)
    assert run_redrive("run", "flows/backup.py", "--plain", env={**os.environ, "WORDS": "a b"}).returncode == 0
    assert "backup 3 good night" in run_redrive("logs", "backup", "sh").stdout


def test_what_is_no_timer_is_refused(units: Path) -> None:
    for word, sentence in {
        "backup.service": "is no timer",
        "gone.timer": "cannot be read: No such file",
        "states": "there is no timer in it",
    }.items():
        Path("states").mkdir(exist_ok=True)
        done = run_redrive("import", "systemd", word, "--into", "flows")
        assert done.returncode == 2 and sentence in done.stderr
    Path("poll@.service").write_text("[Service]\nExecStart=/opt/poll %Z 'x\n")
    shutil.rmtree("poll@.service.d")
    assert "%Z is not known here" in run_redrive("import", "systemd", "poll@a.timer", "--into", "flows").stderr


@pytest.mark.long  # it needs systemd-analyze
def test_systemd_reads_the_unit_of_a_line_at_boot(units: Path) -> None:
    line = """A="b c"\n@reboot /bin/echo "x y" '100\\%' $HOME | cat%one\\%two%three\n"""
    assert run_redrive("import", "crontab", "-", "--into", "flows", input=line).returncode == 3
    done = subprocess.run(["systemd-analyze", "verify", "flows/echo.service"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    text = Path("flows/echo.service").read_text()
    assert """-c "/bin/echo \\"x y\\" '100%%' $$HOME | cat\"""" in text
    assert "StandardInput=data\nStandardInputText=one%%two\nStandardInputText=three\n" in text
