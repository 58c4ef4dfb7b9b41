"""Options of a flow, a task and a downstream: one table each, from the option's name to its type.

``run`` and ``check`` validate by the same tables, and name the option that is wrong. Checks that involve several
options are in ``task_def.py``, checks of the graph in ``Dag``.

Each table of keyword options has a ``TypedDict`` with the same keys, for editors and type checkers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, TypeGuard, TypeVar, cast, get_args

import msgspec

from ..core.durations import Duration, parse_duration, parse_retention
from ..core.failures.classification_rules import parse_rules
from ..core.option_types import (
    FLAG,
    NAME,
    TEXT,
    OptionType,
    Table,
    choice,
    duration,
    is_text,
    name_tuple,
    number,
    optional,
    parse_option,
    short_repr,
    whole_number,
)
from ..core.paging import check_sender
from ..core.policy import RetryPolicy
from ..core.spec import (
    DeadlineAction,
    DownstreamSpec,
    ExpectedBy,
    Isolation,
    Kind,
    Misfire,
    OnOpen,
    ResultSource,
    Shell,
    SlowerThan,
    TriggerRule,
)
from ..errors import OptionError
from .param import Param

T = TypeVar("T")

#: A parent of a task: the task function, or the name of the task, which may be defined later.
After = str | Callable[..., object]


# --- Types beside numbers and texts --------------------------------------------------------------------------------


def _parse_parents(value: object) -> list[After]:
    """Return a list of task functions and names; a single one becomes a list of one."""
    if isinstance(value, str) or callable(value):
        return [value]
    parents = list(cast("Iterable[After]", value))
    for parent in parents:
        _parse_parent(parent)
    return parents


def _parse_parent(value: object) -> After:
    if not (isinstance(value, str) or callable(value)):
        raise TypeError
    return value


def _parse_policy(value: object) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise TypeError
    return value


def _parse_pools(value: object) -> dict[str, int]:
    return {NAME.parse(name): whole_number(1).parse(slots) for name, slots in _mapping(value).items()}


def _parse_params(value: object) -> dict[str, object]:
    return {NAME.parse(name): default for name, default in _mapping(value).items()}


def _mapping(value: object) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def _parse_command(value: object) -> str | list[str]:
    """Return a line, or the words of a program and its arguments."""
    if isinstance(value, str):
        return TEXT.parse(value)
    if not isinstance(value, list | tuple) or not value:
        raise TypeError
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in value]
    if not words[0] or not all(_is_environment_text(word) for word in words):
        raise ValueError
    return words


def _parse_path(value: object) -> str:
    return NAME.parse(os.fspath(value) if isinstance(value, os.PathLike) else value)


def _parse_environment(value: object) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, text in _mapping(value).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError
        if text is not None and not _is_environment_text(text):
            raise ValueError
        found[name] = text
    return found


def _is_environment_text(value: object) -> TypeGuard[str]:
    """True for what a program can get from the kernel: also an empty text, and no NUL character."""
    return isinstance(value, str) and "\0" not in value and (not value or is_text(value))


def _parse_stdin(value: object) -> str | os.PathLike[str]:
    if isinstance(value, os.PathLike):
        return Path(_parse_path(value))
    if not isinstance(value, str) or not (not value or is_text(value)):
        raise TypeError
    return value


def _parse_expected_by(value: object) -> ExpectedBy:
    if isinstance(value, ExpectedBy):
        return value
    if isinstance(value, str) and (clock := _CLOCK.fullmatch(value.strip())):
        return ExpectedBy(clock=f"{int(clock[1]):02}:{clock[2]}")
    seconds = parse_duration(value.strip().removeprefix("+") if isinstance(value, str) else value)
    if not seconds:
        raise ValueError
    return ExpectedBy(seconds)


def _parse_slower_than(value: object) -> SlowerThan:
    if isinstance(value, SlowerThan):
        return value
    if isinstance(value, str) and (times := _FACTOR.fullmatch(value.strip())):
        if float(times[1]) <= 1:
            raise ValueError
        return SlowerThan(factor=float(times[1]))
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError
    return SlowerThan(seconds)


_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?) ?x")

#: The name of a variable that a flow may set. Those of redrive itself are left alone: stray processes are found by one.
_VARIABLE = re.compile(r"(?!REDRIVE_)[^=\0]+")

COMMAND = OptionType(
    "a line of the shell, or a list of a program and its arguments, as ['psql', '-f', 'x.sql']", _parse_command
)
PATH = OptionType("a path: a text or a Path", _parse_path)
ENVIRONMENT = OptionType(
    "a mapping of names of variables (none begins with REDRIVE_) to texts, or to None, which removes one, as "
    "{'PGHOST': 'db1', 'LANG': None}",
    _parse_environment,
)
AFTER = OptionType("a task, the name of one, or a list of these", _parse_parents)
POLICY = OptionType("a RetryPolicy, as retry=RetryPolicy(max_attempts=3)", _parse_policy)
POOLS = OptionType("a mapping of names to whole numbers of at least 1, as {'database': 2}", _parse_pools)
INTERPRETER = OptionType("the path of an interpreter, a text as '/opt/etl/bin/python'", TEXT.parse)
ABOVE_ZERO = duration(above_zero=True)
EXPECTED_BY = OptionType(
    "a time of day as '03:00', or a duration above 0 after the start of the run, as '2h'", _parse_expected_by
)
SLOWER_THAN = OptionType(
    "a factor above 1 of the usual duration, as '2x', or a duration above 0, as '10m'", _parse_slower_than
)

# --- A flow and its groups -----------------------------------------------------------------------------------------


class DefaultOptions(TypedDict, total=False):
    """What ``Flow`` and ``Flow.group`` set for all of their tasks; an option of the task itself wins, also None."""

    retry: RetryPolicy | None
    timeout: Duration | None
    downstream: str | None
    env: Mapping[str, str | None]  # of commands; those of a group and of a task are added to those of the flow


class FlowOptions(DefaultOptions, total=False):
    """What ``Flow`` takes beside its name; its docstring describes them."""

    deadline: Duration | None
    deadline_action: DeadlineAction
    dead_letter_ttl: Duration | None
    retention: str | int | None
    log_limit_mb: int
    max_parallel: int | None
    pools: Mapping[str, int] | None
    machine_pools: Mapping[str, int] | None
    params: Mapping[str, Any] | None
    secrets: Sequence[str] | None
    python: str | None
    schedule: str | None
    timezone: str
    misfire: Misfire
    splay: Duration
    start_within: Duration | None


DEFAULTS: Table = {
    "retry": optional(POLICY),
    "timeout": optional(ABOVE_ZERO, "no bound"),
    "downstream": optional(NAME),
    "env": ENVIRONMENT,
}

FLOW: Table = {
    **DEFAULTS,
    "deadline": optional(duration()),
    "deadline_action": choice(*get_args(DeadlineAction)),
    "dead_letter_ttl": optional(duration(), "a dead letter waits for ever"),
    "retention": optional(
        OptionType("a number of runs, as 20, or a text as '30d'", parse_retention), "no run is deleted"
    ),
    "log_limit_mb": whole_number(1),
    "max_parallel": optional(whole_number(1)),
    "pools": optional(POOLS),
    "machine_pools": optional(POOLS),
    "schedule": optional(OptionType("a text as '0 2 * * *' or 'every 15m'", TEXT.parse)),
    "timezone": TEXT,
    "misfire": choice(*get_args(Misfire)),
    "splay": duration(),
    "start_within": optional(duration()),
    "params": optional(OptionType("a mapping of names to defaults, as {'day': '2026-04-25'}", _parse_params)),
    "python": optional(INTERPRETER),
    "secrets": optional(name_tuple("names of variables or parameters", "['PGPASSWORD']")),
}

#: Options of a flow whose default is not None.
_FLOW_DEFAULTS = {"deadline_action": "end", "log_limit_mb": 64, "timezone": "UTC", "misfire": "one", "splay": 0.0}

# --- A task ---------------------------------------------------------------------------------------------------------


class TaskOptions(TypedDict, total=False):
    """What ``Flow.task``, ``Flow.sensor`` and ``Flow.command`` take beside the keywords of their own."""

    timeout: Duration | None  # for one attempt, which is killed then; None: no bound
    retry: RetryPolicy | None  # how often it is tried again, and after which waits; None: RetryPolicy()
    max_attempts: int | None  # starts, the first included, at least 1; wins over the one of ``retry``
    grace_seconds: Duration  # from SIGTERM to SIGKILL; 5 unless given
    python: str | None  # the interpreter that runs it: a path, relative to the flow file, or a name in PATH
    isolation: Isolation  # "process" (the default), "worker" (reused, killed too), "thread" (is cancelled), "dask"
    downstream: str | None  # the system that it calls: a name given to ``Flow.downstream``
    pool: (
        str | None
    )  # the pool whose slots it takes while it runs: a name in ``pools`` or ``machine_pools`` of the flow
    pool_slots: int  # how many of them, at least 1; 1 unless given
    max_active: int | None  # at most so many of this name run at a time, across all runs of the state file
    idempotent: bool  # False: it is not run again if its progress is unknown; True unless given
    effect: bool  # True: the same as kind="effect"
    optional: bool  # True: when it fails, the run is PARTIAL, not FAILED
    rule: TriggerRule  # which parents let it start; "all_success" unless given
    owner: str | None  # the person or team in charge, whom pages name
    requires: After | Iterable[After] | None  # the parents whose results it cannot do without
    expect_by: Duration | None  # page unless it has succeeded by then: "03:00", or "2h" after the start of the run
    warn_if_slower: Duration | None  # page when an attempt runs longer: "2x" the usual duration, or "10m"
    max_losses: int  # so many attempts lost with their executor or host within a day make a dead letter; 3 unless given
    max_bad_rows: int | None  # more quarantined rows than this fail the attempt; None: 10,000
    max_bad_ratio: float | None  # a larger share of bad rows fails the attempt, from 0 to 1
    strict_rows: bool  # True: rows in quarantine make the run PARTIAL


#: What the work of a task is: it gives the timeout that such work usually needs, or the rules of an effect.
WorkKind = Literal["etl", "backfill", "effect"]

TASK: Table = {
    "name": NAME,
    "kind": choice(*get_args(Kind)),
    "parents": AFTER,
    "max_attempts": optional(whole_number(1, "the first start counts too")),
    "timeout_seconds": optional(ABOVE_ZERO, "no deadline"),
    "retry": optional(POLICY),
    "grace_seconds": duration(),
    "command": optional(COMMAND),
    "shell": optional(choice(*get_args(Shell))),
    "cwd": optional(PATH),
    "env": optional(ENVIRONMENT),
    "stdin": optional(OptionType("a text, or a path as Path('load.sql')", _parse_stdin)),
    "result": choice(*get_args(ResultSource)),
    "map_over": optional(OptionType("a task, or the name of one", _parse_parent)),
    "max_size": whole_number(1),
    "python": optional(INTERPRETER),
    "isolation": choice(*get_args(Isolation)),
    "downstream": optional(NAME),
    "pool": optional(NAME),
    "pool_slots": whole_number(1),
    "max_active": optional(whole_number(1)),
    "idempotent": FLAG,
    "effect": FLAG,
    "optional": FLAG,
    "recheck_seconds": ABOVE_ZERO,
    "rule": choice(*get_args(TriggerRule)),
    "owner": optional(TEXT),
    "requires": optional(AFTER),
    "expect_by": optional(EXPECTED_BY),
    "warn_if_slower": optional(SLOWER_THAN),
    "max_losses": whole_number(1),
    "max_bad_rows": optional(whole_number(0)),
    "max_bad_ratio": optional(number(0, 1)),
    "strict_rows": FLAG,
}

#: Fields of a TaskDef that ``Flow.task``, ``sensor`` and ``command`` fill from parameters with other names.
_OF_COMMANDS = ("command", "shell", "cwd", "env", "stdin", "result")
_OF_MAPS = ("map_over", "max_size")
_SET_BY_PARAMETERS = ("name", "kind", "parents", "timeout_seconds", "recheck_seconds", *_OF_COMMANDS, *_OF_MAPS)

#: The keys of ``TaskOptions``.
TASK_OPTIONS = ("timeout", *(name for name in TASK if name not in _SET_BY_PARAMETERS))


# --- A downstream ---------------------------------------------------------------------------------------------------

#: One classification rule: ``class`` and at least one condition, all of which must hold. They are evaluated by
#: ``core/failures/classification_rules.py``.
ClassificationRule = TypedDict(
    "ClassificationRule",
    {
        "class": Required[
            Literal["transient", "permanent", "ambiguous", "validation", "auth", "timeout", "oom", "unclassified"]
        ],
        "error": str,  # the name of the exception or of a base of it: "Busy", "mylib.Busy"
        "status": int,  # the HTTP status
        "grpc": str,  # the name of the gRPC status code: "UNAVAILABLE"
        "sqlstate": str,  # the SQLSTATE, or its beginning
        "message": str,  # a part of the message, in any case
        "exit_code": int,  # the exit code of a command
        "signal": int,  # the number of the signal that ended the process
        "retry_after": float,  # seconds; no condition: how long the next try waits at least
    },
    total=False,
)


class DownstreamOptions(TypedDict, total=False):
    """What ``Flow.downstream`` takes beside the name."""

    failure_rate: float  # the breaker opens at this share of failed calls, above 0 and up to 1; 0.5 unless given
    minimum_calls: int  # ... or after so many failures without a success, at least 1; 10 unless given
    window_seconds: Duration  # the rate is that of so long; 60 unless given
    open_seconds: Duration  # an open breaker sends its first probes after this; 5 unless given
    open_seconds_max: Duration  # ... and after twice as long each time they fail, up to this; 30 unless given
    probes: int  # most of so many probes must succeed to close it, at least 1; 3 unless given
    on_open: OnOpen  # what becomes of tasks while it is open: "hold" (the default: they wait), "fail", "dead_letter"
    release_per_second: float  # tasks that start in the first second after it closed; 5 unless given, 0: all at once
    bucket_capacity: float  # retries that the budget holds; 10 unless given
    bucket_refund: float  # what a success adds to the budget; 0.5 unless given
    bucket_per_second: float  # what each second adds to the budget, above 0; 5 unless given
    metrics_only: bool  # True: count, and never open
    shared: bool  # False: flows of this machine that name it do not tell one another that it is down; True unless given
    rules: Sequence[ClassificationRule]  # overrule what failures of this downstream are taken for


DOWNSTREAM: Table = {
    "failure_rate": number(0, 1, above=True),
    "minimum_calls": whole_number(1),
    "window_seconds": ABOVE_ZERO,
    "open_seconds": duration(),
    "open_seconds_max": duration(),
    "probes": whole_number(1),
    "on_open": choice(*get_args(OnOpen)),
    "release_per_second": number(0),
    "bucket_capacity": number(0),
    "bucket_refund": number(0),
    "bucket_per_second": number(0, above=True),
    "metrics_only": FLAG,
    "shared": FLAG,
}

# --- A page ---------------------------------------------------------------------------------------------------------

Sender = Literal["command", "webhook", "bell", "apprise"]
PageOccasion = Literal["failure", "success"]


class PageOptions(TypedDict, total=False):
    """The options of ``Flow.page``; ``core/paging.py`` says which sender accepts which option."""

    line: str  # "command": a line of the shell, which gets the page on its standard input
    argv: Sequence[str]  # "command": a program and its arguments instead of a line
    url: str  # "webhook": https://... or http://...; "apprise": a URL of that library
    headers: Mapping[str, str]  # "webhook": headers of the request
    timeout: Duration  # seconds that the sender may take, above 0; 10 unless given


# --- Parsing ---------------------------------------------------------------------------------------------------------


def parse_named_option(owner: str, name: str, option_type: OptionType[T], value: object) -> T:
    """Convert one value to the engine's form. Raises OptionError that begins with ``owner``."""
    try:
        return parse_option(name, option_type, value)
    except OptionError as error:
        raise OptionError(f"{owner}: {error}") from None


def parse_flow_options(name: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return all options of ``Flow(...)``, converted; those left out have their defaults. Raises OptionError."""
    defaults = {key: _FLOW_DEFAULTS.get(key) for key in FLOW if key not in DEFAULTS}
    return defaults | parse_options(f"flow {short_repr(name)}", FLOW, given)


def parse_options(owner: str, table: Table, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the given options, converted. Raises OptionError."""
    reject_unknown_options(owner, given, table)
    return {key: parse_named_option(owner, key, table[key], value) for key, value in given.items()}


def parse_downstream(name: str, options: Mapping[str, object]) -> DownstreamSpec:
    """Build a downstream from the options of ``Flow.downstream``. Raises FlowError."""
    owner = f"downstream {short_repr(name)}"
    parse_named_option("a downstream", "its name", NAME, name)
    options = dict(options)
    rules = options.pop("rules", ())
    return DownstreamSpec(name, rules=_validate_rules(owner, rules), **parse_options(owner, DOWNSTREAM, options))


def _validate_rules(owner: str, rules: object) -> tuple[Mapping[str, object], ...]:
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Mapping) for rule in rules):
        example = '[{"status": 409, "class": "transient"}]'
        raise OptionError(f"{owner}: rules is a list of mappings, as {example}, not {short_repr(rules)}")
    try:
        parse_rules(rules)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{owner}: {error}") from None
    return tuple(rules)


def parse_occasion(flow: str, sender: str, on: str) -> PageOccasion:
    """Validate ``on`` of ``Flow.page``. Raises FlowError."""
    known: tuple[PageOccasion, ...] = get_args(PageOccasion)
    occasion = parse_named_option(f"flow {short_repr(flow)}: page", "on", choice(*known), on)
    if occasion == "success" and sender == "bell":
        raise OptionError(f"flow {short_repr(flow)}: page: the bell rings for failures only; name another sender")
    return occasion


def parse_page(flow: str, sender: str, options: Mapping[str, object]) -> dict[str, object]:
    """Validate the options of ``Flow.page``. Raises FlowError."""
    try:
        check_sender(sender, options)
    except ValueError as error:
        raise OptionError(f"flow {short_repr(flow)}: {error}") from None
    timeout = options.get("timeout")
    seconds = (
        {} if timeout is None else {"timeout": parse_named_option(f"sender {sender!r}", "timeout", ABOVE_ZERO, timeout)}
    )
    return {"sender": sender, **options, **seconds}


def parse_ping(flow: str, url: object) -> str:
    """Validate the URL of ``Flow.ping``, without naming it. Raises FlowError."""
    if not isinstance(url, str) or not re.fullmatch(r"https?://[!-~]+", url):
        raise OptionError(f"flow {short_repr(flow)}: ping takes a url as https://..., in ASCII and without spaces")
    return url


def reject_unknown_options(owner: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise OptionError for a name that is not in ``known``."""
    for name in options:
        if name not in known:
            raise OptionError(f"{owner}: there is no option {name!r}; there are {', '.join(known)}")


def check_secret_params(flow: str, params: Mapping[str, object], secrets: Iterable[str]) -> None:
    """Raise OptionError for a secret parameter whose default is not text: only texts are masked."""
    for name in secrets:
        declared = params.get(name)
        is_text = declared.type is str if isinstance(declared, Param) else isinstance(declared, str | None)
        if not is_text:
            raise OptionError(
                f"flow {short_repr(flow)}: the secret parameter {name!r} is a text: let its default be None"
            )


def check_params(flow: str, params: Mapping[str, object]) -> None:
    """Raise OptionError for a parameter that cannot be stored as JSON."""
    for name, value in params.items():
        _check_param(flow, name, value)


def _check_param(flow: str, name: str, value: object) -> None:
    try:
        msgspec.json.encode(value)
        msgspec.msgpack.encode(value)
        json.dumps(value, allow_nan=False, default=lambda _: None)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(
            f"flow {short_repr(flow)}: parameter {name!r} is {short_repr(value)}, which cannot be kept as JSON "
            f"({error}); use texts, finite numbers, true, false, null, lists and mappings of these"
        ) from None
    if isinstance(value, str) and ("\0" in value or (value and not is_text(value))):
        raise OptionError(
            f"flow {short_repr(flow)}: parameter {name!r} holds a NUL character or half of one: {short_repr(value)}"
        )
