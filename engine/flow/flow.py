"""The ``Flow`` class, with which users define a DAG.

A ``Flow`` collects ``TaskDef``s (functions, commands, sensors) and turns them into a ``FlowSpec``: plain values for the
executor. The functions stay in the process that imported the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from ..core.dag import validate_graph
from ..core.option_types import is_text, short_repr
from ..core.spec import LOGICAL_TIME, DeadlineAction, DownstreamSpec, FlowSpec, ScheduleSpec
from ..errors import FlowError, OptionError
from .options import (
    DEFAULTS,
    DownstreamOptions,
    FlowOptions,
    PageOccasion,
    PageOptions,
    Sender,
    TaskOptions,
    check_params,
    check_secret_params,
    parse_downstream,
    parse_flow_options,
    parse_occasion,
    parse_page,
    parse_ping,
)
from .param_values import read_params
from .source_location import caller_location
from .task_declarations import TaskDeclarations
from .task_def import TaskDef
from .task_spec_builder import TaskSpecBuilder
from .time_zones import open_schedule, open_zone

__all__ = ["DownstreamOptions", "Flow", "PageOptions", "TaskDef", "TaskOptions"]


class Flow(TaskDeclarations):
    """A DAG of tasks: functions, lines of the shell and sensors, and what holds for all of them.

    A duration is a number of seconds, or a text: "90s", "10m", "1h30m", "2d".

    Parameters:
        name: text, not empty. The state file has this name unless another is given.
        deadline: duration of 0 or more from the start of a run (of a scheduled run: from its logical time) until it
            has to be over. Until then tasks start as always. Then what has not started is CANCELLED, what runs is ended
            by SIGTERM, its grace and SIGKILL, and the run is FAILED, with one page. Dead letters go on waiting for a
            human; tasks that an operator runs after that have no deadline. ``redrive postpone`` moves it.
        deadline_action: "end": as said. "page": the deadline pages once and changes nothing else.
        dead_letter_ttl: duration of 0 or more: a dead letter without a decision for so long, or until the
            deadline, becomes FAILED, so that tasks with the rule "all_done" run below it and the run ends. 0: at once.
            None: it waits for ever.
        retention: which ended runs of the state file to keep: a duration as "30d", or how many of each flow. Older ones
            are deleted after each run; ``redrive prune --help`` says what stays. None: all are kept.
        log_limit_mb: how much output of tasks a run keeps in the state file, compressed, in megabytes of at least 1;
            64 unless given. Above this the oldest output of ended attempts goes first.
        max_parallel: attempts at a time, at least 1. None: 4, or what the run is started with.
        pools: names and how many slots each has, at least 1: ``{"database": 2}``.
        machine_pools: the same for slots that all flows of this user on this machine share, by the name of the pool:
            ``{"warehouse": 4}``. ``redrive pools`` lists who holds them. Flows that name different sizes take the slots
            up to the size that each names.
        params: names and their defaults, which are JSON, or a ``Param`` with a type, choices or no default; ``redrive
            run --param name=value`` sets others, in the type of the ``Param`` or of the default. A task reads them from
            ``flow.params``, ``ctx.params`` or a parameter of this name.
        secrets: names of variables of the environment, or of parameters in ``params`` (default ``None``), whose values
            are secret: ``["PGPASSWORD"]``. The values are masked in logs, errors, events and pages, and the state file
            never holds them; a run without one of them is refused. Give a secret parameter by ``--param name=@FILE`` or
            ``--param name=-`` (standard input), again with each ``resume``.
        python: the interpreter in which the flow is imported and its tasks run: a path (relative to the flow file) or
            a name in PATH, written as a literal text: ``"/opt/etl/bin/python"``. It needs Python 3.11 and the same
            version of redrive; the console and the executor stay in their own interpreter. Only for flows in files.
        schedule: when ``redrive serve`` starts a run: the five fields of cron ("0 2 * * *"), or "every 15m". The
            parameter ``logical_time`` of the run is the instant that it stands for; the deadline counts from there.
        timezone: in which the schedule, and ``expect_by`` of a task, are read: a name of the IANA time zone database,
            as "Asia/Kolkata"; UTC unless given.
        misfire: which of the missed runs are started: "one" (the latest), "skip" (none that is
            late) or "all".
        splay: duration of 0 or more: runs start later by a share of it that is this flow's own.
        start_within: duration of 0 or more: page when a run has not started so long after it was due.
        retry, timeout, downstream: for all tasks that do not say otherwise, also by None. Sensors and tasks with a
            ``kind`` have a timeout of their own; what ``add`` takes stays as it is.
        env: variables for all commands; those of a group and of the command itself are added to them.

    Raises:
        FlowError: an option is not what it must be, or they contradict each other; the sentence names them.

    Example:
        >>> flow = Flow("revenue", deadline="3h", pools={"database": 2}, params={"day": "2026-04-25"})
        >>> @flow.task(timeout=30)
        ... def extract(day):
        ...     return {"rows": 42}
        >>> @flow.task(after=extract, timeout="10m", pool="database")
        ... def load(extract):
        ...     print(extract["rows"], "rows")
        >>> [(task.name, task.parents) for task in flow.spec().tasks]
        [('extract', ()), ('load', ('extract',))]
    """

    def __init__(self, name: str, **given: Unpack[FlowOptions]) -> None:
        if not is_text(name):
            raise OptionError(f"a flow needs a name, which is a text that is not empty: not {short_repr(name)}")
        options = parse_flow_options(name, given)
        own_pools, machine_pools = _pools(name, options)
        super().__init__(
            name, {**own_pools, **machine_pools}, {option: options[option] for option in DEFAULTS if option in options}
        )
        self.deadline_seconds: float | None = options["deadline"]
        self.deadline_action = _deadline_action(name, options)
        self.dead_letter_ttl: float | None = options["dead_letter_ttl"]
        self.retention: dict[str, Any] = options["retention"] or {}
        self.log_limit_mb: int = options["log_limit_mb"]
        self.max_parallel: int | None = options["max_parallel"]
        self.machine_pools = tuple(machine_pools)
        self.schedule = _schedule(name, options)
        self.timezone: str = options["timezone"]
        open_zone(self.timezone, name)  # refuse an unknown one at once
        declared = {LOGICAL_TIME: ""} if self.schedule else {}
        declared.update(options["params"] or {})
        self.python: str | None = options["python"]
        self.secrets: tuple[str, ...] = options["secrets"] or ()
        check_secret_params(name, declared, self.secrets)
        self.params, self._refused_param = read_params(name, declared, self.schedule)
        self.downstreams: list[DownstreamSpec] = []
        self.pages: list[dict[str, object]] = []
        self.success_pages: list[dict[str, object]] = []
        self.pings: list[str] = []
        self.path: str | None = None
        self.code_hash: str | None = None
        self.sources: Mapping[str, str] = {}
        self._location = caller_location()

    # --- What holds for all tasks ----------------------------------------------------------------------------------

    def downstream(self, name: str, **options: Unpack[DownstreamOptions]) -> str:
        """Declare a system that tasks call (``task(downstream=name)``), and return its name.

        While the system fails, its circuit breaker (Nygard, "Release It!") holds the tasks that would call it. Its
        retry budget is a token bucket (Brooker, "Fixing retries with token buckets and circuit breakers", 2022): when
        it is empty, retries wait, and first tries do not. A task that waits spends no attempt. While calls of other
        tasks fail as well, a failed attempt is charged to the system: it spends no attempt of its task, at most
        ``max_attempts`` times; without this limit if the breaker is not closed.

        Parameters:
            name: text, not empty.
            failure_rate, minimum_calls, window_seconds: the breaker opens after ``minimum_calls`` failures (at least 1;
                10) without a success between, or when the share of failed calls in the last ``window_seconds``
                (duration above 0; 60) is above ``failure_rate`` (above 0, at most 1; 0.5) by more than chance explains.
            open_seconds, open_seconds_max: durations of 0 or more. An open breaker sends its first probes after
                ``open_seconds`` (5), and after twice as long each time that they fail, up to ``open_seconds_max`` (30);
                if the system asks for a wait (Retry-After), after that wait instead.
            probes: up to so many probes, at least 1, ask one after another whether the system is back; most of them
                must succeed; 3.
            on_open: what becomes of tasks while it is open: "hold" (they wait), "fail" or "dead_letter"; "hold".
            release_per_second: tasks that start in the first second after it has closed; 5. While they succeed, twice
                as many start in each further second. 0: all at once.
            bucket_capacity, bucket_refund, bucket_per_second: the retry budget holds so many retries (0 or more; 10);
                a retry takes one, a success puts ``bucket_refund`` (0 or more; 0.5) back, and each second
                ``bucket_per_second`` (above 0; 5).
            metrics_only: True: count calls and failures, and never open.
            shared: True: the flows of this machine that name the system tell one another when it is down, and when it
                answers again. False: another system of the same name.
            rules: what failures of this system mean: a list of mappings with "class" ("transient", "permanent",
                "ambiguous", "validation", "auth", "timeout", "oom" or "unclassified") and at least one condition:
                "status", "error", "grpc", "sqlstate", "message", "exit_code" or "signal". The first that holds wins.

        Raises:
            FlowError: there is no such option, it is not what it must be, or the name is declared twice.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.downstream("payments-api", open_seconds="1m", rules=[{"status": 409, "class": "transient"}])
            'payments-api'
        """
        declared = parse_downstream(name, options)
        if any(other.name == name for other in self.downstreams):
            raise FlowError(f"downstream {name!r} is declared twice: say everything about it in one place")
        self.downstreams.append(declared)
        return name

    def page(self, sender: Sender, *, on: PageOccasion = "failure", **options: Unpack[PageOptions]) -> None:
        """Declare a sender of pages, the messages that call a person to a run. Several senders may be declared.

        A sender that fails is tried again with growing waits, after the end of the run for up to two minutes more. A
        page that is still unsent then is sent by the next executor of the state file. The state file holds the kind of
        a sender, the host of a webhook and a hash; a resumed run takes its senders from the flow file.

        Parameters:
            sender: "command" (needs ``line`` or ``argv``; the page is on its standard input), "webhook" or "apprise"
                (need ``url``), or "bell" (the terminal's; takes nothing).
            on: "failure": what needs a human. "success": a notice when a run ends as SUCCESS, in the same form (its
                ``kind`` is "success"), which is tried three times; not for "bell".
            line: of the shell.
            argv: a program and its arguments.
            url: https://... or http://... of a webhook, which must answer with a 2xx status: a redirect is an error; of
                Apprise, whatever that library reads.
            headers: of the webhook's request.
            timeout: duration above 0 that the sender may take; 10.

        Raises:
            FlowError: there is no such sender, or it does not take these options.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.page("bell")
            >>> flow.page("command", line="mail -s 'redrive' ops@example.com", timeout="30s")
            >>> flow.page("webhook", url="https://chat.example.com/hook/7", on="success")
        """
        declared = self.success_pages if parse_occasion(self.name, sender, on) == "success" else self.pages
        declared.append(parse_page(self.name, sender, options))

    def ping(self, url: str) -> None:
        """Request a URL when a run starts and when it ends: a dead man's switch, which calls you if no run succeeds.

        The start requests ``url`` with "/start" after its path, an end with SUCCESS ``url`` itself, and any other end,
        or a run that waits for a human, "/fail": as healthchecks.io reads it. With ``{event}`` in the URL, that is
        "start", "success" or "fail" instead. A ping that fails is tried twice more; it never delays or fails a run.
        The URL is not stored.

        Parameters:
            url: https://... or http://...; a redirect is an error. Several may be given, each by a call of its own.

        Raises:
            FlowError: it is no such URL.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.ping("https://hc-ping.com/5f1c2e0a")
            >>> flow.ping("https://uptime.example.com/api/push/k7?status={event}")
        """
        self.pings.append(parse_ping(self.name, url))

    # --- The specification -----------------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., object]]:
        """The functions of the tasks by task name; commands have none."""
        return {task.name: task.fn for task in self.tasks if task.fn is not None}

    def spec(self) -> FlowSpec:
        """Return the flow as plain values, checked as a whole.

        Raises:
            FlowError: the flow has no tasks, or a parent is unknown.
            CycleError: (a FlowError) tasks wait for each other in a ring.

        Example:
            >>> flow = Flow("ring")
            >>> first, second = flow.command("a", "true", after="b"), flow.command("b", "true", after="a")
            >>> flow.spec()
            Traceback (most recent call last):
            ...
            redrive.engine.errors.CycleError: the tasks wait for each other in a ring: a -> b -> a; remove one...
        """
        if not self.tasks:
            raise FlowError(f"flow {short_repr(self.name)} has no tasks")
        if self._refused_param is not None:
            raise FlowError(self._refused_param).at(self._location)
        try:
            self.params.check_complete()
        except FlowError as error:
            raise error.at(self._location) from None
        params = self.params.stored()
        check_params(self.name, params)  # again: user code may have changed them
        try:
            build = TaskSpecBuilder(self.pools, self._names, self._places.keys(), self._group_of).build
            specs = tuple(map(build, self.tasks))
            validate_graph([(spec.name, spec.parents) for spec in specs])
        except FlowError as error:
            raise error.at(self._location_of(error.task or "")) from None
        return FlowSpec(
            name=self.name,
            tasks=specs,
            deadline_seconds=self.deadline_seconds,
            deadline_action=self.deadline_action,
            dead_letter_ttl=self.dead_letter_ttl,
            retention_runs=self.retention.get("runs"),
            retention_seconds=self.retention.get("seconds"),
            log_limit_mb=self.log_limit_mb,
            max_parallel=self.max_parallel,
            pools=self.pools,
            machine_pools=self.machine_pools,
            downstreams=tuple(self.downstreams),
            pages=tuple(self.pages),
            success_pages=tuple(self.success_pages),
            pings=tuple(self.pings),
            params=params,
            param_types={name: param.spec for name, param in self.params.declared.items()},
            python=self.python,
            secrets=self.secrets,
            schedule=self.schedule,
            timezone=self.timezone,
            code_hash=self.code_hash,
            path=self.path,
            sources=self.sources,
        )


def _pools(flow: str, options: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the slots of the pools of the flow, and of those of the machine."""
    own, shared = options["pools"] or {}, options["machine_pools"] or {}
    for pool in own.keys() & shared.keys():
        raise OptionError(f"flow {flow!r}: pool {pool!r} is of the flow or of the machine: name it in one of the two")
    return own, shared


def _deadline_action(flow: str, options: Mapping[str, Any]) -> DeadlineAction:
    action: DeadlineAction = options["deadline_action"]
    if action != "end" and options["deadline"] is None:
        raise OptionError(f"flow {flow!r}: deadline_action says nothing without a deadline")
    return action


_WITHOUT_SCHEDULE = {"misfire": "one", "splay": 0, "start_within": None}


def _schedule(flow: str, options: Mapping[str, Any]) -> ScheduleSpec | None:
    if options["schedule"] is None:
        if any(options[option] != default for option, default in _WITHOUT_SCHEDULE.items()):
            raise OptionError(f"flow {flow!r}: {', '.join(_WITHOUT_SCHEDULE)} say nothing without a schedule")
        return None
    spec = ScheduleSpec(*(options[name] for name in ("schedule", "timezone", "misfire", "splay", "start_within")))
    open_schedule(spec, flow)  # refuse an invalid schedule at once
    return spec
