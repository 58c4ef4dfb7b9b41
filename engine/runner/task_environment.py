"""The variables that a task finds in its environment: one table of their names, and their values for one attempt.

A command gets the results of its parents as JSON: together in a file, and each in a variable while they are small, for
the kernel refuses to start a program whose environment is too large (E2BIG).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..core.result_codec import plain_result
from ..core.spec import LOGICAL_TIME
from .protocol import AttemptOrder

#: Every variable that redrive sets, with its meaning. ``<NAME>`` is a name in upper case, with ``_`` in place of every
#: character that is neither a letter from A to Z nor a digit.
VARIABLES = {
    "REDRIVE_RUN_ID": "the name of the run",
    "REDRIVE_TASK": "the name of the task",
    "REDRIVE_ATTEMPT": "which start of the task this is, from 1",
    "REDRIVE_IDEMPOTENCY_KEY": "the same text for all attempts of the task in the run",
    "REDRIVE_LOGICAL_TIME": "the instant of the schedule that the run stands for, in ISO 8601; empty without one",
    "REDRIVE_DATE": "the day of that instant in the time zone of the flow, as 2026-04-26; empty without one",
    "REDRIVE_PARAMS": "all parameters as one JSON object",
    "REDRIVE_PARAM_<NAME>": "one parameter: a text as it is, another value as JSON (true, null, 7, [1])",
    "REDRIVE_INPUTS": "commands: the path of a file with the results of all parents as one JSON object, by their names",
    "REDRIVE_RESULT_<NAME>": "commands: the result of one parent as JSON; not set if all results have over 64 KiB",
    "REDRIVE_RESULT": "commands: the path of the file into which the command may write its own result as JSON",
    "REDRIVE_EXECUTOR": "the token of the executor, by which it finds the processes that it started",
}

_json = json.JSONEncoder(ensure_ascii=False).encode  # shared: ``json.dumps`` with settings makes an encoder each time

RESULTS_BYTES_MAX = 64 * 1024  # of all results together in variables


def variable_name(prefix: str, name: str) -> str:
    """Return ``REDRIVE_PARAM_DAY_OF`` for the prefix ``REDRIVE_PARAM_`` and the name ``day-of``."""
    return prefix + re.sub(r"[^A-Z0-9]", "_", name.upper())


def variables_of(order: AttemptOrder) -> dict[str, str]:
    """Return the variables of a task of any kind."""
    params = {**order.params, **order.spec.params}
    logical_time = str(params.get(LOGICAL_TIME) or "")
    return {
        "REDRIVE_RUN_ID": order.run_id,
        "REDRIVE_TASK": order.task,
        "REDRIVE_ATTEMPT": str(order.attempt),
        "REDRIVE_IDEMPOTENCY_KEY": order.idempotency_key,
        "REDRIVE_LOGICAL_TIME": logical_time,
        "REDRIVE_DATE": logical_time.partition("T")[0],
        "REDRIVE_PARAMS": _json(params),
        **{variable_name("REDRIVE_PARAM_", name): _raw_or_json(value) for name, value in params.items()},
    }


def encoded_variables(order: AttemptOrder) -> dict[bytes, bytes]:
    """Return the variables as bytes. They are UTF-8 in every locale: cron often has none."""
    lenient = "surrogateescape"
    return {name.encode("utf-8", lenient): text.encode("utf-8", lenient) for name, text in variables_of(order).items()}


def _raw_or_json(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def inputs_of(order: AttemptOrder) -> dict[str, object]:
    """Return the results of the parents as plain JSON; parents without a result are left out."""
    missing = {name for name, _ in order.missing}
    inputs: Mapping[str, object] = plain_result(order.inputs)
    return {name: value for name, value in inputs.items() if name not in missing}


def result_variables(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return a variable for each result; none if they are too large together."""
    texts = {variable_name("REDRIVE_RESULT_", name): json.dumps(value) for name, value in inputs.items()}
    return texts if sum(map(len, texts.values())) <= RESULTS_BYTES_MAX else {}
