"""The operator acts on a run: each is one transaction that is either applied or changes nothing.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only. The same functions serve the live
executor, a command client that holds the lock of a dead executor, and the agent on another host.

``domain/acts.py`` describes each act; ``HANDLERS`` names the function of each. The answer is stored with the act: a
command that arrives twice changes nothing the second time and gets the first answer (SPEC 4.4 to 4.6, 4.9).
"""

from typing import Callable, Dict, Optional

from ..domain.acts import BY_NAME, Answer, Command, Scope, act_refusal, option_type_refusal, storage_refusal
from ..domain.event_payloads import OperatorActed
from . import quarantine, run_acts, task_acts
from .action import ActionContext, RecordingTransaction
from .breakers import set_breaker
from .pruning import prune
from .requeue import postpone
from .sql import run_columns
from .transitions import Transaction
from .undo import answer_again, find_act, undo

#: The acts that a transaction on the state file can apply, by the names of ``acts.py``.
HANDLERS: Dict[str, Callable[[ActionContext], Answer]] = {
    "requeue": task_acts.requeue_tasks,
    "requeue-rows": task_acts.requeue_rows,
    "discard-rows": quarantine.discard_rows,
    "skip": task_acts.skip,
    "approve": task_acts.approve,
    "reject": task_acts.reject,
    "cancel": task_acts.cancel,
    "extend": task_acts.extend,
    "hurry": task_acts.hurry,
    "pause": run_acts.pause,
    "unpause": run_acts.unpause,
    "postpone": postpone,
    "abandon": run_acts.abandon_run,
    "ack-run": run_acts.acknowledge_run,
    "undo": undo,
    "ack": run_acts.acknowledge_pages,
    "snooze": run_acts.snooze_pages,
    "note": run_acts.add_note,
    "prune": prune,
    "breaker": set_breaker,
}


def apply(transaction: Transaction, command: Command, is_abandoned: bool = False) -> Answer:
    """Apply one act, or refuse it with the reason. The same ``id`` again changes nothing: see ``answer_again``.

    ``is_abandoned``: the caller holds the lock because no executor lives, so that RUNNING tasks are lost.
    """
    refused = unread_refusal(command)
    if refused is None and command.act not in HANDLERS:
        refused = f"only a living executor can {BY_NAME[command.act].verb}, and none is alive"
    if refused:
        return Answer(False, refused)
    earlier = find_act(transaction.connection, command.id)
    if earlier is not None:
        return answer_again(earlier, command)
    recording = RecordingTransaction(transaction, command)
    context = ActionContext(recording, command, is_abandoned)
    refused = _run_refusal(context)
    answer = HANDLERS[context.act](context) if refused is None else Answer(False, refused)
    acted = OperatorActed(context.act, context.options, answer.as_json())
    if context.notes:
        acted = acted._replace(notes=context.notes)
    if context.probes:
        acted = acted._replace(probes=context.probes)  # for the executor, which owns the breakers
    if recording.tasks or recording.runs:
        pages = list(recording.pages.values())
        acted = acted._replace(was=recording.tasks, was_run=recording.runs, was_rows=recording.rows, was_pages=pages)
    recording.emit(acted, context.run_id or None)
    return answer


def _run_refusal(context: ActionContext) -> Optional[str]:
    """Why the run does not allow an act on it; a deadline that has ended a run can be taken back."""
    if BY_NAME[context.act].scope is not Scope.RUN:
        return None
    state, passed_at = run_columns(context.connection, context.run_id, "state, deadline_passed_at") or (None, None)
    if state is None or (context.act == "postpone" and passed_at is not None):
        return "there is no such run" if state is None else None
    return act_refusal(context.act, state)


def unread_refusal(command: Command) -> Optional[str]:
    """Why a command is refused without reading the state file; None if it is complete."""
    act = BY_NAME.get(command.act)
    if act is None:
        return f"there is no act {command.act[:60]!r}"
    if not command.id or not command.actor:
        return "a command carries an id and who sends it"
    if act.needs_reason and not command.reason.strip():
        return "say why: the reason is kept with the act"
    return storage_refusal(command) or option_type_refusal(command.options)
