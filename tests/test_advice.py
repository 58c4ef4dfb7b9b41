"""A command that a text advises names what it acts on: it is pasted in another folder, beside other flows."""

import ast
import re

from support.checkout import ROOT

#: Acts, and readings of one run. ``serve``, ``fleet`` and ``schedule`` alone speak of the whole machine.
ADVISED = re.compile(
    r"redrive (resume|requeue|skip|approve|reject|cancel|abandon|postpone|extend|pause|unpause|stop|reload|rerun|undo"
    r"|ack|note|doctor|why|tasks|events|systems \w+|schedule (?:unpause|skip-next|start|dismiss|forget|acknowledge))"
    r"\b(?! (?:[A-Z{]|gives it|--json$))"
)


def test_no_text_advises_an_act_without_its_target() -> None:
    found = []
    for path in sorted([*(ROOT / "engine").rglob("*.py"), *(ROOT / "console").rglob("*.py")]):
        source = path.read_text()
        if "redrive " not in source:
            continue
        tree = ast.parse(source)
        documentation = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                documentation |= {id(part) for part in node.values}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                text = node.value
            else:
                continue
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {one.group()}" for one in ADVISED.finditer(text)]
    assert not found
