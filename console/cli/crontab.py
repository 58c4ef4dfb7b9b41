"""The lines of a crontab, and the flow files that stand for them."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC

from ...engine.core.schedule import NAMED_SCHEDULES, parse_recurrence
from ...engine.domain.text import shell_word
from ..text.text import one_line
from .flow_text import SECRET_NAME, FlowText, call_text, env_text, file_text, numbered, secret_names, shell_duration
from .shell_line import ShellLine, is_before_program, is_known_folder, name_of_line, parse_shell_line, program_of_line
from .shell_text import TokenKind, tokens_of, unquoted


def local_zone() -> str:
    """The IANA name of the time zone of this machine; UTC if it has none."""
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return "UTC" if name in ("", "Etc/UTC") else name


@dataclass(frozen=True, slots=True)
class Job:
    """A line of a crontab that starts a command.

    Attributes:
        number: of the line, from 1; ``text``: the line as it is.
        fields: the five fields of its schedule.
        line: what cron gives to the shell; ``stdin``: what follows the first ``%``.
        environment: the variables of the lines above it, for the command; ``settings``: those for cron itself.
        user: of a system crontab.
    """

    number: int
    text: str
    fields: str
    line: str
    stdin: str | None
    environment: Mapping[str, str]
    settings: Mapping[str, str]
    zone: str
    user: str | None = None

    @property
    def shell(self) -> str:
        """The shell that runs it, as the crontab names it."""
        return self.settings.get("SHELL", "/bin/sh")

    @property
    def mail_to(self) -> str:
        """The address that cron mails the output to; empty for nobody, or the user."""
        return self.settings.get("MAILTO", "")


@dataclass(frozen=True, slots=True)
class Crontab:
    """``jobs``: also at boot. ``left_out``: lines that no flow can stand for: their numbers, and why."""

    jobs: Sequence[Job]
    left_out: Sequence[tuple[int, str]]


_VARIABLE = re.compile(r"""\s*("[^"]*"|'[^']*'|[^\s="']+)\s*=\s*(.*?)\s*$""")


_OF_MAIL = "MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING", "NO_MAIL_OUTPUT"
#: Variables by which a crontab steers cron; a command has no use for them.
_SETTINGS = frozenset(("SHELL", "CRON_TZ", "RANDOM_DELAY", *_OF_MAIL))
AT_BOOT = "@reboot"
_UNESCAPED_PERCENT = re.compile(r"(?<!\\)%")


def parse_crontab(text: str, zone: str, *, has_user: bool) -> Crontab:
    """Parse a crontab as ``crontab(5)`` describes it. ``zone``: of lines without a ``CRON_TZ`` above them."""
    environment: dict[str, str] = {}
    jobs: list[Job] = []
    left_out: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (variable := _VARIABLE.match(line)) is not None:
            environment[unquoted(variable[1])] = unquoted(variable[2])
            continue
        try:
            jobs.append(_job_of(number, line.strip(), dict(environment), zone, has_user))
        except ValueError as error:
            left_out.append((number, str(error)))
    return Crontab(jobs, left_out)


def _job_of(number: int, line: str, environment: Mapping[str, str], zone: str, has_user: bool) -> Job:
    """Parse a line. Raises ValueError with a sentence."""
    words = line.split(None, (1 if line.startswith("@") else 5) + has_user)
    schedule = words[:1] if line.startswith("@") else words[:5]
    rest = words[len(schedule) :]
    if len(rest) != 1 + has_user:
        raise ValueError(f"it is no line of a crontab: {line}")
    names = {**NAMED_SCHEDULES, AT_BOOT: AT_BOOT}
    fields = names.get(schedule[0].lower()) if line.startswith("@") else " ".join(schedule)
    if fields is None:
        raise ValueError(f"there is no schedule {schedule[0]}")
    if not line.startswith("@"):
        if _FIELD.fullmatch(rest[-1].split()[0]):
            raise ValueError("it has six fields in front of its command, and cron reads five")
        _require_schedule(fields)
    shell_line, *inputs = (part.replace(r"\%", "%") for part in _UNESCAPED_PERCENT.split(rest[-1]))
    shell_line, user = shell_line.strip(), rest[0] if has_user else None
    stdin = "\n".join(inputs) + "\n" if inputs else None
    if any(_NO_TEXT.search(text) for text in (line, *environment.values())):
        raise ValueError("its command, or a variable above it, has bytes that are no UTF-8 text: iconv converts them")
    settings = {name: environment[name] for name in environment if name in _SETTINGS}
    variables = {name: environment[name] for name in environment if name not in _SETTINGS}
    zone = (settings.get("CRON_TZ") if cron_reads_zones() else None) or zone
    return Job(number, line, fields, shell_line, stdin, variables, settings, zone, user)


_NO_TEXT = re.compile("[\ud800-\udfff]")  # how bytes are read that are no text
_FIELD = re.compile(r"[\d*,/-]+|\?")  # a word that can only be a field of a schedule


def cron_reads_zones() -> bool:
    """Whether the cron of this machine reads ``CRON_TZ``: ``crond`` of cronie does, ``cron`` of Debian not."""
    return os.path.exists("/usr/sbin/crond") or not os.path.exists("/usr/sbin/cron")


def _require_schedule(fields: str) -> None:
    """Raise ValueError for five words that are no schedule, as of a text between the lines."""
    try:
        parse_recurrence(fields, UTC)
    except ValueError as error:
        raise ValueError(f"no flow is written: {error}") from None


# --- The flow of a line ----------------------------------------------------------------------------------------------


def flows_of_crontab(jobs: Sequence[Job], source: str, text_of: Callable[[str], str | None]) -> list[FlowText]:
    """The flow files of the lines, in their order.

    ``text_of``: returns the file of a name that is there already. If it is of another line, the name gets a number.
    """
    commands = [parse_shell_line(job.line, os.path.basename(job.shell)) for job in jobs]
    locks = [command.lock for command in commands if command.lock is not None]
    shared = {lock for lock in locks if locks.count(lock) > 1}
    found: dict[str, FlowText] = {}
    variables: dict[str, FlowText] = {}
    for job, command in zip(jobs, commands, strict=True):
        env = _env_file(job, variables, text_of)
        for name in numbered(name_of_line(command.text) or "job"):
            file = _flow_text(name, job, command, source, shared, env)
            if name not in found and _is_free(text_of(name), file.text):
                found[name] = file
                break
    return list(found.values())


def _env_file(job: Job, files: dict[str, FlowText], text_of: Callable[[str], str | None]) -> FlowText | None:
    """The file of the variables of a line, if one of them may be a secret; lines with the same ones have one file."""
    if not any(map(SECRET_NAME.search, job.environment)):
        return None
    text = env_text(job.environment)
    if text not in files:
        used = {file.name for file in files.values()}
        names = (f"{name}.env" for name in numbered("crontab"))
        files[text] = FlowText(next(one for one in names if one not in used and text_of(one) in (None, text)), text)
    return files[text]


_HEAD = re.compile(r"\A# Imported by `redrive import crontab` from (.*), line (\d+):\n#     (.*)\n")


def is_of_line(earlier: str, text: str) -> bool:
    """Whether a file stands for the line of ``text``: it says the same, or was imported from the line and edited."""
    before, now = _HEAD.match(earlier), _HEAD.match(text)
    if before is None or now is None:
        return False
    return (before[1], before[3]) == (now[1], now[3]) or earlier[before.end() :] == text[now.end() :]


def _is_free(earlier: str | None, text: str) -> bool:
    """Whether a name may be that of a line: no file has it, or one that no other line of a crontab has made.

    A file that somebody has changed so that nothing says what it is of keeps the name: a second one would run as well.
    """
    before, now = _HEAD.match(earlier or ""), _HEAD.match(text)
    if earlier is None or before is None or now is None:
        return True
    return is_of_line(earlier, text) or before.groups()[:2] == now.groups()[:2]


def _flow_text(
    name: str, job: Job, command: ShellLine, source: str, shared: Collection[str | None], env: FlowText | None
) -> FlowText:
    pool = command.lock if command.lock in shared else None
    delay = job.settings.get("RANDOM_DELAY", "")
    flow = {
        "schedule": job.fields,
        "timezone": job.zone,
        "misfire": "skip",
        "splay": f"{delay}m" if delay.isdigit() and int(delay) else None,
        "machine_pools": pool and {pool: 1},
        "env_file": env and env.name,
        "secrets": secret_names(job.environment) or None,
    }
    own = {
        "cwd": _folder_of(job, command),
        "timeout": shell_duration(command.timeout),
        "grace_seconds": shell_duration(command.grace),
        "pool": pool,
    }
    variables = _of_cron(job) if env else {**_of_cron(job), **job.environment}
    options = {**own, "env": {"*": None, **variables}, "stdin": job.stdin, "max_attempts": 1}
    is_plain = os.path.basename(job.shell) in ("sh", "dash")
    remarks = _remarks(job, command, pool is not None)
    comments = [f"# Imported by `redrive import crontab` from {one_line(source)}, line {job.number}:"]
    comments += [f"#     {one_line(job.text)}", *(f"# {one_line(sentence)}" for sentence in remarks)]
    calls = [call_text("flow = Flow", [name], flow)]
    if job.mail_to and not job.mail_to.startswith("-"):
        page = f"mail -s {shell_word(f'redrive: {name}')} {shell_word(job.mail_to)}"
        calls.append(call_text("flow.page", ["command"], {"line": page}))
    line = command.text if is_plain else [job.shell, "-c", command.text]
    calls.append(call_text("flow.command", [name, line], options))
    moved = [f"{key}={value}" for key, value in own.items() if value is not None and (key != "cwd" or command.cwd)]
    shown = f" ({', '.join(moved)})" if moved else ""
    changed = f"{command.text}{shown}" if command.text != job.line else ""
    return FlowText(name, file_text(comments, calls), env, changed, remarks)


def _of_cron(job: Job) -> dict[str, str]:
    """The variables that cron gives to each command, but those that the crontab sets."""
    user = job.user or pwd.getpwuid(os.getuid()).pw_name
    given = {"HOME": _home_of(job.user), "LOGNAME": user, "SHELL": job.shell, "PATH": _PATH_OF_CRON}
    return {name: value for name, value in given.items() if name not in job.environment}


#: What a line may be without, or have more of, as a flow; a sentence each, for the file and the screen.
_GUARD = "The condition in front is an `if`: a job whose condition does not hold has not failed."
_CONDITION = "If the condition in front does not hold, the flow fails: write `if CONDITION; then COMMAND; fi`."
_BACKGROUND = "The `&` at its end is taken out: a flow kills what is left when its command has ended."
_OTHER_BACKGROUND = "What it leaves in the background (`&`) is killed when the line has ended: let it end with `wait`."
_PERCENT = r"cron ends the line at its first `%` and gives what follows to its stdin: `\%` is a percent sign."
_NEVER_RAN = "The cron of Debian refuses this line, so that there it has never run; as a flow it does."


def _remarks(job: Job, command: ShellLine, is_shared: bool) -> list[str]:
    """Sentences for the operator about what the flow does not say."""
    lock, log = command.lock, command.log
    remarks = {
        f"flock {lock} is left out: a flow has one run at a time. Put it back if others take it.": lock
        and not is_shared,
        f"flock {lock} is a pool, for which the flows of this lock wait. Put it back if others take it.": is_shared,
        f"Its output goes to {log} as before; without this redirection `redrive logs` has it.": log,
        f"cron mails its output to {job.mail_to}; the flow mails only when it needs a human: `redrive logs`.": (
            job.mail_to and log is None and not command.is_silent
        ),
        _PERCENT: job.stdin is not None,
        _GUARD: command.is_guarded,
        _BACKGROUND: command.is_background,
        _OTHER_BACKGROUND: _has_background(command.text, os.path.basename(job.shell)),
        _CONDITION: not command.is_guarded and _CONDITION_IN_FRONT.fullmatch(command.text),
        "CRON_TZ is read as cronie does; the cron of Debian ignores it.": "CRON_TZ" in job.settings
        and cron_reads_zones(),
        "CRON_TZ is ignored, as the cron of this machine does.": "CRON_TZ" in job.settings and not cron_reads_zones(),
        _NEVER_RAN: not _is_of_debian(job.text),
        f"cron ran it as {job.user}: serve it as that user.": job.user not in (None, pwd.getpwuid(os.getuid()).pw_name),
    }
    return [sentence for sentence, holds in remarks.items() if holds]


#: A condition that the lexer does not know, as one with a substitution, in front of the last command.
_CONDITION_IN_FRONT = re.compile(r"(?!.*\|\|)(?:!\s*)?(?:\[|test\s)[^;]*&&[^;]*")


def _has_background(line: str, shell: str) -> bool:
    """Whether a line leaves something in the background; of one that is more than words, whether it may."""
    tokens = tokens_of(line, shell)
    if tokens is None:
        return re.search(r"(?<![<>&|])&(?![>&])", line) is not None
    return any(one.kind is TokenKind.OPERATOR and one.text == "&" for one in tokens)


_DEBIAN_VALUE = r"(?:\d+|[A-Za-z]{3})"
_DEBIAN_PART = rf"(?:(?:\*|{_DEBIAN_VALUE}-{_DEBIAN_VALUE})(?:/\d+)?|{_DEBIAN_VALUE})"
_DEBIAN_FIELD = re.compile(rf"{_DEBIAN_PART}(?:,{_DEBIAN_PART})*")


def _is_of_debian(text: str) -> bool:
    """Whether the cron of Debian reads a line: ``@daily`` in small letters, no ``L``, a step after ``*`` or a range."""
    if text.startswith("@"):
        return (name := text.split(None, 1)[0]) == name.lower()
    return all(_DEBIAN_FIELD.fullmatch(field) for field in text.split()[:5])


# --- The program of a line -------------------------------------------------------------------------------------------

_PATH_OF_CRON = "/usr/bin:/bin"


def missing_program(job: Job) -> str:
    """The program that a line starts, or its shell, if this machine has none of that name; else empty.

    A shell looks for it, and starts nothing of the line. A program that is started on a condition may be missing.
    """
    if not os.access(job.shell, os.X_OK):
        return job.shell
    command = parse_shell_line(job.line, os.path.basename(job.shell))
    program = program_of_line(command.text)
    text, folder = program.text, _folder_of(job, command)
    is_elsewhere = not text.startswith("/") and re.search(r"\bcd\s", command.text)
    if not text or not program.is_file or command.is_guarded or is_elsewhere or re.search(r"[^\w./+-]", text):
        return ""
    is_there = program.is_script and os.path.exists(os.path.join(folder, text))
    return "" if is_there or _has_program(job, text, folder) else text


def lines_with_user(jobs: Sequence[Job]) -> list[Job]:
    """The lines that begin with a user. If one does for sure, so do all whose first word is no program: of one file."""
    found = [job for job in jobs if _may_name_user(job)]
    return found if any(map(_names_user, found)) else []


def _may_name_user(job: Job) -> bool:
    """Whether the first word of a line could be a user: no program is known by it."""
    word = job.line.split()[0]
    return bool(_USER.match(job.line)) and not is_before_program(word) and not _has_program(job, word, "/")


def _names_user(job: Job) -> bool:
    """Whether the first word of a line, which is no program, is a user of this machine, or in front of a command."""
    word, next_word = job.line.split()[:2]
    is_command = next_word in ("cd", "(", "[") or (next_word[0] == "/" and _has_program(job, next_word, "/"))
    return is_command or is_known_folder(f"~{word}")


_USER = re.compile(r"[a-z_][a-z0-9_.-]*\s+\S", re.IGNORECASE)


def _has_program(job: Job, program: str, folder: str) -> bool:
    """Whether the shell of a line finds a program, or has it built in."""
    shell = job.shell if os.path.basename(job.shell) == "bash" and os.path.exists(job.shell) else "/bin/sh"
    words = [shell, "-c", 'cd "$1" 2>/dev/null; command -v -- "$2"', "sh", folder, program]
    path = job.environment.get("PATH", _PATH_OF_CRON)
    done = subprocess.run(words, env={"PATH": path}, stdin=subprocess.DEVNULL, capture_output=True)
    return done.returncode == 0


def _folder_of(job: Job, command: ShellLine) -> str:
    """The folder in which the command runs: that of its ``cd``, from the home folder of its user."""
    home = job.environment.get("HOME") or _home_of(job.user)
    folder = re.sub(r"^~(?=/|$)|\$HOME\b|\$\{HOME\}", lambda _: home, command.cwd or "")
    folder = os.path.expanduser(folder)  # ~user
    return os.path.normpath(os.path.join(home, folder))


def _home_of(user: str | None) -> str:
    home = f"~{user or ''}"
    return os.path.expanduser(home) if is_known_folder(home) else "/"
