"""An operator's command and its answer, with their JSON form on the wire and in the event of the act.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .event_payloads import AnswerFields

DONE = "done"
REFUSED = "refused"
RUNNING = "running"  # the task runs: its executor has to apply the act
HELD = "held"  # the task is requeued after its canary has succeeded


class Target(NamedTuple):
    """A task with the state and the generation that the operator saw."""

    task: str
    state: str
    generation: int


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


def parse_command(value: Any) -> Command:
    """Parse the JSON form of a command. Raises ValueError with one sentence if it is not valid."""
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


def parse_answer(value: Mapping[str, Any]) -> Answer:
    """Parse the JSON form of an answer."""
    results = [TargetResult(str(task), str(word), str(sentence)) for task, word, sentence in value.get("results") or ()]
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
