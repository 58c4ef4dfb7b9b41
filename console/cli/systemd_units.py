"""A timer of systemd and its service as the text of a flow file, and what of them has no counterpart.

The settings and their quotes are those of systemd.syntax(7), systemd.time(7), systemd.timer(5), systemd.service(5).
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ...engine.core.option_types import parse_duration
from ...engine.domain.text import shell_command, shell_word
from ...engine.errors import RedriveError
from ..text.text import one_line
from .crontab import Job, local_zone
from .flow_text import FlowText, call_text, env_text, file_text, numbered, plain_name, secret_names
from .shell_line import name_of_line

#: Settings by which systemd steers only itself; a flow needs none of them.
_WITHOUT_MEANING = frozenset(
    [
        *(f"Unit.{key}" for key in ("Description", "Documentation", "After", "Before", "Wants", "DefaultDependencies")),
        *(f"Timer.{key}" for key in ("AccuracySec", "FixedRandomDelay", "RemainAfterElapse")),
        *(f"Service.Type={kind}" for kind in ("oneshot", "simple", "exec", "idle")),
        *(f"Service.Standard{stream}=journal" for stream in ("Output", "Error")),
        *("Service.SyslogIdentifier", "Service.KillMode=control-group", "Service.RemainAfterExit=no"),
        *("Service.Restart=no", "Service.StandardError=inherit"),
    ]
)


class Unit:
    """The settings of a unit file, with those of the files beside it in ``NAME.d``.

    What no flow stands for is what is left when all that is known has been read by ``pop``.
    """

    def __init__(self, path: str, instance: str = "") -> None:
        """Read a unit. ``instance``: what stands after the ``@`` of its name. Raises RedriveError."""
        self.name = os.path.basename(path)
        home, stem = os.path.expanduser("~"), self.name.rpartition(".")[0]
        self._specifiers = {"%": "%", "h": home, "n": self.name, "N": stem, "p": stem.partition("@")[0], "i": instance}
        self._values: dict[str, list[str]] = {}
        for file in [path, *sorted(glob.glob(f"{glob.escape(path)}.d/*.conf"))]:
            for key, value in _settings_of(file):
                self._values.setdefault(key, []).append(value)
                if not value:
                    self._values[key] = []  # an empty value takes back those before it

    def pop(self, key: str) -> list[str]:
        """The values of a setting, as ``Service.ExecStart``. Raises RedriveError for a specifier that is not known."""
        return [re.sub(r"%(.)", self._specified, value) for value in self._values.pop(key, ())]

    def pop_last(self, key: str) -> str:
        """The value that counts of a setting that has one; empty without it."""
        return "".join(self.pop(key)[-1:])

    def rest(self) -> Iterator[str]:
        """Yield the settings that are left, without those that no flow needs."""
        for key, values in self._values.items():
            if key not in _WITHOUT_MEANING and not key.startswith("Install."):
                yield from (
                    f"{key.partition('.')[2]}={one}" for one in values if f"{key}={one}" not in _WITHOUT_MEANING
                )

    def _specified(self, match: re.Match[str]) -> str:
        if match[1] not in self._specifiers:
            raise RedriveError(f"{self.name}: {match[0]} is not known here; write what it stands for")
        return self._specifiers[match[1]]


def _settings_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a file, as ``("Timer.OnCalendar", "daily")``. Raises RedriveError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RedriveError(f"{path} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None
    section = ""
    lines = (line.strip() for line in text.split("\n"))
    plain = "\n".join(line for line in lines if line[:1] not in ("#", ";"))
    for line in plain.replace("\\\n", " ").split("\n"):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            yield f"{section}.{key.strip()}", value.strip()


# --- Times -----------------------------------------------------------------------------------------------------------

_NAMED = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * Mon",
    "monthly": "0 0 1 * *",
    "quarterly": "0 0 1 1,4,7,10 *",
    "semiannually": "0 0 1 1,7 *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_PART = r"[\d*,./]+"
_CALENDAR = re.compile(
    rf"(?:(?P<weekday>{_WEEKDAY}(?:(?:,|\.\.){_WEEKDAY})*)\s*)?(?:(?:(?P<year>{_PART})-)?(?P<month>{_PART})-(?P<day>{_PART})\s*)?"
    rf"(?:(?P<hour>{_PART}):(?P<minute>{_PART})(?::(?P<second>{_PART}))?)?(?:\s+(?P<zone>[A-Z][\w/+-]*))?",
    re.IGNORECASE,
)
_HIGHEST = {"minute": 59, "hour": 23, "day": 31, "month": 12}


def cron_of_calendar(expression: str) -> tuple[str, str]:
    """The five fields of an expression of ``OnCalendar=``, and its zone, which is empty for that of the machine.

    Raises ValueError for one that no five fields stand for.
    """
    name, _, zone = expression.partition(" ")
    if (fields := _NAMED.get(name.lower())) is not None:
        return fields, zone.strip()
    match = _CALENDAR.fullmatch(expression)
    if match is None or not expression:
        raise ValueError(f"no five fields of a crontab say {expression!r}")
    found = match.groupdict()
    if set(found["second"] or "0") != {"0"} or found["year"] not in (None, "*"):
        raise ValueError(f"no five fields of a crontab say {expression!r}: they have no seconds and no years")
    if found["weekday"] and found["day"] not in (None, "*"):
        raise ValueError(f"{expression!r} wants both days at once; five fields start on either")
    without = {"minute": "0", "hour": "0", "day": "*", "month": "*"}
    columns = [_cron_field(found[field] or default, _HIGHEST[field]) for field, default in without.items()]
    weekdays = re.sub(r"([a-z]{3})[a-z]*", r"\1", (found["weekday"] or "*").replace("..", "-"), flags=re.IGNORECASE)
    return " ".join([*columns, weekdays]), found["zone"] or ""


def _cron_field(text: str, highest: int) -> str:
    """A field as a crontab has it: ``1..5`` is ``1-5``, and ``0/15`` goes to the highest value."""
    return ",".join(
        f"{int(part.partition('/')[0])}-{highest}/{part.partition('/')[2]}"
        if re.fullmatch(r"\d+/\d+", part)
        else re.sub(r"\d+", lambda number: str(int(number[0])), part.replace("..", "-"))
        for part in text.split(",")
    )


def _joined(schedules: Sequence[str]) -> str | None:
    """The one schedule that has the times of several: they differ in one field; None if there is none."""
    columns = [list(dict.fromkeys(column)) for column in zip(*(one.split() for one in schedules), strict=True)]
    is_one = sum(len(column) > 1 for column in columns) <= 1
    return " ".join(",".join(column) for column in columns) if is_one and schedules else None


def calendar_starts(
    expressions: Sequence[str], zone: str, start: datetime, end: datetime, most: int
) -> list[datetime] | None:
    """The starts of a timer by ``systemd-analyze``, by the clock of the zone; None if it is not installed.

    Raises ValueError for an expression that systemd refuses. ``most``: how many starts are asked of an expression.
    """
    words = ["systemd-analyze", "calendar", f"--base-time={start:%Y-%m-%d %H:%M:%S}", f"--iterations={most}"]
    try:
        done = subprocess.run(
            [*words, "--", *expressions], env={**os.environ, "TZ": zone, "LC_ALL": "C"}, capture_output=True, text=True
        )
    except OSError:
        return None
    if done.returncode:
        raise ValueError(done.stderr.strip())
    found = re.findall(
        r"^ *(?:Next elapse|Iter\S* #\d+): \S+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", done.stdout, re.MULTILINE
    )
    return sorted({at for at in map(datetime.fromisoformat, found) if start < at <= end})


def _duration(text: str) -> str | None:
    """A span of time, as ``1h 30min``, as a flow has it; None without one, and for ``infinity``."""
    if text in ("", "infinity"):
        return None
    units = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
    plain = re.sub(r"\s+", "", text)
    weeks = re.sub(r"(\d+)w(?:eeks?)?", lambda week: f"{int(week[1]) * 7}d", plain)
    seconds = parse_duration(re.sub(r"(?<=\d)([dhms])(?!s\d|sec\b)[a-z]+", r"\1", weeks.replace("msec", "ms")))
    size, unit = next((size, unit) for unit, size in units.items() if seconds % size == 0 or unit == "s")
    return f"{seconds / size:g}{unit}"


# --- The flow --------------------------------------------------------------------------------------------------------


class SystemdTimer:
    """A timer as the text of a flow file.

    Attributes:
        name: of the flow; ``unit``: of the timer.
        calendar: the expressions of its times, of which the flow has all or none.
        left_out: what has no counterpart, in sentences.
    """

    def __init__(self, path: str) -> None:
        """Read a timer and the service beside it. Raises RedriveError."""
        self._path = os.path.abspath(path)
        folder, base = os.path.split(self._path)
        stem = base.removesuffix(".timer")
        template, at, instance = stem.partition("@")
        self.name = plain_name(stem) or "timer"
        self.unit = base
        self.left_out: list[str] = []
        self._is_of_user = "/user/" in self._path or "/.config/" in self._path
        self._timer = Unit(self._path, instance)
        service = self._timer.pop_last("Timer.Unit") or f"{stem}.service"
        whole = os.path.join(folder, service)
        is_template = at and not os.path.exists(whole)
        self._service = Unit(os.path.join(folder, f"{template}@.service") if is_template else whole, instance)
        self.calendar = [one for one in self._timer.pop("Timer.OnCalendar") if one]

    def flow_text(self) -> FlowText:
        """Return the file of the flow, with one of its variables if some of them may be secret."""
        variables = dict(_pairs(self._service.pop("Service.Environment")))
        schedule = self._schedule()
        flow = {
            **schedule,
            "misfire": ("one" if self._timer.pop_last("Timer.Persistent").lower() in _YES else "skip")
            if schedule
            else None,
            "splay": _duration(self._timer.pop_last("Timer.RandomizedDelaySec")) if schedule else None,
            "env": variables or None,
            "env_file": self._env_file(),
            "secrets": secret_names(variables) or None,
        }
        env = None
        if flow["secrets"] and flow["env_file"] is None:
            env = FlowText(f"{self.name}.env", env_text(variables))
            flow |= {"env": None, "env_file": env.name}
        pages = [
            call_text("flow.page", ["command"], {"argv": ["systemctl", *["--user"] * self._is_of_user, "start", unit]})
            for unit in " ".join(self._service.pop("Unit.OnFailure")).split()
        ]
        commands = self._commands()
        if user := self._service.pop_last("Service.User"):
            self.left_out.append(f"systemd ran it as {user}: serve it as that user")
        self.left_out += [f"{unit.name}: {setting}" for unit in (self._timer, self._service) for setting in unit.rest()]
        comments = [f"# Imported by `redrive import systemd` from {one_line(self._path)}."]
        comments += [f"# Not imported: {one_line(sentence)}" for sentence in self.left_out]
        calls = [call_text("flow = Flow", [self.name], flow), *pages, *commands]
        return FlowText(self.name, file_text(comments, calls), env)

    def _schedule(self) -> Mapping[str, object]:
        """The times of the timer as options of a flow; empty, with a sentence, if no schedule stands for them."""
        spans = {
            key: self._timer.pop_last(f"Timer.{key}")
            for key in ("OnUnitActiveSec", "OnUnitInactiveSec", "OnBootSec", "OnStartupSec", "OnActiveSec")
        }
        repeated = spans["OnUnitActiveSec"] or spans["OnUnitInactiveSec"]
        try:
            found = [cron_of_calendar(one) for one in self.calendar]
        except ValueError as error:
            self.left_out.append(f"OnCalendar: {error}")
            return {}
        zones = {zone for _, zone in found}
        fields = _joined([one for one, _ in found]) if len(zones) == 1 else None
        if fields is not None and not any(spans.values()):
            return {"schedule": fields, "timezone": zones.pop() or local_zone()}
        if not found and repeated:
            self.left_out.append(
                f"it starts by the clock, each {repeated}, and not that long after boot or its last end"
            )
            return {"schedule": f"every {_duration(repeated)}"}
        given = [*self.calendar, *(f"{key}={value}" for key, value in spans.items() if value)]
        self.left_out.append(f"a flow has one schedule, and none says {' with '.join(given)}: leave the timer on")
        return {}

    def _env_file(self) -> str | None:
        found = None
        for one in self._service.pop("Service.EnvironmentFile"):
            if one.startswith("-") and not os.path.exists(one[1:]):
                self.left_out.append(f"EnvironmentFile={one}: it is not there, and systemd goes on without it")
            elif found is not None:
                self.left_out.append(f"EnvironmentFile={one}: a flow has one env_file")
            else:
                found = one.removeprefix("-")
        return found

    def _commands(self) -> list[str]:
        """The calls that add the commands of the service, one after another."""
        lines = [
            line
            for key in ("ExecStartPre", "ExecStart", "ExecStartPost")
            for line in self._service.pop(f"Service.{key}")
            if line
        ]
        if not lines:
            self.left_out.append(f"{self._service.name} has no ExecStart")
        folder = self._service.pop_last("Service.WorkingDirectory").removeprefix("-")
        home = os.path.expanduser("~")
        spans = [self._service.pop_last(f"Service.{key}") for key in ("TimeoutSec", "TimeoutStartSec", "RuntimeMaxSec")]
        options = {
            "cwd": home if folder == "~" or (not folder and self._is_of_user) else folder or "/",
            "timeout": next(filter(None, map(_duration, reversed(spans))), None),
            "grace_seconds": _duration(self._service.pop_last("Service.TimeoutStopSec")),
            "max_attempts": 1,
        }
        calls: list[str] = []
        names: list[str] = []
        for line in lines:
            program = os.path.basename(shlex.split(line.lstrip("-@:+!"))[0])
            base = plain_name(os.path.splitext(program)[0]) or "command"
            name = base if base not in names else f"{base}_{len(names) + 1}"
            calls.append(
                call_text("flow.command", [name, self._program(line)], {"after": names[-1:] or None, **options})
            )
            names.append(name)
        return calls

    def _program(self, line: str) -> str | list[str]:
        """A command of ``ExecStart=`` as words, or as a line of the shell where systemd would put in variables."""
        signs = line[: len(line) - len(line.lstrip("-@:+!"))]
        if set(signs) & set("@+!"):
            self.left_out.append(f"the {signs} in front of {line.lstrip('-@:+!')}")
        words = shlex.split(line.lstrip("-@:+!"))
        if "@" in signs:
            del words[1:2]  # the name that the program would see as its own
        if "$" in line and ":" not in signs:
            line_of_shell = " ".join(map(_word_with_variables, words))
        elif "-" in signs:
            line_of_shell = shell_command(words)
        else:
            return words
        return f"{line_of_shell} || true" if "-" in signs else line_of_shell


_YES = ("1", "yes", "y", "true", "t", "on")


def _word_with_variables(word: str) -> str:
    """A word for the shell, in which ``$NAME`` alone is several words, and ``${NAME}`` is a part of one."""
    if re.fullmatch(r"\$[A-Za-z_]\w*", word):
        return word
    parts = re.split(r"(\$\{[A-Za-z_]\w*\})", word)
    return "".join(
        f'"{part}"' if at % 2 else shell_word(part.replace("$$", "$")) if part else "" for at, part in enumerate(parts)
    )


def _pairs(settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of ``Environment=``, whose quotes stand around a pair."""
    for setting in settings:
        for word in shlex.split(setting):
            name, equals, value = word.partition("=")
            if equals:
                yield name, value


def units_of_lines(jobs: Iterable[Job], text_of: Callable[[str], str | None]) -> list[FlowText]:
    """The units of lines, each with a name of its own. ``text_of``: as for ``flows_of_crontab``."""
    found: dict[str, FlowText] = {}
    for job in jobs:
        units = (_unit_of_line(name, job) for name in numbered(name_of_line(job.line) or f"line_{job.number}"))
        unit = next(one for one in units if one.name not in found and text_of(one.name) in (None, one.text))
        found[unit.name] = unit
    return list(found.values())


def _unit_of_line(name: str, job: Job) -> FlowText:
    """A unit that starts a line of a crontab when the machine has started, as ``@reboot`` did."""
    lines = {
        "[Unit]": [f"Description={one_line(job.text).replace('%', '%%')}"],
        "[Service]": [
            "Type=exec",
            *([f"User={job.user}"] if job.user else []),
            *(f"Environment={_quoted(f'{key}={value}')}" for key, value in job.environment.items()),
            "WorkingDirectory=~",
            *_input_settings(job.stdin),
            f"ExecStart={job.shell} -c {_quoted(job.line).replace('$', '$$')}",
            "KillMode=process",
        ],
        "[Install]": [f"WantedBy={'multi-user' if job.user else 'default'}.target"],
    }
    return FlowText(f"{name}.service", "\n\n".join("\n".join([title, *lines[title]]) for title in lines) + "\n")


def _input_settings(text: str | None) -> list[str]:
    """The settings by which a unit gives a text to the standard input of its command."""
    if text is None:
        return []
    escaped = text.replace("\\", "\\\\").replace("%", "%%")
    return ["StandardInput=data", *(f"StandardInputText={line}" for line in escaped.splitlines())]


def _quoted(text: str) -> str:
    """A text as one word of a unit file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def timer_flows(paths: Sequence[str]) -> tuple[list[tuple[SystemdTimer, FlowText]], list[str]]:
    """The flows of timers, and a sentence for each timer that has none. A folder stands for all timers in it.

    Raises RedriveError for a file that is no timer.
    """
    files = [
        file
        for path in paths
        for file in (sorted(glob.glob(f"{glob.escape(path)}/*.timer")) if os.path.isdir(path) else [path])
    ]
    if wrong := next((file for file in files if not file.endswith(".timer")), None):
        raise RedriveError(f"{wrong} is no timer: name files NAME.timer, or their folder")
    flows: list[tuple[SystemdTimer, FlowText]] = []
    without_flow: list[str] = []
    for file in files:
        try:
            timer = SystemdTimer(file)
            flows.append((timer, timer.flow_text()))
        except (RedriveError, ValueError) as error:
            without_flow.append(f"{file}: no flow is written: {error}")
    return flows, without_flow
