"""An operator's command, the answer to it, and the JSON form of both: on the wire, and in the record of the act.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .event_payloads import AnswerFields

DONE = "done"
REFUSED = "refused"
RUNNING = "running"  # only the executor can do this: the task runs
HELD = "held"  # it follows when another task has succeeded


class Target(NamedTuple):
    """A task, with the state and the generation in which the operator saw it."""

    task: str
    state: str
    generation: int


class Command(NamedTuple):
    """One act of an operator.

    Attributes:
        id: made by the sender; a command that arrives twice is applied once.
        act: the name of an act of ``acts.py``.
        run_id: None where the act concerns no run.
        actor: who sends it, as user@host.
        options: JSON values; each handler in ``operator_actions.py`` names those that it reads.
    """

    id: str
    act: str
    run_id: Optional[str]
    targets: Tuple[Target, ...] = ()
    actor: str = ""
    reason: str = ""
    options: Mapping[str, Any] = {}

    def as_json(self) -> Dict[str, Any]:
        """What ``command_of`` reads."""
        return dict(self._asdict(), targets=[list(target) for target in self.targets], options=dict(self.options))


class Result(NamedTuple):
    """What came of one target. ``word``: DONE, REFUSED, RUNNING or HELD; ``sentence`` may be empty."""

    task: str
    word: str
    sentence: str = ""


class Answer(NamedTuple):
    """What came of a command. ``ok``: something was done; ``message``: one sentence."""

    ok: bool
    message: str
    results: Tuple[Result, ...] = ()

    def as_json(self) -> AnswerFields:
        """What ``answer_of`` reads."""
        return {"ok": self.ok, "message": self.message, "results": [list(result) for result in self.results]}


def command_of(value: Any) -> Command:
    """Read a command. Raises ValueError with one sentence for what is none."""
    if not isinstance(value, dict) or not isinstance(value.get("act"), str):
        raise ValueError("there is no act {!r}".format(value.get("act") if isinstance(value, dict) else value))
    options = value.get("options") or {}
    if not isinstance(options, dict):
        raise ValueError("the options of a command are an object of named values")
    run_id = value.get("run_id")
    return Command(
        id=str(value.get("id") or ""),
        act=value["act"],
        run_id=None if run_id is None else str(run_id),
        targets=tuple(_target_of(target) for target in _list_of(value.get("targets"))),
        actor=str(value.get("actor") or ""),
        reason=str(value.get("reason") or ""),
        options=options,
    )


def answer_of(value: Mapping[str, Any]) -> Answer:
    """Read an answer."""
    results = [Result(str(task), str(word), str(sentence)) for task, word, sentence in value.get("results") or ()]
    return Answer(bool(value["ok"]), str(value["message"]), tuple(results))


def _list_of(value: Any) -> Any:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError("the targets of a command are a list")
    return value or ()


def _target_of(value: Any) -> Target:
    is_one = isinstance(value, (list, tuple)) and len(value) == 3
    if not is_one or not (isinstance(value[0], str) and isinstance(value[1], str) and isinstance(value[2], int)):
        raise ValueError("a target is (task, state seen, generation seen)")
    return Target(*value)
