"""``redrive new``: write a first flow that runs."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from ...engine.errors import FlowError
from ..text.printing import echo

_TEMPLATE_NAME = "first_flow"  # the name of the flow in the template


def write_new_flow(file: str) -> None:
    """Write the template to ``file``, which must not exist, and print the next commands. Raises FlowError."""
    path = Path(file if file.endswith(".py") else f"{file}.py")
    template = resources.files("redrive.engine.examples").joinpath(f"{_TEMPLATE_NAME}.py").read_text("utf-8")
    text = template.replace(_TEMPLATE_NAME, path.stem)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise FlowError(f"{path} exists already; give another name") from None
    except OSError as error:
        raise FlowError(f"{path} cannot be written: {error.strerror}") from None
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    for line in (
        f"{path} is written; next:",
        f"  redrive check {path}",
        f"  redrive run {path}",
        "  redrive help flow",
    ):
        echo(line)
