"""Notes of operators on a cause, for the next operator who handles it, in this run or a later one.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A note is an event only and is never changed; the latest is shown first. ``cause_history.py`` reads the notes.
"""

from typing import Optional

from ...domain.command import Answer
from ...domain.event_payloads import NoteWritten
from ..queries import dag_name_of
from .action import ActionContext

TEXT_CHARACTERS_MAX = 1000
NAME_CHARACTERS_MAX = 200


def add_note(context: ActionContext) -> Answer:
    """Write the option ``text`` on the cause with the loose ``fingerprint``; for ``downstream`` only, if given."""
    fingerprint, downstream = context.options.get("fingerprint"), context.options.get("downstream")
    text = _one_line(context.options.get("text"))
    # The event of the note has the text, so the event of the act leaves it out.
    context.options = {name: value for name, value in context.options.items() if name != "text"}
    refused = _note_refusal(context, fingerprint, downstream, text)
    if refused:
        return Answer(False, refused)
    flow = dag_name_of(context.connection, context.run_id)
    context.transaction.emit(NoteWritten(str(fingerprint), downstream, text, flow), context.run_id)
    return Answer(True, "noted")


def _one_line(text: object) -> str:
    """The printable characters of a text, without control and direction marks; line breaks become spaces."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _note_refusal(context: ActionContext, fingerprint: object, downstream: object, text: str) -> Optional[str]:
    connection = context.connection
    if not text:
        return "say what to remember: the note is empty"
    if len(text) > TEXT_CHARACTERS_MAX:
        return "a note has at most {} characters, this one has {}".format(TEXT_CHARACTERS_MAX, len(text))
    if downstream is not None and not (isinstance(downstream, str) and 0 < len(downstream) <= NAME_CHARACTERS_MAX):
        return "a downstream is a name of 1 to {} characters".format(NAME_CHARACTERS_MAX)
    if connection.execute("SELECT 1 FROM run WHERE run_id = ?", (context.run_id,)).fetchone() is None:
        return "there is no such run"
    sql = "SELECT 1 FROM attempt WHERE fingerprint_loose = ? LIMIT 1"
    if not isinstance(fingerprint, str) or connection.execute(sql, (fingerprint,)).fetchone() is None:
        return "nothing in this state file failed with that fingerprint"
    return None
