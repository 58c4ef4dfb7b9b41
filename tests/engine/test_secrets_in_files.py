"""No file of a run holds a declared secret, in any form in which a program prints it: canaries, and a search of all."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from redrive.engine.core.secret_mask import MaskedStream, SecretMask
from support.commands import run_redrive
from support.marks import for_each

SECRET = 'a&b c\'d/é=9 \\<"q">+~'

#: How everyday code prints a value.
FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "quote": quote,
    "quote_plus": quote_plus,
    "quote all": lambda text: quote(text, safe=""),
    "URL in a URL": lambda text: quote(f"https://bank/?token={quote(text, safe='')}", safe=""),
    "lower quote": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "html": html.escape,
    "html text": lambda text: html.escape(text, quote=False),
    "html of other tools": lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    "shell": shlex.quote,
    "repr": repr,
    "ascii": ascii,
    "repr of quotes": lambda text: repr(f"""{{"token": "{text}", 'user': 7}}"""),
    "bytes of quotes": lambda text: str(f"""{{"token": "{text}", 'user': 7}}""".encode()),
    "repr of JSON": lambda text: repr(json.dumps({"token": text, "user": "'"})),
    "bytes": lambda text: str(text.encode()),
    "json": json.dumps,
    "json in json": lambda text: json.dumps(json.dumps({"token": text})),
    "json, not ascii": lambda text: json.dumps(text, ensure_ascii=False),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of user:secret": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "base64 of u:secret:x": lambda text: base64.b64encode(f"u:{text}:x".encode()).decode(),
    "base64 of ab:secret": lambda text: base64.b64encode(f"ab:{text}".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"user:{text}".encode()).decode(),
}


def traces(secret: str) -> list[str]:
    """Parts of each form that are long enough to give the secret away, and too long to occur by chance."""
    return [form(secret)[6:-6] for form in FORMS.values()]


@for_each("form", FORMS)
@for_each("secret", [SECRET, "plain0secret1of2letters", "Pässwörter-sind-länger", "it's-of-several-words"])
def test_each_form_is_masked_also_in_a_stream_of_single_bytes(form: str, secret: str) -> None:
    mask = SecretMask({"TOKEN": secret})
    text = f"GET https://bank/?token={FORMS[form](secret)} failed"
    assert "***TOKEN***" in mask.text(text)
    assert not [trace for trace in traces(secret) if trace in mask.text(text)]
    stream = MaskedStream(mask)
    parts = [stream.feed(bytes([byte])) for byte in text.encode()]
    assert b"".join([*parts, stream.flush()]).decode() == mask.text(text)


FLOW = """
import base64, html, json, shlex, os
from urllib.parse import quote, quote_plus
from redrive.engine import Flow, PermanentError
flow = Flow("f", secrets=["TOKEN"])

def prints_and_fails(text):
    def run():
        print("output", text, flush=True)
        raise PermanentError(f"GET https://bank/?token={text} failed")
    return run

for name, text in json.loads(os.environ["CANARIES"]).items():
    flow.task(prints_and_fails(text), name=name)

@flow.task
def returns():
    return list(json.loads(os.environ["CANARIES"]).values())
"""


def test_no_file_of_a_run_holds_a_trace_of_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("CANARIES", json.dumps({name: form(SECRET) for name, form in FORMS.items()}))
    state = tmp_path / "s.db"
    run_redrive("run", tmp_path / "flow.py", "--state", state, cwd=tmp_path)
    printed = [run_redrive(word, "--state", state).stdout for word in ("inbox", "logs", "tasks", "events")]
    run_redrive("report", "--state", state, "-o", tmp_path / "night.html")
    files = [path.read_bytes().decode(errors="replace") for path in tmp_path.iterdir() if path.suffix != ".py"]
    assert len(files) >= 3 and "***TOKEN***" in printed[0] and "***TOKEN***" in printed[1]
    for text in (*files, *printed):
        assert not [trace for trace in traces(SECRET) if trace in text]
