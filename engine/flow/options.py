"""Options of a flow, a task and a downstream: one table each, from the option's name to its type.

``run`` and ``check`` validate by the same tables, and name the option that is wrong. Checks that involve several
options are in ``task_def.py``, checks of the graph in ``Dag``.

Each table of keyword options has a ``TypedDict`` with the same keys, for editors and type checkers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any, Generic, Literal, Required, TypedDict, TypeGuard, TypeVar, cast, get_args

import msgspec

from ..core.causes import check_sender
from ..core.failures.classify import parse_rules
from ..core.option_types import (
    FLAG,
    LARGEST,
    NAME,
    SIZE,
    TEXT,
    Duration,
    OptionTable,
    OptionType,
    choice,
    duration,
    is_text,
    name_tuple,
    number,
    optional,
    parse_duration,
    parse_option,
    parse_retention,
    short_repr,
    table_of,
    whole_number,
)
from ..core.policy import RetryPolicy
from ..core.spec import (
    DaskOptions,
    DeadlineAction,
    DownstreamSpec,
    ExpectedBy,
    Isolation,
    Misfire,
    OnOpen,
    ParamSpec,
    ResultSource,
    Shell,
    TaskKind,
    TriggerRule,
)
from ..domain.task_options import convert_param, describe_type, masked_param
from ..domain.text import did_you_mean, unknown_parameter
from ..errors import FlowError, OptionError

# --- ``Param``: a parameter of a flow with its type, its default and its choices -------------------------------------


T = TypeVar("T", str, int, float, bool, date, datetime, Decimal, Path, list[Any])

#: The types that JSON does not have: how a value becomes a text, and a text the value.
_TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    date: (date.isoformat, date.fromisoformat),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    Decimal: (str, Decimal),
    Path: (str, Path),
}
_LOADERS = {kind.__name__: load for kind, (_, load) in _TEXTS.items()}
_TYPES = (str, int, float, bool, list, *_TEXTS)


@dataclass(frozen=True, slots=True)
class Param(Generic[T]):
    """A parameter of a flow: ``Flow(params={"day": Param(date), "mode": Param(str, "full", ["full", "delta"])})``.

    A value of another type, or one that is not among the choices, is refused before the run starts. A task gets the
    value in this type; a command gets a date as 2026-04-25.

    Parameters:
        type: str, int, float, bool, list (of JSON), ``datetime.date``, ``datetime.datetime``, ``Decimal`` or ``Path``.
        default: a value of this type, or None where a run may go without. Left out: a run has to name a value
            (``redrive run --param day=2026-04-25``).
        choices: the values that are allowed; none: all of the type.

    Raises:
        OptionError: (a FlowError) there is no such type, or the default or a choice is not of it.

    Example:
        >>> from datetime import date
        >>> from redrive.engine import Flow
        >>> flow = Flow("revenue", params={"day": Param(date, date(2026, 4, 25)), "mode": Param(str, "full")})
        >>> flow.params["day"].year
        2026
        >>> Param(int, "many")
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: a Param(int) wants a whole number like 3, not 'many'
    """

    type: type[T]
    default: T | EllipsisType | None = ...
    choices: Sequence[T] = ()

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            known = ", ".join(kind.__name__ for kind in _TYPES)
            raise OptionError(f"a Param begins with its type, one of {known}, not with {short_repr(self.type)}")
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise OptionError(f"the choices of a Param are a list, not {short_repr(self.choices)}")
        for value in (*self.choices, *([] if self.is_required or self.default is None else [self.default])):
            self._check(value)

    def _check(self, value: object) -> None:
        stored = _stored(value)
        is_text = isinstance(value, str) and self.type is not str  # a person may write one, a flow may not
        try:
            if is_text or convert_param(stored, None, _declared(self.spec)) != stored:
                raise ValueError(f"wants {describe_type(self.type.__name__)}, not {value!r}")
        except ValueError as error:
            raise OptionError(f"a Param({self.type.__name__}) {error}") from None

    @property
    def is_required(self) -> bool:
        """Whether a run has to name a value."""
        return self.default is ...

    @property
    def spec(self) -> ParamSpec:
        """The declared type as plain values."""
        return ParamSpec(self.type.__name__, tuple(_stored(choice) for choice in self.choices))

    def parse(self, value: object) -> Any:
        """Return a given or stored value in the type of the parameter. Raises ValueError with the end of a sentence."""
        default = None if self.is_required else _stored(self.default)
        stored = convert_param(_stored(value), default, _declared(self.spec))
        return load_param(self.type.__name__, stored)


class Params(dict[str, Any]):
    """The values of the parameters of a flow, by name."""

    def __init__(self, flow: str) -> None:
        super().__init__()
        self.flow = flow
        self.declared: dict[str, Param[Any]] = {}

    def __missing__(self, name: str) -> Any:
        """Raise FlowError for a parameter that has no value."""
        if name not in self.declared:
            raise KeyError(name)
        example = describe_type(self.declared[name].type.__name__)
        raise FlowError(
            f"flow {self.flow!r} needs a value for its parameter {name!r}: {example}, by --param {name}=..."
        )

    def check_complete(self) -> None:
        """Raise FlowError for a required parameter without a value."""
        for name in self.declared.keys() - self.keys():
            self[name]

    def stored(self) -> dict[str, Any]:
        """Return the values as JSON."""
        return {name: _stored(value) for name, value in self.items()}


def load_param(kind: str, stored: object) -> object:
    """Return the value of a parameter that is stored as JSON. ``kind``: the name of its declared type."""
    load = _LOADERS.get(kind)
    return load(stored) if load is not None and isinstance(stored, str) else stored


def declared_by_default(default: object) -> object:
    """Return the ``Param`` that a default declares by its type, if JSON does not have that type; else the default."""
    kind = _kind_of(default)
    return default if kind is None else Param(kind, default)


def _kind_of(value: object) -> Any:
    """Return the type in ``_TEXTS`` of a value; None for others. A path is of a class of its system."""
    return Path if isinstance(value, Path) else type(value) if type(value) in _TEXTS else None


def _stored(value: object) -> object:
    kind = _kind_of(value)
    return value if kind is None else _TEXTS[kind][0](value)


def _declared(spec: ParamSpec) -> Mapping[str, object]:
    return {"type": spec.type, "choices": spec.choices}


# --- The tables of options -------------------------------------------------------------------------------------------


Parsed = TypeVar("Parsed")

#: A parent of a task: the task function, or the name of the task, which may be defined later.
Parent = str | Callable[..., object]


# --- Types beside numbers and texts --------------------------------------------------------------------------------


def _parse_parents(value: object) -> list[Parent]:
    """Return a list of task functions and names; a single one becomes a list of one."""
    if isinstance(value, str) or callable(value):
        return [value]
    parents = list(cast("Iterable[Parent]", value))
    for parent in parents:
        _parse_parent(parent)
    return parents


def _parse_parent(value: object) -> Parent:
    if not (isinstance(value, str) or callable(value)):
        raise TypeError
    return value


def _parse_key(value: object) -> Callable[[Any], object]:
    if not callable(value):
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
    if isinstance(value, str) and (clock := _CLOCK.fullmatch(value.strip())):
        return ExpectedBy(clock=f"{int(clock[1]):02}:{clock[2]}")
    seconds = parse_duration(value.strip().removeprefix("+") if isinstance(value, str) else value)
    if not seconds:
        raise ValueError
    return ExpectedBy(seconds)


def _parse_dask(value: object) -> DaskOptions:
    options = _mapping(value)
    if options.keys() - {"resources", "workers", "priority"}:
        raise ValueError
    amounts = _mapping(options.get("resources", {})).items()
    resources = sorted((NAME.parse(name), number(0, above=True).parse(amount)) for name, amount in amounts)
    workers = name_tuple("", "").parse(options.get("workers", ()))
    return DaskOptions(tuple(resources), workers, whole_number(-LARGEST).parse(options.get("priority", 0)))


_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")

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
STDIN = OptionType("a text, or a path as Path('load.sql')", _parse_stdin)
AFTER = OptionType("a task, the name of one, or a list of these", _parse_parents)
MAP_OVER = OptionType("a task that returns the list, or the name of one", _parse_parent)
MAP_KEY = OptionType('a function of an element, as lambda invoice: invoice["id"]', _parse_key)
POLICY = OptionType("a RetryPolicy, as retry=RetryPolicy(max_attempts=3)", _parse_policy)
POOLS = OptionType("a mapping of names to whole numbers of at least 1, as {'database': 2}", _parse_pools)
PARAMS = OptionType("a mapping of names to defaults, as {'day': '2026-04-25'}", _parse_params)
RETENTION = OptionType("a number of runs, as 20, or a text as '30d'", parse_retention)
INTERPRETER = OptionType("the path of an interpreter, a text as '/opt/etl/bin/python'", TEXT.parse)
ABOVE_ZERO = duration(above_zero=True)
EXPECTED_BY = OptionType(
    "a time of day as '03:00', or a duration above 0 after the start of the run, as '2h'", _parse_expected_by
)
DASK = OptionType(
    "a mapping with resources, workers or priority, as {'resources': {'GPU': 1}, 'workers': ['gpu1'], 'priority': 5}",
    _parse_dask,
)

MAX_ATTEMPTS = optional(whole_number(1, "the first start counts too"))
TIMEOUT = optional(ABOVE_ZERO, "no bound")

# --- A flow and its groups -----------------------------------------------------------------------------------------


class SharedOptions(TypedDict, total=False):
    """Options of a task, and of a flow or a group for all of its tasks: that of the task itself wins, also None."""

    # How often it is tried again, and after which waits; None: RetryPolicy().
    retry: Annotated[RetryPolicy | None, optional(POLICY)]
    # What all processes of one attempt may hold together: "2GB"; None: no bound.
    memory: Annotated[int | str | None, optional(SIZE, "no bound")]
    # How many CPUs they may use, as 1 or 0.5; None: no bound.
    cpus: Annotated[float | None, optional(number(0, above=True), "no bound")]
    # The system that it calls: a name given to ``Flow.downstream``.
    downstream: Annotated[str | None, optional(NAME)]


class DefaultOptions(SharedOptions, total=False):
    """Options that ``Flow`` and ``Flow.group`` set for all of their tasks."""

    timeout: Annotated[Duration | None, TIMEOUT]
    # Of commands; those of a group and of a task are added to those of the flow.
    env: Annotated[Mapping[str, str | None], ENVIRONMENT]


class FlowOptions(DefaultOptions, total=False):
    """Options of ``Flow`` beside its name; its docstring describes them."""

    deadline: Annotated[Duration | None, optional(duration())]
    deadline_action: Annotated[DeadlineAction, choice(*get_args(DeadlineAction))]
    dead_letter_ttl: Annotated[Duration | None, optional(duration(), "a dead letter waits for ever")]
    page_after: Annotated[int, whole_number(1)]
    retention: Annotated[str | int | None, optional(RETENTION, "no run is deleted")]
    log_limit_mb: Annotated[int, whole_number(1)]
    max_parallel: Annotated[int | None, optional(whole_number(1))]
    pools: Annotated[Mapping[str, int] | None, optional(POOLS)]
    machine_pools: Annotated[Mapping[str, int] | None, optional(POOLS)]
    params: Annotated[Mapping[str, Any] | None, optional(PARAMS)]
    secrets: Annotated[Sequence[str] | None, optional(name_tuple("names of variables or parameters", "['PGPASSWORD']"))]
    python: Annotated[str | None, optional(INTERPRETER)]
    env_file: Annotated[str | None, optional(OptionType("the path of a file, a text as '.env'", TEXT.parse))]
    schedule: Annotated[str | None, optional(OptionType("a text as '0 2 * * *', '@daily' or 'every 15m'", TEXT.parse))]
    timezone: Annotated[str, TEXT]
    misfire: Annotated[Misfire, choice(*get_args(Misfire))]
    splay: Annotated[Duration, duration()]
    start_within: Annotated[Duration | None, optional(duration())]
    holidays: Annotated[str | None, optional(OptionType("the path of a file, a text as 'holidays.txt'", TEXT.parse))]


DEFAULTS, FLOW = table_of(DefaultOptions), table_of(FlowOptions)

# --- A task ---------------------------------------------------------------------------------------------------------


class WorkOptions(SharedOptions, total=False):
    """Options that ``TaskDef`` and the methods of ``Flow`` have in common."""

    # From SIGTERM to SIGKILL; 5 unless given.
    grace_seconds: Annotated[Duration, duration()]
    # "process" (the default), "worker" (reused, killed too), "thread" (is cancelled), "dask".
    isolation: Annotated[Isolation, choice(*get_args(Isolation))]
    # Which workers of the cluster: resources, workers, priority.
    dask: Annotated[Mapping[str, object] | None, optional(DASK)]
    # The pool whose slots it takes while it runs: a name in ``pools`` or ``machine_pools`` of the flow.
    pool: Annotated[str | None, optional(NAME)]
    # How many of them, at least 1; 1 unless given.
    pool_slots: Annotated[int, whole_number(1)]
    # False: it is not run again if its progress is unknown; True unless given.
    idempotent: Annotated[bool, FLAG]
    # True: the same as kind="effect".
    effect: Annotated[bool, FLAG]
    # True: when it fails, the run is PARTIAL, not FAILED.
    optional: Annotated[bool, FLAG]
    # Which parents let it start; "all_success" unless given.
    rule: Annotated[TriggerRule, choice(*get_args(TriggerRule))]
    # The person or team in charge, whom pages name.
    owner: Annotated[str | None, optional(TEXT)]
    # The parents whose results it cannot do without.
    requires: Annotated[Parent | Iterable[Parent] | None, optional(AFTER)]
    # Page unless it has succeeded by then: "03:00", or "2h" after the start of the run.
    expect_by: Annotated[Duration | None, optional(EXPECTED_BY)]
    # So many attempts lost with their executor or host within a day make a dead letter; 3 unless given.
    max_losses: Annotated[int, whole_number(1)]
    # More quarantined rows than this fail the attempt; None: 10,000.
    max_bad_rows: Annotated[int | None, optional(whole_number(0))]
    # A larger share of bad rows fails the attempt, from 0 to 1.
    max_bad_ratio: Annotated[float | None, optional(number(0, 1))]
    # True: rows in quarantine make the run PARTIAL.
    strict_rows: Annotated[bool, FLAG]


class TaskOptions(WorkOptions, total=False):
    """Options of ``Flow.task``, ``Flow.sensor`` and ``Flow.command`` beside the keywords of their own."""

    # For one attempt, which is killed then; None: no bound.
    timeout: Annotated[Duration | None, TIMEOUT]
    # Starts, the first included, at least 1; wins over the one of ``retry``.
    max_attempts: Annotated[int | None, MAX_ATTEMPTS]


class TaskDefOptions(WorkOptions, total=False):
    """Options of ``TaskDef`` beside its first arguments; its docstring describes them."""

    kind: Annotated[TaskKind, choice(*get_args(TaskKind))]
    command: Annotated[str | Sequence[str | os.PathLike[str]] | None, optional(COMMAND)]
    shell: Annotated[Shell | None, optional(choice(*get_args(Shell)))]
    cwd: Annotated[str | os.PathLike[str] | None, optional(PATH)]
    env: Annotated[Mapping[str, str | None] | None, optional(ENVIRONMENT)]
    stdin: Annotated[str | os.PathLike[str] | None, optional(STDIN)]
    result: Annotated[ResultSource, choice(*get_args(ResultSource))]
    map_over: Annotated[Parent | None, optional(MAP_OVER)]
    map_key: Annotated[Callable[[Any], object] | None, optional(MAP_KEY)]
    max_size: Annotated[int, whole_number(1)]
    collect: Annotated[TriggerRule | None, optional(choice(*get_args(TriggerRule)))]
    recheck_seconds: Annotated[float, ABOVE_ZERO]


#: What the work of a task is: it gives the timeout that such work usually needs, or the rules of an effect.
WorkKind = Literal["etl", "backfill", "effect"]

#: By the arguments of a TaskDef, of which one says its unit: ``timeout_seconds``.
TASK: OptionTable = {
    "name": NAME,
    "parents": AFTER,
    "max_attempts": MAX_ATTEMPTS,
    "timeout_seconds": TIMEOUT,
    **table_of(TaskDefOptions),
}

TASK_OPTIONS = tuple(TaskOptions.__annotations__)


# --- A downstream ---------------------------------------------------------------------------------------------------

#: One classification rule: ``class`` and at least one condition, all of which must hold. They are evaluated by
#: ``core/failures/classify.py``.
ClassificationRuleOptions = TypedDict(
    "ClassificationRuleOptions",
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
    """Options of ``Flow.downstream`` beside the name."""

    # The breaker opens at this share of failed calls, above 0 and up to 1; 0.5 unless given.
    failure_rate: float
    # ... or after so many failures without a success, at least 1; 10 unless given.
    minimum_calls: int
    # The rate is that of so long; 60 unless given.
    window_seconds: Duration
    # An open breaker sends its first probes after this; 5 unless given.
    open_seconds: Duration
    # ... and after twice as long each time they fail, up to this; 30 unless given.
    open_seconds_max: Duration
    # Most of so many probes must succeed to close it, at least 1; 3 unless given.
    probes: int
    # What becomes of tasks while it is open: "hold" (the default: they wait), "fail", "dead_letter".
    on_open: OnOpen
    # Tasks that start in the first second after it closed; 5 unless given, 0: all at once.
    release_per_second: float
    # Retries that the budget holds; 10 unless given.
    bucket_capacity: float
    # What a success adds to the budget; 0.5 unless given.
    bucket_refund: float
    # What each second adds to the budget, above 0; 5 unless given.
    bucket_per_second: float
    # True: count, and never open.
    metrics_only: bool
    # False: flows of this machine that name it do not tell one another that it is down; True unless given.
    shared: bool
    rules: Sequence[ClassificationRuleOptions]  # overrule what failures of this downstream are taken for


DOWNSTREAM = table_of(DownstreamSpec)

# --- A page ---------------------------------------------------------------------------------------------------------

SenderKind = Literal["command", "webhook", "bell", "apprise"]


class PageOptions(TypedDict, total=False):
    """The options of ``Flow.page``; ``core/causes.py`` says which sender accepts which option."""

    line: str  # "command": a line of the shell, which gets the page on its standard input
    argv: Sequence[str]  # "command": a program and its arguments instead of a line
    url: str  # "webhook": https://... or http://...; "apprise": a URL of that library
    headers: Mapping[str, str]  # "webhook": headers of the request
    timeout: Duration  # seconds that the sender may take, above 0; 10 unless given


# --- Parsing ---------------------------------------------------------------------------------------------------------


def parse_named_option(owner: str, name: str, option_type: OptionType[Parsed], value: object) -> Parsed:
    """Convert one value to the engine's form. Raises OptionError that begins with ``owner``."""
    try:
        return parse_option(name, option_type, value)
    except OptionError as error:
        raise OptionError(f"{owner}: {error}") from None


def parse_options(owner: str, table: OptionTable, given: Mapping[str, object]) -> dict[str, Any]:
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
    """Raise OptionError for a name that is not in ``known``, with the one that is meant, or else with all of them."""
    for name in options:
        if name not in known:
            ours = [one for one in _OPTIONS_OF_OTHER_TOOLS.get(name, ()) if one in known]
            meant = f"; did you mean {ours[0]!r}?" if ours else did_you_mean(name, known)
            if ours[:1] == ["max_attempts"]:
                meant += f" It counts the first start: {name}=3 is max_attempts=4."
            raise OptionError(f"{owner}: there is no option {name!r}{meant or '; there are ' + ', '.join(known)}")


#: Option of another scheduler -> the options here that do this, of which the first that an owner has is proposed.
_OPTIONS_OF_OTHER_TOOLS = {
    **dict.fromkeys(("retries", "max_retries"), ("max_attempts", "retry")),
    **dict.fromkeys(("retry_delay", "retry_delay_seconds", "retry_policy"), ("retry",)),
    **dict.fromkeys(("depends_on", "depends", "deps", "upstream", "wait_for", "parents"), ("after",)),
    **dict.fromkeys(("execution_timeout", "timeout_seconds"), ("timeout",)),
    **dict.fromkeys(("dagrun_timeout",), ("deadline",)),
    **dict.fromkeys(("cron", "cron_schedule", "schedule_interval"), ("schedule",)),
    **dict.fromkeys(("concurrency", "max_active", "max_active_tasks", "max_workers"), ("max_parallel", "pool")),
    **dict.fromkeys(("trigger_rule",), ("rule",)),
    **dict.fromkeys(("catchup",), ("misfire",)),
    **dict.fromkeys(("task_id", "dag_id"), ("name",)),
    **dict.fromkeys(("poke_interval", "interval", "recheck_seconds"), ("every",)),
}


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
        called = f"flow {short_repr(flow)}: parameter {name!r}"
        try:
            msgspec.json.encode(value)
            msgspec.msgpack.encode(value)
            json.dumps(value, allow_nan=False)  # no other type: it would arrive as a text
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise OptionError(
                f"{called} is {short_repr(value)}, which cannot be kept as JSON ({error}); use texts, finite numbers,"
                " true, false, null, lists and mappings of these, or a date, a datetime, a Decimal or a Path"
            ) from None
        if isinstance(value, str) and not _is_environment_text(value):
            raise OptionError(f"{called} holds a NUL character or half of one: {short_repr(value)}")


# --- The values of the parameters of a flow: given now, stored by its run, or declared as defaults -------------------


#: For the flow that is being imported: the parameters that its run has stored, and those given now.
_params: ContextVar[tuple[Mapping[str, Any], Mapping[str, Any]]] = ContextVar("_params", default=({}, {}))


@contextmanager
def use_params(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[None]:
    """Set the parameters of flows that are created in the ``with`` block."""
    token = _params.set((dict(stored), dict(given)))
    try:
        yield
    finally:
        _params.reset(token)


def read_params(flow: str, declared: Mapping[str, Any]) -> tuple[Params, str | None]:
    """Return the parameters of a flow: given values over stored ones over defaults, in the types that are declared.

    A stored value is dropped if the flow no longer declares the parameter, or declares it with another type: users
    repair flows between runs. The second value is the sentence about a given value that does not fit, or None: it is
    not raised, because another flow of the same import may be the one to run.
    """
    stored, given = _params.get()
    params = Params(flow)
    declared = {name: declared_by_default(value) for name, value in declared.items()}
    params.declared = {name: value for name, value in declared.items() if isinstance(value, Param)}
    defaults = {name: value.default if isinstance(value, Param) else value for name, value in declared.items()}
    params.update({name: value for name, value in defaults.items() if value is not ...})
    for name in declared.keys() & stored.keys() - given.keys():
        if stored[name] != masked_param(name):
            with suppress(ValueError):
                params[name] = _convert(declared[name], stored[name])
    refused = None
    for name, value in given.items():
        if name not in declared:
            refused = refused or unknown_parameter(f"flow {flow!r}", name, declared)
            continue
        try:
            params[name] = _convert(declared[name], value)
        except ValueError as error:
            refused = refused or f"flow {flow!r}: parameter {name!r} {error}"
    check_params(flow, params.stored())
    return params, refused


def _convert(declared: Any, value: Any) -> Any:
    return declared.parse(value) if isinstance(declared, Param) else convert_param(value, declared)
