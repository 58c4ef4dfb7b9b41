"""A DAG of dagu as the text of a flow file, and what of it has no counterpart."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...engine.domain.text import counted, shell_word
from ...engine.domain.trigger_rules import ALL_DONE
from ...engine.errors import RedriveError
from ..text.text import one_line
from .crontab import local_zone
from .flow_text import Expression, call_text, plain_name, shell_duration
from .shell_text import unquoted


def parse_dag(text: str, source: str) -> Mapping[str, Any]:
    """The first document of a YAML file, with ``documents``: how many there are. Raises RedriveError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise RedriveError("DAGs of dagu need a library: pip install 'redrive[import]'") from None
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            _size(node, {}, source)
        documents = [*yaml.safe_load_all(text)]
        dag = {**_plain_keys(documents[0] if documents else None), "documents": len(documents)}
    except RecursionError:
        raise RedriveError(f"{source} is no DAG: it is nested more than {YAML_DEPTH_MAX} levels deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a date that is none is a ValueError
        raise RedriveError(f"{source} is no YAML: {error}") from None
    if not isinstance(dag.get("steps"), list | dict):
        raise RedriveError(f"{source} is no DAG of dagu: it has no steps")
    return dag


YAML_DEPTH_MAX = 50
YAML_NODES_MAX = 100_000  # with what each alias stands for


def _size(node: Any, sizes: dict[int, int], source: str, depth: int = 0) -> int:
    """Count the values that a node of YAML stands for, with its aliases. Raises RedriveError for what may be an attack.

    ``sizes``: of the nodes that are known. A node that is part of itself is nested without an end.
    """
    if depth > YAML_DEPTH_MAX:
        raise RecursionError
    if id(node) not in sizes:
        children = node.value if isinstance(node.value, list) else ()
        parts = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
        sizes[id(node)] = 1 + sum(_size(part, sizes, source, depth + 1) for part in parts)
    if sizes[id(node)] > YAML_NODES_MAX:
        raise RedriveError(f"{source} is too large for a DAG: over {YAML_NODES_MAX:,} values, with its aliases")
    return sizes[id(node)]


def _plain_keys(value: object) -> dict[str, Any]:
    """A mapping with its keys without their two spellings: ``retryPolicy`` and ``retry_policy``."""
    return {str(key).replace("_", "").lower(): one for key, one in value.items()} if isinstance(value, dict) else {}


_COMMON_KEYS = frozenset(("name", "description", "env", "workingdir", "timeoutsec", "preconditions", "shell"))
_DAG_KEYS = _COMMON_KEYS.union(
    ("documents", "group", "tags", "labels", "type", "schedule", "params", "maxactivesteps", "steps")
)
_STEP_KEYS = _COMMON_KEYS | {"id", "command", "run", "script", "dir", "depends", "retrypolicy", "continueon"}
_WHEN = '''
def when(*checks, **options):
    """A task that skips itself, and the tasks below it, unless all lines of the shell succeed."""
    def check():
        for line in checks:
            if subprocess.run(["/bin/sh", "-c", line], **options).returncode:
                raise SkipTask(f"not met: {line}")
    return check

'''


class DaguDag:
    """A DAG of dagu as the text of a flow file. ``left_out``: what has no counterpart, in sentences."""

    def __init__(self, dag: Mapping[str, Any], source: str) -> None:
        self._dag = dag
        self._source = source
        self._folder = os.path.join(os.path.dirname(os.path.abspath(source)), str(dag.get("workingdir") or ""))
        stem = os.path.splitext(os.path.basename(source))[0]
        self.name = plain_name(str(dag.get("name") or stem)) or "dag"
        others = dag["documents"] - 1
        self.left_out = (
            [f"{counted(others, 'further document')} of the file: a DAG is a file of its own"] if others > 0 else []
        )
        given = dag["steps"]
        named = given.items() if isinstance(given, dict) else ((None, step) for step in given)
        self._steps = [{"name": name, **_step_of(step)} for name, step in named]
        self._names: dict[str, str] = {}  # of steps, by name and by id
        self._uses = {"Flow"}  # what the code imports of the engine
        for number, step in enumerate(self._steps, start=1):
            step["name"] = name = str(step.get("name") or step.get("id") or f"step{number}")
            self._names |= {name: name, str(step.get("id") or name): name}
        kind = dag.get("type")
        self._is_chain = kind == "chain" or (kind is None and not any("depends" in step for step in self._steps))
        self._may_fail = {step["name"] for step in self._steps if self._continues(step)}

    def text(self) -> str:
        """Return the text of the file."""
        self._leave_out_unknown("the DAG", self._dag, _DAG_KEYS)
        params = self._params()
        options = {
            **self._schedule(),
            "deadline": shell_duration(self._dag.get("timeoutsec")),
            "max_parallel": self._dag.get("maxactivesteps") or None,
            "params": params or None,
        }
        variables = self._variables("the DAG", self._dag)
        variables |= {name: Expression(f"str(flow.params[{name!r}])") for name in params}
        body = [call_text("flow = Flow", [self.name], options), f"variables = {variables!r}"]
        first = self._add_checks(body, "when", self._dag, {"cwd": self._folder, "env": Expression("variables")}, {})
        for number, step in enumerate(self._steps):
            self._add_step(body, step, self._parents(number) or first)
        has_checks = "SkipTask" in self._uses
        order = ["# The steps come one after another; `after` says what each waits for."] if self._is_chain else []
        return "\n".join(
            [
                f"# Imported by `redrive import dagu` from {one_line(self._source)}.",
                *(f"# {one_line(line)}" for line in str(self._dag.get("description") or "").splitlines()),
                *(f"# Not imported: {one_line(sentence)}" for sentence in self.left_out),
                *[*order, "", *["import os", "import subprocess", ""] * has_checks],
                *[f"from redrive.engine import {', '.join(sorted(self._uses))}", "", *[_WHEN] * has_checks],
                *[*body, ""],
            ]
        )

    def _add_step(self, body: list[str], step: Mapping[str, Any], parents: list[str]) -> None:
        name = step["name"]
        owner = f"step {name!r}"
        maps = {key for key in ("run", "command", "script") if isinstance(step.get(key), dict)}
        self._leave_out_unknown(owner, step, _STEP_KEYS - maps)
        step = {key: value for key, value in step.items() if key not in maps}
        found = sorted(set(_REFERENCE.findall(f"{[step.get(key) for key in _WITH_REFERENCES]}")))
        self.left_out += [f"{owner}: {one} as it stands; nothing is put in" for one in found]
        folder = os.path.join(self._folder, str(step.get("dir") or step.get("workingdir") or ""))
        own = self._variables(owner, step)
        tolerant = [one for one in parents if one in self._may_fail]
        if tolerant and len(tolerant) < len(parents):
            self.left_out.append(f"{owner} runs after a failure of any parent, not of {', '.join(tolerant)} alone")
        start = {"after": parents or None, "rule": ALL_DONE if tolerant else None}
        place = {
            "cwd": os.path.normpath(folder),
            "env": Expression(f"{{**variables, **{own!r}}}" if own else "variables"),
        }
        if checks := self._add_checks(body, f"{name} when", step, place, start):
            start = {"after": checks}
        program = dict(self._program(owner, step))
        line = program.pop("line")
        options = {
            **start,
            **place,
            **program,
            "timeout": shell_duration(step.get("timeoutsec")),
            "optional": True if name in self._may_fail else None,
            **self._retry(owner, step),
        }
        body.append(call_text("flow.command", [name, line], options))

    def _add_checks(
        self,
        body: list[str],
        name: str,
        of: Mapping[str, Any],
        place: Mapping[str, object],
        start: Mapping[str, object],
    ) -> list[str]:
        """Add a task that checks the preconditions, and return its name in a list; empty without preconditions."""
        given = _listed(of.get("preconditions"))
        checks = [_check_line(_plain_keys(one if isinstance(one, dict) else {"condition": one})) for one in given]
        if not checks:
            return []
        self._uses.add("SkipTask")
        words = [*map(repr, checks), f"cwd={place['cwd']!r}", f"env={{**os.environ, **{place['env']!r}}}"]
        task = Expression(f"when({', '.join(words)})")
        body.append(call_text("flow.task", [task], {"name": name, **start, "max_attempts": 1}))
        return [name]

    def _parents(self, number: int) -> list[str]:
        step = self._steps[number]
        if "depends" in step:
            return [self._names.get(str(one), str(one)) for one in _listed(step["depends"])]
        return [self._steps[number - 1]["name"]] if self._is_chain and number else []

    def _program(self, owner: str, step: Mapping[str, Any]) -> Mapping[str, object]:
        """The line of the shell, or the words, of a step, as arguments of ``flow.command``."""
        run, command, script = (step.get(key) for key in ("run", "command", "script"))
        places = ({**self._dag, "type": None, **step}.get(key) for key in _PLACES)
        if any(str(place or "shell").lower() not in ("none", "command", "shell", "local") for place in places):
            self.left_out.append(f"{owner} does not run on this machine: it fails until its command does so")
            return {"line": f"{_FAILS.format(self.name)}  # {one_line(str(run or command or script))}"}
        if script is not None and command is not None:
            return _words([*shlex.split(_text(command)), "/dev/stdin"], _text(script))
        if script is not None and (interpreter := _SHEBANG.match(_text(script))):
            return _words([*shlex.split(interpreter[1]), "/dev/stdin"], _text(script))
        if isinstance(command, list) and not any(" " in _text(word) for word in command):
            return _words([_text(word) for word in command])
        given = next((one for one in (run, script, command) if one is not None and one != ""), None)
        if given is None:
            self.left_out.append(f"{owner} has no command: it fails until it has one")
            return {"line": _FAILS.format(self.name)}
        lines = list(map(_text, _listed(given)))
        line = (
            lines[0] if len(lines) == 1 else "\n".join(f"(\n{one}\n)" for one in lines)
        )  # each has a shell of its own
        return self._shell_line(step, f"set -e\n{line}" if re.search(r"[\n;]", line.strip()) else line)

    def _shell_line(self, step: Mapping[str, Any], line: str) -> Mapping[str, object]:
        shell = step.get("shell") or self._dag.get("shell") or "sh"
        words = [_text(word) for word in shell] if isinstance(shell, list) else shlex.split(_text(shell))
        if len(words) > 1 or os.path.basename(words[0]) not in ("sh", "bash", "dash"):
            return _words([*words, "-c", line])
        return {"line": line, "shell": "bash" if os.path.basename(words[0]) == "bash" else None}

    def _retry(self, owner: str, step: Mapping[str, Any]) -> Mapping[str, object]:
        policy = _plain_keys(step.get("retrypolicy"))
        self._leave_out_unknown(f"{owner}: retryPolicy", policy, frozenset(("limit", "intervalsec")))
        try:
            attempts, seconds = int(policy.get("limit") or 0) + 1, float(policy.get("intervalsec") or 0)
        except (TypeError, ValueError):
            self.left_out.append(f"{owner}: retryPolicy {step['retrypolicy']}")
            attempts = 1
        if attempts == 1:
            return {"max_attempts": 1}
        self._uses.add("RetryPolicy")
        wait = f"base={seconds:g}, cap={seconds:g}, jitter='none'"
        return {"retry": Expression(f"RetryPolicy(max_attempts={attempts}, {wait})")}

    def _continues(self, step: Mapping[str, Any]) -> bool:
        """Whether the steps below run also when it has failed."""
        given = step.get("continueon")
        fields = {str(given): True} if isinstance(given, str) else _plain_keys(given)
        known = {key for key, value in fields.items() if key in ("failure", "failed") and value is True}
        if others := sorted(key for key, value in fields.items() if value and key not in known):
            self.left_out.append(f"step {step['name']!r}: continueOn {', '.join(others)}")
        return bool(known)

    def _schedule(self) -> Mapping[str, object]:
        given = self._dag.get("schedule")
        if isinstance(given, dict):
            self.left_out += [f"schedule: {other}" for other in sorted(given.keys() - {"start"})]
            given = given.get("start")
        times = [str(one) for one in _listed(given)]
        self.left_out += [f"schedule {other!r}: a flow has one" for other in times[1:]]
        if not times:
            return {}
        zone, fields = local_zone(), times[0]
        if fields.startswith("CRON_TZ="):
            zone, _, fields = fields.removeprefix("CRON_TZ=").partition(" ")
        return {"schedule": fields, "timezone": zone, "misfire": "skip"}

    def _variables(self, owner: str, of: Mapping[str, Any]) -> dict[str, object]:
        found = {str(key): _text(value) for one in _listed(of.get("env")) for key, value in _pairs(one)}
        for name in [name for name, value in found.items() if "$" in value or "`" in value]:
            self.left_out.append(f"{owner}: the variable {name} is {found[name]!r} as it stands; nothing is put in")
        return dict(found)

    def _params(self) -> dict[str, str]:
        given = self._dag.get("params")
        words = [_unquoted_value(one) for one in _PARAM.findall(given)] if isinstance(given, str) else _listed(given)
        given = {str(key): value for one in words for key, value in _pairs(_param_of(one))}
        found = {name: "" if value is None else _text(value) for name, value in given.items()}
        self.left_out += [f"params: {name} has no default" for name, value in given.items() if value is None]
        self.left_out += [f"params: {one}" for one in words if not isinstance(one, dict) and not list(_pairs(one))]
        self.left_out += [
            f"params: {name} is {value!r} as it stands; nothing is put in"
            for name, value in found.items()
            if "$" in value or "`" in value
        ]
        return found

    def _leave_out_unknown(self, owner: str, of: Mapping[str, Any], known: frozenset[str]) -> None:
        self.left_out += [f"{owner}: {key} {one_line(str(of[key]), 60)}" for key in sorted(of.keys() - known)]


def _step_of(step: object) -> dict[str, Any]:
    """The keys of a step; a text is its command, a list are steps at the same time, which have no counterpart."""
    return _plain_keys(
        {"parallel": step} if isinstance(step, list) else {"command": step} if isinstance(step, str) else step
    )


_PLACES = "type", "executor", "container", "ssh", "harness"  # where a step runs, if not in a shell of this machine
_FAILS = "echo 'what {} did here is not imported' >&2; exit 1"
_REFERENCE = re.compile(r"\$\{[a-z]+\.[\w.]+\}")  # as ${params.day}, which dagu puts in before a shell reads the text
_WITH_REFERENCES = ("run", "command", "script", "dir", "workingdir", "preconditions")
_SHEBANG = re.compile(r"#!\s*(\S.*)")
_PARAM = re.compile(r"""(?:[^\s"'`]|"[^"]*"|'[^']*'|`[^`]*`)+""")  # a word of the params; a command in it is one word


def _param_of(one: object) -> object:
    """``{name: day, type: string, default: today}`` as ``{day: today}``; anything else as it is."""
    if isinstance(one, dict) and "name" in one and len(one) > 1:
        return {one["name"]: one.get("default")}
    return one


def _unquoted_value(word: str) -> str:
    """``NAME="two words"`` without the quotes of its value."""
    name, equals, value = word.partition("=")
    return f"{name}{equals}{unquoted(value)}" if equals else unquoted(word)


def _words(words: Sequence[str], script: str | None = None) -> Mapping[str, object]:
    """A program with its words. ``script``: what it reads as the file ``/dev/stdin``."""
    return {"line": words, "stdin": script}


def _text(value: object) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(value: object) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    """The names and values of a mapping, or of one text ``NAME=value``."""
    if isinstance(value, dict):
        return value.items()
    name, equals, text = str(value).partition("=")
    return [(name, text)] if equals else []


def _check_line(entry: Mapping[str, Any]) -> str:
    """A line of the shell that succeeds if a precondition is met. ``re:`` is a pattern of grep then."""
    line = str(entry.get("condition") or entry.get("command") or "false")
    expected = entry.get("expected")
    if expected is not None:
        pattern = str(expected).removeprefix("re:")
        how = "-Eq" if str(expected).startswith("re:") else "-Fxq"
        quoted = re.sub(r'(?<!\\)"', r"\\\"", line)
        line = f'printf "%s\\n" "{quoted}" | grep {how} -e {shell_word(pattern)}'
    return f"! {{ {line}; }}" if entry.get("negate") else line
