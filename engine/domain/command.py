"""An operator's command and its answer, with their JSON form on the wire and in the event of the act.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import re
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .act_options import is_whole
from .event_columns import AnswerFields

DONE = "done"
REFUSED = "refused"
RUNNING = "running"  # the task runs: its executor has to apply the act
HELD = "held"  # the task is requeued after its canary has succeeded

ACTOR_CHARACTERS_MAX = 200
TEXT_CHARACTERS_MAX = 10000
DEPTH_MAX = 20  # of lists and objects in the options

_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and bytes that were not UTF-8


class Target(NamedTuple):
    """A task with the state and the generation that the operator saw."""

    task: str
    state: str
    generation: int


class Author(NamedTuple):
    """Who makes a change, as its events say; without an actor, the executor itself."""

    actor: Optional[str] = None
    reason: Optional[str] = None
    command_id: Optional[str] = None


BY_EXECUTOR = Author()


class Command(NamedTuple):
    """One act of an operator.

    Attributes:
        id: chosen by the sender; a command that arrives twice is applied once.
        act: the name of an act of ``acts.py``.
        run_id: None if the act concerns no run.
        actor: the sender, as user@host.
        options: JSON values; the handlers in ``operator_actions.py`` name those that they read.
    """

    id: str
    act: str
    run_id: Optional[str]
    targets: Tuple[Target, ...] = ()
    actor: str = ""
    reason: str = ""
    options: Mapping[str, Any] = {}

    @property
    def author(self) -> Author:
        """Who its events name."""
        return Author(self.actor, self.reason or None, self.id or None)

    def as_json(self) -> Dict[str, object]:
        """What ``parse_command`` reads."""
        return dict(self._asdict(), targets=[list(target) for target in self.targets], options=dict(self.options))


class TargetResult(NamedTuple):
    """The result for one target. ``outcome``: DONE, REFUSED, RUNNING or HELD; ``sentence`` may be empty."""

    task: str
    outcome: str
    sentence: str = ""


class Answer(NamedTuple):
    """The answer to a command. ``ok``: at least one change was made; ``message``: one sentence."""

    ok: bool
    message: str
    results: Tuple[TargetResult, ...] = ()

    def as_json(self) -> AnswerFields:
        """What ``parse_answer`` reads."""
        return {"ok": self.ok, "message": self.message, "results": [list(result) for result in self.results]}


def clean_actor(name: str) -> str:
    """The name of an operator as it can be sent, stored and shown: a login name need not be UTF-8, and may be long."""
    return _NO_NAME.sub("\ufffd", name[:ACTOR_CHARACTERS_MAX])


def storage_refusal(command: Command) -> Optional[str]:
    """Why a command cannot be an event; None if it can."""
    try:
        text = json.dumps(command.as_json(), ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return "a command is text that can be stored: no lone surrogates, no objects, no NaN or infinity"
    return None if _depth(command.options) <= DEPTH_MAX else "the options of a command are nested too deep"


def _depth(value: object) -> int:
    """How deep lists and objects are nested; deeper levels than DEPTH_MAX + 1 are not counted."""
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        level = [item for value in level for item in _items(value)]
        depth += 1
    return depth


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def parse_command(value: object) -> Command:
    """Parse the JSON form of a command. Raises ValueError with one sentence if it is not valid."""
    if not isinstance(value, dict) or not isinstance(value.get("act"), str):
        raise ValueError("a command is an object whose 'act' is a text")
    options = value.get("options") or {}
    if not isinstance(options, dict):
        raise ValueError("the options of a command are an object of named values")
    return Command(
        id=_text_of(value, "id"),
        act=value["act"],
        run_id=None if value.get("run_id") is None else _text_of(value, "run_id"),
        targets=tuple(_target_of(target) for target in _list_of(value.get("targets"))),
        actor=clean_actor(_text_of(value, "actor")),
        reason=_text_of(value, "reason"),
        options=options,
    )


def parse_answer(value: Mapping[str, Any]) -> Answer:
    """Parse the JSON form of an answer."""
    results = [TargetResult(str(task), str(word), str(sentence)) for task, word, sentence in value.get("results") or ()]
    return Answer(bool(value["ok"]), str(value["message"]), tuple(results))


def _text_of(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name) or ""
    if not isinstance(text, str) or len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError("the {} of a command is a text of at most {:,} characters".format(name, TEXT_CHARACTERS_MAX))
    return text


def _list_of(value: Any) -> Any:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError("the targets of a command are a list")
    return value or ()


def _target_of(value: Any) -> Target:
    is_one = isinstance(value, (list, tuple)) and len(value) == 3
    if not is_one or not (isinstance(value[0], str) and isinstance(value[1], str) and is_whole(value[2])):
        raise ValueError("a target is (task, state seen, generation seen)")
    return Target(*value)
