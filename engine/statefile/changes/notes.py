"""Notes of operators on a cause: for whoever is called for it next, in this run and in later ones.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A note is an event and nothing else; nobody changes it, a later one stands above it. ``cause_history.py`` reads them.
"""

from typing import Any, Optional

from ...domain.command import Answer
from ...domain.event_payloads import NoteWritten
from .action import Work

TEXT_CHARACTERS_MAX = 1000
NAME_CHARACTERS_MAX = 200


def note(work: Work) -> Answer:
    """Write ``text`` on the cause with the loose ``fingerprint``; ``downstream``: only where tasks call that one."""
    fingerprint, downstream = work.options.get("fingerprint"), work.options.get("downstream")
    text = _one_line(work.options.get("text"))
    # The event of the note says the text; the record of the act need not say it again.
    work.options = {name: value for name, value in work.options.items() if name != "text"}
    trouble = _why_not(work, fingerprint, downstream, text)
    if trouble:
        return Answer(False, trouble)
    work.journal.emit(NoteWritten(str(fingerprint), downstream, text), work.run_id)
    return Answer(True, "noted")


def _one_line(text: Any) -> str:
    """What can be shown: no control characters, no marks that turn the direction of reading; spaces for line breaks."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _why_not(work: Work, fingerprint: Any, downstream: Any, text: str) -> Optional[str]:
    connection = work.journal.connection
    if not text:
        return "say what to remember: a note without a word is none"
    if len(text) > TEXT_CHARACTERS_MAX:
        return "a note has at most {} characters, this one has {}".format(TEXT_CHARACTERS_MAX, len(text))
    if downstream is not None and not (isinstance(downstream, str) and 0 < len(downstream) <= NAME_CHARACTERS_MAX):
        return "a downstream is named by a text"
    if connection.execute("SELECT 1 FROM run WHERE run_id = ?", (work.run_id,)).fetchone() is None:
        return "there is no such run"
    sql = "SELECT 1 FROM attempt WHERE fingerprint_loose = ? LIMIT 1"
    if not isinstance(fingerprint, str) or connection.execute(sql, (fingerprint,)).fetchone() is None:
        return "nothing in this state file failed with that fingerprint"
    return None
