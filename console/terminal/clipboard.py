"""Copy to the clipboard of the local machine through the terminal (OSC 52); works over ssh."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from ..text.text import sanitize_lines

#: The limit of xterm, before base64; other terminals accept at least as much.
COPIED_BYTES_MAX = 74_994
_SCREEN_CHUNK = 240  # GNU screen cuts longer strings off


def truncated_to_clipboard(text: str) -> str:
    """The start of ``text`` that fits the clipboard limit, without control characters, which would act when pasted."""
    return sanitize_lines(text).encode("utf-8", "replace")[:COPIED_BYTES_MAX].decode("utf-8", "ignore")


def copy_sequence(text: str, environ: Mapping[str, str]) -> str:
    """The escape sequence that makes the terminal copy ``truncated_to_clipboard(text)``, also inside tmux or screen.

    tmux forwards one of two forms, depending on its configuration: send both.
    """
    data = b64encode(truncated_to_clipboard(text).encode("utf-8")).decode("ascii")
    plain = f"\x1b]52;c;{data}\x07"
    if environ.get("TMUX"):
        return f"{plain}\x1bPtmux;\x1b{plain}\x1b\\"
    if environ.get("STY"):
        chunks = (plain[start : start + _SCREEN_CHUNK] for start in range(0, len(plain), _SCREEN_CHUNK))
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return plain
