"""Copying over ssh: the terminal puts text into the clipboard of the desk that it stands on (OSC 52)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

#: What xterm takes at most, before base64; others take as much or more.
COPIED_BYTES_MAX = 74_994
_SCREEN_CHUNK = 240  # GNU screen cuts longer strings off


def copied_part(text: str) -> str:
    """As much of the text, from its start, as can be copied."""
    return text.encode("utf-8", "replace")[:COPIED_BYTES_MAX].decode("utf-8", "ignore")


def copy_sequence(text: str, environ: Mapping[str, str]) -> str:
    """What makes the terminal copy ``copied_part(text)``, also from inside of tmux or screen.

    tmux hands the sequence on in one of two ways, as it is configured: it gets both.
    """
    data = b64encode(copied_part(text).encode("utf-8")).decode("ascii")
    plain = f"\x1b]52;c;{data}\x07"
    if environ.get("TMUX"):
        return f"{plain}\x1bPtmux;\x1b{plain}\x1b\\"
    if environ.get("STY"):
        chunks = (plain[start : start + _SCREEN_CHUNK] for start in range(0, len(plain), _SCREEN_CHUNK))
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return plain
